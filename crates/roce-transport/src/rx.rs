//! Wire to RX ring.

use std::sync::Arc;

use roce_core::{RecvCompletion, RecvKind, RecvWr, UcRecv};
use roce_ring::{Geometry, Producer};

use crate::config::{ImmediateFormat, OverrunPolicy};
use crate::error::Error;
use crate::loss::SlotSequence;
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
    sequence: SlotSequence,
    batch: [RecvCompletion; BATCH],
    taken: usize,
    filled: usize,
    shared: Arc<Shared>,
}

impl<R: UcRecv> RxPath<R> {
    pub(crate) fn new(recv: R, geometry: Geometry, immediate: ImmediateFormat, shared: Arc<Shared>) -> Self {
        let immediate = match immediate {
            ImmediateFormat::Auto if geometry.num_pages() <= 4096 => ImmediateFormat::Hsb,
            ImmediateFormat::Auto => ImmediateFormat::Slot,
            chosen => chosen,
        };
        Self {
            recv,
            geometry,
            immediate,
            sequence: SlotSequence::new(geometry.num_pages()),
            batch: [RecvCompletion::EMPTY; BATCH],
            taken: 0,
            filled: 0,
            shared,
        }
    }

    /// The slot of the next message, whose receive is posted again; `None` when there is none yet.
    pub(crate) fn next(&mut self) -> Result<Option<u32>, Error> {
        loop {
            if self.taken == self.filled && !self.refill()? {
                return Ok(None);
            }
            let completion = self.batch[self.taken];
            self.taken += 1;
            if let Some(slot) = self.accept(completion)? {
                return Ok(Some(slot));
            }
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Whether more messages are at hand without asking the queue pair.
    pub(crate) fn has_more(&self) -> bool {
        self.taken < self.filled
    }

    fn refill(&mut self) -> Result<bool, Error> {
        self.taken = 0;
        self.filled = 0; // stays so if the poll fails
        self.filled = self
            .recv
            .poll(&mut self.batch)
            .inspect_err(|_| self.shared.counters.rx.completion_errors.add(1))?;
        Ok(self.filled > 0)
    }

    fn accept(&mut self, completion: RecvCompletion) -> Result<Option<u32>, Error> {
        let counters = &self.shared.counters.rx;
        let received = completion.result.inspect_err(|_| counters.completion_errors.add(1))?;
        self.recv.post_recv(receive_of(self.geometry, completion.id)).map_err(Error::receive)?;
        counters.received.add(1);
        let slot = match (received.kind, received.imm) {
            (RecvKind::WriteWithImm, Some(imm)) => self.immediate.slot(imm).unwrap_or(completion.id),
            _ => return Ok(Some(completion.id)),
        };
        if slot >= self.geometry.num_pages() {
            counters.dropped.add(1);
            return Ok(None);
        }
        let lost = self.sequence.arrived(slot);
        if lost != 0 {
            counters.lost.set(counters.lost.get().wrapping_add_signed(lost));
        }
        Ok(Some(slot))
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
