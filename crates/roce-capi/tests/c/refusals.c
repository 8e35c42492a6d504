/* Every call in every state, with every kind of bad argument. */
#include "check.h"

#define MAKE(device, port, frame, page, pages, peer_ip, modes, tx_mode)                                                \
  cpu_roce_create_transceiver(device, port, 0, frame, page, pages, peer_ip, (modes) & 1, (modes) & 2, (modes) & 4,      \
                              (modes) & 8, (cpu_roce_tx_mode_t)(tx_mode), 0, 0)

static void refuses(handle h, const char *part) {
  CHECK(h == NULL);
  CHECK_TEXT(cpu_roce_last_error(NULL), part);
}

static void creation(const char *ip, const char *ip_b) {
  (void)ip_b;
  const char *device = device_at(ip);
  CHECK(strcmp(cpu_roce_last_error(NULL), "") == 0);
  refuses(MAKE(NULL, 1, 64, 64, 8, NULL, 0, 0), "device_name is NULL");
  refuses(MAKE("", 1, 64, 64, 8, NULL, 0, 0), "no name");
  refuses(MAKE("\xff", 1, 64, 64, 8, NULL, 0, 0), "UTF-8");
  refuses(MAKE(device, 0, 64, 64, 8, NULL, 0, 0), "port 0");
  refuses(MAKE(device, -1, 64, 64, 8, NULL, 0, 0), "ib_port is -1");
  refuses(MAKE(device, 256, 64, 64, 8, NULL, 0, 0), "ib_port is 256");
  refuses(MAKE(device, 1, 0, 64, 8, NULL, 0, 0), "frame of 0");
  refuses(MAKE(device, 1, 65, 64, 8, NULL, 0, 0), "frame of 65");
  refuses(MAKE(device, 1, (size_t)1 << 32, (size_t)1 << 32, 8, NULL, 0, 0), "frame_size");
  refuses(MAKE(device, 1, 64, (size_t)1 << 32, 8, NULL, 0, 0), "page_size");
  refuses(MAKE(device, 1, 64, 64, 0, NULL, 0, 0), "0 pages");
  refuses(MAKE(device, 1, 64, 64, 48, NULL, 0, 0), "power of two");
  refuses(MAKE(device, 1, 64, 64, 8, NULL, 0, 2), "tx_mode is 2");
  refuses(MAKE(device, 1, 64, 64, 8, NULL, 0, -1), "tx_mode");
  refuses(MAKE(device, 1, 64, 64, 8, "", 0, 0), "peer_ip");
  refuses(MAKE(device, 1, 64, 64, 8, "10.0.0", 0, 0), "peer_ip is `10.0.0`");
  for (int modes = 0; modes < 16; modes++) {
    handle h = MAKE(device, 1, 64, 64, 8, NULL, modes, 0);
    int several = (modes & (modes - 1)) != 0;
    CHECK((h == NULL) == several);
    if (several)
      refuses(h, "more than one");
    else
      cpu_roce_destroy_transceiver(h);
  }
  /* What is fine: one page, the last port, any int as a flag, a peer for later, a QP that is only looked at in start. */
  handle h = cpu_roce_create_transceiver(device, 255, 0xFFFFFFFFu, 1, 1, 1, "10.0.0.1", -3, 0, 0, 0, WRITE, 0, 0);
  CHECK(h && cpu_roce_get_num_pages(h) == 1 && cpu_roce_get_page_size(h) == 1);
  CHECK(cpu_roce_start(h) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "24 bits");
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_CREATED);
  cpu_roce_destroy_transceiver(h);
}

static size_t no_answer(void *ctx, const void *rx, void *tx, size_t size) {
  (void)ctx, (void)rx, (void)tx, (void)size;
  return 0;
}

