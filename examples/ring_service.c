/*
 * A service over the rings: two threads of the library move messages between wire and rings; this thread serves them with
 * a plain C function.
 *
 *     ring_service DEVICE LOCAL_IP PORT CALLS       (0 calls: for ever)
 *     ring_service soft 127.0.0.2 18555 100
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <cudaq/realtime/cpu_transport/roce_wrapper.h>

#include "exchange.h"
#include "host_call.h"

#define SLOTS 8u
#define SLOT_SIZE 256u

static void *monitor(void *transceiver) {
  cpu_roce_blocking_monitor(transceiver);
  return NULL;
}

/* Serves `calls` requests, slot by slot. A request that was lost leaves its slot empty, and nothing waits behind it. */
static void serve(cpu_roce_transceiver_t t, const struct function *functions, size_t count, unsigned long calls) {
  unsigned char *rx = cpu_roce_get_rx_ring_data_addr(t), *tx = cpu_roce_get_tx_ring_data_addr(t);
  uint64_t *rx_flags = cpu_roce_get_rx_ring_flag_addr(t), *tx_flags = cpu_roce_get_tx_ring_flag_addr(t);
  unsigned long done = 0;
  for (unsigned slot = 0; calls == 0 || done < calls; slot = (slot + 1) % SLOTS) {
    unsigned char *request = rx + slot * SLOT_SIZE, *response = tx + slot * SLOT_SIZE;
    if (__atomic_load_n(&rx_flags[slot], __ATOMIC_ACQUIRE) == 0) {
      sched_yield(); /* on a core of its own this would be a pause */
      continue;
    }
    while (__atomic_load_n(&tx_flags[slot], __ATOMIC_ACQUIRE) != 0)
      sched_yield();
    int has_answer = dispatch(functions, count, request, response, SLOT_SIZE);
    __atomic_store_n(&rx_flags[slot], 0, __ATOMIC_RELEASE);
    if (has_answer)
      __atomic_store_n(&tx_flags[slot], (uint64_t)(uintptr_t)response, __ATOMIC_RELEASE);
    done += (unsigned long)has_answer;
  }
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s DEVICE LOCAL_IP PORT CALLS\n", argv[0]);
    return 2;
  }
  const char *device = argv[1], *local_ip = argv[2];
  const struct function functions[] = {{function_id("rpc_increment"), increment}};

  /* Any answer goes out as a SEND. */
  cpu_roce_transceiver_t t = cpu_roce_create_transceiver(device, 1, 0, SLOT_SIZE, SLOT_SIZE, SLOTS, NULL, 0, 0, 0, 0,
                                                         CPU_ROCE_TX_MODE_RDMA_SEND, 0, 0);
  cpu_roce_set_local_ip(t, local_ip);
  if (!cpu_roce_setup(t))
    return 1; /* the library has said why */

  struct endpoint ours = {cpu_roce_get_qp_number(t), cpu_roce_get_rkey(t), ""}, theirs;
  snprintf(ours.ip, sizeof ours.ip, "%s", local_ip);
  int caller = wait_for_caller(local_ip, (uint16_t)atoi(argv[3]));
  if (caller < 0 || !receive_endpoint(caller, &theirs) || !cpu_roce_connect(t, theirs.qp, theirs.ip, theirs.rkey) ||
      !send_endpoint(caller, &ours))
    return 1;

  pthread_t thread;
  if (pthread_create(&thread, NULL, monitor, t) != 0)
    return 1;
  serve(t, functions, 1, strtoul(argv[4], NULL, 10));

  /* The caller closes when it has its last answer. */
  char end;
  while (recv(caller, &end, 1, 0) > 0) {
  }
  cpu_roce_close(t);
  pthread_join(thread, NULL);
  cpu_roce_destroy_transceiver(t);
  close(caller);
  return 0;
}
