/*
 * Additions to roce_wrapper.h: why a call was refused, counters, options, the state, and one thread for many transceivers.
 * Programs that know only roce_wrapper.h need none of it. All functions may be called from any thread.
 */
#ifndef CUDAQ_REALTIME_CPU_TRANSPORT_ROCE_WRAPPER_EXT_H
#define CUDAQ_REALTIME_CPU_TRANSPORT_ROCE_WRAPPER_EXT_H

#include "roce_wrapper.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How far a transceiver has come. */
typedef enum cpu_roce_state_t {
  CPU_ROCE_STATE_CREATED = 0,
  CPU_ROCE_STATE_SET_UP = 1,
  CPU_ROCE_STATE_CONNECTED = 2,
  /* Threads move messages; in unified mode, from the first rx_poll, tx_publish or callback. */
  CPU_ROCE_STATE_RUNNING = 3,
  /* Stopped by an error; cpu_roce_last_error says which. */
  CPU_ROCE_STATE_FAILED = 4,
  CPU_ROCE_STATE_CLOSED = 5
} cpu_roce_state_t;

/* Since creation; messages where nothing else is said. Later versions add members at the end. */
typedef struct cpu_roce_stats_t {
  /* Arrived whole. */
  uint64_t received;
  /* Handed to the link. */
  uint64_t sent;
  /* Never arrived, by the gaps in the slots of WRITEs. */
  uint64_t lost;
  /* Overwrote one that was not consumed. */
  uint64_t overruns;
  /* Named no slot of the ring. */
  uint64_t dropped;
  /* Sends and receives that completed with an error. */
  uint64_t completion_errors;
  /* Times that a published slot waited for room in the send queue. */
  uint64_t tx_stalls;
  /* Packets that are missing: on soft devices exactly; else, with immediates hsb and hsb-2510, all packets of the frames
   * that never came. */
  uint64_t lost_packets;
  /* Frames of several packets of which one is missing, though the last one came. Only soft devices see it. */
  uint64_t torn;
  /* Frames with the metadata of another one: overwritten before they were seen. With the option metadata only. */
  uint64_t stale_metadata;
} cpu_roce_stats_t;

/* What an FPGA tells of a frame. Times are those of its clock. Later versions add members at the end. */
typedef struct cpu_roce_frame_metadata_t {
  /* Bytes of data. */
  uint64_t bytes_written;
  uint64_t first_data_seconds;
  uint64_t created_seconds;
  uint32_t first_data_nanoseconds;
  uint32_t created_nanoseconds;
  /* 1: the frame ended early. 2: it ended by its bytes per window alone. */
  uint32_t flags;
  /* Of the packet with the immediate. */
  uint32_t psn;
  uint32_t crc;
  /* Counts frames, in 16 bits. */
  uint32_t frame_number;
} cpu_roce_frame_metadata_t;

/*
 * The text of the last refusal of this transceiver, or, for NULL, of the last create by this thread that was refused. "" when
 * nothing was. Never NULL. Valid until this thread calls it again.
 */
const char *cpu_roce_last_error(cpu_roce_transceiver_t handle);

/*
 * The counters, also while running and after close. out_size is sizeof(cpu_roce_stats_t): a program gets the members that
 * it was compiled with, and 0 in those that the library does not know. 0 for NULL and for less than one member.
 */
int cpu_roce_get_stats(cpu_roce_transceiver_t handle, cpu_roce_stats_t *out, size_t out_size);

/*
 * The metadata behind the frame in an RX slot, from setup to close. They are those of a message while its slot is yours:
 * in the rings until its flag is cleared, in unified mode until the peer comes round to it. 0 where a page ends before
 * the metadata do. out_size is sizeof(cpu_roce_frame_metadata_t), as for cpu_roce_get_stats.
 */
int cpu_roce_get_frame_metadata(cpu_roce_transceiver_t handle, uint32_t slot, cpu_roce_frame_metadata_t *out,
                                size_t out_size);

/*
 * Before setup. 0 for a key or a value that does not exist; the refusal lists those that do.
 *
 *   mtu          256, 512, 1024, 2048 or 4096   payload bytes per packet; by default the most that the link carries
 *   rx_cpu       a CPU's number                 pins the RX (or forward) thread
 *   tx_cpu       a CPU's number                 pins the TX thread
 *   rt_priority  1 to 99                        runs the threads under SCHED_FIFO
 *   inline       a number of bytes              RDMA devices: frames up to this travel inside the work request; by default
 *                                               as much as the device takes, 0 for none
 *   immediate    auto                           where a WRITE's immediate has the slot: the low 12 bits for rings of at
 *                                               most 4096 pages, else all (default)
 *                slot                           in all 32 bits
 *                hsb, hsb-2510                  in the low 12 bits (FPGAs of HSB IP 0x2603 and later), 8 bits (before)
 *                ignore                         nowhere: slots are taken in strict order
 *   overrun      wait                           when a message overwrites one not consumed: receive nothing more until
 *                                               the slot is given back (default)
 *                drop                           go on
 *                fail                           stop with an error
 *   torn         drop or deliver                what becomes of a frame of which a packet is missing (default: drop)
 *   frame_packets  a number of packets          of a frame, metadata included, as an FPGA sends it; by default learned
 *   metadata     on or off                      an FPGA puts metadata behind each frame: pages must have room (default:
 *                                               off)
 *   hugepages    on or off                      the rings' memory from the pool of huge pages
 *   mlock        try, on or off                 lock the rings into RAM: a refusal is told (try, default), or fails setup
 *   faults       as in drop=0.02,seed=7         faults of what a soft device sends, to test with
 */
int cpu_roce_set_option(cpu_roce_transceiver_t handle, const char *key, const char *value);

/* A cpu_roce_state_t; -1 for what is no handle. */
int cpu_roce_get_state(cpu_roce_transceiver_t handle);

/* One thread that moves the messages of many transceivers, in place of threads for each of them. */
typedef void *cpu_roce_poller_t;

/*
 * Starts the thread, on a CPU of its own (its number; -1: on any) and under SCHED_FIFO (1 to 99; 0: not). While it has
 * transceivers it keeps its CPU busy; without any it sleeps. NULL where it cannot be so; cpu_roce_last_error(NULL) says why.
 */
cpu_roce_poller_t cpu_roce_create_poller(int cpu, int rt_priority);

/*
 * From here on the poller moves the messages of a connected transceiver, of any mode but unified. They get their turn one
 * after the other, and one that has to wait, or fails, holds up no other. Those on one address of a soft device belong
 * under one poller: it then asks their socket once for all of them. cpu_roce_close and cpu_roce_destroy_transceiver take a
 * transceiver out; cpu_roce_blocking_monitor, which need not be called, waits for its end and tells how it came. 0 for one
 * that is not connected or runs already.
 */
int cpu_roce_add_to_poller(cpu_roce_transceiver_t handle, cpu_roce_poller_t poller);

/* Ends the thread. Transceivers that are still with it fail. */
void cpu_roce_destroy_poller(cpu_roce_poller_t poller);

#ifdef __cplusplus
}
#endif

#endif
