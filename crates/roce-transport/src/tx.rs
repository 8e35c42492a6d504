//! TX ring to wire.

use std::sync::Arc;

use roce_core::{PostError, RegionId, Rkey, SendWr, Sge, UcSend, Verb};
use roce_ring::{Consumer, Geometry};

use crate::config::TxMode;
use crate::error::{Error, Outcome};
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::Shared;

/// Messages that leave with one flush at most.
const BATCH: usize = 16;

/// Polls between two looks at the send completions when nothing waits.
const REAP_EVERY: u32 = 16;

/// Rounds in vain that the link gets to take what is left when a TX thread ends.
const LAST_ROUNDS: u32 = 64;

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

    #[inline]
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
    /// Until the next look at the link; 1 while something waits.
    polls_left: u32,
    shared: Arc<Shared>,
}

impl<S: UcSend> TxPath<S> {
    pub(crate) fn new(send: S, geometry: Geometry, route: Route, shared: Arc<Shared>) -> Self {
        Self { send, geometry, route, waiting: false, polls_left: REAP_EVERY, shared }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Takes the first `len` bytes of a slot into the batch; `false` when the send queue has no room.
    pub(crate) fn stage(&mut self, region: RegionId, slot: u32, len: u32) -> Outcome<bool> {
        let wr = self.request(region, slot, len);
        let staged = self.send.stage(&wr);
        self.is_taken(staged)
    }

    /// Sends the first `len` bytes of a slot at once; `false` when the send queue has no room.
    #[inline]
    pub(crate) fn send(&mut self, region: RegionId, slot: u32, len: u32) -> Outcome<bool> {
        let wr = self.request(region, slot, len);
        let sent = self.send.send(&wr).map(|waiting| self.note_waiting(waiting));
        self.is_taken(sent)
    }

    /// Takes a message into the batch, or sends it, with `take`, and waits for room; `false` when stopped meanwhile.
    #[inline]
    pub(crate) fn waiting_for_room(
        &mut self,
        spin: SpinPolicy,
        take: impl Fn(&mut Self) -> Outcome<bool>,
    ) -> Outcome<bool> {
        if take(self)? { Ok(true) } else { self.wait_for_room(spin, take) }
    }

    #[cold]
    fn wait_for_room(&mut self, spin: SpinPolicy, take: impl Fn(&mut Self) -> Outcome<bool>) -> Outcome<bool> {
        let mut backoff = Backoff::new(spin);
        while !self.shared.is_stopped() {
            self.flush()?;
            backoff.idle();
            if take(self)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends the batch.
    pub(crate) fn flush(&mut self) -> Outcome<()> {
        let waiting = self.send.flush().map_err(Error::send)?;
        self.note_waiting(waiting);
        Ok(())
    }

    /// Sends what had to wait, and looks at the completions now and then.
    #[inline]
    pub(crate) fn progress(&mut self) -> Outcome<()> {
        self.polls_left -= 1;
        if self.polls_left == 0 { self.progress_now() } else { Ok(()) }
    }

    #[inline(never)]
    fn progress_now(&mut self) -> Outcome<()> {
        self.polls_left = REAP_EVERY;
        if self.waiting {
            self.flush()?;
        }
        self.reap()
    }

    fn note_waiting(&mut self, messages: usize) {
        self.waiting = messages > 0;
        if self.waiting {
            self.polls_left = 1;
        }
    }

    #[inline]
    fn request(&self, region: RegionId, slot: u32, len: u32) -> SendWr {
        let offset = self.geometry.slot_offset(slot);
        SendWr { sge: Sge { region, offset, len }, verb: self.route.verb(offset, slot) }
    }

    #[inline]
    fn is_taken(&mut self, result: Result<(), PostError>) -> Outcome<bool> {
        match result {
            Ok(()) => {
                self.shared.counters.tx.sent.add(1);
                Ok(true)
            }
            Err(e) => self.refused(e),
        }
    }

    /// `false` where that is for want of room.
    #[cold]
    fn refused(&mut self, error: PostError) -> Outcome<bool> {
        let PostError::QueueFull = error else { return Err(Error::send(error)) };
        self.shared.counters.tx.stalls.add(1);
        self.reap()?;
        Ok(false)
    }

    fn reap(&mut self) -> Outcome<()> {
        self.send.reap().map_err(|e| {
            self.shared.counters.tx.completion_errors.add(1);
            Box::new(e.into())
        })
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
            if self.send_batch(Consumer::next_published)? {
                backoff.reset();
            } else {
                backoff.idle();
            }
        }
        self.drain()
    }

    /// What was published before the stop still leaves, if the link takes it.
    fn drain(&mut self) -> Result<(), Error> {
        for _ in 0..self.ring.ring().geometry().num_pages().saturating_add(LAST_ROUNDS) {
            if !self.send_batch(Consumer::find_published)? {
                if !self.path.waiting && self.ring.find_published().is_none() {
                    break;
                }
                std::thread::yield_now();
            }
            self.path.progress()?;
        }
        Ok(())
    }

    /// Sends the slots that `next` finds published, and says whether there were any. The flag is cleared before the
    /// frame leaves, so that an answer never meets a flag still set.
    fn send_batch(&mut self, next: impl Fn(&mut Consumer) -> Option<u32>) -> Result<bool, Error> {
        let frame_size = self.ring.ring().geometry().frame_size();
        let mut staged = 0;
        while staged < BATCH
            && let Some(slot) = next(&mut self.ring)
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
