/* Messages between two transceivers, whose rings this program handles itself. */
#include "check.h"

#define MESSAGES 400

/* Threads on both ends; every message is answered in the slot of its own index. */
static void echo(const char *place_a, const char *place_b, cpu_roce_tx_mode_t there, cpu_roce_tx_mode_t back) {
  handle a = create(place_a, THREADS, there), b = create(place_b, THREADS, back);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  struct ring out = tx_ring(a), in = rx_ring(a), service_in = rx_ring(b), service_out = tx_ring(b);
  for (uint64_t n = 0; n < MESSAGES; n++) {
    unsigned slot = n % PAGES;
    publish(out, slot, n + 1);
    uint64_t value = take(service_in, slot);
    CHECK(value == n + 1);
    publish(service_out, slot, value * 3);
    CHECK(take(in, slot) == 3 * (n + 1));
  }
  cpu_roce_stats_t counts = stats(a);
  CHECK(counts.sent == MESSAGES && counts.received == MESSAGES && counts.lost == 0 && counts.overruns == 0);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

static void echo_write_send(const char *place_a, const char *place_b) { echo(place_a, place_b, WRITE, SEND); }
static void echo_send_send(const char *place_a, const char *place_b) { echo(place_a, place_b, SEND, SEND); }
static void echo_write_write(const char *place_a, const char *place_b) { echo(place_a, place_b, WRITE, WRITE); }

/* One-way pairs, and what comes back from forward. */
static void modes(const char *place_a, const char *place_b) {
  handle a = create(place_a, TX_ONLY, WRITE), b = create(place_b, RX_ONLY, SEND);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  for (uint64_t n = 0; n < 100; n++) {
    publish(tx_ring(a), n % PAGES, n + 7);
    CHECK(take(rx_ring(b), n % PAGES) == n + 7);
  }
  /* rx_only sends nothing. */
  publish(tx_ring(b), 0, 1);
  uint64_t n = 100;
  publish(tx_ring(a), n % PAGES, n);
  CHECK(take(rx_ring(b), n % PAGES) == n);
  CHECK(flag(tx_ring(b), 0) != 0 && stats(b).sent == 0);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);

  a = create(place_a, THREADS, WRITE);
  b = create(place_b, FORWARD, WRITE);
  connect_pair(a, place_a, b, place_b);
  monitors[0] = monitor(a);
  monitors[1] = monitor(b);
  for (n = 0; n < 100; n++) {
    publish(tx_ring(a), n % PAGES, n + 9);
    CHECK(take(rx_ring(a), n % PAGES) == n + 9);
    CHECK(flag(rx_ring(b), n % PAGES) == 0);
  }
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

/* A slot that was never published holds nothing up. A SEND lands in the receive that is next, wherever it came from. */
static void later_slot_first_with(const char *place_a, const char *place_b, cpu_roce_tx_mode_t tx_mode) {
  handle a = create(place_a, TX_ONLY, tx_mode), b = create(place_b, RX_ONLY, SEND);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  unsigned first = tx_mode == WRITE ? 1 : 0, second = 1 - first;
  publish(tx_ring(a), 1, 11);
  CHECK(take(rx_ring(b), first) == 11);
  CHECK(flag(rx_ring(b), second) == 0);
  publish(tx_ring(a), 0, 10);
  CHECK(take(rx_ring(b), second) == 10);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

static void later_slot_first(const char *place_a, const char *place_b) {
  later_slot_first_with(place_a, place_b, WRITE);
  later_slot_first_with(place_a, place_b, SEND);
}

/* Marker values are neither sent nor cleared. */
static void markers(const char *place_a, const char *place_b) {
  static const uint64_t values[] = {0xEEEEEEEEEEEEEEEEu, 0xDEAD000000000007u, 0xDEADFFFFFFFFFFFFu, 1};
  handle a = create(place_a, THREADS, WRITE), b = create(place_b, THREADS, WRITE);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  struct ring tx = tx_ring(a), rx = rx_ring(b);
  for (unsigned i = 0; i < 4; i++)
    set_flag(tx, 2 * i, values[i]);
  /* The byte behind the ring is no address inside it. */
  set_flag(tx, 0, (uint64_t)(uintptr_t)(tx.data + (size_t)PAGES * PAGE_SIZE));
  for (uint64_t n = 0; n < 50; n++) {
    unsigned slot = 2 * (n % 4) + 1;
    publish(tx, slot, n);
    CHECK(take(rx, slot) == n);
  }
  for (unsigned i = 1; i < 4; i++)
    CHECK(flag(tx, 2 * i) == values[i] && flag(rx, 2 * i) == 0);
  CHECK(flag(tx, 0) != 0 && flag(rx, 0) == 0);
  CHECK(stats(a).sent == 50 && stats(b).received == 50 && stats(a).completion_errors == 0);
  /* Work that was marked as begun becomes an answer. */
  set_flag(tx, 2, 0);
  publish(tx, 2, 99);
  CHECK(take(rx, 2) == 99);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

/* A consumer that sleeps for three laps finds the newest message of each slot once, and is told of the others. */
static void lapped(const char *place_a, const char *place_b) {
  handle a = create(place_a, TX_ONLY, WRITE), b = create(place_b, RX_ONLY, SEND);
  CHECK(cpu_roce_set_option(b, "overrun", "drop") == 1);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  struct ring tx = tx_ring(a), rx = rx_ring(b);
  for (uint64_t n = 0; n < 3 * PAGES; n++) {
    publish(tx, n % PAGES, n);
    WAIT_UNTIL(stats(b).received == n + 1);
  }
  WAIT_UNTIL(stats(b).overruns == 2 * PAGES);
  for (unsigned slot = 0; slot < PAGES; slot++)
    CHECK(take(rx, slot) == 2 * PAGES + slot);
  /* A message that follows shows that nothing of the past is shown again. */
  publish(tx, 0, 77);
  CHECK(take(rx, 0) == 77);
  for (unsigned slot = 0; slot < PAGES; slot++)
    CHECK(flag(rx, slot) == 0);
  cpu_roce_stats_t counts = stats(b);
  CHECK(counts.received == 3 * PAGES + 1 && counts.overruns == 2 * PAGES && counts.lost == 0);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

/* A consumer of values that a sender puts into the slots of their own remainder. */
struct consumer {
  struct ring rx;
  uint64_t last[PAGES], shown, newest;
};

/* Takes what there is: whole messages in their own slots, and none after a newer one. The newest may be there again,
 * if its bytes came while the older one's flag was still set, and half of it, if they come right now. */
static void take_all(struct consumer *consumer) {
  for (unsigned slot = 0; slot < PAGES; slot++) {
    uint64_t first, second, value = flag(consumer->rx, slot);
    if (value == 0)
      continue;
    CHECK(value == (uint64_t)(uintptr_t)slot_of(consumer->rx, slot));
    memcpy(&first, slot_of(consumer->rx, slot), sizeof first);
    memcpy(&second, slot_of(consumer->rx, slot) + FRAME_SIZE - sizeof second, sizeof second);
    CHECK(first >= consumer->last[slot] && second >= consumer->last[slot] && first % PAGES == slot);
    consumer->last[slot] = first < second ? first : second;
    if (first == second && first > consumer->newest)
      consumer->newest = first;
    set_flag(consumer->rx, slot, 0);
    consumer->shown++;
  }
}

/* Sends more, until the last of it has come: what was sent before has come then too, or never will. Gives how many were
 * sent in all. */
static uint64_t take_the_rest(struct consumer *consumer, handle a, uint64_t sent) {
  time_t end = seconds() + 60;
  uint64_t all = sent;
  while (all == sent || consumer->newest != all) {
    CHECK(seconds() < end);
    all++;
    publish(tx_ring(a), all % PAGES, all);
    for (int patience = 0; patience < 2000 && consumer->newest != all; patience++) {
      sched_yield();
      take_all(consumer);
    }
  }
  take_all(consumer);
  return all;
}

/* Until each message that was received has been shown or counted as overwritten: the last one may be between the two. */
static cpu_roce_stats_t take_until_accounted(struct consumer *consumer, handle b) {
  time_t end = seconds() + 60;
  for (;;) {
    take_all(consumer);
    cpu_roce_stats_t counts = stats(b);
    if (counts.received <= consumer->shown + counts.overruns)
      return counts;
    CHECK(seconds() < end);
    sched_yield();
  }
}

/* As by default, the receiver waits for the slot, and goes on when it is given back. */
static void lapped_by_default(const char *place_a, const char *place_b) {
  handle a = create(place_a, TX_ONLY, WRITE), b = create(place_b, RX_ONLY, SEND);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  struct consumer consumer = {rx_ring(b), {0}, 0, 0};
  uint64_t sent = 0;
  time_t end = seconds() + 60;
  /* While the receiver is not scheduled, a link without receives left drops what comes, so three laps may not do. */
  while (sent < 3 * PAGES || stats(b).overruns == 0) {
    CHECK(seconds() < end);
    sent++;
    publish(tx_ring(a), sent % PAGES, sent);
    sched_yield();
  }
  WAIT_UNTIL(stats(a).sent == sent);
  uint64_t all = take_the_rest(&consumer, a, sent);
  CHECK(take_until_accounted(&consumer, b).received <= all);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

struct sender {
  handle h;
  uint64_t messages;
  atomic_int done;
};

static void *send_body(void *argument) {
  struct sender *sender = argument;
  for (uint64_t n = 1; n <= sender->messages; n++)
    publish(tx_ring(sender->h), n % PAGES, n);
  atomic_store(&sender->done, 1);
  return NULL;
}

/* A consumer that is slower than the sender: what it is not shown is counted. */
static void lapped_while_reading(const char *place_a, const char *place_b) {
  handle a = create(place_a, TX_ONLY, WRITE), b = create(place_b, RX_ONLY, SEND);
  CHECK(cpu_roce_set_option(b, "overrun", "drop") == 1);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)}, thread;
  struct sender sender = {a, 2000, 0};
  struct consumer consumer = {rx_ring(b), {0}, 0, 0};
  CHECK(pthread_create(&thread, NULL, send_body, &sender) == 0);
  while (!atomic_load(&sender.done)) {
    uint64_t overruns = stats(b).overruns;
    WAIT_UNTIL(stats(b).overruns > overruns || atomic_load(&sender.done));
    take_all(&consumer);
  }
  join(thread);
  uint64_t all = take_the_rest(&consumer, a, sender.messages);
  /* One that is overwritten while it is taken is shown and counted. */
  cpu_roce_stats_t counts = take_until_accounted(&consumer, b);
  CHECK(counts.overruns > 0 && counts.received <= all);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

/* The same, where the owner wants to stop: the monitor returns, and the state says so. */
static void lapped_and_failed(const char *place_a, const char *place_b) {
  handle a = create(place_a, TX_ONLY, WRITE), b = create(place_b, RX_ONLY, SEND);
  CHECK(cpu_roce_set_option(b, "overrun", "fail") == 1);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitor_a = monitor(a), monitor_b = monitor(b);
  publish(tx_ring(a), 3, 1);
  WAIT_UNTIL(flag(rx_ring(b), 3) != 0);
  publish(tx_ring(a), 3, 2);
  join(monitor_b);
  CHECK(cpu_roce_get_state(b) == CPU_ROCE_STATE_FAILED);
  CHECK_TEXT(cpu_roce_last_error(b), "overwrote slot 3");
  CHECK(cpu_roce_connect(b, 1, ip_of(place_a), 1) == 0);
  cpu_roce_blocking_monitor(b);
  CHECK(take(rx_ring(b), 3) == 2);
  cpu_roce_destroy_transceiver(b);
  cpu_roce_destroy_transceiver(a);
  join(monitor_a);
}

/* With a third of the messages lost, each of the others is still in the slot that it was sent to. */
static void losses(const char *place_a, const char *place_b) {
  handle a = create(place_a, UNIFIED, WRITE), b = create(place_b, UNIFIED, SEND);
  CHECK(cpu_roce_set_option(a, "faults", "drop=0.33,seed=11") == 1);
  connect_pair(a, place_a, b, place_b);
  struct ring tx = tx_ring(a), rx = rx_ring(b);
  uint64_t received = 0, last = 0;
  for (uint64_t n = 1; n <= 300; n++) {
    uint32_t slot;
    memcpy(slot_of(tx, n % PAGES), &n, sizeof n);
    memcpy(slot_of(tx, n % PAGES) + FRAME_SIZE - sizeof n, &n, sizeof n);
    CHECK(cpu_roce_tx_publish(a, n % PAGES) == 1);
    while (cpu_roce_rx_poll(b, &slot)) {
      last = value_of(rx, slot);
      CHECK(last % PAGES == slot);
      received++;
    }
  }
  CHECK(last > 200 && received < 300);
  cpu_roce_stats_t counts = stats(b);
  CHECK(counts.received == received && counts.lost > 0 && counts.lost <= 300 - received);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
}

/* The same over the rings: an empty slot is a lost message, and no other one moves. */
static void losses_in_rings(const char *place_a, const char *place_b) {
  handle a = create(place_a, TX_ONLY, WRITE), b = create(place_b, RX_ONLY, SEND);
  CHECK(cpu_roce_set_option(a, "faults", "drop=0.33,seed=12") == 1);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  struct consumer consumer = {rx_ring(b), {0}, 0, 0};
  uint64_t sent = 0;
  while (sent < 200) {
    sent++;
    publish(tx_ring(a), sent % PAGES, sent);
    for (int patience = 0; patience < 500 && consumer.newest != sent; patience++) {
      sched_yield();
      take_all(&consumer);
    }
  }
  sent = take_the_rest(&consumer, a, sent);
  cpu_roce_stats_t counts = take_until_accounted(&consumer, b);
  CHECK(counts.received < sent);
  CHECK(counts.lost > 0);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[0]);
  join(monitors[1]);
}

/* Both ends in unified mode, in this one thread. */
static void unified(const char *place_a, const char *place_b, cpu_roce_tx_mode_t mode) {
  handle a = create(place_a, UNIFIED, mode), b = create(place_b, UNIFIED, mode);
  connect_pair(a, place_a, b, place_b);
  uint32_t slot;
  CHECK(cpu_roce_rx_poll(a, &slot) == 0);
  for (uint64_t n = 0; n < MESSAGES; n++) {
    /* SENDs land in the order of the receives; WRITEs in the slot they name, here from the last to the first. */
    uint32_t out = mode == WRITE ? PAGES - 1 - n % PAGES : n % PAGES;
    memcpy(slot_of(tx_ring(a), out), &n, sizeof n);
    memcpy(slot_of(tx_ring(a), out) + FRAME_SIZE - sizeof n, &n, sizeof n);
    CHECK(cpu_roce_tx_publish(a, out) == 1);
    WAIT_UNTIL(cpu_roce_rx_poll(b, &slot));
    CHECK(slot == out && value_of(rx_ring(b), slot) == n);
    memcpy(slot_of(tx_ring(b), slot), slot_of(rx_ring(b), slot), FRAME_SIZE);
    CHECK(cpu_roce_tx_publish(b, slot) == 1);
    WAIT_UNTIL(cpu_roce_rx_poll(a, &slot));
    CHECK(slot == out && value_of(rx_ring(a), slot) == n);
  }
  /* No flag is touched, and a slot whose TX flag is set is held back. */
  for (slot = 0; slot < PAGES; slot++)
    CHECK(flag(rx_ring(b), slot) == 0 && flag(tx_ring(b), slot) == 0);
  uint32_t next = mode == WRITE ? 5 : MESSAGES % PAGES;
  set_flag(tx_ring(b), next, 0xEEEEEEEEEEEEEEEEu);
  CHECK(cpu_roce_tx_publish(a, next) == 1);
  for (int i = 0; i < 200; i++)
    CHECK(cpu_roce_rx_poll(b, &slot) == 0);
  WAIT_UNTIL(cpu_roce_rx_poll(b, &slot) == 0 && stats(b).received == MESSAGES + 1);
  set_flag(tx_ring(b), next, 0);
  CHECK(cpu_roce_rx_poll(b, &slot) == 1 && slot == next);
  CHECK(stats(a).sent == MESSAGES + 1 && stats(b).sent == MESSAGES);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
}

static void unified_send(const char *place_a, const char *place_b) { unified(place_a, place_b, SEND); }
static void unified_write(const char *place_a, const char *place_b) { unified(place_a, place_b, WRITE); }

/* The callback of the older generation. */
struct service {
  handle self;
  unsigned calls, silent, too_long, refused;
};

static size_t answer(void *ctx, const void *rx_slot, void *tx_slot, size_t slot_size) {
  struct service *service = ctx;
  const unsigned char *request = rx_slot;
  CHECK(slot_size == PAGE_SIZE);
  service->calls++;
  switch (request[0]) {
  case 's': /* stay silent */
    service->silent++;
    return 0;
  case 'l': /* too long */
    service->too_long++;
    return slot_size + 1;
  case 'd': /* destroy from within is refused */
    cpu_roce_destroy_transceiver(service->self);
    CHECK_TEXT(cpu_roce_last_error(service->self), "callback");
    service->refused++;
    break;
  case 'c': /* close ends the loop */
    cpu_roce_close(service->self);
    return 1;
  }
  memset(tx_slot, 'A', slot_size);
  memcpy(tx_slot, request, 2);
  return request[1];
}

/* Sends a request of two bytes. */
static void ask(handle a, uint32_t slot, char what, unsigned char length) {
  unsigned char *request = slot_of(tx_ring(a), slot);
  request[0] = (unsigned char)what;
  request[1] = length;
  CHECK(cpu_roce_tx_publish(a, slot) == 1);
}

static void callback(const char *place_a, const char *place_b) {
  handle a = create(place_a, UNIFIED, WRITE), b = create(place_b, UNIFIED, WRITE);
  struct service service = {b, 0, 0, 0, 0};
  cpu_roce_set_unified_dispatch(b, answer, &service);
  connect_pair(a, place_a, b, place_b);
  pthread_t thread = monitor(b);
  uint32_t slot;
  for (unsigned n = 0; n < 100; n++) {
    unsigned char length = (unsigned char)(2 + n % (PAGE_SIZE - 1));
    memset(slot_of(rx_ring(a), n % PAGES), 0, PAGE_SIZE);
    ask(a, n % PAGES, 'e', length);
    WAIT_UNTIL(cpu_roce_rx_poll(a, &slot));
    CHECK(slot == n % PAGES);
    /* As many bytes as were returned, whatever the frame. */
    const unsigned char *got = slot_of(rx_ring(a), slot);
    CHECK(got[0] == 'e' && got[1] == length);
    for (unsigned i = 2; i < PAGE_SIZE; i++)
      CHECK(got[i] == (i < length ? 'A' : 0));
  }
  /* While it runs. */
  CHECK(cpu_roce_get_state(b) == CPU_ROCE_STATE_RUNNING);
  cpu_roce_blocking_monitor(b);
  CHECK_TEXT(cpu_roce_last_error(b), "runs already");
  CHECK(cpu_roce_rx_poll(b, &slot) == 0 && cpu_roce_tx_publish(b, 0) == 0);
  cpu_roce_set_unified_dispatch(b, NULL, NULL);
  CHECK_TEXT(cpu_roce_last_error(b), "runs already");
  ask(a, 0, 's', 9);
  ask(a, 1, 'l', 9);
  ask(a, 2, 'd', 9);
  WAIT_UNTIL(cpu_roce_rx_poll(a, &slot));
  CHECK(slot == 2 && service.silent == 1 && service.too_long == 1 && service.refused == 1);
  ask(a, 3, 'c', 9);
  join(thread);
  CHECK(service.calls == 104 && cpu_roce_get_state(b) == CPU_ROCE_STATE_CLOSED);
  cpu_roce_destroy_transceiver(b);
  cpu_roce_destroy_transceiver(a);
}

/* A program that polled may go over to the callback; closing from outside waits for the loop. */
static void callback_after_polls(const char *place_a, const char *place_b) {
  handle a = create(place_a, UNIFIED, SEND), b = create(place_b, UNIFIED, SEND);
  struct service service = {b, 0, 0, 0, 0};
  connect_pair(a, place_a, b, place_b);
  uint32_t slot;
  for (unsigned n = 0; n < 100; n++)
    CHECK(cpu_roce_rx_poll(b, &slot) == 0);
  cpu_roce_set_unified_dispatch(b, answer, &service);
  cpu_roce_set_unified_dispatch(b, NULL, NULL);
  cpu_roce_blocking_monitor(b);
  CHECK_TEXT(cpu_roce_last_error(b), "nothing to monitor");
  cpu_roce_set_unified_dispatch(b, answer, &service);
  pthread_t thread = monitor(b);
  ask(a, 0, 'e', 20);
  WAIT_UNTIL(cpu_roce_rx_poll(a, &slot));
  cpu_roce_close(b);
  unsigned calls = service.calls; /* nobody calls any more */
  CHECK(calls == 1);
  cpu_roce_destroy_transceiver(b);
  join(thread);
  cpu_roce_destroy_transceiver(a);
}

/* destroy from outside, without close, while the callback's loop runs: it ends before the handle is gone. */
static void destroyed_in_callback(const char *place_a, const char *place_b) {
  for (int round = 0; round < 10; round++) {
    handle a = create(place_a, UNIFIED, WRITE), b = create(place_b, UNIFIED, WRITE);
    struct service service = {b, 0, 0, 0, 0};
    cpu_roce_set_unified_dispatch(b, answer, &service);
    connect_pair(a, place_a, b, place_b);
    pthread_t thread = monitor(b);
    uint32_t slot;
    ask(a, 0, 'e', 20);
    WAIT_UNTIL(cpu_roce_rx_poll(a, &slot));
    for (slot = 1; slot < PAGES; slot++)
      ask(a, slot, 's', 2);
    cpu_roce_destroy_transceiver(b);
    unsigned calls = service.calls; /* nobody calls any more */
    CHECK(calls >= 1 && calls <= PAGES && cpu_roce_get_state(b) == -1);
    join(thread);
    CHECK(service.calls == calls);
    cpu_roce_set_unified_dispatch(b, answer, &service);
    cpu_roce_destroy_transceiver(a);
  }
}

int main(int argc, char **argv) {
  static const struct test_case cases[] = {
      {"echo_write_send", echo_write_send},
      {"echo_send_send", echo_send_send},
      {"echo_write_write", echo_write_write},
      {"modes", modes},
      {"later_slot_first", later_slot_first},
      {"markers", markers},
      {"lapped", lapped},
      {"lapped_by_default", lapped_by_default},
      {"lapped_while_reading", lapped_while_reading},
      {"lapped_and_failed", lapped_and_failed},
      {"losses", losses},
      {"losses_in_rings", losses_in_rings},
      {"unified_send", unified_send},
      {"unified_write", unified_write},
      {"callback", callback},
      {"callback_after_polls", callback_after_polls},
      {"destroyed_in_callback", destroyed_in_callback},
  };
  return RUN_CASES(cases, argc, argv);
}
