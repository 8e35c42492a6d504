//! The UC state machine: what to put into packets, and what to do with those that come.
//!
//! Neither half knows a socket, a clock or memory. The [`Requester`] cuts messages into packets; the
//! [`Responder`] takes packets one at a time and says where their payload goes and which receive is complete.

#![forbid(unsafe_code)]

mod identity;
mod requester;
mod responder;
mod sequence;
#[cfg(test)]
mod sim;

pub(crate) use identity::IdPolicy;
pub(crate) use requester::{Requester, Segment, Segments, packets_of};
pub(crate) use responder::{Completion, Responder};
