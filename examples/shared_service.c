/*
 * A service for several callers. One thread of the library, a poller, moves the messages of all of them; this thread
 * serves them. So it is two threads, however many callers there are.
 *
 *     shared_service DEVICE LOCAL_IP PORT CALLS CALLERS       (CALLS of each caller, once all have come)
 *     shared_service soft 127.0.0.2 18555 100 2
 */
#include <sched.h>
#include <stdlib.h>

#include <cudaq/realtime/cpu_transport/roce_wrapper_ext.h>

#include "exchange.h"
#include "host_call.h"

#define SLOTS 8u
#define SLOT_SIZE 256u

struct caller {
  cpu_roce_transceiver_t t;
  int connection;
  unsigned slot;
  unsigned long done;
};

/* Takes the next caller in. Whether it came, and the poller moves its messages. */
static int meet(struct caller *c, char **argv, cpu_roce_poller_t poller) {
  const char *device = argv[1], *local_ip = argv[2];
  c->slot = 0;
  c->done = 0;
  c->t = cpu_roce_create_transceiver(device, 1, 0, SLOT_SIZE, SLOT_SIZE, SLOTS, NULL, 0, 0, 0, 0,
                                     CPU_ROCE_TX_MODE_RDMA_SEND, 0, 0);
  cpu_roce_set_local_ip(c->t, local_ip);
  if (!cpu_roce_setup(c->t))
    return 0; /* the library has said why */
  struct endpoint ours = {cpu_roce_get_qp_number(c->t), cpu_roce_get_rkey(c->t), ""}, theirs;
  snprintf(ours.ip, sizeof ours.ip, "%s", local_ip);
  c->connection = wait_for_caller(local_ip, (uint16_t)atoi(argv[3]));
  return c->connection >= 0 && receive_endpoint(c->connection, &theirs) &&
         cpu_roce_connect(c->t, theirs.qp, theirs.ip, theirs.rkey) && cpu_roce_add_to_poller(c->t, poller) &&
         send_endpoint(c->connection, &ours);
}

/* Looks at one slot. A request that was lost leaves its slot empty, and nothing waits behind it. */
static void serve_a_slot(struct caller *c, const struct function *functions, size_t count) {
  unsigned slot = c->slot;
  c->slot = (slot + 1) % SLOTS;
  unsigned char *request = (unsigned char *)cpu_roce_get_rx_ring_data_addr(c->t) + slot * SLOT_SIZE;
  unsigned char *response = (unsigned char *)cpu_roce_get_tx_ring_data_addr(c->t) + slot * SLOT_SIZE;
  uint64_t *rx_flag = cpu_roce_get_rx_ring_flag_addr(c->t) + slot;
  uint64_t *tx_flag = cpu_roce_get_tx_ring_flag_addr(c->t) + slot;
  if (__atomic_load_n(rx_flag, __ATOMIC_ACQUIRE) == 0 || __atomic_load_n(tx_flag, __ATOMIC_ACQUIRE) != 0)
    return;
  int has_answer = dispatch(functions, count, request, response, SLOT_SIZE);
  __atomic_store_n(rx_flag, 0, __ATOMIC_RELEASE);
  if (has_answer)
    __atomic_store_n(tx_flag, (uint64_t)(uintptr_t)response, __ATOMIC_RELEASE);
  c->done += (unsigned long)has_answer;
}

static void serve(struct caller *callers, unsigned long count, unsigned long calls) {
  const struct function functions[] = {{function_id("rpc_increment"), increment}};
  for (unsigned long served = 0; served < count;) {
    served = 0;
    for (unsigned long i = 0; i < count; i++) {
      serve_a_slot(&callers[i], functions, 1);
      served += callers[i].done >= calls;
    }
    sched_yield(); /* on a core of its own this would be a pause */
  }
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: %s DEVICE LOCAL_IP PORT CALLS CALLERS\n", argv[0]);
    return 2;
  }
  unsigned long calls = strtoul(argv[4], NULL, 10), count = strtoul(argv[5], NULL, 10);
  struct caller *callers = calloc(count, sizeof *callers);
  cpu_roce_poller_t poller = cpu_roce_create_poller(-1, 0);
  if (!callers || !poller)
    return 1;
  for (unsigned long i = 0; i < count; i++)
    if (!meet(&callers[i], argv, poller))
      return 1;
  serve(callers, count, calls);

  for (unsigned long i = 0; i < count; i++) {
    /* A caller closes when it has its last answer. */
    char end;
    while (recv(callers[i].connection, &end, 1, 0) > 0) {
    }
    cpu_roce_destroy_transceiver(callers[i].t); /* which takes it from the poller */
    close(callers[i].connection);
  }
  cpu_roce_destroy_poller(poller);
  free(callers);
  return 0;
}
