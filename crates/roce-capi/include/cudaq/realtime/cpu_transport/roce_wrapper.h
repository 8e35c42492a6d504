/*
 * The CPU RoCE transceiver for C and C++: two rings in host memory, one Unreliable Connected queue pair of RoCEv2,
 * and what moves messages between them. Link with -lcudaq-realtime-cpu-roce-transport.
 *
 *     wire --> queue pair --> RX ring --> your consumer
 *     wire <-- queue pair <-- TX ring <-- your producer
 *
 * LIFE
 *
 *     create --> setup --> connect --> blocking_monitor --> close --> destroy
 *                                      (or, in unified mode, rx_poll and tx_publish)
 *
 * setup makes the queue pair and so its number and rkey, which the peer must know; connect adopts the peer's. How the
 * two are exchanged is yours. start is setup and connect with the peer that was given at creation.
 *
 * RINGS
 *
 * Each ring has num_pages slots of page_size bytes, and one flag, a uint64_t, per slot. A flag of 0 says that the slot
 * is free; otherwise its value is the address of the slot's data (data + slot * page_size) and the slot holds a
 * message. Load flags with acquire order and store them with release order, as one 64-bit word each.
 *
 *   - RX: the transceiver sets a flag when the message is whole. Read the slot, then store 0.
 *   - TX: write a slot whose flag is 0, then store the slot's address. The transceiver stores 0 when it has taken the
 *     message; the slot may then be written again. Slots may be published in any order. A value that is no address
 *     inside the ring is never sent and never cleared.
 *
 * A sender that laps a slow consumer overwrites messages. Each one is counted as an overrun (roce_wrapper_ext.h); the
 * flag then stands for the newer message, which is shown once. The slot's bytes may change while you read them, and a slot
 * that you give back in that very moment is shown again: have a number and a checksum in the frame, or let fewer messages
 * be under way than there are slots.
 *
 * ERRORS
 *
 * Functions that return int return 1 for done and 0 for refused. Every refusal is told on standard error, as
 * "cpu_roce_CALL: why". A call that threads repeat without end (rx_poll, tx_publish) tells the same reason once. A
 * handle that is NULL, was destroyed before, or never was one is found out and refused: int functions return 0, the
 * others 0 or NULL.
 *
 * THREADS
 *
 * All functions may be called from any thread at any time, also at the same time, unless they say otherwise. Strings
 * are copied.
 */
#ifndef CUDAQ_REALTIME_CPU_TRANSPORT_ROCE_WRAPPER_H
#define CUDAQ_REALTIME_CPU_TRANSPORT_ROCE_WRAPPER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A transceiver. Not a pointer to anything: it is never dereferenced. */
typedef void *cpu_roce_transceiver_t;

/* The verb that our transmitter posts. */
typedef enum cpu_roce_tx_mode_t {
  /* SEND: lands in the receive that the peer posted first. For FPGAs. */
  CPU_ROCE_TX_MODE_RDMA_SEND = 0,
  /* RDMA WRITE WITH IMMEDIATE into the same slot of the peer's RX ring; the immediate is the slot's index. */
  CPU_ROCE_TX_MODE_RDMA_WRITE_WITH_IMM = 1
} cpu_roce_tx_mode_t;

/*
 * Keeps the configuration; opens nothing and allocates no ring.
 *
 *   device_name        "soft" or "soft:ADDR" for RoCEv2 in userspace over UDP (ADDR is a local IPv4 address, 127.0.0.1
 *                      by default), else the name of an RDMA device, such as "mlx5_0"
 *   ib_port            the device's port, 1 to 255
 *   tx_ibv_qp          for start: the peer's QP number
 *   frame_size         bytes on the wire per message, 0 < frame_size <= page_size
 *   page_size          bytes from slot to slot
 *   num_pages          slots of each ring, a power of two (1 is fine)
 *   peer_ip            for start: the peer's IPv4 address as text; NULL when it is not known yet
 *   forward .. unified at most one of them is not 0. None: an RX and a TX thread, run by blocking_monitor. forward: one
 *                      thread sends each received slot back from where it landed, without flags. rx_only, tx_only: one
 *                      of the two threads. unified: no thread; your one thread calls rx_poll and tx_publish
 *   tx_mode            the verb that we send with
 *   peer_rx_base_addr  for WRITEs: where the peer's RX ring begins, as its rkey counts; 0 for peers of this library
 *   peer_rx_rkey       for start and WRITEs: the peer's rkey
 *
 * NULL when any of these cannot be; cpu_roce_last_error(NULL) says which.
 */
cpu_roce_transceiver_t cpu_roce_create_transceiver(const char *device_name, int ib_port, unsigned tx_ibv_qp,
                                                   size_t frame_size, size_t page_size, unsigned num_pages,
                                                   const char *peer_ip, int forward, int rx_only, int tx_only,
                                                   int unified, cpu_roce_tx_mode_t tx_mode,
                                                   uint64_t peer_rx_base_addr, uint32_t peer_rx_rkey);

