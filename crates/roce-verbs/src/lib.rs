//! UC queue pairs of RDMA devices, through libibverbs.
//!
//! [`VerbsDevice`] implements [`roce_core::Device`]: it opens a device by name, checks that its port is active and
//! of Ethernet, chooses the RoCEv2 GID of an IPv4 address, and makes queue pairs whose path MTU fits the port.
//! [`device_names`], [`Context`], [`PortInfo`] and [`GidTable`] tell what a machine has, for programs that look before
//! they open.
//!
//! libibverbs is loaded when the first device is: programs that link this crate start without it, and are told then
//! which package to install. Building needs its headers and a libclang of version 15 or older (Debian 12:
//! `libibverbs-dev librdmacm-dev libclang-14-dev`). Where a newer libclang is installed as well, set
//! `LIBCLANG_PATH` to the directory of the older one, such as `/usr/lib/llvm-14/lib`.
//!
//! A queue pair in INIT takes receives and cannot send; only connecting gives the half that can:
//!
//! ```no_run
//! use roce_core::{PeerEndpoint, RecvWr, SendWr, UcQp, UcSend};
//! fn connect_and_send(mut qp: roce_verbs::VerbsQp, peer: &PeerEndpoint, wr: &SendWr) {
//!     qp.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).expect("room");
//!     let (mut send, _recv) = qp.connect(peer).expect("connected");
//!     send.stage(wr).expect("room");
//! }
//! ```
//!
//! ```compile_fail
//! use roce_core::{PeerEndpoint, RecvWr, SendWr, UcQp, UcSend};
//! fn send_at_once(mut qp: roce_verbs::VerbsQp, peer: &PeerEndpoint, wr: &SendWr) {
//!     qp.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).expect("room");
//!     qp.stage(wr).expect("room");
//! }
//! ```
//!
//! Invariants: parents outlive children by private `Arc`s; nothing panics while tearing down, and what the device
//! refuses to give back is leaked with the memory that it may still write; no reference to registered memory is ever
//! made; regions are never registered with relaxed ordering, which would let a flag overtake its message.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod context;
#[allow(unsafe_code)]
mod cq;
#[allow(unsafe_code)]
mod device;
mod error;
#[allow(unsafe_code)]
mod events;
mod fabric;
mod gid;
#[cfg(test)]
mod layout;
#[allow(unsafe_code)]
mod mem;
#[allow(unsafe_code)]
mod mr;
#[allow(unsafe_code)]
mod pd;
mod qp;
#[cfg(feature = "raw")]
#[allow(unsafe_code)]
mod raw;
mod recv;
mod send;
#[allow(unsafe_code)]
mod staging;
mod stats;
#[allow(unsafe_code)]
mod sys;
mod window;
#[allow(unsafe_code)]
mod wr;

pub use context::{Context, LinkLayer, PortInfo, PortState};
pub use device::device_names;
pub use error::{Place, RtrError, VerbsError};
pub use fabric::{VerbsConfig, VerbsDevice, VerbsQp};
pub use gid::{GidEntry, GidTable, GidType};
#[cfg(feature = "raw")]
pub use raw::RawEnd;
pub use recv::VerbsRecv;
pub use send::VerbsSend;
pub use stats::VerbsStats;
