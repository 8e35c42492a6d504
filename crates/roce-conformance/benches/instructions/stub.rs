//! Queue pairs without a wire: two of which one polls what the other stages, and one that supplies the thread which
//! drives it. Never inlined, so that callgrind tells their instructions from those of the library, and opaque, so that
//! the optimiser leaves out none of what a real one needs: fields that are not read here, checks of results that are
//! always good.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use roce_core::{
    CompletionError, ConnectError, Device, Mtu, PeerEndpoint, PostError, QpAttr, Qpn, Received,
    RecvCompletion, RecvKind, RecvWr, Rkey, SendWr, UcQp, UcRecv, UcSend, Verb, WireStats,
};
use roce_transport::RingEnds;

const DEPTH: usize = 64;
const IS_WRITE: u32 = 1 << 31;

/// One direction: the immediates of the messages under way.
#[derive(Debug)]
pub(crate) struct Wire {
    messages: [AtomicU32; DEPTH],
    sent: AtomicUsize,
}

impl Wire {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { messages: [const { AtomicU32::new(0) }; DEPTH], sent: AtomicUsize::new(0) })
    }

    fn message(&self, n: usize) -> &AtomicU32 {
        &self.messages[n % DEPTH]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct StubDevice {
    out: Arc<Wire>,
    back: Arc<Wire>,
}

impl StubDevice {
    pub(crate) fn new(out: &Arc<Wire>, back: &Arc<Wire>) -> Self {
        Self { out: Arc::clone(out), back: Arc::clone(back) }
    }
}

/// Not connected yet.
#[derive(Debug)]
pub(crate) struct StubQp<S = StubSend, R = StubRecv> {
    send: S,
    recv: R,
}

#[derive(Debug)]
pub(crate) struct StubSend {
    out: Arc<Wire>,
    staged: usize,
}

#[derive(Debug)]
pub(crate) struct StubRecv {
    back: Arc<Wire>,
    taken: usize,
    posted: VecDeque<u32>,
}

struct NoStats;

impl WireStats for NoStats {
    fn snapshot(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl Device for StubDevice {
    type Qp = StubQp;
    type Error = Infallible;

    fn create_qp(&self, attr: &QpAttr) -> Result<StubQp, Infallible> {
        let posted = VecDeque::with_capacity(attr.recv_depth as usize + 1);
        let send = StubSend { out: Arc::clone(&self.out), staged: 0 };
        Ok(StubQp { send, recv: StubRecv { back: Arc::clone(&self.back), taken: 0, posted } })
    }
}

impl<S: UcSend, R: UcRecv> UcQp for StubQp<S, R> {
    type Send = S;
    type Recv = R;
    type Error = Infallible;

    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(1)
    }

    fn rkey(&self) -> Rkey {
        Rkey::new(1)
    }

    fn local_ip(&self) -> Ipv4Addr {
        Ipv4Addr::LOCALHOST
    }

    fn path_mtu(&self) -> Mtu {
        Mtu::B4096
    }

    fn wire_stats(&self) -> Arc<dyn WireStats> {
        Arc::new(NoStats)
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.recv.post_recv(wr)
    }

    fn connect(self, _: &PeerEndpoint) -> Result<(S, R), ConnectError<Self>> {
        Ok((self.send, self.recv))
    }
}

impl UcSend for StubSend {
    #[inline(never)]
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError> {
        let message = match black_box(wr).verb {
            Verb::Send { .. } => 0,
            Verb::Write { imm, .. } => IS_WRITE | imm.unwrap_or_default(),
        };
        self.out.message(self.staged).store(message, Ordering::Relaxed);
        self.staged += 1;
        black_box(Ok(()))
    }

    #[inline(never)]
    fn flush(&mut self) -> Result<usize, PostError> {
        self.out.sent.store(self.staged, Ordering::Release);
        black_box(Ok(0))
    }

    #[inline(never)]
    fn send(&mut self, wr: &SendWr) -> Result<usize, PostError> {
        self.stage(wr)?;
        self.flush()
    }

    #[inline(never)]
    fn reap(&mut self) -> Result<(), CompletionError> {
        black_box(Ok(()))
    }
}

impl UcRecv for StubRecv {
    #[inline(never)]
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.posted.push_back(black_box(wr).id);
        black_box(Ok(()))
    }

    #[inline(never)]
    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        if self.taken == self.back.sent.load(Ordering::Acquire) {
            return black_box(Ok(0));
        }
        let message = self.back.message(self.taken).load(Ordering::Relaxed);
        self.taken += 1;
        let id = self.posted.pop_front().expect("a receive for each message");
        let received = match message & IS_WRITE {
            0 => Received::new(RecvKind::Send, 64, None),
            _ => Received::new(RecvKind::WriteWithImm, 64, Some(message & !IS_WRITE)),
        };
        black_box(out)[0] = black_box(RecvCompletion { id, result: Ok(received) });
        black_box(Ok(1))
    }
}

