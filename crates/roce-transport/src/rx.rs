//! Wire to RX ring.

use std::sync::Arc;

use roce_core::{CompletionError, Lead, Received, RecvCompletion, RecvKind, RecvWr, UcRecv};
use roce_ring::{Geometry, Producer, Ring};

use crate::config::{Config, OverrunPolicy, TornFrames};
use crate::error::{Error, Outcome};
use crate::frames::{FrameJudge, PlaceInRing};
use crate::loss::SlotSequence;
use crate::mover::{Mover, STEP};
use crate::pending::PendingSlots;
use crate::transceiver::Shared;

/// Completions taken from the queue pair at once.
const BATCH: usize = 16;

/// Which slots may be handed out now; the others are held back.
pub(crate) trait Gate {
    fn lets_out(&self, slot: u32) -> bool;

    /// The slot was overwritten by a frame that will not be handed out. Gives whether it held one that was.
    fn spoil(&self, _slot: u32) -> bool {
        false
    }
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

/// Our end of the RX ring: its consumer is told of a slot that is spoiled while it reads.
impl Gate for Producer {
    #[inline]
    fn lets_out(&self, _: u32) -> bool {
        true
    }

    fn spoil(&self, slot: u32) -> bool {
        let held = !self.is_free(slot);
        if held {
            self.note_overrun(slot);
        }
        held
    }
}

/// The receiving side of every mode: gives the slots of the messages that have arrived.
#[derive(Debug)]
pub(crate) struct RxPath<R, G = NoGate> {
    recv: R,
    gate: G,
    geometry: Geometry,
    /// Whether the immediate of a WRITE names its slot, and where.
    names_slots: bool,
    slot_bits: u32,
    /// Where the next WRITE lands whose immediate is not looked at.
    unnamed: u32,
    overrun: OverrunPolicy,
    torn: TornFrames,
    frames: FrameJudge,
    sequence: SlotSequence,
    pending: PendingSlots,
    batch: [RecvCompletion; BATCH],
    shared: Arc<Shared>,
}

impl<R: UcRecv, G: Gate> RxPath<R, G> {
    pub(crate) fn new(recv: R, gate: G, config: &Config, rx_ring: &Arc<Ring>, shared: Arc<Shared>) -> Self {
        let geometry = config.geometry;
        let layout = config.immediate.layout(geometry.num_pages());
        let frames = FrameJudge::new(config, recv.counts_packets(), rx_ring);
        Self {
            recv,
            gate,
            geometry,
            names_slots: layout.is_some(),
            slot_bits: layout.map_or(0, |layout| layout.page(u32::MAX)),
            unnamed: 0,
            overrun: config.overrun,
            torn: config.torn,
            frames,
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
        if received.lead != self.frames.usual() {
            return None;
        }
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

    /// The first `count` messages of the batch, and those that have landed behind them: as many as there are receives,
    /// so that a peer which is always faster does not keep it here.
    #[inline(never)] // the rarer way, and a long one
    fn take_in(&mut self, mut count: usize) -> Outcome<()> {
        let mut taken = 0;
        loop {
            for at in 0..count {
                self.accept(at)?;
            }
            taken += count;
            if count < BATCH || taken >= self.geometry.num_pages() as usize {
                return Ok(());
            }
            count = self.poll_landed()?;
        }
    }

    fn accept(&mut self, at: usize) -> Outcome<()> {
        let RecvCompletion { id, ref result } = self.batch[at];
        let received = match result {
            Ok(received) => received,
            Err(e) => return Err(broken(&self.shared, *e)),
        };
        let received = *received;
        let named = if self.names_slots { self.named_by(&received) } else { None };
        let slot = match named {
            Some(slot) => slot,
            None if received.kind == RecvKind::WriteWithImm => self.next_unnamed(),
            None => id,
        };
        let torn = match (named, received.imm) {
            (Some(_), Some(imm)) => self.judge(slot, imm, received.lead),
            _ => {
                self.shared.counters.rx.lost_packets.add(received.lead.missed.into());
                false
            }
        };
        let in_ring = slot < self.geometry.num_pages();
        if torn && in_ring && self.torn == TornFrames::Drop {
            return self.spoil(slot, id);
        }
        let counters = &self.shared.counters.rx;
        counters.received.add(1);
        if !in_ring {
            counters.dropped.add(1);
            return self.rearm(id);
        }
        match self.pending.push(slot, id) {
            None => Ok(()),
            Some(overwritten) => {
                self.rearm(overwritten)?;
                self.overran(slot)
            }
        }
    }

    /// The slot of a WRITE whose immediate is not looked at. Not that of the receive that it consumed: receives are
    /// posted again in the order in which slots were handed out.
    fn next_unnamed(&mut self) -> u32 {
        let slot = self.unnamed;
        self.unnamed = slot.wrapping_add(1) % self.geometry.num_pages();
        slot
    }

    /// Counts what is missing before the end of a frame, which has come, and tells whether it is torn.
    fn judge(&mut self, slot: u32, imm: u32, lead: Lead) -> bool {
        let counters = &self.shared.counters.rx;
        let in_ring = slot < self.geometry.num_pages();
        let first = self.sequence.is_unbegun();
        let lost = if in_ring { self.sequence.arrived(slot) } else { 0 };
        counters.lost.set(counters.lost.get().wrapping_add_signed(lost));
        let place = match (in_ring, first) {
            (true, true) => PlaceInRing::First,
            (true, false) if lost == 0 => PlaceInRing::Next,
            _ => PlaceInRing::Elsewhere,
        };
        let verdict = self.frames.frame(lead, imm, place);
        counters.lost_packets.add(verdict.lost_packets.into());
        counters.torn.add(verdict.torn.into());
        if in_ring && self.frames.has_stale_metadata(slot, imm) {
            counters.stale_metadata.add(1);
        }
        verdict.torn
    }

    /// A torn frame, which is not handed out, has overwritten a slot.
    fn spoil(&mut self, slot: u32, receive: u32) -> Outcome<()> {
        self.rearm(receive)?;
        let waiting = self.pending.remove(slot);
        if let Some(overwritten) = waiting {
            self.rearm(overwritten)?;
        }
        if self.gate.spoil(slot) || waiting.is_some() { self.overran(slot) } else { Ok(()) }
    }

    fn overran(&self, slot: u32) -> Outcome<()> {
        self.shared.counters.rx.overruns.add(1);
        if self.overrun == OverrunPolicy::Fail { Err(Box::new(Error::Overrun { slot })) } else { Ok(()) }
    }

    /// The slot that the sender aimed at, for a message that says so, unless immediates are not looked at. The ring need
    /// not have it.
    #[inline]
    fn named_by(&self, received: &Received) -> Option<u32> {
        match received.imm {
            Some(imm) if received.kind == RecvKind::WriteWithImm => Some(imm & self.slot_bits),
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
    shared.completion(error)
}

/// The receive that belongs to a slot: its page.
pub(crate) fn receive_of(geometry: Geometry, slot: u32) -> RecvWr {
    RecvWr { id: slot, offset: geometry.slot_offset(slot), len: geometry.page_size() }
}

/// Wire to RX ring: publishes what arrives.
pub(crate) struct RxLoop<R> {
    path: RxPath<R, Producer>,
    overrun: OverrunPolicy,
    /// The slot whose message was overwritten, until its consumer has given it back.
    full: Option<u32>,
}

impl<R: UcRecv> RxLoop<R> {
    pub(crate) fn new(path: RxPath<R, Producer>, overrun: OverrunPolicy) -> Self {
        Self { path, overrun, full: None }
    }

    /// Whether the policy lets it take more from the wire.
    #[inline]
    fn may_go_on(&mut self) -> bool {
        if let Some(slot) = self.full {
            if !self.path.gate.is_free(slot) {
                return false;
            }
            self.full = None;
        }
        true
    }

    fn publish(&mut self, slot: u32) -> Outcome<()> {
        let ring = &self.path.gate;
        if ring.is_free(slot) {
            ring.publish(slot);
            return Ok(());
        }
        // The slot's set flag stands for the newer message from here: publishing again would show it twice.
        ring.note_overrun(slot);
        self.path.shared.counters.rx.overruns.add(1);
        match self.overrun {
            OverrunPolicy::Wait => self.full = Some(slot),
            OverrunPolicy::Drop => {}
            OverrunPolicy::Fail => return Err(Box::new(Error::Overrun { slot })),
        }
        Ok(())
    }
}

impl<R: UcRecv> Mover for RxLoop<R> {
    #[inline(always)] // into the thread that runs it alone
    fn step(&mut self) -> Outcome<bool> {
        let mut moved = 0;
        while moved < STEP
            && self.may_go_on()
            && let Some(slot) = self.path.next()?
        {
            self.publish(slot)?;
            moved += 1;
            if !self.path.has_more() {
                break;
            }
        }
        Ok(moved > 0)
    }
}
