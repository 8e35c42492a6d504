//! Wire to RX ring.

use std::sync::Arc;

use roce_core::{CompletionError, Received, RecvCompletion, RecvKind, RecvWr, UcRecv};
use roce_ring::{Geometry, Producer, Ring};

use crate::config::{Config, ImmediateFormat, OverrunPolicy};
use crate::error::{Error, Outcome};
use crate::loss::SlotSequence;
use crate::pending::PendingSlots;
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::Shared;

/// Completions taken from the queue pair at once.
const BATCH: usize = 16;

/// Which slots may be handed out now; the others are held back.
pub(crate) trait Gate {
    fn lets_out(&self, slot: u32) -> bool;
}

/// Lets all out.
#[derive(Debug)]
pub(crate) struct NoGate;

impl Gate for NoGate {
    fn lets_out(&self, _: u32) -> bool {
        true
    }
}

/// A TX ring: lets out the slots whose answer it can take.
impl Gate for Arc<Ring> {
    #[inline]
    fn lets_out(&self, slot: u32) -> bool {
        self.flag_is_free(slot)
    }
}

/// The receiving side of every mode: gives the slots of the messages that have arrived.
#[derive(Debug)]
pub(crate) struct RxPath<R, G = NoGate> {
    recv: R,
    gate: G,
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

impl<R: UcRecv, G: Gate> RxPath<R, G> {
    pub(crate) fn new(recv: R, gate: G, config: &Config, shared: Arc<Shared>) -> Self {
        let geometry = config.geometry;
        Self {
            recv,
            gate,
            geometry,
            naming: config.immediate.naming(),
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
    pub(crate) fn next(&mut self) -> Outcome<Option<u32>> {
        if self.pending.is_empty() {
            let count = self.poll()?;
            if count == 1
                && let Some(slot) = self.straight_through()
            {
                self.rearm(self.batch[0].id)?;
                return Ok(Some(slot));
            }
            if count == 0 {
                return Ok(None);
            }
            self.take_in(count)?;
        } else {
            self.look_again()?;
        }
        let found = self.hand_out()?; // by name: returned as it is, the result of the short way lay in memory too
        Ok(found)
    }

    /// Whether more messages are at hand without asking the link.
    pub(crate) fn has_more(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The slot of the one message in the batch, before which none waits, if nothing about it needs a second look.
    /// Else the message is not taken yet.
    #[inline(always)] // into its caller, though there may be several
    fn straight_through(&mut self) -> Option<u32> {
        let RecvCompletion { id, result: Ok(ref received) } = self.batch[0] else { return None };
        let slot = match self.named_by(received) {
            Some(slot) if self.sequence.is_next(slot) && self.gate.lets_out(slot) => {
                self.sequence.advance(slot);
                slot
            }
            None if id < self.geometry.num_pages() && self.gate.lets_out(id) => id,
            _ => return None,
        };
        self.shared.counters.rx.received.add(1);
        Some(slot)
    }

    /// All completions at hand, and if no slot that waits may go, what the link has besides.
    #[inline(never)] // the rarer way
    fn look_again(&mut self) -> Outcome<()> {
        let landed = self.poll_landed()?;
        self.take_in(landed)?;
        if !self.pending.any(|slot| self.gate.lets_out(slot)) {
            let count = self.poll()?;
            self.take_in(count)?;
        }
        Ok(())
    }

    #[inline(never)] // the rarer way
    fn hand_out(&mut self) -> Outcome<Option<u32>> {
        let Some((slot, receive)) = self.pending.take(|slot| self.gate.lets_out(slot)) else {
            return Ok(None);
        };
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
        let RecvCompletion { id, ref result } = self.batch[at];
        let counters = &self.shared.counters.rx;
        let received = match result {
            Ok(received) => received,
            Err(e) => return Err(broken(&self.shared, *e)),
        };
        counters.received.add(1);
        let named = self.named_by(received);
        let slot = named.unwrap_or(id);
        if slot >= self.geometry.num_pages() {
            counters.dropped.add(1);
            return self.rearm(id);
        }
        if named.is_some() {
            let lost = self.sequence.arrived(slot);
            counters.lost.set(counters.lost.get().wrapping_add_signed(lost));
        }
        match self.pending.push(slot, id) {
            None => Ok(()),
            Some(overwritten) => {
                counters.overruns.add(1);
                self.rearm(overwritten)?;
                if self.overrun == OverrunPolicy::Fail {
                    Err(Box::new(Error::Overrun { slot }))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// The slot that the sender aimed at, for a message that says so. The ring need not have it.
    #[inline]
    fn named_by(&self, received: &Received) -> Option<u32> {
        match received.imm {
            Some(imm) if received.kind as u8 == self.naming => Some(imm & self.slot_bits),
            _ => None,
        }
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
    /// The number of the [`RecvKind`] whose immediate names a slot, or that of none.
    fn naming(self) -> u8 {
        if self == Self::Ignore { u8::MAX } else { RecvKind::WriteWithImm as u8 }
    }

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
            match self.path.next()? {
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
