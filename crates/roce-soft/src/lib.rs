//! RoCEv2 UC queue pairs in userspace, over a UDP socket.
//!
//! [`SoftDevice`] makes queue pairs that speak RoCEv2 as an RDMA NIC does: the packets are the same, down to
//! the invariant CRC, so a soft end talks with another soft end, with kernel soft-RoCE, with a NIC and with an
//! FPGA. It needs no RDMA hardware, no kernel module and no privilege.
//!
//! - [`wire`]: the packets, as bytes and as values.
//! - `qp`: the UC state machine, which knows neither socket nor clock nor memory.
//! - `port`, `udp`: the socket of an address, shared by the queue pairs on it.
//! - `device`, `send`, `recv`: the queue-pair traits of `roce-core` on top.
//! - `refusal`: what it means when the kernel refuses a packet.
//! - `fault`, `pcap`: packets lost on purpose, and packets written down.
//!
//! # What an unreliable connection delivers
//!
//! Nothing is acknowledged and nothing is repeated, so each end learns of loss from sequence numbers alone:
//!
//! - A message whose packets do not all come, in order, is not delivered; the next one is.
//! - A duplicate of a message of one packet is a message again, as it is on a NIC: any FIRST or ONLY packet
//!   starts a message, whatever its number, and completes a receive of its own in the end. Who must act only once
//!   puts a number into the message. A duplicate of a MIDDLE or LAST packet is dropped, as one out of sequence,
//!   and with it the rest of the message that it interrupts.
//! - The first packet that comes sets the sequence. Losses before it cannot be counted, and neither can those
//!   after the last one that comes.
//! - A packet that the kernel cannot send for now, as while a route is missing, is lost like one that vanishes on
//!   the way. It is counted as `tx_discarded`, and [`SoftStats::last_send_error`] tells why. What every packet
//!   would meet (it is too long, or the address is wrong) is an error.
//!
//! # Room for packets that wait
//!
//! There is no thread that empties the socket: packets wait there until somebody polls, and the kernel drops what
//! finds no room. Each is charged with its buffer and bookkeeping, 768 bytes at least. The socket asks for 4 MiB,
//! which Linux doubles:
//!
//! | process | room | packets of 60 bytes | of 300 to 600 bytes | of 4096 bytes |
//! | --- | --- | --- | --- | --- |
//! | with `CAP_NET_ADMIN`, or where `net.core.rmem_max` is 4 MiB | 8 MiB | 10,000 | 6,500 | 1,000 |
//! | else, with the long-standing default `rmem_max` of 212,992 | 416 KiB | 500 | 330 | 50 |
//!
//! These are measured on the loopback interface; buffers of a NIC's driver are often larger, and fewer of them
//! fit. Packets that leave together cross loopback as one datagram, and so take less room there. Datagrams that were
//! dropped are counted as `rx_socket_overflow` ([`SoftStats::socket_overflow`]), one that held many packets once;
//! `sysctl net.core.rmem_max=4194304` gives a process without privilege the same room.
//!
//! # Invariants
//!
//! Whatever comes from the network can neither panic nor write outside the region that its queue pair was given;
//! every packet that is dropped is counted under a [`DropReason`]; once a queue pair is made, sending and receiving
//! allocate nothing; no thread is ever started. Unsafe code is in `udp` (system calls) alone.

#![deny(unsafe_code)]

mod arena;
mod config;
mod counters;
mod device;
mod error;
mod fault;
mod iface;
mod pcap;
mod port;
mod qp;
mod recv;
mod refusal;
mod send;
mod table;
#[allow(unsafe_code)]
mod udp;
pub mod wire;

pub use config::SoftConfig;
pub use counters::{DropReason, SoftStats};
pub use device::{SoftDevice, SoftQp};
pub use error::SoftError;
pub use fault::{Delay, FaultConfig, FaultParseError};
pub use recv::SoftRecv;
pub use send::SoftSend;
