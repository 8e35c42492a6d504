/* One thread of the library for many transceivers. */
#include "check.h"

#define PAIRS 4

struct pair {
  handle a, b;
};

static struct pair pair_under(cpu_roce_poller_t poller, const char *place_a, const char *place_b) {
  struct pair p = {create(place_a, THREADS, WRITE), create(place_b, THREADS, SEND)};
  connect_pair(p.a, place_a, p.b, place_b);
  CHECK(cpu_roce_add_to_poller(p.a, poller) == 1 && cpu_roce_add_to_poller(p.b, poller) == 1);
  CHECK(cpu_roce_get_state(p.a) == CPU_ROCE_STATE_RUNNING && cpu_roce_get_state(p.b) == CPU_ROCE_STATE_RUNNING);
  return p;
}

static void echo(struct pair p, uint64_t n) {
  publish(tx_ring(p.a), n % PAGES, n + 1);
  uint64_t value = take(rx_ring(p.b), n % PAGES);
  CHECK(value == n + 1);
  publish(tx_ring(p.b), n % PAGES, value * 3);
  CHECK(take(rx_ring(p.a), n % PAGES) == 3 * (n + 1));
}

static void destroy(struct pair p) {
  cpu_roce_destroy_transceiver(p.a);
  cpu_roce_destroy_transceiver(p.b);
}

static void one_thread_for_many(const char *place_a, const char *place_b) {
  cpu_roce_poller_t poller = cpu_roce_create_poller(-1, 0);
  CHECK(poller);
  struct pair pairs[PAIRS];
  for (int i = 0; i < PAIRS; i++)
    pairs[i] = pair_under(poller, place_a, place_b);
  uint64_t n = 0;
  for (; n < 50; n++)
    for (int i = 0; i < PAIRS; i++)
      echo(pairs[i], n);

  /* A monitor waits for the end of its own; the others go on. */
  pthread_t thread = monitor(pairs[1].b);
  cpu_roce_close(pairs[1].b);
  join(thread);
  CHECK(cpu_roce_get_state(pairs[1].b) == CPU_ROCE_STATE_CLOSED);
  destroy(pairs[1]);
  for (; n < 100; n++)
    for (int i = 0; i < PAIRS; i += 2)
      echo(pairs[i], n);
  cpu_roce_stats_t counts = stats(pairs[2].a);
  CHECK(counts.sent == 100 && counts.received == 100 && counts.lost == 0 && counts.overruns == 0);
  pairs[1] = pair_under(poller, place_a, place_b);
  echo(pairs[1], 0);

  /* Without the poller nothing moves, and those that were left are told. */
  thread = monitor(pairs[0].a);
  cpu_roce_destroy_poller(poller);
  join(thread);
  for (int i = 0; i < PAIRS; i++)
    CHECK(cpu_roce_get_state(pairs[i].a) == CPU_ROCE_STATE_FAILED);
  CHECK_TEXT(cpu_roce_last_error(pairs[0].a), "the shared poller is gone");
  cpu_roce_blocking_monitor(pairs[3].b);
  CHECK_TEXT(cpu_roce_last_error(pairs[3].b), "the shared poller is gone");
  for (int i = 0; i < PAIRS; i++)
    destroy(pairs[i]);
}

static void refuses(cpu_roce_poller_t poller, const char *part) {
  CHECK(poller == NULL);
  CHECK_TEXT(cpu_roce_last_error(NULL), part);
}

static void refuses_to_add(handle h, cpu_roce_poller_t poller, const char *part) {
  CHECK(cpu_roce_add_to_poller(h, poller) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), part);
}

static void what_a_poller_refuses(const char *place_a, const char *place_b) {
  refuses(cpu_roce_create_poller(-2, 0), "cpu is -2");
  refuses(cpu_roce_create_poller(99999, 0), "99999");
  refuses(cpu_roce_create_poller(-1, -1), "rt_priority is -1");
  refuses(cpu_roce_create_poller(-1, 100), "rt_priority is 100");
  cpu_roce_poller_t poller = cpu_roce_create_poller(-1, 0);

  handle a = create(place_a, THREADS, WRITE), b = create(place_b, UNIFIED, WRITE);
  refuses_to_add(a, poller, "not set up");
  CHECK(cpu_roce_setup(a) == 1);
  refuses_to_add(a, poller, "not connected");
  connect_pair(a, place_a, b, place_b);
  refuses_to_add(b, poller, "unified mode");
  refuses_to_add(a, NULL, "NULL");
  refuses_to_add(a, a, "no handle");
  refuses_to_add(a, &poller, "no handle");
  CHECK(cpu_roce_add_to_poller(poller, poller) == 0 && cpu_roce_add_to_poller(NULL, poller) == 0);
  CHECK(cpu_roce_get_state(poller) == -1);
  cpu_roce_destroy_transceiver(poller);

  CHECK(cpu_roce_add_to_poller(a, poller) == 1);
  refuses_to_add(a, poller, "running");
  cpu_roce_close(a);
  refuses_to_add(a, poller, "closed");
  cpu_roce_destroy_poller(NULL);
  cpu_roce_destroy_poller(a);
  cpu_roce_destroy_poller(poller);
  cpu_roce_destroy_poller(poller);
  refuses_to_add(b, poller, "destroyed before");
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
}

static void *close_body(void *h) {
  cpu_roce_close(h);
  return NULL;
}

static void *destroy_poller_body(void *poller) {
  cpu_roce_destroy_poller(poller);
  return NULL;
}

/* Whichever comes first, all come back, and no handle is left. */
static void pollers_and_closes_at_once(const char *place_a, const char *place_b) {
  for (int round = 0; round < 20; round++) {
    cpu_roce_poller_t poller = cpu_roce_create_poller(-1, 0);
    struct pair p = pair_under(poller, place_a, place_b);
    pthread_t threads[4] = {monitor(p.a), monitor(p.b)};
    CHECK(pthread_create(&threads[2], NULL, close_body, p.a) == 0);
    CHECK(pthread_create(&threads[3], NULL, destroy_poller_body, poller) == 0);
    for (int i = 0; i < 4; i++)
      join(threads[i]);
    CHECK(cpu_roce_get_state(p.a) == CPU_ROCE_STATE_CLOSED && cpu_roce_get_state(p.b) == CPU_ROCE_STATE_FAILED);
    destroy(p);
  }
}

int main(int argc, char **argv) {
  static const struct test_case cases[] = {
      {"one_thread_for_many", one_thread_for_many},
      {"what_a_poller_refuses", what_a_poller_refuses},
      {"pollers_and_closes_at_once", pollers_and_closes_at_once},
  };
  return RUN_CASES(cases, argc, argv);
}
