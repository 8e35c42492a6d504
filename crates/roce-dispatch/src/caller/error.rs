//! Why a call failed.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::rpc::Status;
use crate::schema::{PayloadType, TypeDesc};

/// Why a call failed. Only [`Closed`](Self::Closed) and [`Link`](Self::Link) concern other calls too.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Every slot holds a call.
    #[error("all {slots} slots are in use; wait for an answer first, or take more slots on both ends")]
    Busy {
        /// Slots of the ring.
        slots: u32,
    },
    /// More arguments than a frame holds.
    #[error("{len} bytes of arguments do not fit a frame, which has room for {room}; take larger slots")]
    TooLong {
        /// Bytes that the arguments would take.
        len: usize,
        /// Bytes there are.
        room: usize,
    },
    /// A room for results that no frame has.
    #[error("room for {capacity} bytes of results was asked for; a frame has room for {room}")]
    Capacity {
        /// Bytes asked for.
        capacity: usize,
        /// Bytes there are.
        room: usize,
    },
    /// An argument or result that is not what the function's schema says.
    #[error("{what} {index} is {got:?} x {elements}; the schema says {expected:?}")]
    Type {
        /// "argument" or "result".
        what: &'static str,
        /// Which, from 0.
        index: usize,
        /// The type at hand.
        got: PayloadType,
        /// Elements of it.
        elements: usize,
        /// What the schema has there; `None` past its last.
        expected: Option<TypeDesc>,
    },
    /// Arguments or results that are not as long as the function's schema says.
    #[error("{len} bytes of {what}s; the schema says {expected}")]
    Length {
        /// "argument" or "result".
        what: &'static str,
        /// Bytes at hand.
        len: usize,
        /// Bytes by the schema.
        expected: u64,
    },
    /// More results were asked for than came.
    #[error("{wanted} bytes of results were asked for, {left} are left")]
    Exhausted {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes not yet taken.
        left: usize,
    },
    /// Packed bits with a spare bit set: the two sides disagree on how many there are.
    #[error("bits past the last of {bits} are set; both sides must agree on their number")]
    SpareBits {
        /// Bits asked for.
        bits: usize,
    },
    /// No answer came in time: the request or its answer was lost, or the service is slow, or gone.
    #[error(
        "call {request_id} was not answered within {timeout:?}; if that goes on, the service is gone: reconnect"
    )]
    Timeout {
        /// The call.
        request_id: u32,
        /// How long it was given.
        timeout: Duration,
    },
    /// The link took no request in time: it is down, or its peer is overrun. Nothing was sent.
    #[error("the link had no room for a request within {timeout:?}; if that goes on, it is down: reconnect")]
    NoRoom {
        /// How long was waited.
        timeout: Duration,
    },
    /// The answer claims more results than its frame, or the caller's capacity, holds.
    #[error("{len} bytes of results came for a room of {capacity}")]
    ResponseTooLarge {
        /// Bytes that the answer claims.
        len: u32,
        /// Bytes that were allowed.
        capacity: u32,
    },
    /// The service answered with an error.
    #[error("the service answered call {request_id}: {status}")]
    Remote {
        /// The call.
        request_id: u32,
        /// Which error.
        status: Status,
    },
    /// The link was closed.
    #[error("the link is closed; reconnect")]
    Closed,
    /// The link failed.
    #[error("the link failed: {0}; reconnect")]
    Link(Arc<dyn Error + Send + Sync>),
}

impl CallError {
    /// The number by which C programs know the error: 1 invalid argument, 2 not initialised, 4 timeout, 5 response
    /// too large, 6 remote error. A full ring or link is 4, for a caller in C has waited.
    pub const fn code(&self) -> i32 {
        match self {
            Self::TooLong { .. }
            | Self::Capacity { .. }
            | Self::Type { .. }
            | Self::Length { .. }
            | Self::Exhausted { .. } => 1,
            Self::Closed | Self::Link(_) => 2,
            Self::Busy { .. } | Self::NoRoom { .. } | Self::Timeout { .. } => 4,
            Self::ResponseTooLarge { .. } => 5,
            Self::Remote { .. } | Self::SpareBits { .. } => 6,
        }
    }

    pub(super) fn link(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Link(Arc::new(error))
    }
}
