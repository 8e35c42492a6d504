//! Out-of-band exchange of endpoints: TCP, and the register control plane of an FPGA.
//!
//! Before two queue pairs talk, each end must know the other's QP number, rkey and RoCE address. A
//! [`Rendezvous`] swaps them and sees to the order in which the two ends connect:
//!
//! - [`socket`]: two programs over TCP, in a 12-byte form or as checked JSON lines.
//! - [`hsb`]: the registers of an FPGA, whose own queue pair is fixed.
//!
//! [`Blocking`] wraps an exchange for callers that have no async runtime.
//!
//! Invariant: nothing here knows a transport; the caller's closure connects its own queue pair.

#![forbid(unsafe_code)]

mod blocking;
mod error;
pub mod hsb;
mod message;
mod rendezvous;
pub mod socket;

pub use blocking::Blocking;
pub use error::{Error, MessageError, Step};
pub use message::{Geometry, MAX_LINE, Message, Offer, PLAIN_LEN, TxMode, VERSION, check_compatible};
pub use rendezvous::{BoxError, Peer, Rendezvous};