/* All functions on something that is no handle. */
static void all_refuse(handle h) {
  uint32_t slot = 7;
  cpu_roce_stats_t counts;
  cpu_roce_frame_metadata_t metadata;
  CHECK(cpu_roce_get_frame_metadata(h, 0, &metadata, sizeof metadata) == 0);
  CHECK(cpu_roce_start(h) == 0);
  CHECK(cpu_roce_setup(h) == 0);
  CHECK(cpu_roce_connect(h, 1, "127.0.0.1", 1) == 0);
  cpu_roce_blocking_monitor(h);
  CHECK(cpu_roce_rx_poll(h, &slot) == 0 && slot == 7);
  CHECK(cpu_roce_rx_poll(h, NULL) == 0);
  CHECK(cpu_roce_tx_publish(h, 0) == 0);
  cpu_roce_set_local_ip(h, "127.0.0.1");
  CHECK(cpu_roce_get_qp_number(h) == 0 && cpu_roce_get_rkey(h) == 0 && cpu_roce_get_buffer_addr(h) == 0);
  CHECK(!cpu_roce_get_rx_ring_data_addr(h) && !cpu_roce_get_rx_ring_flag_addr(h));
  CHECK(!cpu_roce_get_tx_ring_data_addr(h) && !cpu_roce_get_tx_ring_flag_addr(h));
  CHECK(cpu_roce_get_page_size(h) == 0 && cpu_roce_get_num_pages(h) == 0);
  cpu_roce_set_unified_dispatch(h, no_answer, NULL);
  CHECK(cpu_roce_get_stats(h, &counts, sizeof counts) == 0);
  CHECK(cpu_roce_set_option(h, "mtu", "1024") == 0);
  CHECK(cpu_roce_get_state(h) == -1);
  CHECK(cpu_roce_last_error(h) != NULL);
  cpu_roce_close(h);
  cpu_roce_destroy_transceiver(h);
}

static void bad_handles(const char *ip, const char *ip_b) {
  (void)ip_b;
  int local = 0;
  void *heap = malloc(8);
  all_refuse(NULL);
  all_refuse(&local);
  all_refuse(heap);
  free(heap);
  all_refuse((handle)(intptr_t)-1);
  handle first = create(ip, THREADS, SEND);
  all_refuse((char *)first + 1);
  CHECK(cpu_roce_setup(first) == 1);
  cpu_roce_destroy_transceiver(first);
  all_refuse(first);
  CHECK_TEXT(cpu_roce_last_error(first), "destroyed before");
  /* Its place in the table is used again, after all others; the old handle stays stale, and does not touch the new one. */
  for (int i = 0; i < 1000; i++) {
    handle next = create(ip, THREADS, SEND);
    CHECK(next != first && cpu_roce_get_state(next) == CPU_ROCE_STATE_CREATED);
    if (i % 100 == 0)
      all_refuse(first);
    cpu_roce_destroy_transceiver(first);
    CHECK(cpu_roce_get_state(next) == CPU_ROCE_STATE_CREATED);
    cpu_roce_destroy_transceiver(next);
  }
}

/* Getters before set-up and after close. */
static void nothing_is_up(handle h) {
  CHECK(cpu_roce_get_qp_number(h) == 0 && cpu_roce_get_rkey(h) == 0 && cpu_roce_get_buffer_addr(h) == 0);
  CHECK(!cpu_roce_get_rx_ring_data_addr(h) && !cpu_roce_get_rx_ring_flag_addr(h));
  CHECK(!cpu_roce_get_tx_ring_data_addr(h) && !cpu_roce_get_tx_ring_flag_addr(h));
  CHECK(cpu_roce_get_page_size(h) == PAGE_SIZE && cpu_roce_get_num_pages(h) == PAGES);
}

static void does_not_poll(handle h, const char *part) {
  uint32_t slot = 7;
  CHECK(cpu_roce_rx_poll(h, &slot) == 0 && slot == 7);
  CHECK_TEXT(cpu_roce_last_error(h), part);
  CHECK(cpu_roce_tx_publish(h, 0) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), part);
}

static void does_not_monitor(handle h, const char *part) {
  cpu_roce_blocking_monitor(h);
  CHECK_TEXT(cpu_roce_last_error(h), part);
}

