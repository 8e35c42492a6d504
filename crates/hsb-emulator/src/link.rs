//! The queue pair, its buffers, and the peers it has been connected to.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{
    CompletionError, Device, METADATA_LEN, Mtu, PeerEndpoint, PostError, Psn, QpAttr, Qpn, RecvCompletion,
    RecvKind, RecvWr, RegionId, Rkey, SendWr, Sge, UcQp, UcRecv, UcSend, Verb, WireStats,
};
use roce_ring::{Geometry, MemoryOptions, Ring};

use crate::error::EmulatorError;
use crate::stream::{Frame, FramePacket};
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

/// A frame to send.
pub(crate) struct Outgoing<'a> {
    pub(crate) frame: Frame,
    pub(crate) data: &'a [u8],
    pub(crate) metadata: Option<[u8; METADATA_LEN]>,
    pub(crate) rkey: Rkey,
}

/// Why a frame was not sent whole.
pub(crate) enum SendError {
    /// This one only.
    Frame(PostError),
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
    /// Of the next packet.
    psn: Psn,
    /// Bytes that a packet may carry.
    limit: u32,
    send: Q::Send,
    recv: Q::Recv,
    buffers: Buffers,
    next_slot: u32,
}

/// The queue pairs.
///
/// A queue pair reaches one peer, and a new peer takes a new queue pair with a new number. The first one goes on
/// receiving all the same: a peer that was told its number may send to it still. From another address it could
/// not, so for that one all begin anew, and a device that was asked for a number gives it again.
pub(crate) struct Links<D: Device> {
    device: D,
    sizes: BufferSizes,
    qpn: Qpn,
    local_ip: Ipv4Addr,
    /// Of the queue pair made last.
    wire: Arc<dyn WireStats>,
    idle: Option<Idle<D::Qp>>,
    /// The first one, and the one in use where that is another.
    connected: Vec<Link<D::Qp>>,
}

impl<D: Device> Links<D> {
    pub(crate) fn new(device: D, sizes: BufferSizes) -> Result<Self, EmulatorError> {
        let idle = Idle::new(&device, sizes)?;
        let (qpn, local_ip, wire) = (idle.qp.qpn(), idle.qp.local_ip(), idle.qp.wire_stats());
        Ok(Self { device, sizes, qpn, local_ip, wire, idle: Some(idle), connected: Vec::new() })
    }

    /// The counters of the queue pair made last.
    pub(crate) fn wire(&self) -> Vec<(&'static str, u64)> {
        self.wire.snapshot()
    }

    /// The address that packets come from.
    pub(crate) fn local_ip(&self) -> Ipv4Addr {
        self.local_ip
    }

