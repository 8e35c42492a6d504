//! The register control plane of a Holoscan Sensor Bridge FPGA, from the host's side.
//!
//! - [`ecb`]: the register protocol as bytes, without any I/O; both ends of it.
//! - [`enumeration`]: the broadcasts by which boards make themselves known, as bytes; both ends of it.
//! - [`regs`]: where the registers and memories lie.
//! - [`sample`]: the 585-bit samples of the capture memory.
//! - [`Discovery`]: hears the [`Board`]s of all interfaces.
//! - [`Client`]: reads and writes registers over UDP, starts and restarts a board.
//! - [`RoceConfig`]: what the FPGA must know to write into a host's ring.
//! - [`HsbRendezvous`]: the same as a [`Rendezvous`](crate::Rendezvous).
//! - [`BlockingClient`], [`BlockingDiscovery`]: for callers that have no async runtime.
//!
//! Invariant: one request is outstanding at a time, and nothing here touches the data plane.

#![forbid(unsafe_code)]

mod blocking;
mod board;
mod client;
mod configure;
mod discovery;
pub mod ecb;
pub mod enumeration;
mod error;
mod fpga;
mod identity;
mod interface;
pub mod regs;
pub mod sample;
mod start;

pub use blocking::{BlockingClient, BlockingDiscovery};
pub use board::{Board, BoardKind, Place};
pub use client::{Client, Timing};
pub use configure::{RegisterLayout, RoceConfig};
pub use discovery::{Discovery, DiscoveryConfig, Ignored};
pub use error::{Access, HsbError, Silence};
pub use fpga::{FPGA_QPN, HsbRendezvous};
pub use identity::{IdentityError, Mac, Serial, Uuid};
pub use interface::mac_of;
pub use start::{ResetOptions, StartOptions};