static void one_life(const char *ip, enum mode mode, cpu_roce_tx_mode_t tx_mode) {
  handle h = create(ip, mode, tx_mode);
  const char *no_poll = mode == UNIFIED ? "not set up" : "not unified";
  CHECK(strcmp(cpu_roce_last_error(h), "") == 0);

  /* Created. */
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_CREATED);
  nothing_is_up(h);
  does_not_poll(h, no_poll);
  does_not_monitor(h, "not set up");
  CHECK(cpu_roce_connect(h, 1, ip, 1) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "setup first");
  CHECK(cpu_roce_start(h) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "no peer_ip");
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_CREATED);
  CHECK(stats(h).sent == 0);

  /* Set up, twice. */
  CHECK(cpu_roce_setup(h) == 1);
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_SET_UP);
  uint32_t qp = cpu_roce_get_qp_number(h), rkey = cpu_roce_get_rkey(h);
  CHECK(qp != 0 && qp < 1u << 24);
  struct ring rx = rx_ring(h), tx = tx_ring(h);
  CHECK(cpu_roce_setup(h) == 1);
  CHECK(cpu_roce_get_qp_number(h) == qp && cpu_roce_get_rkey(h) == rkey && rx_ring(h).data == rx.data);
  CHECK(cpu_roce_get_buffer_addr(h) == 0);
  CHECK(((uintptr_t)rx.data | (uintptr_t)tx.data) % 4096 == 0);
  CHECK(((uintptr_t)rx.flags | (uintptr_t)tx.flags) % 64 == 0);
  for (unsigned slot = 0; slot < PAGES; slot++)
    CHECK(flag(rx, slot) == 0 && flag(tx, slot) == 0);
  for (size_t i = 0; i < PAGES * PAGE_SIZE; i++)
    CHECK(rx.data[i] == 0 && tx.data[i] == 0);
  does_not_poll(h, mode == UNIFIED ? "not connected" : "not unified");
  does_not_monitor(h, "not connected");
  cpu_roce_set_local_ip(h, "127.0.0.1");
  CHECK_TEXT(cpu_roce_last_error(h), "too late");
  CHECK(cpu_roce_set_option(h, "mtu", "1024") == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "too late");

  /* Refused connects keep the set-up. */
  CHECK(cpu_roce_connect(h, 1, NULL, 1) == 0);
  CHECK(cpu_roce_connect(h, 1, "localhost", 1) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "`localhost`");
  CHECK(cpu_roce_connect(h, 1u << 24, ip, 1) == 0);
  CHECK(cpu_roce_connect(h, 1, "0.0.0.0", 1) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "connecting to queue pair");
  if (tx_mode == WRITE) {
    CHECK(cpu_roce_connect(h, qp, ip, 0) == 0);
    CHECK_TEXT(cpu_roce_last_error(h), "rkey");
  }
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_SET_UP && cpu_roce_get_qp_number(h) == qp);

  /* Connected, to itself. */
  CHECK(cpu_roce_connect(h, qp, ip, tx_mode == WRITE ? rkey : 0) == 1);
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_CONNECTED);
  CHECK(cpu_roce_connect(h, 1u << 24, "nonsense", 0) == 1);
  CHECK(cpu_roce_start(h) == 1);
  CHECK(cpu_roce_setup(h) == 1);
  if (mode == UNIFIED) {
    does_not_monitor(h, "nothing to monitor");
    uint32_t slot;
    CHECK(cpu_roce_rx_poll(h, NULL) == 0);
    CHECK_TEXT(cpu_roce_last_error(h), "out_slot is NULL");
    CHECK(cpu_roce_rx_poll(h, &slot) == 0);
    CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_RUNNING);
    CHECK(cpu_roce_tx_publish(h, PAGES) == 0);
    CHECK_TEXT(cpu_roce_last_error(h), "slot 8 is outside");
    CHECK(cpu_roce_tx_publish(h, PAGES - 1) == 1);
    WAIT_UNTIL(cpu_roce_rx_poll(h, &slot) == 1);
    CHECK(slot == (tx_mode == WRITE ? PAGES - 1 : 0));
  } else {
    does_not_poll(h, "not unified");
    cpu_roce_set_unified_dispatch(h, no_answer, NULL);
    CHECK_TEXT(cpu_roce_last_error(h), "not unified");
    pthread_t thread = monitor(h);
    WAIT_UNTIL(cpu_roce_get_state(h) == CPU_ROCE_STATE_RUNNING);
    cpu_roce_blocking_monitor(h);
    CHECK_TEXT(cpu_roce_last_error(h), "running");
    CHECK(cpu_roce_connect(h, 1u << 24, "nonsense", 0) == 1 && cpu_roce_start(h) == 1);
    cpu_roce_close(h);
    join(thread);
  }

  /* Closed, twice. The rings stay mapped. */
  cpu_roce_close(h);
  cpu_roce_close(h);
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_CLOSED);
  nothing_is_up(h);
  memset(rx.data, 0, PAGES * PAGE_SIZE);
  set_flag(tx, 0, 0);
  CHECK(cpu_roce_setup(h) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "closed");
  CHECK(cpu_roce_start(h) == 0);
  CHECK(cpu_roce_connect(h, qp, ip, rkey) == 0);
  does_not_poll(h, mode == UNIFIED ? "closed" : "not unified");
  does_not_monitor(h, "closed");
  CHECK(cpu_roce_set_option(h, "mtu", "1024") == 0);
  CHECK(cpu_roce_get_stats(h, &(cpu_roce_stats_t){0}, sizeof(cpu_roce_stats_t)) == 1);
  cpu_roce_destroy_transceiver(h);
}

