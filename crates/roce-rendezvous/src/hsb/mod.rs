//! The register control plane of a Holoscan Sensor Bridge FPGA, from the host's side.
//!
//! - [`ecb`]: the register protocol as bytes, without any I/O; both ends of it.
//! - [`enumeration`]: the broadcasts by which boards make themselves known, as bytes; both ends of it.
//! - [`regs`]: where the registers and memories lie.
//! - [`sample`]: the 585-bit samples of the capture memory.
//! - [`Client`] and [`BlockingClient`]: read and write registers over UDP.
//! - [`RoceConfig`]: what the FPGA must know to write into a host's ring.
//!
//! Invariant: one request is outstanding at a time, and nothing here touches the data plane.

#![forbid(unsafe_code)]

mod blocking;
mod client;
mod configure;
pub mod ecb;
pub mod enumeration;
mod error;
mod identity;
pub mod regs;
pub mod sample;

pub use blocking::BlockingClient;
pub use client::{Client, Timing};
pub use configure::RoceConfig;
pub use error::{Access, HsbError, Silence};
pub use identity::{IdentityError, Mac, Serial, Uuid};
