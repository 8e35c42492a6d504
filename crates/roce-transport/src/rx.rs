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
    /// The kind of message whose immediate names its slot, as a number, and where.
    naming: u8,
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
            naming: if config.immediate == ImmediateFormat::Ignore {u8::MAX} else {RecvKind::WriteWithImm as u8},
            slot_bits: config.immediate.slot_bits(geometry.num_pages()),
            overrun: config.overrun,
            sequence: SlotSequence::new(geometry.num_pages()),
            pending: PendingSlots::new(geometry.num_pages()),
            batch: [RecvCompletion::EMPTY; BATCH],
            shared,
        }
    }

    /// The slot of the oldest message that may be handed out, whose receive is then posted again.
    ///
    /// All completions at hand are looked at before: a later one may have overwritten the slot. The link is asked
    /// for more only when none that waits may go.
    #[inline(always)] // into its caller, though there may be several
    pub(crate) fn next(&mut self, may_go: impl Fn(u32) -> bool) -> Outcome<Option<u32>> {
        if self.pending.is_empty() {
            match self.poll()? {
                1 => return self.next_alone(may_go),
                0 => return Ok(None),
                count => self.take_in(count)?,
            }
        }
        let found = self.next_waiting(may_go)?;
        Ok(found)
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
        if !may_go(slot) {
            self.hold_back(slot, receive);
            return Ok(None);
        }
        self.rearm(receive)?;
        Ok(Some(slot))
    }

    #[cold]
    fn hold_back(&mut self, slot: u32, receive: u32) {
        self.pending.push(slot, receive);
    }

    #[inline(never)] // the rarer way, and a long one
    fn next_waiting(&mut self, may_go: impl Fn(u32) -> bool) -> Outcome<Option<u32>> {
        let landed = self.poll_landed()?;
        self.take_in(landed)?;
        if !self.pending.any(&may_go) {
            let count = self.poll()?;
            self.take_in(count)?;
        }
        let Some((slot, receive)) = self.pending.take(may_go) else { return Ok(None) };
        self.rearm(receive)?;
        Ok(Some(slot))
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
        let (slot, is_there) = match received.imm {
            Some(imm) if received.kind as u8 == self.naming => {
                let slot = imm & self.slot_bits;
                (slot, self.sequence.follows(slot) || self.note_order(slot))
            }
            _ => (id, id < self.geometry.num_pages()),
        };
        if !is_there {
            self.drop_message(id)?;
            return Ok(None);
        }
        Ok(Some(slot))
    }

    /// Counts what the order of the slots says of losses; `false` for a slot that the ring does not have.
    #[cold]
    fn note_order(&mut self, slot: u32) -> bool {
        let is_there = slot < self.geometry.num_pages();
        if is_there {
            let lost = &self.shared.counters.rx.lost;
            lost.set(lost.get().wrapping_add_signed(self.sequence.arrived(slot)));
        }
        is_there
    }

    #[cold]
    fn drop_message(&mut self, receive: u32) -> Outcome<()> {
        self.shared.counters.rx.dropped.add(1);
        self.rearm(receive)
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
    /// The bits of an immediate that name the slot.
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
