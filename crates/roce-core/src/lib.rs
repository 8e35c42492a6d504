//! The vocabulary that every crate of this workspace shares.
//!
//! - [`Qpn`], [`Rkey`], [`Psn`], [`Mtu`], [`Gid`]: the numbers of RoCEv2, each its own type.
//! - [`LocalEndpoint`], [`PeerEndpoint`]: what two ends tell each other before traffic.
//! - [`Device`], [`UcQp`], [`UcSend`], [`UcRecv`]: an Unreliable Connected queue pair, whatever it runs on.
//! - [`FrameMetadata`], [`ImmediateLayout`]: what an FPGA tells of the frames that it writes.
//! - [`DmaRegion`], [`Memory`]: memory that a peer may write while we look at it, and access to it.
//!
//! Invariant: no I/O here, no threads, and no unsafe code beyond `region`: the promise that [`DmaRegion`] states, and
//! the copies that [`Memory`] makes on the strength of it.

#![deny(unsafe_code)]

mod counter;
mod endpoint;
mod frame;
mod ids;
mod qp;
#[allow(unsafe_code)]
mod region;

pub use counter::Counter;
pub use endpoint::{LocalEndpoint, PeerEndpoint};
pub use frame::{FrameMetadata, FrameTime, ImmediateLayout, METADATA_LEN, ShortMetadata};
pub use ids::{Gid, IdError, Mtu, Psn, Qpn, Rkey};
pub use qp::{
    CompletionError, ConnectError, Device, Lead, PostError, QpAttr, Received, RecvCompletion, RecvKind,
    RecvWr, SendWr, Sge, UcQp, UcRecv, UcSend, Verb, WireId, WireStats,
};
pub use region::{DmaRegion, Line, Memory, MemoryPart, OutOfBounds, RegionId};
