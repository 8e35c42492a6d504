/* Sets up a transceiver on the named device, and takes it down again: OPEN_DEVICE DEVICE. */
#include <cudaq/realtime/cpu_transport/roce_wrapper.h>

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  cpu_roce_transceiver_t t =
      cpu_roce_create_transceiver(argv[1], 1, 0, 64, 64, 8, NULL, 0, 0, 0, 0, CPU_ROCE_TX_MODE_RDMA_SEND, 0, 0);
  int done = cpu_roce_setup(t);
  cpu_roce_destroy_transceiver(t);
  return done ? 0 : 1;
}