/// Keeps a transceiver's thread at work: gives it a message with each poll, or publishes the next one when it has sent
/// one, and fails after so many.
#[derive(Debug, Clone)]
pub(crate) struct Supply {
    messages: u32,
    ends: Arc<Mutex<Option<RingEnds>>>,
}

impl Supply {
    pub(crate) fn of(messages: u32) -> Self {
        Self { messages, ends: Arc::default() }
    }

    /// The program's ends of the rings, before a thread runs. The first message is published now.
    pub(crate) fn play(&self, ends: RingEnds) {
        ends.tx.publish(0);
        *self.ends.lock().expect("no panic") = Some(ends);
    }

    /// The slot of the next message, and the ends of the rings; `None` after the last.
    fn next<R>(&self, done: u32, with: impl FnOnce(u32, &mut RingEnds) -> R) -> Option<R> {
        let mut ends = self.ends.lock().expect("no panic");
        let ends = ends.as_mut().expect("the ends of the rings");
        let slot = done % ends.tx.ring().geometry().num_pages();
        (done < self.messages).then(|| with(slot, ends))
    }
}

#[derive(Debug)]
pub(crate) struct SupplySend {
    supply: Supply,
    flushed: u32,
}

#[derive(Debug)]
pub(crate) struct SupplyRecv {
    supply: Supply,
    polled: u32,
}

impl Device for Supply {
    type Qp = StubQp<SupplySend, SupplyRecv>;
    type Error = Infallible;

    fn create_qp(&self, _: &QpAttr) -> Result<Self::Qp, Infallible> {
        let send = SupplySend { supply: self.clone(), flushed: 0 };
        Ok(StubQp { send, recv: SupplyRecv { supply: self.clone(), polled: 0 } })
    }
}

impl UcSend for SupplySend {
    #[inline(never)]
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError> {
        black_box(wr);
        black_box(Ok(()))
    }

    #[inline(never)]
    fn flush(&mut self) -> Result<usize, PostError> {
        self.flushed += 1;
        let published = self.supply.next(self.flushed, |slot, ends| ends.tx.publish(slot));
        black_box(published.map(|()| 0).ok_or(PostError::QueueFull))
    }

    #[inline(never)]
    fn reap(&mut self) -> Result<(), CompletionError> {
        black_box(Ok(()))
    }
}

impl UcRecv for SupplyRecv {
    #[inline(never)]
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        black_box(wr);
        black_box(Ok(()))
    }

    /// The slot is free again before its message is handed over.
    #[inline(never)]
    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        let slot = self.supply.next(self.polled, |slot, ends| {
            ends.rx.claim(slot);
            slot
        });
        let over = CompletionError { what: "receive", reason: "no more", status: 0, vendor: 0 };
        let slot = slot.ok_or(over)?;
        self.polled += 1;
        let received = Received::new(RecvKind::WriteWithImm, 64, Some(slot));
        black_box(out)[0] = black_box(RecvCompletion { id: slot, result: Ok(received) });
        black_box(Ok(1))
    }
}