static void states(const char *ip, const char *ip_b) {
  (void)ip_b;
  const enum mode modes[] = {THREADS, FORWARD, RX_ONLY, TX_ONLY, UNIFIED};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    one_life(ip, modes[i], SEND);
    one_life(ip, modes[i], WRITE);
  }
}

static void closed_before_anything(const char *ip, const char *ip_b) {
  (void)ip_b;
  handle h = create(ip, THREADS, SEND);
  cpu_roce_close(h);
  CHECK(cpu_roce_setup(h) == 0 && cpu_roce_start(h) == 0);
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_CLOSED);
  cpu_roce_destroy_transceiver(h);
}

static void addresses(const char *ip_a, const char *ip_b) {
  /* The local address alone chooses where a plain soft device is. */
  handle a = cpu_roce_create_transceiver("soft", 1, 0, 64, 64, 8, NULL, 0, 0, 0, 0, SEND, 0, 0);
  cpu_roce_set_local_ip(a, "not one");
  CHECK_TEXT(cpu_roce_last_error(a), "local_ip is `not one`");
  CHECK(cpu_roce_setup(a) == 0);
  CHECK_TEXT(cpu_roce_last_error(a), "local_ip is `not one`");
  char text[32];
  strcpy(text, ip_a);
  cpu_roce_set_local_ip(a, text);
  memset(text, 'x', sizeof text - 1); /* the text was copied */
  CHECK(cpu_roce_setup(a) == 1);

  /* start, with a device's name and a peer that live no longer than the call. */
  char device[64], peer[32];
  snprintf(device, sizeof device, "soft:%s", ip_b);
  strcpy(peer, ip_a);
  handle b = cpu_roce_create_transceiver(device, 1, cpu_roce_get_qp_number(a), 64, 64, 8, peer, 0, 0, 0, 0, WRITE, 0,
                                         cpu_roce_get_rkey(a));
  memset(device, 'x', sizeof device - 1);
  memset(peer, 'x', sizeof peer - 1);
  cpu_roce_set_local_ip(b, "garbage");
  cpu_roce_set_local_ip(b, NULL);
  CHECK(cpu_roce_start(b) == 1 && cpu_roce_start(b) == 1);
  CHECK(cpu_roce_get_state(b) == CPU_ROCE_STATE_CONNECTED);
  cpu_roce_destroy_transceiver(a);
  cpu_roce_destroy_transceiver(b);

  /* WRITEs without a key: start keeps the set-up, and connect goes on from there. */
  b = cpu_roce_create_transceiver(device_at(ip_b), 1, 1, 64, 64, 8, ip_a, 0, 0, 0, 0, WRITE, 0, 0);
  CHECK(cpu_roce_start(b) == 0 && cpu_roce_get_state(b) == CPU_ROCE_STATE_SET_UP);
  CHECK(cpu_roce_connect(b, 1, ip_a, 5) == 1);
  cpu_roce_destroy_transceiver(b);
}

static void failed_setup(const char *ip, const char *ip_b) {
  (void)ip, (void)ip_b;
  /* Each failed set-up leaves nothing behind, and says why. */
  handle h = cpu_roce_create_transceiver("mlx5_77", 1, 0, 64, 64, 8, NULL, 0, 0, 0, 0, SEND, 0, 0);
  CHECK(cpu_roce_setup(h) == 0 && cpu_roce_setup(h) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "mlx5_77");
  CHECK(cpu_roce_get_state(h) == CPU_ROCE_STATE_CREATED);
  nothing_is_up(create("127.0.0.1", THREADS, SEND));
  cpu_roce_destroy_transceiver(h);
  h = cpu_roce_create_transceiver("soft:192.0.2.1", 1, 0, 64, 64, 8, NULL, 0, 0, 0, 0, SEND, 0, 0);
  CHECK(cpu_roce_setup(h) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "192.0.2.1");
  cpu_roce_destroy_transceiver(h);
}

