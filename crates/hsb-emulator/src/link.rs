//! The queue pair, its buffers, and the peers it has been connected to.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{
    CompletionError, Device, Mtu, PeerEndpoint, PostError, QpAttr, Qpn, RecvCompletion, RecvKind, RecvWr,
    RegionId, Rkey, SendWr, Sge, UcQp, UcRecv, UcSend, Verb, WireStats,
};
use roce_ring::{Geometry, MemoryOptions, Ring};

use crate::error::EmulatorError;
use crate::summary::PassError;

/// Receives posted, and slots to send from.
const SLOTS: u32 = 64;
/// How long a window may wait for room on the link.
const SEND_PATIENCE: Duration = Duration::from_millis(50);
/// Answers taken at a time.
const BATCH: usize = 16;

/// How large the buffers are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferSizes {
    /// The longest answer, in bytes.
    pub(crate) answer: u32,
    /// The longest window, in bytes.
    pub(crate) window: u32,
    pub(crate) mtu: Option<Mtu>,
}

/// The peer of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) qpn: Qpn,
    pub(crate) ip: Ipv4Addr,
}

/// A window to send.
pub(crate) struct Window<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    pub(crate) imm: u32,
}

/// Why a window was not sent.
pub(crate) enum SendError {
    /// This one only.
    Window(PostError),
    /// The queue pair is useless.
    QueuePair(CompletionError),
}

struct Buffers {
    rx: Arc<Ring>,
    tx: Arc<Ring>,
}

struct Idle<Q> {
    qp: Q,
    buffers: Buffers,
}

struct Link<Q: UcQp> {
    peer: Peer,
    send: Q::Send,
    recv: Q::Recv,
    buffers: Buffers,
    next_slot: u32,
}

/// The queue pairs.
///
/// A queue pair reaches one peer, and a new peer takes a new queue pair with a new number. The first one goes on
/// receiving all the same: a peer that was told its number may send to it still.
pub(crate) struct Links<D: Device> {
    device: D,
    sizes: BufferSizes,
    qpn: Qpn,
    /// Of the queue pair made last.
    wire: Arc<dyn WireStats>,
    idle: Option<Idle<D::Qp>>,
    /// The first one, and the one in use where that is another.
    connected: Vec<Link<D::Qp>>,
}

impl<D: Device> Links<D> {
    pub(crate) fn new(device: D, sizes: BufferSizes) -> Result<Self, EmulatorError> {
        let idle = Idle::new(&device, sizes)?;
        let (qpn, wire) = (idle.qp.qpn(), idle.qp.wire_stats());
        Ok(Self { device, sizes, qpn, wire, idle: Some(idle), connected: Vec::new() })
    }

    /// The counters of the queue pair made last.
    pub(crate) fn wire(&self) -> Vec<(&'static str, u64)> {
        self.wire.snapshot()
    }

    /// The number to send answers to.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Brings up a queue pair to `peer`, if none is.
    pub(crate) fn connect(&mut self, peer: Peer) -> Result<(), PassError> {
        if self.connected.last().is_some_and(|link| link.peer == peer) {
            return Ok(());
        }
        self.connected.truncate(1);
        let failed = |reason: String| PassError::Connect { qpn: peer.qpn.get(), ip: peer.ip, reason };
        let idle = match self.idle.take() {
            Some(idle) => idle,
            None => Idle::new(&self.device, self.sizes).map_err(|error| failed(error.to_string()))?,
        };
        let qpn = idle.qp.qpn();
        self.wire = idle.qp.wire_stats();
        if self.connected.is_empty() {
            self.qpn = qpn;
        }
        match idle.connect(peer) {
            Ok(link) => self.connected.push(link),
            Err((idle, reason)) => {
                self.idle = Some(idle);
                return Err(failed(reason));
            }
        }
        tracing::info!(%qpn, peer = %peer.qpn, ip = %peer.ip, first = %self.qpn, "queue pair connected");
        Ok(())
    }

    /// Drops the queue pairs after a failure.
    pub(crate) fn abandon(&mut self) {
        self.connected.clear();
    }

