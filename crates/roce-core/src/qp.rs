//! An Unreliable Connected queue pair, whatever it runs on.
//!
//! The types follow the life of a queue pair: [`Device::create_qp`] gives one in INIT, which takes receives;
//! [`UcQp::connect`] turns it into a sending and a receiving half, each for one thread. Dropping both halves
//! destroys it.

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::{DmaRegion, Mtu, PeerEndpoint, Psn, Qpn, RegionId, Rkey};

/// What a queue pair is made of.
#[derive(Clone)]
pub struct QpAttr {
    /// Receives land here; the peer may write it by offset (its address starts at 0 on the wire).
    pub rx: Arc<dyn DmaRegion>,
    /// Messages are sent from here.
    pub tx: Arc<dyn DmaRegion>,
    /// Messages that may be on their way at once.
    pub send_depth: u32,
    /// Receives that may be posted at once.
    pub recv_depth: u32,
    /// Payload bytes per packet; `None` takes the most that the link carries.
    pub mtu: Option<Mtu>,
}

impl std::fmt::Debug for QpAttr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QpAttr")
            .field("rx_len", &self.rx.len())
            .field("tx_len", &self.tx.len())
            .field("send_depth", &self.send_depth)
            .field("recv_depth", &self.recv_depth)
            .field("mtu", &self.mtu)
            .finish()
    }
}

/// Something that makes queue pairs: an RDMA port, or a UDP socket that plays one.
pub trait Device {
    /// The queue pairs it makes.
    type Qp: UcQp;
    /// Why it could not.
    type Error: Error + Send + Sync + 'static;

    /// Registers both regions and brings a UC queue pair to INIT. Releases all of it on failure.
    fn create_qp(&self, attr: &QpAttr) -> Result<Self::Qp, Self::Error>;
}

/// A queue pair in INIT: it has its number and takes receives, and cannot send.
pub trait UcQp: Send + Sized + 'static {
    /// The sending half once connected.
    type Send: UcSend;
    /// The receiving half once connected.
    type Recv: UcRecv;
    /// Why a connect failed.
    type Error: Error + Send + Sync + 'static;

    /// Its number, for the peer.
    fn qpn(&self) -> Qpn;
    /// The key of the RX region, for the peer.
    fn rkey(&self) -> Rkey;
    /// The address that its packets carry.
    fn local_ip(&self) -> Ipv4Addr;
    /// Payload bytes per packet.
    fn path_mtu(&self) -> Mtu;
    /// Counters of the wire below, for as long as anybody holds them.
    fn wire_stats(&self) -> Arc<dyn WireStats>;
    /// Hands over a buffer for a message to come.
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError>;
    /// The sequence number of the first packet that will be sent, which is 0 otherwise. A link whose packets have
    /// none takes no notice.
    fn start_at(&mut self, _psn: Psn) {}
    /// Goes to RTR and RTS. A failure gives the queue pair back, still in INIT with its receives.
    fn connect(self, peer: &PeerEndpoint) -> Result<(Self::Send, Self::Recv), ConnectError<Self>>;
}

/// A refused connect, with the queue pair to try again with.
#[derive(Debug)]
pub struct ConnectError<Q: UcQp> {
    /// As good as before.
    pub qp: Q,
    /// What went wrong.
    pub error: Q::Error,
}

/// The sending half.
pub trait UcSend: Send + 'static {
    /// Takes a message into the batch. Where the backend can, the bytes are copied now, so that the slot is
    /// free as soon as this returns. Nothing leaves before [`flush`](Self::flush).
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError>;

    /// Sends the batch. `Ok(n)`: n messages had to wait for room on the link; flush again later.
    fn flush(&mut self) -> Result<usize, PostError>;

    /// [`stage`](Self::stage) and [`flush`](Self::flush) in one, for a message that goes alone. Where the queue is
    /// full, the message is not taken.
    #[inline]
    fn send(&mut self, wr: &SendWr) -> Result<usize, PostError> {
        self.stage(wr)?;
        self.flush()
    }

    /// Frees what has left. The error is the first completion that failed; the queue pair is then useless.
    fn reap(&mut self) -> Result<(), CompletionError>;
}

/// The receiving half.
pub trait UcRecv: Send + 'static {
    /// Hands over a buffer for a message to come.
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError>;

    /// Fills `out` with messages that have arrived whole, oldest first, and says how many. Never blocks.
    /// The message's bytes are visible to the caller when this returns.
    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError>;

    /// Whether messages tell by their [`Lead`] which packets are missing.
    fn counts_packets(&self) -> bool {
        false
    }

    /// As [`poll`](Self::poll), for those messages alone whose bytes are in the region already. A link that puts
    /// bytes there only when it is polled need not look for more.
    #[inline]
    fn poll_landed(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        self.poll(out)
    }

    /// The wire that a poll takes messages from, where it takes them for other queue pairs as well: those that name
    /// the same one see theirs by [`poll_landed`](Self::poll_landed) then.
    fn shared_wire(&self) -> Option<WireId> {
        None
    }
}

