/*
 * A caller over the rings: calls rpc_increment, one call after the other, and checks every answer.
 *
 *     ring_caller DEVICE LOCAL_IP SERVICE_IP PORT CALLS
 *     ring_caller soft 127.0.0.3 127.0.0.2 18555 100
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include <cudaq/realtime/cpu_transport/roce_wrapper.h>

#include "exchange.h"
#include "host_call.h"

/* As the service has them: WRITEs go to the slot of the same index. */
#define SLOTS 8u
#define SLOT_SIZE 256u
#define ARGUMENTS 32u
#define TIMEOUT_SECONDS 20

static void *monitor(void *transceiver) {
  cpu_roce_blocking_monitor(transceiver);
  return NULL;
}

static int wait_for(const uint64_t *flag, int set) {
  time_t end = time(NULL) + TIMEOUT_SECONDS;
  while ((__atomic_load_n(flag, __ATOMIC_ACQUIRE) != 0) != set) {
    if (time(NULL) > end)
      return 0;
    sched_yield();
  }
  return 1;
}

/* One call, in the slot of its number. */
static int call(cpu_roce_transceiver_t t, uint32_t n) {
  unsigned slot = n % SLOTS;
  unsigned char *request = (unsigned char *)cpu_roce_get_tx_ring_data_addr(t) + slot * SLOT_SIZE;
  unsigned char *response = (unsigned char *)cpu_roce_get_rx_ring_data_addr(t) + slot * SLOT_SIZE;
  uint64_t *tx_flag = cpu_roce_get_tx_ring_flag_addr(t) + slot, *rx_flag = cpu_roce_get_rx_ring_flag_addr(t) + slot;

  if (!wait_for(tx_flag, 0))
    return 0;
  struct rpc_request header = {RPC_REQUEST, function_id("rpc_increment"), ARGUMENTS, n + 1, 0};
  memset(request, 0, SLOT_SIZE);
  memcpy(request, &header, sizeof header);
  for (unsigned i = 0; i < ARGUMENTS; i++)
    request[sizeof header + i] = (unsigned char)(n + i);
  __atomic_store_n(tx_flag, (uint64_t)(uintptr_t)request, __ATOMIC_RELEASE);

  if (!wait_for(rx_flag, 1))
    return 0;
  struct rpc_response answer;
  memcpy(&answer, response, sizeof answer);
  int good = answer.magic == RPC_RESPONSE && answer.status == 0 && answer.request_id == n + 1 &&
             answer.result_len == ARGUMENTS;
  for (unsigned i = 0; i < ARGUMENTS; i++)
    good = good && response[sizeof answer + i] == (unsigned char)(n + i + 1);
  __atomic_store_n(rx_flag, 0, __ATOMIC_RELEASE);
  return good;
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: %s DEVICE LOCAL_IP SERVICE_IP PORT CALLS\n", argv[0]);
    return 2;
  }
  cpu_roce_transceiver_t t = cpu_roce_create_transceiver(argv[1], 1, 0, SLOT_SIZE, SLOT_SIZE, SLOTS, NULL, 0, 0, 0, 0,
                                                         CPU_ROCE_TX_MODE_RDMA_WRITE_WITH_IMM, 0, 0);
  cpu_roce_set_local_ip(t, argv[2]);
  if (!cpu_roce_setup(t))
    return 1;
  struct endpoint ours = {cpu_roce_get_qp_number(t), cpu_roce_get_rkey(t), ""}, theirs;
  snprintf(ours.ip, sizeof ours.ip, "%s", argv[2]);
  int service = call_service(argv[3], (uint16_t)atoi(argv[4]));
  if (service < 0 || !send_endpoint(service, &ours) || !receive_endpoint(service, &theirs) ||
      !cpu_roce_connect(t, theirs.qp, theirs.ip, theirs.rkey))
    return 1;

  pthread_t thread;
  if (pthread_create(&thread, NULL, monitor, t) != 0)
    return 1;
  uint32_t calls = (uint32_t)strtoul(argv[5], NULL, 10), good = 0;
  for (uint32_t n = 0; n < calls; n++)
    good += (uint32_t)call(t, n);
  printf("%u of %u calls answered well\n", good, calls);

  close(service);
  cpu_roce_destroy_transceiver(t); /* closes first, so that the monitor returns */
  pthread_join(thread, NULL);
  return good == calls ? 0 : 1;
}
