//! TX ring to wire.

use std::sync::Arc;

use roce_core::{PostError, RegionId, Rkey, SendWr, Sge, UcSend, Verb};
use roce_ring::{Consumer, Geometry};

use crate::config::{Config, TxMode};
use crate::error::{Error, Outcome};
use crate::mover::{Mover, STEP};
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::Shared;

/// Polls between two looks at the send completions when nothing waits.
const REAP_EVERY: u32 = 16;

/// Steps in vain that the link gets to take what is left after the stop.
const LAST_STEPS: u32 = 64;

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
}

/// The request of one message after another: what is the same for all of them stays.
#[derive(Debug)]
struct Request {
    wr: SendWr,
    /// Where the peer's ring begins, for WRITEs.
    base: u64,
    page_size: u64,
}

impl Request {
    fn new(region: RegionId, route: Route, geometry: Geometry) -> Self {
        let sge = Sge { region, offset: 0, len: geometry.frame_size() };
        let (verb, base) = match route {
            Route::Send => (Verb::Send { imm: None }, 0),
            Route::WriteWithImm { base, rkey } => (Verb::Write { addr: 0, rkey, imm: Some(0) }, base),
        };
        Self { wr: SendWr { sge, verb }, base, page_size: geometry.page_size().into() }
    }

    /// Makes it that of a slot.
    #[inline]
    fn aim(&mut self, slot: u32) {
        let offset = u64::from(slot) * self.page_size;
        self.wr.sge.offset = offset;
        if let Verb::Write { addr, imm, .. } = &mut self.wr.verb {
            *addr = self.base.wrapping_add(offset);
            *imm = Some(slot);
        }
    }
}

/// The sending side of every mode.
#[derive(Debug)]
pub(crate) struct TxPath<S> {
    send: S,
    request: Request,
    waiting: bool,
    /// Until the next look at the link; 1 while something waits.
    polls_left: u32,
    spin: SpinPolicy,
    shared: Arc<Shared>,
}

impl<S: UcSend> TxPath<S> {
    /// Sends slots of a region that way.
    pub(crate) fn new(
        send: S,
        config: &Config,
        (region, route): (RegionId, Route),
        shared: Arc<Shared>,
    ) -> Self {
        let request = Request::new(region, route, config.geometry);
        Self { send, request, waiting: false, polls_left: REAP_EVERY, spin: config.spin, shared }
    }

    /// Takes the frame in a slot into the batch; `false` when the send queue has no room.
    pub(crate) fn stage(&mut self, slot: u32) -> Outcome<bool> {
        self.request.aim(slot);
        match self.send.stage(&self.request.wr) {
            Ok(()) => Ok(self.count_sent()),
            Err(e) => self.refused(e),
        }
    }

    /// As [`stage`](Self::stage); where the queue is full, once more after what can leave has left.
    pub(crate) fn stage_or_flush(&mut self, slot: u32) -> Outcome<bool> {
        if self.stage(slot)? {
            return Ok(true);
        }
        self.flush()?;
        self.stage(slot)
    }

    /// As [`send`](Self::send), for the first `len` bytes of the slot.
    pub(crate) fn send_len(&mut self, slot: u32, len: u32) -> Outcome<bool> {
        let frame_size = std::mem::replace(&mut self.request.wr.sge.len, len);
        let sent = self.send(slot);
        self.request.wr.sge.len = frame_size;
        sent
    }

    /// Sends the frame in a slot, which goes alone, and waits for room; `false` when stopped meanwhile.
    #[inline]
    pub(crate) fn send(&mut self, slot: u32) -> Outcome<bool> {
        self.request.aim(slot);
        if self.try_send()? { Ok(true) } else { self.send_once_there_is_room() }
    }

    /// As [`send`](Self::send), but `false` where the queue stays full after what can leave has left.
    #[inline]
    pub(crate) fn send_or_flush(&mut self, slot: u32) -> Outcome<bool> {
        self.request.aim(slot);
        if self.try_send()? {
            return Ok(true);
        }
        self.flush()?;
        self.try_send()
    }

    #[inline]
    fn try_send(&mut self) -> Outcome<bool> {
        match self.send.send(&self.request.wr) {
            Ok(waiting) => {
                self.note_waiting(waiting);
                Ok(self.count_sent())
            }
            Err(e) => self.refused(e),
        }
    }

    #[cold]
    fn send_once_there_is_room(&mut self) -> Outcome<bool> {
        let mut backoff = Backoff::new(self.spin);
        while !self.shared.is_stopped() {
            self.flush()?;
            backoff.idle();
            if self.try_send()? {
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
        if std::mem::take(&mut self.waiting) {
            self.flush()?;
        }
        self.reap()
    }

    /// So many messages had to wait for room on the link.
    #[inline]
    fn note_waiting(&mut self, messages: usize) {
        if messages > 0 {
            self.waiting = true;
            self.polls_left = 1;
        }
    }

    #[inline]
    fn count_sent(&self) -> bool {
        self.shared.counters.tx.sent.add(1);
        true
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
            self.shared.completion(e)
        })
    }
}

/// TX ring to wire: sends what is published.
pub(crate) struct TxLoop<S> {
    path: TxPath<S>,
    ring: Consumer,
    /// Steps that are left to it after the stop.
    last_steps: u32,
}

impl<S: UcSend> TxLoop<S> {
    pub(crate) fn new(path: TxPath<S>, ring: Consumer) -> Self {
        let last_steps = ring.ring().geometry().num_pages().saturating_add(LAST_STEPS);
        Self { path, ring, last_steps }
    }

    /// Sends the slots that `next` finds published, and says whether there were any. The flag is cleared before the
    /// frame leaves, so that an answer never meets a flag still set.
    #[inline(always)] // into both of its callers
    fn send_batch(&mut self, next: impl Fn(&mut Consumer) -> Option<u32>) -> Outcome<bool> {
        let mut staged = 0;
        while staged < STEP
            && let Some(slot) = next(&mut self.ring)
            && self.path.stage(slot)?
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

impl<S: UcSend> Mover for TxLoop<S> {
    #[inline(always)] // into the thread that runs it alone
    fn step(&mut self) -> Outcome<bool> {
        self.path.progress()?;
        self.send_batch(Consumer::next_published)
    }

    /// What was published before the stop still leaves, if the link takes it.
    fn finish(&mut self) -> Outcome<bool> {
        if self.last_steps == 0 {
            return Ok(false);
        }
        self.last_steps -= 1;
        let sent = self.send_batch(Consumer::find_published)?;
        let goes_on = sent || self.path.waiting || self.ring.find_published().is_some();
        if goes_on {
            self.path.progress()?;
        }
        Ok(goes_on)
    }
}