    /// Sends a window to the peer connected last.
    ///
    /// # Panics
    ///
    /// Where no peer is connected.
    pub(crate) fn send(&mut self, window: &Window<'_>) -> Result<(), SendError> {
        self.connected.last_mut().expect("a pass connects before its first window").write(window)
    }

    /// Copies every message that has arrived into `buffer` and hands it to `take`.
    pub(crate) fn poll(
        &mut self,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), CompletionError> {
        self.connected.iter_mut().try_for_each(|link| link.poll(buffer, &mut take))
    }
}

impl<Q: UcQp> Idle<Q> {
    fn new<D: Device<Qp = Q>>(device: &D, sizes: BufferSizes) -> Result<Self, EmulatorError> {
        let ring = |size| {
            Ring::allocate(Geometry::new(SLOTS, size, size)?, MemoryOptions::default())
                .map_err(EmulatorError::from)
        };
        let buffers = Buffers { rx: ring(sizes.answer)?, tx: ring(sizes.window)? };
        let attr = QpAttr {
            rx: buffers.rx.data(),
            tx: buffers.tx.data(),
            send_depth: SLOTS,
            recv_depth: SLOTS,
            mtu: sizes.mtu,
        };
        let mut qp = device.create_qp(&attr).map_err(|error| EmulatorError::Device(Box::new(error)))?;
        for slot in 0..SLOTS {
            qp.post_recv(buffers.receive(slot))?;
        }
        Ok(Self { qp, buffers })
    }

    fn connect(self, peer: Peer) -> Result<Link<Q>, (Self, String)> {
        let endpoint = PeerEndpoint { qpn: peer.qpn, rkey: None, ip: peer.ip };
        match self.qp.connect(&endpoint) {
            Ok((send, recv)) => Ok(Link { peer, send, recv, buffers: self.buffers, next_slot: 0 }),
            Err(refused) => {
                let reason = refused.error.to_string();
                Err((Self { qp: refused.qp, buffers: self.buffers }, reason))
            }
        }
    }
}

impl Buffers {
    fn receive(&self, slot: u32) -> RecvWr {
        let geometry = self.rx.geometry();
        RecvWr { id: slot, offset: geometry.slot_offset(slot), len: geometry.page_size() }
    }
}

impl<Q: UcQp> Link<Q> {
    fn write(&mut self, window: &Window<'_>) -> Result<(), SendError> {
        self.send.reap().map_err(SendError::QueuePair)?;
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % SLOTS;
        self.buffers.tx.slot(slot).copy_from(0, window.bytes);
        let wr = SendWr {
            sge: Sge {
                region: RegionId::Tx,
                offset: self.buffers.tx.geometry().slot_offset(slot),
                len: u32::try_from(window.bytes.len()).unwrap_or(u32::MAX),
            },
            verb: Verb::Write { addr: window.addr, rkey: window.rkey, imm: Some(window.imm) },
        };
        let deadline = Instant::now() + SEND_PATIENCE;
        loop {
            match self.send.stage(&wr) {
                Err(PostError::QueueFull) if Instant::now() < deadline => {
                    self.send.reap().map_err(SendError::QueuePair)?;
                    thread::yield_now();
                }
                staged => break staged.map_err(SendError::Window)?,
            }
        }
        while self.send.flush().map_err(SendError::Window)? > 0 {
            if Instant::now() >= deadline {
                return Err(SendError::Window(PostError::QueueFull));
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn poll(&mut self, buffer: &mut [u8], take: &mut impl FnMut(&[u8])) -> Result<(), CompletionError> {
        let mut completions = [RecvCompletion::EMPTY; BATCH];
        let count = self.recv.poll(&mut completions)?;
        for completion in &completions[..count] {
            let received = completion.result?;
            // Nothing here is for a peer to WRITE: what its immediate consumed holds no answer.
            let len = if received.kind == RecvKind::Send { received.len as usize } else { 0 };
            let message = &mut buffer[..len];
            self.buffers.rx.slot(completion.id).copy_to(0, message);
            take(message);
            self.repost(completion.id);
        }
        Ok(())
    }

    fn repost(&mut self, slot: u32) {
        if let Err(error) = self.recv.post_recv(self.buffers.receive(slot)) {
            tracing::error!(slot, %error, "a receive could not be posted again");
        }
    }
}
