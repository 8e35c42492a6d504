//! Wire to RX ring.

use std::sync::Arc;

use roce_core::{RecvCompletion, RecvKind, RecvWr, UcRecv};
use roce_ring::{Geometry, Producer};

use crate::config::{Config, ImmediateFormat, OverrunPolicy};
use crate::error::Error;
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
    immediate: ImmediateFormat,
    overrun: OverrunPolicy,
    sequence: SlotSequence,
    pending: PendingSlots,
    batch: [RecvCompletion; BATCH],
    shared: Arc<Shared>,
}

impl<R: UcRecv> RxPath<R> {
    pub(crate) fn new(recv: R, config: &Config, shared: Arc<Shared>) -> Self {
        let geometry = config.geometry;
        let immediate = match config.immediate {
            ImmediateFormat::Auto if geometry.num_pages() <= 4096 => ImmediateFormat::Hsb,
            ImmediateFormat::Auto => ImmediateFormat::Slot,
            chosen => chosen,
        };
        Self {
            recv,
            geometry,
            immediate,
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
    #[inline]
    pub(crate) fn next(&mut self, may_go: impl Fn(u32) -> bool) -> Result<Option<u32>, Error> {
        self.drain()?;
        let Some((slot, receive)) = self.pending.take(may_go) else { return Ok(None) };
        self.rearm(receive)?;
        Ok(Some(slot))
    }

    /// Whether more messages are at hand without asking the queue pair.
    pub(crate) fn has_more(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes all completions there are before any slot is handed out: a later one may have overwritten it.
    fn drain(&mut self) -> Result<(), Error> {
        loop {
            let polled = self.recv.poll(&mut self.batch);
            let count = polled.inspect_err(|_| self.shared.counters.rx.completion_errors.add(1))?;
            for i in 0..count {
                self.accept(self.batch[i])?;
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn accept(&mut self, completion: RecvCompletion) -> Result<(), Error> {
        let counters = &self.shared.counters.rx;
        let received = completion.result.inspect_err(|_| counters.completion_errors.add(1))?;
        counters.received.add(1);
        let named = match (received.kind, received.imm) {
            (RecvKind::WriteWithImm, Some(imm)) => self.immediate.slot(imm),
            _ => None,
        };
        let slot = named.unwrap_or(completion.id);
        if slot >= self.geometry.num_pages() {
            counters.dropped.add(1);
            return self.rearm(completion.id);
        }
        if named.is_some() {
            let lost = self.sequence.arrived(slot);
            if lost != 0 {
                counters.lost.set(counters.lost.get().wrapping_add_signed(lost));
            }
        }
        match self.pending.push(slot, completion.id) {
            None => Ok(()),
            Some(receive) => {
                counters.overruns.add(1);
                self.rearm(receive)?;
                if self.overrun == OverrunPolicy::Fail { Err(Error::Overrun { slot }) } else { Ok(()) }
            }
        }
    }

    fn rearm(&mut self, receive: u32) -> Result<(), Error> {
        self.recv.post_recv(receive_of(self.geometry, receive)).map_err(Error::receive)
    }
}

impl ImmediateFormat {
    /// The slot that an immediate names; `None` where it is not looked at.
    fn slot(self, imm: u32) -> Option<u32> {
        match self {
            Self::Auto | Self::Hsb => Some(imm & 0xFFF),
            Self::Slot => Some(imm),
            Self::Hsb2510 => Some(imm & 0xFF),
            Self::Ignore => None,
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
