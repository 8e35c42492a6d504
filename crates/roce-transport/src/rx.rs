//! Wire to RX ring.

use std::sync::Arc;

use roce_core::{CompletionError, RecvCompletion, RecvKind, RecvWr, UcRecv};
use roce_ring::{Geometry, Producer};

use crate::config::{Config, ImmediateFormat, OverrunPolicy};
use crate::error::{Error, Outcome};
use crate::loss::SlotSequence;
use crate::pending::PendingSlots;
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::Shared;

/// Completions taken from the queue pair at once.
const BATCH: usize = 16;

/// The receiving side of every mode: gives the slots of the messages that have arrived.
#[derive(Debug)]
pub(crate) struct RxPath<R> {
    recv: R,
    geometry: Geometry,
    /// Where in a WRITE's immediate the slot is; 0: not looked at.
    slot_bits: u32,
    overrun: OverrunPolicy,
    sequence: SlotSequence,
    pending: PendingSlots,
    batch: [RecvCompletion; BATCH],
    shared: Arc<Shared>,
}

impl<R: UcRecv> RxPath<R> {
    pub(crate) fn new(recv: R, config: &Config, shared: Arc<Shared>) -> Self {
        let geometry = config.geometry;
        Self {
            recv,
            geometry,
            slot_bits: config.immediate.slot_bits(geometry.num_pages()),
            overrun: config.overrun,
            sequence: SlotSequence::new(geometry.num_pages()),
            pending: PendingSlots::new(geometry.num_pages()),
            batch: [RecvCompletion::EMPTY; BATCH],
            shared,
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The slot of the oldest message that may be handed out, whose receive is then posted again.
    ///
    /// All completions at hand are looked at before: a later one may have overwritten the slot. The link is asked
    /// for more only when none that waits may go.
    #[inline(always)] // into its caller, though there may be several
    pub(crate) fn next(&mut self, may_go: impl Fn(u32) -> bool) -> Outcome<Option<u32>> {
        if self.pending.is_empty() {
            match self.poll()? {
                0 => return Ok(None),
                1 => return self.next_alone(may_go),
                count => self.take_in(count)?,
            }
        } else {
            self.take_in_landed()?;
            if !self.pending.any(&may_go) {
                let count = self.poll()?;
                self.take_in(count)?;
            }
        }
        let Some((slot, receive)) = self.pending.take(may_go) else { return Ok(None) };
        self.rearm(receive)?;
        Ok(Some(slot))
    }

    /// Whether more messages are at hand without asking the link.
    pub(crate) fn has_more(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The one message in the batch, before which none waits: it goes straight through.
    #[inline(always)] // into its caller, though there may be several
    fn next_alone(&mut self, may_go: impl Fn(u32) -> bool) -> Outcome<Option<u32>> {
        let receive = self.batch[0].id;
        let Some(slot) = self.arrived(0)? else { return Ok(None) };
        if may_go(slot) {
            self.rearm(receive)?;
            return Ok(Some(slot));
        }
        self.pending.push(slot, receive);
        Ok(None)
    }

    /// The first `count` messages of the batch, and those that have landed behind them.
    #[inline(never)] // the rarer way, and a long one
    fn take_in(&mut self, mut count: usize) -> Outcome<()> {
        loop {
            for at in 0..count {
                self.accept(at)?;
            }
            if count < BATCH {
                return Ok(());
            }
            count = self.poll_landed()?;
        }
    }

    #[inline(never)] // the rarer way
    fn take_in_landed(&mut self) -> Outcome<()> {
        let count = self.poll_landed()?;
        self.take_in(count)
    }

    fn accept(&mut self, at: usize) -> Outcome<()> {
        let receive = self.batch[at].id;
        let Some(slot) = self.arrived(at)? else { return Ok(()) };
        match self.pending.push(slot, receive) {
            None => Ok(()),
            Some(overwritten) => {
                self.shared.counters.rx.overruns.add(1);
                self.rearm(overwritten)?;
                if self.overrun == OverrunPolicy::Fail { Err(Box::new(Error::Overrun { slot })) } else { Ok(()) }
            }
        }
    }

    /// The slot of the message at `at` in the batch; `None` where it has none, and its receive is posted again.
    #[inline(always)] // into its caller, though there may be several
    fn arrived(&mut self, at: usize) -> Outcome<Option<u32>> {
        let RecvCompletion { id, ref result } = self.batch[at];
        let received = match *result {
            Ok(ref received) => received,
            Err(e) => return Err(broken(&self.shared, e)),
        };
        self.shared.counters.rx.received.add(1);
        let named = match received.imm {
            Some(imm) if received.kind == RecvKind::WriteWithImm && self.slot_bits != 0 => {
                Some(imm & self.slot_bits)
            }
            _ => None,
        };
        let slot = named.unwrap_or(id);
        if slot >= self.geometry.num_pages() {
            return self.drop_message(id);
        }
        if named.is_some() {
            self.note_order(slot);
        }
        Ok(Some(slot))
    }

    #[inline]
    fn note_order(&mut self, slot: u32) {
        let lost = self.sequence.arrived(slot);
        if lost != 0 {
            let counter = &self.shared.counters.rx.lost;
            counter.set(counter.get().wrapping_add_signed(lost));
        }
    }

    #[cold]
    fn drop_message(&mut self, receive: u32) -> Outcome<Option<u32>> {
        self.shared.counters.rx.dropped.add(1);
        self.rearm(receive)?;
        Ok(None)
    }

    #[inline]
    fn poll(&mut self) -> Outcome<usize> {
        self.recv.poll(&mut self.batch).map_err(|e| broken(&self.shared, e))
    }

    #[inline]
    fn poll_landed(&mut self) -> Outcome<usize> {
        self.recv.poll_landed(&mut self.batch).map_err(|e| broken(&self.shared, e))
    }

    #[inline]
    fn rearm(&mut self, receive: u32) -> Outcome<()> {
        self.recv.post_recv(receive_of(self.geometry, receive)).map_err(Error::receive)
    }
}

#[cold]
#[inline(never)]
fn broken(shared: &Shared, error: CompletionError) -> Box<Error> {
    shared.counters.rx.completion_errors.add(1);
    Box::new(error.into())
}

impl ImmediateFormat {
    /// The bits of an immediate that name the slot; 0 where it is not looked at.
    fn slot_bits(self, num_pages: u32) -> u32 {
        match self {
            Self::Auto if num_pages > 4096 => u32::MAX,
            Self::Auto | Self::Hsb => 0xFFF,
            Self::Slot => u32::MAX,
            Self::Hsb2510 => 0xFF,
            Self::Ignore => 0,
        }
    }
}

/// The receive that belongs to a slot: its page.
pub(crate) fn receive_of(geometry: Geometry, slot: u32) -> RecvWr {
    RecvWr { id: slot, offset: geometry.slot_offset(slot), len: geometry.page_size() }
}

/// The RX thread: publishes what arrives.
pub(crate) struct RxLoop<R> {
    pub(crate) path: RxPath<R>,
    pub(crate) ring: Producer,
    pub(crate) overrun: OverrunPolicy,
    pub(crate) spin: SpinPolicy,
    pub(crate) shared: Arc<Shared>,
}

impl<R: UcRecv> RxLoop<R> {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut backoff = Backoff::new(self.spin);
        while !self.shared.is_stopped() {
            match self.path.next(|_| true)? {
                Some(slot) => {
                    backoff.reset();
                    self.publish(slot)?;
                }
                None => backoff.idle(),
            }
        }
        Ok(())
    }

    fn publish(&self, slot: u32) -> Result<(), Error> {
        if self.ring.is_free(slot) {
            self.ring.publish(slot);
            return Ok(());
        }
        // The slot's set flag stands for the newer message from here: publishing again would show it twice.
        self.ring.note_overrun(slot);
        self.shared.counters.rx.overruns.add(1);
        match self.overrun {
            OverrunPolicy::Wait => self.wait_until_free(slot),
            OverrunPolicy::Drop => {}
            OverrunPolicy::Fail => return Err(Error::Overrun { slot }),
        }
        Ok(())
    }

    fn wait_until_free(&self, slot: u32) {
        let mut backoff = Backoff::new(self.spin);
        while !self.ring.is_free(slot) && !self.shared.is_stopped() {
            backoff.idle();
        }
    }
}
