/*
 * A program that loads the provider as the frameworks do, and serves requests through it: each answer is the request with
 * every byte one higher.
 *
 *     host LIBRARY ring|unified COUNT ARGUMENTS...
 */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                                          \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

enum { OK, INVALID_ARG, INTERNAL, CUDA, UNSUPPORTED };
enum { READY, EMPTY };
enum { RING_BUFFER, UNIFIED };

struct rings {
  volatile uint64_t *rx_flags, *tx_flags;
  uint8_t *rx_data, *tx_data;
  size_t rx_stride, tx_stride;
  volatile uint64_t *rx_flags_host, *tx_flags_host;
  uint8_t *rx_data_host, *tx_data_host;
};

struct dataplane {
  void *ctx;
  struct rings rings;
  int (*rx_poll)(void *ctx, uint32_t *slot);
  int (*tx_publish)(void *ctx, uint32_t slot);
};

struct table {
  const void *entries;
  uint32_t count;
};

struct interface {
  int version;
  int (*create)(void **handle, int argc, char **argv);
  int (*destroy)(void *handle);
  int (*get_transport_context)(void *handle, int type, void *out);
  int (*connect)(void *handle);
  int (*launch)(void *handle);
  int (*disconnect)(void *handle);
  int (*get_cpu_dataplane)(void *handle, struct dataplane *out);
  int (*get_endpoint_info)(void *handle, char *buffer, size_t length);
  int (*get_ring_geometry)(void *handle, uint32_t *slots, uint32_t *slot_size);
  int (*set_function_table)(void *handle, const struct table *table);
};

_Static_assert(sizeof(struct rings) == 80 && sizeof(struct dataplane) == 104, "the known layouts");

static void answer(uint8_t *tx, const uint8_t *rx, size_t length) {
  for (size_t i = 0; i < length; i++)
    tx[i] = (uint8_t)(rx[i] + 1);
}

static void serve_rings(const struct rings *rings, uint32_t slots, unsigned long count) {
  for (unsigned long n = 0; n < count; n++) {
    uint32_t slot = (uint32_t)(n % slots);
    uint8_t *rx = rings->rx_data + slot * rings->rx_stride, *tx = rings->tx_data + slot * rings->tx_stride;
    while (__atomic_load_n(&rings->rx_flags[slot], __ATOMIC_ACQUIRE) == 0)
      sched_yield();
    CHECK(rings->rx_flags[slot] == (uint64_t)(uintptr_t)rx);
    while (__atomic_load_n(&rings->tx_flags[slot], __ATOMIC_ACQUIRE) != 0)
      sched_yield();
    answer(tx, rx, rings->tx_stride);
    __atomic_store_n(&rings->rx_flags[slot], 0, __ATOMIC_RELEASE);
    __atomic_store_n(&rings->tx_flags[slot], (uint64_t)(uintptr_t)tx, __ATOMIC_RELEASE);
  }
}

static void serve_unified(const struct dataplane *plane, unsigned long count) {
  for (unsigned long n = 0; n < count;) {
    uint32_t slot;
    if (plane->rx_poll(plane->ctx, &slot) == EMPTY) {
      sched_yield();
      continue;
    }
    const struct rings *rings = &plane->rings;
    answer(rings->tx_data + slot * rings->tx_stride, rings->rx_data + slot * rings->rx_stride, rings->tx_stride);
    CHECK(plane->tx_publish(plane->ctx, slot) == OK);
    n++;
  }
}

/* Every function on something that is no handle. */
static void refused(const struct interface *bridge, void *handle) {
  struct dataplane plane;
  uint32_t slots, slot_size;
  char line[200];
  CHECK(bridge->get_transport_context(handle, RING_BUFFER, &plane) == INVALID_ARG);
  CHECK(bridge->connect(handle) == INVALID_ARG && bridge->launch(handle) == INVALID_ARG);
  CHECK(bridge->disconnect(handle) == INVALID_ARG && bridge->destroy(handle) == INVALID_ARG);
  CHECK(bridge->get_cpu_dataplane(handle, &plane) == INVALID_ARG);
  CHECK(bridge->get_endpoint_info(handle, line, sizeof line) == INVALID_ARG);
  CHECK(bridge->get_ring_geometry(handle, &slots, &slot_size) == INVALID_ARG);
}

struct waiting {
  const struct interface *bridge;
  void *handle;
  int status;
};

static void *connect_body(void *argument) {
  struct waiting *waiting = argument;
  waiting->status = waiting->bridge->connect(waiting->handle);
  return NULL;
}

static int is_fpga(int argc, char **argv) {
  for (int i = 0; i < argc; i++)
    if (strcmp(argv[i], "--qp_config=hsb_fpga") == 0)
      return 1;
  return 0;
}

