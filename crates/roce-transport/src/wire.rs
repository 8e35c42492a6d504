//! One wire below many queue pairs, which one of them asks in each round.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce_core::{CompletionError, PostError, RecvCompletion, RecvWr, UcRecv, WireId};

/// The number of the round that a poller is in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round(Arc<AtomicU32>);

impl Round {
    /// One thread counts.
    #[inline]
    pub(crate) fn next(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// A wire that the members of one poller share.
#[derive(Debug)]
pub(crate) struct Wire {
    round: Round,
    /// The last round in which it was asked.
    asked: AtomicU32,
}

impl Wire {
    pub(crate) fn new(round: Round) -> Self {
        let asked = AtomicU32::new(round.0.load(Ordering::Relaxed));
        Self { round, asked }
    }

    /// Whether nobody has asked it in this round. The poller's thread alone calls this: no read-modify-write.
    #[inline]
    fn take_turn(&self) -> bool {
        let round = self.round.0.load(Ordering::Relaxed);
        let is_first = self.asked.load(Ordering::Relaxed) != round;
        self.asked.store(round, Ordering::Relaxed);
        is_first
    }
}

/// A receiving half that asks its wire in turn with the others on it: whoever asks makes the messages of all land.
#[derive(Debug)]
pub(crate) struct InTurn<R> {
    recv: R,
    /// `None`: its polls serve nobody else.
    wire: Option<Arc<Wire>>,
}

impl<R: UcRecv> InTurn<R> {
    /// `wire` knows the one of that name.
    pub(crate) fn new(recv: R, wire: impl FnOnce(WireId) -> Arc<Wire>) -> Self {
        let wire = recv.shared_wire().map(wire);
        Self { recv, wire }
    }
}

impl<R: UcRecv> UcRecv for InTurn<R> {
    #[inline]
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.recv.post_recv(wr)
    }

    /// What has landed comes first, so that the turn is not taken by who need not ask.
    #[inline]
    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        let Some(wire) = &self.wire else { return self.recv.poll(out) };
        let landed = self.recv.poll_landed(out)?;
        if landed == 0 && wire.take_turn() { self.recv.poll(out) } else { Ok(landed) }
    }

    fn counts_packets(&self) -> bool {
        self.recv.counts_packets()
    }

    #[inline]
    fn poll_landed(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        self.recv.poll_landed(out)
    }

    fn shared_wire(&self) -> Option<WireId> {
        self.recv.shared_wire()
    }
}
