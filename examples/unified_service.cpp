// A service in unified mode: this one thread polls requests out of the wire and publishes the answers, with no thread and
// no flag in between. The same plain function serves as in ring_service.c.
//
//     unified_service DEVICE LOCAL_IP PORT CALLS       (0 calls: for ever)
//     unified_service soft 127.0.0.2 18555 100

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

#include <cudaq/realtime/cpu_transport/roce_wrapper_ext.h>

#include "exchange.h"
#include "host_call.h"

namespace {

constexpr unsigned slots = 8;
constexpr std::size_t slot_size = 256;

// Owns a transceiver; a refusal becomes an exception with the library's text.
class Transceiver {
public:
  Transceiver(const std::string &device, const std::string &local_ip)
      : handle(cpu_roce_create_transceiver(device.c_str(), 1, 0, slot_size, slot_size, slots, nullptr, 0, 0, 0, 1,
                                           CPU_ROCE_TX_MODE_RDMA_SEND, 0, 0)) {
    check(handle != nullptr);
    cpu_roce_set_local_ip(handle, local_ip.c_str());
    check(cpu_roce_setup(handle));
  }
  ~Transceiver() { cpu_roce_destroy_transceiver(handle); }
  Transceiver(const Transceiver &) = delete;
  Transceiver &operator=(const Transceiver &) = delete;

  endpoint local(const std::string &ip) const {
    endpoint ours{cpu_roce_get_qp_number(handle), cpu_roce_get_rkey(handle), ""};
    ip.copy(ours.ip, sizeof ours.ip - 1);
    return ours;
  }
  void connect(const endpoint &peer) { check(cpu_roce_connect(handle, peer.qp, peer.ip, peer.rkey)); }
  bool poll(std::uint32_t &slot) { return cpu_roce_rx_poll(handle, &slot); }
  void publish(std::uint32_t slot) { check(cpu_roce_tx_publish(handle, slot)); }
  const void *rx(std::uint32_t slot) const { return at(cpu_roce_get_rx_ring_data_addr(handle), slot); }
  void *tx(std::uint32_t slot) const { return at(cpu_roce_get_tx_ring_data_addr(handle), slot); }

private:
  static void *at(void *data, std::uint32_t slot) { return static_cast<char *>(data) + slot * slot_size; }
  void check(bool done) const {
    if (!done)
      throw std::runtime_error(cpu_roce_last_error(handle));
  }

  cpu_roce_transceiver_t handle;
};

void serve(Transceiver &transceiver, unsigned long calls) {
  const function functions[] = {{function_id("rpc_increment"), increment}};
  for (unsigned long done = 0; calls == 0 || done < calls;) {
    std::uint32_t slot;
    if (!transceiver.poll(slot)) {
      std::this_thread::yield(); // on a core of its own this would be a pause
      continue;
    }
    if (dispatch(functions, 1, transceiver.rx(slot), transceiver.tx(slot), slot_size)) {
      transceiver.publish(slot);
      done++;
    }
  }
}

} // namespace

int main(int argc, char **argv) try {
  if (argc != 5) {
    std::cerr << "usage: " << argv[0] << " DEVICE LOCAL_IP PORT CALLS\n";
    return 2;
  }
  const std::string local_ip = argv[2];
  Transceiver transceiver(argv[1], local_ip);
  const endpoint ours = transceiver.local(local_ip);
  endpoint theirs;
  const int caller = wait_for_caller(local_ip.c_str(), static_cast<std::uint16_t>(std::atoi(argv[3])));
  if (caller < 0 || !receive_endpoint(caller, &theirs))
    return 1;
  transceiver.connect(theirs);
  if (!send_endpoint(caller, &ours))
    return 1;
  serve(transceiver, std::strtoul(argv[4], nullptr, 10));

  // The caller closes when it has its last answer.
  char end;
  while (recv(caller, &end, 1, 0) > 0) {
  }
  close(caller);
  return 0;
} catch (const std::exception &error) {
  std::cerr << error.what() << '\n';
  return 1;
}
