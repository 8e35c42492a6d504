/* One set-up and close after the other, in every mode and from every state: LIVES COUNT PLACE PLACE. */
#include "check.h"

static size_t echo(void *ctx, const void *rx_slot, void *tx_slot, size_t slot_size) {
  (void)ctx;
  memcpy(tx_slot, rx_slot, slot_size);
  return FRAME_SIZE;
}

/* Until the answer is there, which a unified peer sends with its one thread or within its callback. */
static void call_unified(handle a, uint64_t value) {
  uint32_t slot;
  memset(slot_of(tx_ring(a), 0), 0, PAGE_SIZE);
  memcpy(slot_of(tx_ring(a), 0), &value, sizeof value);
  CHECK(cpu_roce_tx_publish(a, 0) == 1);
  WAIT_UNTIL(cpu_roce_rx_poll(a, &slot));
  CHECK(slot == 0 && memcmp(slot_of(rx_ring(a), 0), &value, sizeof value) == 0);
}

static void over_rings(const char *place_a, const char *place_b) {
  handle a = create(place_a, THREADS, WRITE), b = create(place_b, FORWARD, WRITE);
  connect_pair(a, place_a, b, place_b);
  pthread_t monitors[] = {monitor(a), monitor(b)};
  for (uint64_t n = 0; n < PAGES; n++)
    publish(tx_ring(a), n % PAGES, n + 1);
  for (uint64_t n = 0; n < PAGES; n++)
    CHECK(take(rx_ring(a), n % PAGES) == n + 1);
  cpu_roce_close(a);
  join(monitors[0]);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  join(monitors[1]);
}

static void by_callback(const char *place_a, const char *place_b) {
  handle a = create(place_a, UNIFIED, SEND), b = create(place_b, UNIFIED, SEND);
  cpu_roce_set_unified_dispatch(b, echo, NULL);
  connect_pair(a, place_a, b, place_b);
  pthread_t thread = monitor(b);
  call_unified(a, 5);
  cpu_roce_destroy_transceiver(b);
  join(thread);
  cpu_roce_destroy_transceiver(a);
}

static void half_way(const char *place_a, const char *place_b) {
  handle a = create(place_a, RX_ONLY, WRITE), b = create(place_b, TX_ONLY, WRITE);
  CHECK(cpu_roce_set_option(a, "mtu", "1024") == 1 && cpu_roce_set_option(a, "mtu", "1500") == 0);
  CHECK(cpu_roce_setup(a) == 1);
  CHECK(cpu_roce_connect(a, 1, "nowhere", 1) == 0);
  CHECK(strlen(cpu_roce_last_error(a)) > 0);
  CHECK(cpu_roce_setup(b) == 1 && cpu_roce_connect(b, 1, ip_of(place_a), 1) == 1);
  cpu_roce_close(a);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);
  cpu_roce_destroy_transceiver(create(place_a, UNIFIED, SEND));
  CHECK(cpu_roce_create_transceiver(NULL, 1, 0, 64, 64, 8, NULL, 0, 0, 0, 0, SEND, 0, 0) == NULL);
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  for (unsigned long n = strtoul(argv[1], NULL, 10); n > 0; n--) {
    over_rings(argv[2], argv[3]);
    by_callback(argv[2], argv[3]);
    half_way(argv[2], argv[3]);
  }
  return 0;
}