/// Tells apart the wires of a process that queue pairs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireId(usize);

impl WireId {
    /// That of whoever holds this: no two that exist at the same time are equal.
    pub fn of<T>(wire: &Arc<T>) -> Self {
        Self(Arc::as_ptr(wire).addr())
    }
}

/// Bytes of a registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Which region.
    pub region: RegionId,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// The operation that carries a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// SEND: lands in the receive that the peer posted first.
    Send {
        /// Host order; 4 bytes that reach the peer's completion.
        imm: Option<u32>,
    },
    /// RDMA WRITE: lands where the sender says. With an immediate it consumes a receive of the peer.
    Write {
        /// Byte address in the peer's region.
        addr: u64,
        /// The peer's key.
        rkey: Rkey,
        /// Host order; 4 bytes that reach the peer's completion.
        imm: Option<u32>,
    },
}

/// A message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendWr {
    /// Its bytes.
    pub sge: Sge,
    /// How it travels.
    pub verb: Verb,
}

/// A buffer in the RX region for a message to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub id: u32,
    /// Bytes from the start of the RX region.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// How a message arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvKind {
    /// A SEND: its bytes are in the buffer of the completed receive.
    Send,
    /// A WRITE WITH IMMEDIATE: its bytes are where the sender addressed them.
    WriteWithImm,
}

/// A message that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// How.
    pub kind: RecvKind,
    /// Bytes of the message.
    pub len: u32,
    /// Host order.
    pub imm: Option<u32>,
    /// What its link saw go before it.
    pub lead: Lead,
}

impl Received {
    /// A message with nothing to tell of what went before it.
    #[inline]
    pub const fn new(kind: RecvKind, len: u32, imm: Option<u32>) -> Self {
        Self { kind, len, imm, lead: Lead::NONE }
    }
}

/// What a link that [counts packets](UcRecv::counts_packets) saw between the message completed before and this one.
///
/// An FPGA sends a frame as many WRITEs, of which the last alone completes: the others go before it.
#[derive(Debug, Clone, Copy, Eq)]
#[repr(C, align(8))]
pub struct Lead {
    /// Packets whose bytes are not in the region yet: they never came, come late, or were dropped.
    pub missed: u32,
    /// Packets right ahead of this message that came one behind the other, none missing between: at most back to the
    /// message completed before.
    pub packets: u32,
}

impl Lead {
    /// Of a message right behind the one before, and of all on a link that does not count.
    pub const NONE: Self = Self { missed: 0, packets: 0 };

    /// Both in one word.
    #[inline]
    const fn bits(self) -> u64 {
        self.missed as u64 | (self.packets as u64) << 32
    }
}

/// One comparison of a word: every message is compared.
impl PartialEq for Lead {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}

/// The end of a posted receive: a message, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvCompletion {
    /// The [`RecvWr::id`] that was consumed.
    pub id: u32,
    /// What came of it.
    pub result: Result<Received, CompletionError>,
}

impl RecvCompletion {
    /// To fill an array with before the first poll.
    pub const EMPTY: Self = Self { id: 0, result: Ok(Received::new(RecvKind::Send, 0, None)) };
}

/// A work request that failed after it was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} failed: {reason} (status {status}, vendor {vendor:#x})")]
pub struct CompletionError {
    /// The operation, as in "send" or "receive".
    pub what: &'static str,
    /// The status in words.
    pub reason: &'static str,
    /// The backend's number for it: an `ibv_wc_status`, or an errno on a socket.
    pub status: i32,
    /// The device's own number, 0 where it has none.
    pub vendor: u32,
}

/// A work request that was refused.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// No room now: back-pressure, not a fault.
    #[error("the queue is full; poll for completions, then post again")]
    QueueFull,
    /// The bytes named do not lie in the region.
    #[error("{len} bytes at offset {offset} do not lie in the region of {region_len} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Bytes of the region.
        region_len: usize,
    },
    /// The system call failed.
    #[error("{call} failed: {source}")]
    Os {
        /// Which.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Counters of what happens below the queue pair. Reading them is for people, not for the message path.
pub trait WireStats: Send + Sync {
    /// Name and value of each.
    fn snapshot(&self) -> Vec<(&'static str, u64)>;
}
