/* What the test programs share: checks that end the program, waits with a ceiling, and connected pairs. */
#ifndef CHECK_H
#define CHECK_H

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cudaq/realtime/cpu_transport/roce_wrapper_ext.h>

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                                          \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

#define CHECK_TEXT(text, part)                                                                                         \
  do {                                                                                                                 \
    const char *check_text = (text);                                                                                   \
    if (!strstr(check_text, part)) {                                                                                   \
      fprintf(stderr, "%s:%d: no `%s` in `%s`\n", __FILE__, __LINE__, part, check_text);                               \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static inline time_t seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

/* The ceiling is for a machine that is very busy, or for valgrind. */
#define WAIT_UNTIL(condition)                                                                                          \
  do {                                                                                                                 \
    time_t wait_end = seconds() + 60;                                                                                  \
    while (!(condition)) {                                                                                             \
      CHECK(seconds() < wait_end);                                                                                     \
      sched_yield();                                                                                                   \
    }                                                                                                                  \
  } while (0)

enum mode { THREADS, FORWARD, RX_ONLY, TX_ONLY, UNIFIED };
#define SEND CPU_ROCE_TX_MODE_RDMA_SEND
#define WRITE CPU_ROCE_TX_MODE_RDMA_WRITE_WITH_IMM

#define PAGES 8u
#define PAGE_SIZE 128u
#define FRAME_SIZE 64u

typedef cpu_roce_transceiver_t handle;

/* A place is an address, for a soft device there, or DEVICE@ADDRESS. */
static inline const char *ip_of(const char *place) {
  const char *at = strchr(place, '@');
  return at ? at + 1 : place;
}

static inline const char *device_at(const char *place) {
  static _Thread_local char name[64];
  const char *ip = ip_of(place);
  if (ip == place)
    snprintf(name, sizeof name, "soft:%s", ip);
  else
    snprintf(name, sizeof name, "%.*s", (int)(ip - place - 1), place);
  return name;
}

static inline handle create(const char *place, enum mode mode, cpu_roce_tx_mode_t tx_mode) {
  handle h = cpu_roce_create_transceiver(device_at(place), 1, 0, FRAME_SIZE, PAGE_SIZE, PAGES, NULL, mode == FORWARD,
                                         mode == RX_ONLY, mode == TX_ONLY, mode == UNIFIED, tx_mode, 0, 0);
  CHECK(h);
  cpu_roce_set_local_ip(h, ip_of(place));
  return h;
}

/* Both ends, set up and connected with each other. */
static inline void connect_pair(handle a, const char *place_a, handle b, const char *place_b) {
  CHECK(cpu_roce_setup(a) == 1 && cpu_roce_setup(b) == 1);
  CHECK(cpu_roce_connect(a, cpu_roce_get_qp_number(b), ip_of(place_b), cpu_roce_get_rkey(b)) == 1);
  CHECK(cpu_roce_connect(b, cpu_roce_get_qp_number(a), ip_of(place_a), cpu_roce_get_rkey(a)) == 1);
}

static inline void *monitor_body(void *h) {
  cpu_roce_blocking_monitor(h);
  return NULL;
}

static inline pthread_t monitor(handle h) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, monitor_body, h) == 0);
  return thread;
}

static inline void join(pthread_t thread) { CHECK(pthread_join(thread, NULL) == 0); }

static inline cpu_roce_stats_t stats(handle h) {
  cpu_roce_stats_t stats;
  CHECK(cpu_roce_get_stats(h, &stats, sizeof stats) == 1);
  return stats;
}

/* One side of a ring, as C code handles it. */
struct ring {
  unsigned char *data;
  uint64_t *flags;
};

static inline struct ring rx_ring(handle h) {
  struct ring ring = {cpu_roce_get_rx_ring_data_addr(h), cpu_roce_get_rx_ring_flag_addr(h)};
  CHECK(ring.data && ring.flags);
  return ring;
}

static inline struct ring tx_ring(handle h) {
  struct ring ring = {cpu_roce_get_tx_ring_data_addr(h), cpu_roce_get_tx_ring_flag_addr(h)};
  CHECK(ring.data && ring.flags);
  return ring;
}

static inline unsigned char *slot_of(struct ring ring, unsigned slot) { return ring.data + (size_t)slot * PAGE_SIZE; }

static inline uint64_t flag(struct ring ring, unsigned slot) {
  return __atomic_load_n(&ring.flags[slot], __ATOMIC_ACQUIRE);
}

static inline void set_flag(struct ring ring, unsigned slot, uint64_t value) {
  __atomic_store_n(&ring.flags[slot], value, __ATOMIC_RELEASE);
}

/* Waits for the slot, fills it with the value and publishes it. */
static inline void publish(struct ring tx, unsigned slot, uint64_t value) {
  WAIT_UNTIL(flag(tx, slot) == 0);
  memcpy(slot_of(tx, slot), &value, sizeof value);
  memcpy(slot_of(tx, slot) + FRAME_SIZE - sizeof value, &value, sizeof value);
  set_flag(tx, slot, (uint64_t)(uintptr_t)slot_of(tx, slot));
}

/* The value of a slot, which must be the same at both of its ends. */
static inline uint64_t value_of(struct ring ring, unsigned slot) {
  uint64_t first, last;
  memcpy(&first, slot_of(ring, slot), sizeof first);
  memcpy(&last, slot_of(ring, slot) + FRAME_SIZE - sizeof last, sizeof last);
  CHECK(first == last);
  return first;
}

/* Waits for a message in the slot and gives the slot back. */
static inline uint64_t take(struct ring rx, unsigned slot) {
  WAIT_UNTIL(flag(rx, slot) != 0);
  CHECK(flag(rx, slot) == (uint64_t)(uintptr_t)slot_of(rx, slot));
  uint64_t value = value_of(rx, slot);
  set_flag(rx, slot, 0);
  return value;
}

/* A program of named cases: PROGRAM CASE PLACE PLACE. */
struct test_case {
  const char *name;
  void (*run)(const char *ip_a, const char *ip_b);
};

static inline int run_case(const struct test_case *cases, size_t count, int argc, char **argv) {
  for (size_t i = 0; argc == 4 && i < count; i++) {
    if (strcmp(cases[i].name, argv[1]) == 0) {
      cases[i].run(argv[2], argv[3]);
      return 0;
    }
  }
  fprintf(stderr, "no such case\n");
  return 2;
}

#define RUN_CASES(cases, argc, argv) run_case(cases, sizeof(cases) / sizeof *(cases), argc, argv)

#endif
