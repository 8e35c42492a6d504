//! TX ring to wire.

use std::sync::Arc;

use roce_core::{PostError, RegionId, Rkey, SendWr, Sge, UcSend, Verb};
use roce_ring::{Consumer, Geometry};

use crate::config::TxMode;
use crate::error::Error;
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::Shared;

/// Messages that leave with one flush at most.
const BATCH: usize = 16;

/// Polls between two looks at the send completions when nothing waits.
const REAP_EVERY: u32 = 16;

/// [`Consumer::next_published`] looks behind an empty cursor, at 64 slots, on every 16th call.
const LOOKS_PER_RING_SEARCH: u32 = 16;

/// How our messages travel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Route {
    Send,
    WriteWithImm { base: u64, rkey: Rkey },
}

impl Route {
    pub(crate) fn new(mode: TxMode, base: u64, rkey: Option<Rkey>) -> Result<Self, Error> {
        match (mode, rkey) {
            (TxMode::Send, _) => Ok(Self::Send),
            (TxMode::WriteWithImm, Some(rkey)) if rkey.get() != 0 => Ok(Self::WriteWithImm { base, rkey }),
            (TxMode::WriteWithImm, _) => Err(Error::NoRkey),
        }
    }

    fn verb(self, offset: u64, slot: u32) -> Verb {
        match self {
            Self::Send => Verb::Send { imm: None },
            Self::WriteWithImm { base, rkey } => {
                Verb::Write { addr: base.wrapping_add(offset), rkey, imm: Some(slot) }
            }
        }
    }
}

/// The sending side of every mode.
#[derive(Debug)]
pub(crate) struct TxPath<S> {
    send: S,
    geometry: Geometry,
    route: Route,
    waiting: bool,
    polls: u32,
    shared: Arc<Shared>,
}

impl<S: UcSend> TxPath<S> {
    pub(crate) fn new(send: S, geometry: Geometry, route: Route, shared: Arc<Shared>) -> Self {
        Self { send, geometry, route, waiting: false, polls: 0, shared }
    }

    /// Takes the first `len` bytes of a slot into the batch; `false` when the send queue has no room.
    pub(crate) fn stage(&mut self, region: RegionId, slot: u32, len: u32) -> Result<bool, Error> {
        let offset = self.geometry.slot_offset(slot);
        let sge = Sge { region, offset, len };
        match self.send.stage(&SendWr { sge, verb: self.route.verb(offset, slot) }) {
            Ok(()) => {
                self.shared.counters.tx.sent.add(1);
                Ok(true)
            }
            Err(PostError::QueueFull) => {
                self.shared.counters.tx.stalls.add(1);
                self.reap()?;
                Ok(false)
            }
            Err(e) => Err(Error::send(e)),
        }
    }

    /// As [`stage`](Self::stage), but waits for room; `false` when stopped meanwhile.
    pub(crate) fn stage_waiting(
        &mut self,
        region: RegionId,
        slot: u32,
        len: u32,
        spin: SpinPolicy,
    ) -> Result<bool, Error> {
        let mut backoff = Backoff::new(spin);
        while !self.stage(region, slot, len)? {
            if self.shared.is_stopped() {
                return Ok(false);
            }
            self.flush()?;
            backoff.idle();
        }
        Ok(true)
    }

    /// Sends the batch.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.waiting = self.send.flush().map_err(Error::send)? > 0;
        Ok(())
    }

    /// Sends what had to wait, and looks at the completions now and then.
    pub(crate) fn progress(&mut self) -> Result<(), Error> {
        if self.waiting {
            self.flush()?;
        }
        self.polls += 1;
        if self.polls < REAP_EVERY {
            return Ok(());
        }
        self.polls = 0;
        self.reap()
    }

    fn reap(&mut self) -> Result<(), Error> {
        self.send.reap().inspect_err(|_| self.shared.counters.tx.completion_errors.add(1))?;
        Ok(())
    }
}

/// The TX thread: sends what is published.
pub(crate) struct TxLoop<S> {
    pub(crate) path: TxPath<S>,
    pub(crate) ring: Consumer,
    pub(crate) spin: SpinPolicy,
    pub(crate) shared: Arc<Shared>,
}

impl<S: UcSend> TxLoop<S> {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut backoff = Backoff::new(self.spin);
        while !self.shared.is_stopped() {
            self.path.progress()?;
            if self.send_published()? {
                backoff.reset();
            } else {
                backoff.idle();
            }
        }
        self.drain()
    }

    /// What was published before the stop still leaves, if the link takes it.
    fn drain(&mut self) -> Result<(), Error> {
        let looks = LOOKS_PER_RING_SEARCH * (self.ring.ring().geometry().num_pages() / 64 + 2);
        for _ in 0..looks {
            if !self.send_published()? && self.path.waiting {
                std::thread::yield_now();
            }
            self.path.progress()?;
        }
        Ok(())
    }

    /// The flag is cleared before the frame leaves, so that an answer never meets a flag still set.
    fn send_published(&mut self) -> Result<bool, Error> {
        let frame_size = self.ring.ring().geometry().frame_size();
        let mut staged = 0;
        while staged < BATCH
            && let Some(slot) = self.ring.next_published()
            && self.path.stage(RegionId::Tx, slot, frame_size)?
        {
            self.ring.claim(slot);
            staged += 1;
        }
        if staged > 0 {
            self.path.flush()?;
        }
        Ok(staged > 0)
    }
}