    /// The number to send answers to.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Brings up a queue pair to `peer` whose next packet has that PSN, if none is.
    pub(crate) fn connect(&mut self, peer: Peer, psn: Psn) -> Result<(), PassError> {
        if self.connected.last().is_some_and(|link| link.peer == peer && link.psn == psn) {
            return Ok(());
        }
        let hears_it = self.connected.first().is_some_and(|first| first.peer.ip == peer.ip);
        self.connected.truncate(usize::from(hears_it));
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
        match idle.connect(peer, psn) {
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

    /// The most that a packet to the peer connected last may carry, in bytes.
    ///
    /// # Panics
    ///
    /// Where no peer is connected.
    pub(crate) fn packet_limit(&mut self) -> u32 {
        self.current().limit
    }

    /// Sends a frame to the peer connected last. Also gives how many of its packets were taken.
    ///
    /// # Panics
    ///
    /// Where no peer is connected.
    pub(crate) fn send(&mut self, outgoing: &Outgoing<'_>) -> (u32, Result<(), SendError>) {
        self.current().send(outgoing)
    }

    fn current(&mut self) -> &mut Link<D::Qp> {
        self.connected.last_mut().expect("a window connects before it is sent")
    }

    /// Copies every message that has arrived into `buffer` and hands it to `take`; `None` stands for one that an
    /// FPGA does not take.
    pub(crate) fn poll(
        &mut self,
        buffer: &mut [u8],
        mut take: impl FnMut(Option<&[u8]>),
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
        let buffers = Buffers { rx: ring(sizes.answer)?, tx: ring(room_for(sizes.window))? };
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

    fn connect(mut self, peer: Peer, psn: Psn) -> Result<Link<Q>, (Self, String)> {
        let endpoint = PeerEndpoint { qpn: peer.qpn, rkey: None, ip: peer.ip };
        let limit = self.qp.path_mtu().bytes();
        self.qp.start_at(psn);
        match self.qp.connect(&endpoint) {
            Ok((send, recv)) => {
                Ok(Link { peer, psn, limit, send, recv, buffers: self.buffers, next_slot: 0 })
            }
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
    fn send(&mut self, outgoing: &Outgoing<'_>) -> (u32, Result<(), SendError>) {
        if let Err(error) = self.send.reap() {
            return (0, Err(SendError::QueuePair(error)));
        }
        let base = self.prepare(outgoing);
        let deadline = Instant::now() + SEND_PATIENCE;
        let mut taken = 0;
        for packet in outgoing.frame.packets() {
            if let Err(error) = self.stage(&write_of(packet, base, outgoing.rkey), deadline) {
                return (taken, Err(error));
            }
            self.psn = self.psn.next();
            taken += 1;
        }
        (taken, self.flush(deadline))
    }

    /// Puts the frame into a slot, as [`Frame`] wants it. Gives where the slot begins.
    fn prepare(&mut self, outgoing: &Outgoing<'_>) -> u64 {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % SLOTS;
        let ring = &self.buffers.tx;
        ring.slot(slot).copy_from(0, outgoing.data);
        if let Some(metadata) = &outgoing.metadata {
            let (len, behind) = (outgoing.data.len(), outgoing.data.len().next_multiple_of(METADATA_LEN));
            ring.slot(slot).copy_from(len, &[0; METADATA_LEN][..behind - len]);
            ring.slot(slot).copy_from(behind, metadata);
        }
        ring.geometry().slot_offset(slot)
    }

    fn stage(&mut self, wr: &SendWr, deadline: Instant) -> Result<(), SendError> {
        loop {
            match self.send.stage(wr) {
                Err(PostError::QueueFull) if Instant::now() < deadline => {
                    self.send.flush().map_err(SendError::Frame)?;
                    self.send.reap().map_err(SendError::QueuePair)?;
                    thread::yield_now();
                }
                staged => return staged.map_err(SendError::Frame),
            }
        }
    }

    fn flush(&mut self, deadline: Instant) -> Result<(), SendError> {
        while self.send.flush().map_err(SendError::Frame)? > 0 {
            if Instant::now() >= deadline {
                return Err(SendError::Frame(PostError::QueueFull));
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn poll(
        &mut self,
        buffer: &mut [u8],
        take: &mut impl FnMut(Option<&[u8]>),
    ) -> Result<(), CompletionError> {
        let mut completions = [RecvCompletion::EMPTY; BATCH];
        let count = self.recv.poll(&mut completions)?;
        for completion in &completions[..count] {
            let received = completion.result?;
            // As an FPGA: a SEND, and without an immediate.
            if received.kind == RecvKind::Send && received.imm.is_none() {
                let message = &mut buffer[..received.len as usize];
                self.buffers.rx.slot(completion.id).copy_to(0, message);
                take(Some(message));
            } else {
                take(None);
            }
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

/// A window, and metadata behind it.
#[allow(clippy::cast_possible_truncation)] // 128
fn room_for(window: u32) -> u32 {
    const UNIT: u32 = METADATA_LEN as u32;
    window.next_multiple_of(UNIT) + UNIT
}

fn write_of(packet: FramePacket, base: u64, rkey: Rkey) -> SendWr {
    SendWr {
        sge: Sge { region: RegionId::Tx, offset: base + u64::from(packet.offset), len: packet.len },
        verb: Verb::Write { addr: packet.addr, rkey, imm: packet.imm },
    }
}
