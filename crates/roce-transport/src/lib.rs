//! The transceiver: two rings in host memory, one UC queue pair, and what moves messages between them.
//!
//! ```text
//!  wire ──> queue pair ──> RX ring ──> your consumer
//!  wire <── queue pair <── TX ring <── your producer
//! ```
//!
//! A [`Transceiver`] is brought up in two steps, because connected queue pairs must know each other's number:
//! [`Transceiver::setup`] gives the [`LocalEndpoint`](roce_core::LocalEndpoint) to hand to the peer,
//! [`Transceiver::connect`] takes the peer's. How the two are exchanged is not this crate's business.
//!
//! Then one of the [`Mode`]s moves the messages: threads of the transceiver's own
//! ([`Transceiver::blocking_monitor`]) between the wire and the rings' flags, or one thread for many transceivers
//! ([`SharedPoller`]), or your one thread, which drives [`Unified`].
//!
//! The link is chosen by the device's name: `soft` or `soft:ADDR` is RoCEv2 in userspace over UDP (feature
//! `soft`); any other name is an RDMA device, through libibverbs (feature `verbs`).
//!
//! Invariant: no async runtime and no rendezvous in here; on the message path no allocation, lock, log line
//! or clock.

#![deny(unsafe_code)]

mod config;
mod cpu;
mod device;
mod ending;
mod error;
mod forward;
mod frames;
mod loss;
mod mover;
mod pending;
mod poller;
mod rx;
#[cfg(test)]
#[path = "../tests/common/scripted.rs"]
mod scripted;
mod spin;
mod stats;
#[cfg(test)]
mod steps;
mod transceiver;
mod tx;
mod unified;
mod wire;

pub use config::{
    Config, ConfigBuilder, ConfigError, ImmediateFormat, MemoryLock, Mode, OverrunPolicy, TornFrames, TxMode,
};
pub use cpu::pin_current_thread;
pub use device::{AnyDevice, AnyQp, AnyRecv, AnySend, DeviceConfig, DeviceError};
pub use error::Error;
pub use frames::frame_metadata;
pub use poller::{Monitor, PollerOptions, SharedPoller};
pub use spin::{Backoff, SpinPolicy};
pub use stats::Stats;
pub use transceiver::{RingEnds, State, Transceiver};
pub use unified::Unified;

#[cfg(feature = "soft")]
pub use roce_soft::FaultConfig;