/*
 * Closes, waits until every blocking_monitor of this handle has returned, and frees everything. The rings are unmapped:
 * stop using pointers into them first. Refused from within the callback of set_unified_dispatch.
 */
void cpu_roce_destroy_transceiver(cpu_roce_transceiver_t handle);

/* setup, then connect to the peer given at creation. Connected already: 1. */
int cpu_roce_start(cpu_roce_transceiver_t handle);

/*
 * Opens the device, allocates and registers the rings, and brings the queue pair to INIT with all receives posted. Set up
 * already: 1. A failure leaves nothing behind, and setup may be called again. Refused after close.
 */
int cpu_roce_setup(cpu_roce_transceiver_t handle);

/*
 * Adopts the peer and brings the queue pair to RTS; can take a second. Connected already: 1, and the arguments are
 * ignored. Refused before setup, after close, for a peer_ip that is no IPv4 address, a peer_qp of more than 24 bits, and,
 * when we send with WRITEs, for an rkey of 0. After a failure it may be called again.
 */
int cpu_roce_connect(cpu_roce_transceiver_t handle, unsigned peer_qp, const char *peer_ip, uint32_t peer_rx_rkey);

/*
 * Ends threads and waits for them, then releases the queue pair. Any number of times. The rings stay mapped until
 * destroy; their getters return NULL from here.
 */
void cpu_roce_close(cpu_roce_transceiver_t handle);

/*
 * Runs the threads of the mode and returns when they have ended: after close, or when the link failed (which is told, and
 * kept for cpu_roce_last_error). Returns at once when not connected, when running already, when closed, and in unified
 * mode without a callback.
 */
void cpu_roce_blocking_monitor(cpu_roce_transceiver_t handle);

/*
 * Unified mode: 1 and the slot of the next request in *out_slot, or 0 when there is none. Never blocks. A slot whose TX
 * flag is not 0 is held back until it is. The slot's bytes stand until the sender laps the ring.
 *
 * Refused (0) before connect, in other modes, after close or a failure, and for NULL.
 *
 * For one thread, together with tx_publish; others may meanwhile call everything else. A second thread is safe, but
 * costs both of them a lock.
 */
int cpu_roce_rx_poll(cpu_roce_transceiver_t handle, uint32_t *out_slot);

/*
 * Unified mode: sends frame_size bytes of a TX slot, in any order of slots, and touches no flag. The slot may be written
 * again when this returns. Waits while the send queue is full. Refused as rx_poll is, and for a slot out of range.
 */
int cpu_roce_tx_publish(cpu_roce_transceiver_t handle, uint32_t slot);

/*
 * Before setup: the IPv4 address to send from. NULL or "": the device's own choice, which is the default. With an
 * address that is none, setup is refused.
 */
void cpu_roce_set_local_ip(cpu_roce_transceiver_t handle, const char *local_ip);

/* For the peer: the queue pair's number, and the key of the RX ring. 0 before setup and after close. */
uint32_t cpu_roce_get_qp_number(cpu_roce_transceiver_t handle);
uint32_t cpu_roce_get_rkey(cpu_roce_transceiver_t handle);

/* For the peer: where the RX ring begins, as its rkey counts. Always 0: it is addressed by offset. */
uint64_t cpu_roce_get_buffer_addr(cpu_roce_transceiver_t handle);

/* The rings: data on a page's boundary, flags on a cache line's. NULL before setup and after close. */
void *cpu_roce_get_rx_ring_data_addr(cpu_roce_transceiver_t handle);
uint64_t *cpu_roce_get_rx_ring_flag_addr(cpu_roce_transceiver_t handle);
void *cpu_roce_get_tx_ring_data_addr(cpu_roce_transceiver_t handle);
uint64_t *cpu_roce_get_tx_ring_flag_addr(cpu_roce_transceiver_t handle);

/* As given at creation, until destroy. */
size_t cpu_roce_get_page_size(cpu_roce_transceiver_t handle);
unsigned cpu_roce_get_num_pages(cpu_roce_transceiver_t handle);

/*
 * Unified mode, for programs that prefer to be called: blocking_monitor then polls on the thread that calls it, and calls
 * function per request with the two slots, each of slot_size (page_size) bytes. function writes the answer into tx_slot
 * and returns its bytes, which are sent; 0 sends nothing, more than slot_size is refused. NULL takes the callback back.
 * Refused in other modes and while blocking_monitor runs.
 *
 * From within function, close is fine and ends the loop; destroy is refused. No C++ exception may leave it.
 */
void cpu_roce_set_unified_dispatch(cpu_roce_transceiver_t handle,
                                   size_t (*function)(void *ctx, const void *rx_slot, void *tx_slot,
                                                      size_t slot_size),
                                   void *ctx);

#ifdef __cplusplus
}
#endif

#endif
