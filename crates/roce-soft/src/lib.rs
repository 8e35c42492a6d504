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
//! Invariants: whatever comes from the network can neither panic nor write outside the region that its queue
//! pair was given; every packet that is dropped is counted under a [`DropReason`]; once a queue pair is made,
//! sending and receiving allocate nothing; no thread is ever started. Unsafe code is in `mem` (registered
//! memory) and `udp` (system calls) alone.

#![deny(unsafe_code)]

mod arena;
mod config;
mod counters;
mod device;
mod error;
mod fault;
mod iface;
#[allow(unsafe_code)]
mod mem;
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
