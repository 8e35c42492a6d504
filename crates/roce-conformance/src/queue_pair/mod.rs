//! Cases for queue pairs, through the traits of `roce-core`.

pub(crate) mod lifetimes;
pub(crate) mod messages;
pub(crate) mod refusals;
pub(crate) mod torn;

use std::sync::Arc;

use roce_core::{
    Device, Lead, Mtu, PeerEndpoint, PostError, QpAttr, Received, RecvCompletion, RecvWr, RegionId, SendWr,
    Sge, UcQp, UcRecv, UcSend, Verb, WireStats,
};

use crate::links::{Links, Side};
use crate::memory::Memory;
use crate::wait::{wait_for, wait_until};

/// Messages and receives at once.
const DEPTH: u32 = 64;

/// Bytes of each region: the longest message, and room around it.
const REGION: u32 = 192 << 10;

/// The queue pairs of a link.
pub(crate) type QpOf<L> = <<L as Links>::Device as Device>::Qp;

/// A queue pair in INIT.
pub(crate) struct Unconnected<Q> {
    qp: Q,
    rx: Memory,
    tx: Memory,
}

/// A connected queue pair.
pub(crate) struct End<Q: UcQp> {
    send: Q::Send,
    recv: Q::Recv,
    pub(crate) rx: Memory,
    pub(crate) tx: Memory,
    peer: PeerEndpoint,
    mtu: Mtu,
    stats: Arc<dyn WireStats>,
}

fn attr(rx: &Memory, tx: &Memory, mtu: Option<Mtu>) -> QpAttr {
    QpAttr { rx: rx.region(), tx: tx.region(), send_depth: DEPTH, recv_depth: DEPTH, mtu }
}

pub(crate) fn queue_pair<D: Device>(device: &D, mtu: Option<Mtu>) -> Unconnected<D::Qp> {
    let (rx, tx) = (Memory::new(REGION), Memory::new(REGION));
    let qp = device.create_qp(&attr(&rx, &tx, mtu)).expect("a queue pair");
    Unconnected { qp, rx, tx }
}

/// Two connected queue pairs. Their devices are dropped: a queue pair keeps what it needs.
fn pair<L: Links>(links: &L, mtu: Option<Mtu>) -> (End<QpOf<L>>, End<QpOf<L>>) {
    connect(queue_pair(&links.device(Side::A), mtu), queue_pair(&links.device(Side::B), mtu))
}

fn connect<Q: UcQp>(a: Unconnected<Q>, b: Unconnected<Q>) -> (End<Q>, End<Q>) {
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    (a.connect(&at_b), b.connect(&at_a))
}

impl<Q: UcQp> Unconnected<Q> {
    pub(crate) fn endpoint(&self) -> PeerEndpoint {
        PeerEndpoint { qpn: self.qp.qpn(), rkey: Some(self.qp.rkey()), ip: self.qp.local_ip() }
    }

    pub(crate) fn connect(self, peer: &PeerEndpoint) -> End<Q> {
        let (mtu, stats) = (self.qp.path_mtu(), self.qp.wire_stats());
        let (send, recv) = self.qp.connect(peer).unwrap_or_else(|e| panic!("connect: {}", e.error));
        End { send, recv, rx: self.rx, tx: self.tx, peer: *peer, mtu, stats }
    }
}

impl<Q: UcQp> End<Q> {
    pub(crate) fn post(&mut self, id: u32, offset: u64, len: u32) {
        self.recv.post_recv(RecvWr { id, offset, len }).expect("room for a receive");
    }

    /// A WRITE to the peer.
    pub(crate) fn write(&self, addr: u64, imm: Option<u32>) -> Verb {
        Verb::Write { addr, rkey: self.peer.rkey.expect("known since connect"), imm }
    }

    /// Sends `bytes` from `offset` of the TX region, where they stay.
    fn say(&mut self, offset: usize, bytes: &[u8], verb: Verb) {
        self.tx.set(offset, bytes);
        let len = u32::try_from(bytes.len()).expect("a short message");
        self.stage(Sge { region: RegionId::Tx, offset: offset as u64, len }, verb);
        self.flush();
    }

    pub(crate) fn stage(&mut self, sge: Sge, verb: Verb) {
        stage_waiting(&mut self.send, &SendWr { sge, verb });
    }

    pub(crate) fn flush(&mut self) {
        flush_all(&mut self.send);
    }

    /// A completion, if there is one.
    pub(crate) fn poll(&mut self) -> Option<RecvCompletion> {
        let mut out = [RecvCompletion::EMPTY];
        let n = self.recv.poll(&mut out).expect("a good queue pair");
        (n == 1).then(|| alone(out[0]))
    }

    /// The next completion.
    fn next(&mut self) -> RecvCompletion {
        wait_for("a message", || self.poll())
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.stats.snapshot();
        counters.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

/// A completion without what its link saw go before it, which not every link does.
fn alone(done: RecvCompletion) -> RecvCompletion {
    let result = done.result.map(|received| Received { lead: Lead::NONE, ..received });
    RecvCompletion { result, ..done }
}

/// Stages, and makes room first where there is none.
fn stage_waiting<S: UcSend>(send: &mut S, wr: &SendWr) {
    wait_until("room in the send queue", || match send.stage(wr) {
        Ok(()) => true,
        Err(PostError::QueueFull) => {
            send.flush().expect("a good link");
            send.reap().expect("a good queue pair");
            false
        }
        Err(e) => panic!("stage: {e}"),
    });
}

/// Flushes until nothing waits.
fn flush_all<S: UcSend>(send: &mut S) {
    wait_until("room on the link", || {
        let waiting = send.flush().expect("a good link");
        send.reap().expect("a good queue pair");
        waiting == 0
    });
}