/* Nobody calls: what waits for a caller returns when another thread disconnects, or destroys. */
static void given_up(const struct interface *bridge, int argc, char **argv, int (*give_up)(void *)) {
  struct waiting waiting = {bridge, NULL, OK};
  CHECK(bridge->create(&waiting.handle, argc, argv) == OK);
  CHECK(bridge->launch(waiting.handle) == INTERNAL);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, connect_body, &waiting) == 0);
  CHECK(give_up(waiting.handle) == OK);
  CHECK(pthread_join(thread, NULL) == 0);
  /* The thread may have been late. */
  CHECK(waiting.status == INTERNAL || waiting.status == INVALID_ARG);
  CHECK(give_up == bridge->destroy || bridge->destroy(waiting.handle) == OK);
  refused(bridge, waiting.handle);
}

static void bad_creates(const struct interface *bridge) {
  void *handle = &handle;
  char *wrong[] = {"host", "--num-slots=12"}, *strange[] = {"host", "--device=soft:192.0.2.1"}, *none[] = {NULL};
  CHECK(bridge->create(NULL, 2, wrong) == INVALID_ARG);
  CHECK(bridge->create(&handle, 2, wrong) == INVALID_ARG && handle == NULL);
  CHECK(bridge->create(&handle, 1, NULL) == INVALID_ARG && bridge->create(&handle, 1, none) == INVALID_ARG);
  CHECK(bridge->create(&handle, 2, strange) == INTERNAL && handle == NULL);
}

int main(int argc, char **argv) {
  CHECK(argc > 4);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  void *symbol = dlsym(library, "cudaq_realtime_get_bridge_interface");
  const struct interface *(*get_interface)(void);
  memcpy(&get_interface, &symbol, sizeof symbol);
  CHECK(symbol);
  const struct interface *bridge = get_interface();
  CHECK(bridge == get_interface() && bridge->version == 3 && bridge->set_function_table == NULL);
  int is_unified = strcmp(argv[2], "unified") == 0;
  unsigned long count = strtoul(argv[3], NULL, 10);
  bad_creates(bridge);
  refused(bridge, NULL);
  refused(bridge, &count);
  for (int round = 0; round < 3 && !is_fpga(argc, argv); round++) {
    given_up(bridge, argc - 3, argv + 3, bridge->disconnect);
    given_up(bridge, argc - 3, argv + 3, bridge->destroy);
  }

  void *handle = NULL;
  CHECK(bridge->create(&handle, argc - 3, argv + 3) == OK && handle);
  uint32_t slots, slot_size;
  CHECK(bridge->get_ring_geometry(handle, NULL, &slot_size) == INVALID_ARG);
  CHECK(bridge->get_ring_geometry(handle, &slots, &slot_size) == OK);
  char line[200];
  CHECK(bridge->get_endpoint_info(handle, NULL, 0) == INVALID_ARG);
  CHECK(bridge->get_endpoint_info(handle, line, 10) == INVALID_ARG);
  CHECK(bridge->get_endpoint_info(handle, line, sizeof line) == OK);

  struct rings rings;
  struct dataplane plane;
  void *launch = &launch;
  CHECK(bridge->get_transport_context(handle, 7, &rings) == INVALID_ARG);
  if (is_unified) {
    CHECK(bridge->get_transport_context(handle, RING_BUFFER, &rings) == UNSUPPORTED);
    CHECK(bridge->get_transport_context(handle, UNIFIED, &launch) == OK && launch == NULL);
    CHECK(bridge->get_cpu_dataplane(handle, &plane) == OK);
    CHECK(plane.rings.rx_stride == slot_size && plane.rings.rx_data == plane.rings.rx_data_host);
    uint32_t slot;
    CHECK(plane.rx_poll(plane.ctx, NULL) == EMPTY);
    CHECK(plane.rx_poll(plane.ctx, &slot) == EMPTY); /* nobody knows us before the line below */
  } else {
    CHECK(bridge->get_transport_context(handle, UNIFIED, &launch) == UNSUPPORTED);
    CHECK(bridge->get_cpu_dataplane(handle, &plane) == UNSUPPORTED);
    CHECK(bridge->get_transport_context(handle, RING_BUFFER, &rings) == OK);
    CHECK(rings.tx_stride == slot_size && rings.tx_flags == rings.tx_flags_host);
  }
  printf("%s slots=%u slot_size=%u\n", line, slots, slot_size);
  fflush(stdout);
  CHECK(bridge->connect(handle) == OK && bridge->connect(handle) == OK);
  CHECK(bridge->launch(handle) == OK && bridge->launch(handle) == OK);
  if (is_unified)
    serve_unified(&plane, count);
  else
    serve_rings(&rings, slots, count);
  getchar(); /* until the caller has all answers */

  CHECK(bridge->disconnect(handle) == OK && bridge->disconnect(handle) == OK);
  CHECK(bridge->connect(handle) == INTERNAL && bridge->launch(handle) == INTERNAL);
  if (is_unified) {
    uint32_t slot;
    CHECK(plane.rx_poll(plane.ctx, &slot) == EMPTY && plane.tx_publish(plane.ctx, 0) != OK);
  }
  CHECK(bridge->destroy(handle) == OK);
  refused(bridge, handle);
  return 0;
}
