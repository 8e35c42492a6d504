//! Rendezvous over TCP.
//!
//! A [`Server`] listens; a [`Client`] calls. The caller speaks first. The service connects its queue pair, then
//! answers; the caller reads the answer, connects its own, and closes. In the JSON form the service waits for that
//! close, so both queue pairs are connected when both exchanges return.
//!
//! UC tells no end that the other is gone. Where both ends offer a [`Lease`], the caller says that it is connected and
//! does not close: the connection stays, and its end is the end of the peer.

mod client;
mod lease;
mod server;
mod session;

use std::fmt;
use std::time::Duration;

pub use client::Client;
pub use lease::{Lease, LeaseEnd, Watch};
pub use server::{Arrival, Request, Server};

/// What the bytes on the connection look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// 12 bytes each way: QP number, rkey, IPv4 address, big-endian. Older programs speak only this one.
    Plain,
    /// One JSON object on a line each way, with the geometry, which is checked.
    Json,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Json => "JSON",
        })
    }
}

/// How long the steps of an exchange may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the other end turns up: a caller at the service, or a service for the caller. `None`: wait for ever.
    pub peer: Option<Duration>,
    /// To read or to write one message, all of it.
    pub message: Duration,
    /// To connect a queue pair, ours or the peer's: while the peer connects, we wait this much longer for its
    /// next step.
    pub connect: Duration,
}

impl Default for Timeouts {
    /// For ever, 2 s, 5 s.
    fn default() -> Self {
        Self { peer: None, message: Duration::from_secs(2), connect: Duration::from_secs(5) }
    }
}

impl Timeouts {
    /// For the peer to connect its queue pair and then to say so.
    const fn to_act(self) -> Duration {
        self.message.saturating_add(self.connect)
    }
}
