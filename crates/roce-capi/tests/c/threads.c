/* Calls from several threads at once. */
#include "check.h"

static void close_ends_the_monitor(const char *ip_a, const char *ip_b) {
  for (int round = 0; round < 20; round++) {
    handle a = create(ip_a, THREADS, WRITE), b = create(ip_b, THREADS, SEND);
    connect_pair(a, ip_a, b, ip_b);
    pthread_t thread = monitor(a);
    if (round % 2)
      WAIT_UNTIL(cpu_roce_get_state(a) == CPU_ROCE_STATE_RUNNING);
    cpu_roce_close(a);
    join(thread);
    cpu_roce_destroy_transceiver(a);
    cpu_roce_destroy_transceiver(b);
  }
}

/* One monitors, the others are sent away at once; all have returned when destroy has. */
static void many_monitors(const char *ip_a, const char *ip_b) {
  (void)ip_b;
  for (int round = 0; round < 10; round++) {
    handle a = create(ip_a, round % 2 ? FORWARD : THREADS, SEND);
    pthread_t threads[4];
    CHECK(cpu_roce_setup(a) == 1);
    join(monitor(a));
    CHECK(cpu_roce_connect(a, cpu_roce_get_qp_number(a), ip_of(ip_a), 0) == 1);
    for (int i = 0; i < 4; i++)
      threads[i] = monitor(a);
    WAIT_UNTIL(cpu_roce_get_state(a) == CPU_ROCE_STATE_RUNNING);
    cpu_roce_destroy_transceiver(a);
    for (int i = 0; i < 4; i++)
      join(threads[i]);
    cpu_roce_blocking_monitor(a);
  }
}

/* Without close before, and while the monitor runs. */
static void destroy_alone(const char *ip_a, const char *ip_b) {
  for (int round = 0; round < 20; round++) {
    handle a = create(ip_a, THREADS, WRITE), b = create(ip_b, round % 2 ? THREADS : UNIFIED, SEND);
    connect_pair(a, ip_a, b, ip_b);
    pthread_t thread = monitor(a);
    uint32_t slot;
    if (round % 2 == 0)
      cpu_roce_rx_poll(b, &slot);
    cpu_roce_destroy_transceiver(a);
    join(thread);
    cpu_roce_destroy_transceiver(b);
    CHECK(cpu_roce_get_state(a) == -1);
  }
}

struct poller {
  handle h;
  atomic_uint polls, got;
  atomic_int stop;
};

static void *poll_body(void *argument) {
  struct poller *poller = argument;
  while (!atomic_load(&poller->stop)) {
    uint32_t slot;
    if (cpu_roce_rx_poll(poller->h, &slot))
      atomic_fetch_add(&poller->got, 1);
    cpu_roce_tx_publish(poller->h, 0);
    atomic_fetch_add(&poller->polls, 1);
  }
  return NULL;
}

/* A thread polls from before the set-up until after the handle is gone; the others change its state under it. */
static void poll_through_a_life(const char *ip_a, const char *ip_b) {
  for (int round = 0; round < 10; round++) {
    handle a = create(ip_a, UNIFIED, WRITE), b = create(ip_b, UNIFIED, WRITE);
    struct poller poller = {b, 0, 0, 0};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, poll_body, &poller) == 0);
    WAIT_UNTIL(atomic_load(&poller.polls) > 20);
    CHECK(atomic_load(&poller.got) == 0);
    connect_pair(a, ip_a, b, ip_b);
    for (uint32_t n = 0; n < 50; n++) {
      CHECK(cpu_roce_tx_publish(a, n % PAGES) == 1);
      WAIT_UNTIL(atomic_load(&poller.got) > n);
    }
    if (round % 2)
      cpu_roce_close(b);
    else
      cpu_roce_destroy_transceiver(b);
    unsigned polls = atomic_load(&poller.polls);
    WAIT_UNTIL(atomic_load(&poller.polls) > polls + 20);
    atomic_store(&poller.stop, 1);
    join(thread);
    if (round % 2)
      cpu_roce_destroy_transceiver(b);
    cpu_roce_destroy_transceiver(a);
  }
}

/* One thread polls and another publishes: not what the contract asks for, and still whole. */
static void poll_here_publish_there(const char *ip_a, const char *ip_b) {
  handle a = create(ip_a, UNIFIED, WRITE), b = create(ip_b, UNIFIED, WRITE);
  connect_pair(a, ip_a, b, ip_b);
  struct poller poller = {b, 0, 0, 0};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, poll_body, &poller) == 0);
  for (uint32_t n = 0; n < 200; n++) {
    CHECK(cpu_roce_tx_publish(a, n % PAGES) == 1);
    CHECK(cpu_roce_tx_publish(b, n % PAGES) == 1);
    WAIT_UNTIL(atomic_load(&poller.got) > n);
  }
  CHECK(stats(b).received == 200 && stats(b).completion_errors == 0);
  atomic_store(&poller.stop, 1);
  join(thread);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
}

static atomic_uint destroyed;

struct everything {
  handle h;
  const char *ip;
  atomic_int go;
};

static void *call_everything(void *argument) {
  struct everything *all = argument;
  handle h = all->h;
  uint32_t slot;
  cpu_roce_stats_t counts;
  WAIT_UNTIL(atomic_load(&all->go));
  for (int i = 0; i < 50; i++) {
    cpu_roce_set_option(h, "mtu", "1024");
    cpu_roce_setup(h);
    cpu_roce_connect(h, cpu_roce_get_qp_number(h), all->ip, cpu_roce_get_rkey(h));
    cpu_roce_rx_poll(h, &slot);
    cpu_roce_tx_publish(h, 0);
    cpu_roce_get_stats(h, &counts, sizeof counts);
    cpu_roce_get_rx_ring_data_addr(h);
    cpu_roce_last_error(h);
    if (cpu_roce_get_state(h) == -1)
      break;
  }
  return NULL;
}

static void *destroy_body(void *argument) {
  struct everything *all = argument;
  WAIT_UNTIL(atomic_load(&all->go));
  cpu_roce_close(all->h);
  cpu_roce_destroy_transceiver(all->h);
  if (cpu_roce_get_state(all->h) == -1)
    atomic_fetch_add(&destroyed, 1);
  return NULL;
}

/* All calls at once while two threads destroy. */
static void everything_at_once(const char *ip, const char *ip_b) {
  (void)ip_b;
  for (int round = 0; round < 10; round++) {
    struct everything all = {create(ip, UNIFIED, WRITE), ip, 0};
    pthread_t threads[6];
    for (int i = 0; i < 6; i++)
      CHECK(pthread_create(&threads[i], NULL, i < 4 ? call_everything : destroy_body, &all) == 0);
    atomic_store(&all.go, 1);
    for (int i = 0; i < 6; i++)
      join(threads[i]);
    cpu_roce_destroy_transceiver(all.h);
  }
  CHECK(atomic_load(&destroyed) >= 10);
}

int main(int argc, char **argv) {
  static const struct test_case cases[] = {
      {"close_ends_the_monitor", close_ends_the_monitor},
      {"many_monitors", many_monitors},
      {"destroy_alone", destroy_alone},
      {"poll_through_a_life", poll_through_a_life},
      {"poll_here_publish_there", poll_here_publish_there},
      {"everything_at_once", everything_at_once},
  };
  return RUN_CASES(cases, argc, argv);
}
