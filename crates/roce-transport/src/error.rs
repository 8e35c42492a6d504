//! What can go wrong with a transceiver.

use std::net::Ipv4Addr;
use std::sync::Arc;

use roce_core::{CompletionError, PostError, Qpn};
use roce_ring::RingError;

use crate::transceiver::State;

/// What the message path returns: with its error in a box it fits registers.
pub(crate) type Outcome<T> = Result<T, Box<Error>>;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// What can go wrong with a transceiver.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The link could not be opened, or gave no queue pair.
    #[error("{device}: {source}")]
    Device {
        /// Its name.
        device: String,
        /// Why.
        source: Source,
    },
    /// The rings could not be had.
    #[error("allocating the rings: {0}")]
    Ring(Arc<RingError>),
    /// The queue pair did not reach RTS. The transceiver is still set up; connect may be tried again.
    #[error("connecting to queue pair {qpn} at {ip}: {source}")]
    Connect {
        /// The peer's queue pair.
        qpn: Qpn,
        /// The peer's address.
        ip: Ipv4Addr,
        /// Why.
        source: Source,
    },
    /// A WRITE needs the peer's key.
    #[error("the peer's rkey is needed to write into its ring; exchange it, or take TxMode::Send")]
    NoRkey,
    /// `start` without a peer in the configuration.
    #[error("no peer is configured; give one to the builder, or call setup and connect")]
    NoPeer,
    /// The call does not fit the state.
    #[error("{call} is not possible: the transceiver is {state}")]
    State {
        /// What was called.
        call: &'static str,
        /// The state it found.
        state: State,
    },
    /// The transceiver is closed.
    #[error("the transceiver is closed")]
    Closed,
    /// A slot outside the ring.
    #[error("slot {slot} is outside the ring of {num_pages} pages")]
    Slot {
        /// The slot.
        slot: u32,
        /// Slots of the ring.
        num_pages: u32,
    },
    /// More bytes than a slot has.
    #[error("{len} bytes do not fit a slot of {page_size}")]
    Length {
        /// Bytes.
        len: u32,
        /// Bytes of a slot.
        page_size: u32,
    },
    /// A work request failed, or what carries it; the queue pair is useless from here.
    #[error("{device} port {port}: {source}")]
    Completion {
        /// The device's name.
        device: String,
        /// Its port.
        port: u8,
        /// What failed.
        source: CompletionError,
    },
    /// A work request was refused.
    #[error("posting a {what}: {source}")]
    Post {
        /// "send" or "receive".
        what: &'static str,
        /// Why.
        source: Arc<PostError>,
    },
    /// A message overwrote one that was not consumed, and [`OverrunPolicy::Fail`](crate::OverrunPolicy::Fail)
    /// was chosen.
    #[error("a message overwrote slot {slot} before it was consumed; consume faster or take more pages")]
    Overrun {
        /// The slot.
        slot: u32,
    },
    /// A CPU to pin to that this process may not use.
    #[error("CPU {cpu} is not in this process's allowed set {allowed:?}; pick one of those")]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// Those allowed.
        allowed: Vec<usize>,
    },
    /// The kernel refused the real-time priority.
    #[error("SCHED_FIFO priority {priority}: {source}; needs CAP_SYS_NICE or a higher RLIMIT_RTPRIO")]
    RtPriority {
        /// The priority asked for.
        priority: u8,
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// A thread could not be started.
    #[error("starting thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        source: Arc<std::io::Error>,
    },
    /// The shared poller that moved its messages was dropped.
    #[error("the shared poller is gone that moved the messages; keep it until its transceivers are closed")]
    PollerGone,
    /// A thread of ours panicked: a defect.
    #[error("thread {name} panicked: {message}")]
    Panic {
        /// Its name.
        name: String,
        /// What it said.
        message: String,
    },
}

/// Made out of line, to keep the message path short.
impl Error {
    #[cold]
    #[inline(never)]
    pub(crate) fn send(source: PostError) -> Box<Self> {
        Box::new(Self::Post { what: "send", source: Arc::new(source) })
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn receive(source: PostError) -> Box<Self> {
        Box::new(Self::Post { what: "receive", source: Arc::new(source) })
    }
}

impl From<Box<Self>> for Error {
    fn from(e: Box<Self>) -> Self {
        *e
    }
}

impl From<RingError> for Error {
    fn from(e: RingError) -> Self {
        Self::Ring(Arc::new(e))
    }
}

/// What a panic said.
pub(crate) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
