//! What can go wrong in a rendezvous, and what to do about it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::message::MAX_LINE;
use crate::rendezvous::BoxError;

/// A message that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// A key is missing or its value is.
    #[error("`{field}` {why}; correct it at the end that sent it")]
    Field {
        /// The key, as in the JSON form.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The ends were set up differently.
    #[error("`{field}` does not fit: {why}; set the same {field} on both ends")]
    Incompatible {
        /// The key, as in the JSON form.
        field: &'static str,
        /// What each end has.
        why: String,
    },
    /// The line is no JSON object.
    #[error("not a JSON object on one line: {0}; see docs/rendezvous.md for the form")]
    NotJson(#[source] serde_json::Error),
    /// The line does not end.
    #[error("the line is longer than {MAX_LINE} bytes; send one JSON object ended by a newline")]
    LineTooLong,
    /// The first byte begins neither form.
    #[error("a message that begins with {0:#04x} is no rendezvous; is the port right?")]
    UnknownForm(u8),
    /// The answer has another form than the question.
    #[error("the service answers in the {0} form; call it with that one")]
    OtherForm(crate::socket::Form),
    /// More bytes than the exchange has.
    #[error(
        "more came than an offer; an end that has read the other's closes, or keeps silent where it leases"
    )]
    Trailing,
}

/// Where in an exchange a deadline passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reading the peer's offer or answer.
    Read,
    /// Writing ours.
    Write,
    /// Connecting our own queue pair.
    Connect,
    /// Waiting for the caller to be connected too: it closes then, or says so where it leases.
    Close,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "reading its message",
            Self::Write => "writing our message",
            Self::Connect => "connecting our queue pair",
            Self::Close => "waiting for its queue pair to be connected",
        })
    }
}

/// Why a rendezvous over TCP failed. After any of them but [`Bind`](Self::Bind) a server can take the next peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service has no port.
    #[error("cannot listen on {addr}: {source}; take a free port (0: any) and an address of this machine")]
    Bind {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The listener could not hand out a caller.
    #[error("accept on {addr} failed: {source}; try again, and look for a limit on open files")]
    Accept {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Nobody called.
    #[error("no caller on {addr} within {timeout:?}; start the peer, or raise the timeout")]
    NoCaller {
        /// Where we listen.
        addr: SocketAddr,
        /// How long.
        timeout: Duration,
    },
    /// Nobody listens.
    #[error("no service on {addr} within {timeout:?}: {source}; start it, or raise the timeout")]
    NoService {
        /// Where.
        addr: SocketAddr,
        /// How long.
        timeout: Duration,
        /// How the last attempt ended.
        source: io::Error,
    },
    /// A step took too long.
    #[error("{peer}: {step} took longer than {timeout:?}; look at the peer's log, or raise the timeout")]
    Timeout {
        /// The other end.
        peer: SocketAddr,
        /// Which step.
        step: Step,
        /// How long it may take.
        timeout: Duration,
    },
    /// The peer closed before its message was whole. In the plain form this is also how it refuses.
    #[error("{peer} closed after {got} bytes, before its message was whole; its log should say why")]
    ClosedEarly {
        /// The other end.
        peer: SocketAddr,
        /// Bytes of the message that arrived.
        got: usize,
    },
    /// The connection broke.
    #[error("{peer}: {step}: {source}; look at the peer's log")]
    Io {
        /// The other end.
        peer: SocketAddr,
        /// In which step.
        step: Step,
        /// Why.
        source: io::Error,
    },
    /// The peer's message cannot be used.
    #[error("{peer}: {source}")]
    Message {
        /// The other end.
        peer: SocketAddr,
        /// What is wrong with it.
        source: MessageError,
    },
    /// The peer gave up and said why.
    #[error("{peer} refused: {reason:?}")]
    Refused {
        /// The other end.
        peer: SocketAddr,
        /// In its words.
        reason: String,
    },
    /// Our own queue pair did not connect to what the peer offered.
    #[error("the peer at {peer} is there, but our queue pair did not connect: {source}")]
    Connect {
        /// The other end.
        peer: SocketAddr,
        /// What the caller's closure said.
        source: BoxError,
    },
    /// A lease cannot be kept.
    #[error("the lease of {peer} cannot be kept: {source}; are there too many threads or open files?")]
    Lease {
        /// The other end.
        peer: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A blocking call cannot have a runtime of its own.
    #[error("no runtime for a blocking rendezvous: {source}; in async code use the async calls")]
    Runtime {
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// What the peer is told: our view of it without its address.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Message { source, .. } => source.to_string(),
            Self::Connect { source, .. } => format!("the other queue pair did not connect: {source}"),
            Self::Timeout { step, timeout, .. } => format!("{step} took longer than {timeout:?}"),
            other => other.to_string(),
        }
    }
}