static void extensions(const char *ip, const char *ip_b) {
  (void)ip_b;
  handle h = create(ip, THREADS, SEND);
  CHECK(cpu_roce_set_option(h, "mtu", "1024") == 1);
  CHECK(cpu_roce_set_option(h, "overrun", "drop") == 1);
  CHECK(cpu_roce_set_option(h, "mtu", "1500") == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "256, 512, 1024, 2048 or 4096");
  CHECK(cpu_roce_set_option(h, "colour", "red") == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "immediate, overrun");
  CHECK(cpu_roce_set_option(h, NULL, "1") == 0 && cpu_roce_set_option(h, "mtu", NULL) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "value is NULL");
  /* 8 pages fit an immediate of 8 bits, 512 do not. */
  CHECK(cpu_roce_set_option(h, "immediate", "hsb-2510") == 1);
  handle large = cpu_roce_create_transceiver(device_at(ip), 1, 0, 64, 64, 512, NULL, 0, 0, 0, 0, SEND, 0, 0);
  CHECK(cpu_roce_set_option(large, "immediate", "hsb-2510") == 0);
  CHECK_TEXT(cpu_roce_last_error(large), "512");
  CHECK(cpu_roce_set_option(large, "rx_cpu", "99999") == 1); /* known to be wrong when the thread starts */
  cpu_roce_destroy_transceiver(large);

  /* Another version's counters: shorter, and longer. */
  struct {
    cpu_roce_stats_t known;
    uint64_t later[2];
  } longer;
  memset(&longer, 0xAA, sizeof longer);
  CHECK(cpu_roce_get_stats(h, &longer.known, sizeof longer) == 1);
  CHECK(longer.known.received == 0 && longer.known.tx_stalls == 0 && longer.later[0] == 0 && longer.later[1] == 0);
  memset(&longer, 0xAA, sizeof longer);
  CHECK(cpu_roce_get_stats(h, &longer.known, 16) == 1);
  CHECK(longer.known.received == 0 && longer.known.sent == 0 && longer.known.lost == 0xAAAAAAAAAAAAAAAAu);
  CHECK(cpu_roce_get_stats(h, &longer.known, 7) == 0 && cpu_roce_get_stats(h, NULL, 56) == 0);
  cpu_roce_destroy_transceiver(h);

  /* Frames of 130 bytes have their metadata at byte 256. */
  h = MAKE(device_at(ip), 1, 130, 384, 8, NULL, 0, 0);
  cpu_roce_frame_metadata_t metadata;
  CHECK(cpu_roce_get_frame_metadata(h, 0, &metadata, sizeof metadata) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "not set up");
  CHECK(cpu_roce_set_option(h, "metadata", "on") == 1 && cpu_roce_set_option(h, "frame_packets", "0") == 0);
  CHECK(cpu_roce_setup(h) == 1);
  unsigned char *block = (unsigned char *)cpu_roce_get_rx_ring_data_addr(h) + 7 * 384 + 256;
  for (unsigned i = 0; i < 48; i++)
    block[i] = (unsigned char)i;
  CHECK(cpu_roce_get_frame_metadata(h, 7, &metadata, sizeof metadata) == 1);
  CHECK(metadata.flags == 0x00010203 && metadata.psn == 0x050607 && metadata.crc == 0x08090a0b);
  CHECK(metadata.first_data_seconds == 0x0c0d0e0f10111213 && metadata.first_data_nanoseconds == 0x14151617);
  CHECK(metadata.bytes_written == 0x18191a1b1c1d1e1f && metadata.frame_number == 0x2223);
  CHECK(metadata.created_seconds == 0x2425262728292a2b && metadata.created_nanoseconds == 0x2c2d2e2f);
  CHECK(cpu_roce_get_frame_metadata(h, 8, &metadata, sizeof metadata) == 0);
  CHECK_TEXT(cpu_roce_last_error(h), "slot is 8");
  CHECK(cpu_roce_get_frame_metadata(h, 7, NULL, sizeof metadata) == 0);
  cpu_roce_destroy_transceiver(h);
}

static void many_handles(const char *ip, const char *ip_b) {
  (void)ip_b;
  handle all[1024];
  size_t count = 0;
  while (count < 1024 && (all[count] = MAKE(device_at(ip), 1, 64, 64, 8, NULL, 0, 0)))
    count++;
  CHECK(count >= 128 && count < 1024);
  CHECK_TEXT(cpu_roce_last_error(NULL), "too many");
  for (size_t i = 0; i < count; i++)
    cpu_roce_destroy_transceiver(all[i]);
  cpu_roce_destroy_transceiver(create(ip, THREADS, SEND));
}

int main(int argc, char **argv) {
  static const struct test_case cases[] = {
      {"creation", creation},         {"bad_handles", bad_handles},   {"states", states},
      {"addresses", addresses},       {"failed_setup", failed_setup}, {"closed_before_anything", closed_before_anything},
      {"extensions", extensions},     {"many_handles", many_handles},
  };
  return RUN_CASES(cases, argc, argv);
}
