//! The dispatcher that drives the transport itself: no flags, no transport threads.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use roce_core::{Line, UcQp};
use roce_ring::{Geometry, SlotBytes};
use roce_transport::{Backoff, SpinPolicy, Unified};

use crate::server::{Outcome, Server};
use crate::stats::{DispatchStats, Event};
use crate::{DispatchError, FunctionTable};

/// A transport that the dispatcher's own thread drives. To be closed is no error for it.
pub trait UnifiedLink {
    /// Why the link is of no more use.
    type Error: Error + Send + Sync + 'static;

    /// The shape of both rings.
    fn geometry(&self) -> Geometry;

    /// Whether messages may still come; false once somebody closed the link.
    fn is_open(&self) -> bool;

    /// The slot of a message that has arrived and whose TX slot is free to answer it. Never blocks.
    ///
    /// # Errors
    /// When the link failed.
    fn rx_poll(&mut self) -> Result<Option<u32>, Self::Error>;

    /// Sends the frame in a TX slot. `false`: the link was closed meanwhile.
    ///
    /// # Errors
    /// When the link failed.
    fn tx_publish(&mut self, slot: u32) -> Result<bool, Self::Error>;

    /// As [`tx_publish`](Self::tx_publish), without a wait: `false` where there is no room, too, and then nothing of the
    /// slot is sent. A link that never waits need not tell the two apart.
    ///
    /// # Errors
    /// When the link failed.
    fn tx_try_publish(&mut self, slot: u32) -> Result<bool, Self::Error> {
        self.tx_publish(slot)
    }

    /// As [`tx_try_publish`](Self::tx_try_publish), but the frame leaves with the next [`tx_flush`](Self::tx_flush), or
    /// before. The slot may be written again all the same.
    ///
    /// # Errors
    /// When the link failed.
    fn tx_stage(&mut self, slot: u32) -> Result<bool, Self::Error> {
        self.tx_try_publish(slot)
    }

    /// Sends what is staged, after a close too.
    ///
    /// # Errors
    /// When the link failed.
    fn tx_flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether more messages are at hand, so that the next [`rx_poll`](Self::rx_poll) need not look for any.
    fn rx_has_more(&self) -> bool {
        false
    }

    /// The bytes of an RX slot.
    fn rx_slot(&self, slot: u32) -> SlotBytes<'_>;

    /// The bytes of a TX slot.
    fn tx_slot(&self, slot: u32) -> SlotBytes<'_>;

    /// The first words of an RX slot and of the TX slot that answers it, by which short requests are served faster where
    /// there are some.
    fn lines(&self, _slot: u32) -> Option<(Line<'_>, Line<'_>)> {
        None
    }
}

impl<Q: UcQp> UnifiedLink for Unified<Q> {
    type Error = roce_transport::Error;

    #[inline]
    fn geometry(&self) -> Geometry {
        self.geometry()
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.is_open()
    }

    #[inline]
    fn rx_poll(&mut self) -> Result<Option<u32>, Self::Error> {
        self.rx_poll().or_else(|error| if is_closed(&error) { Ok(None) } else { Err(error) })
    }

    #[inline(always)] // into its callers, though there are several
    fn tx_publish(&mut self, slot: u32) -> Result<bool, Self::Error> {
        match self.tx_publish(slot) {
            Ok(()) => Ok(true),
            Err(error) => unless_closed(error),
        }
    }

    #[inline]
    fn tx_try_publish(&mut self, slot: u32) -> Result<bool, Self::Error> {
        self.tx_try_publish(slot).or_else(unless_closed)
    }

    #[inline]
    fn tx_stage(&mut self, slot: u32) -> Result<bool, Self::Error> {
        self.tx_stage(slot).or_else(unless_closed)
    }

    fn tx_flush(&mut self) -> Result<(), Self::Error> {
        self.tx_flush()
    }

    #[inline]
    fn rx_has_more(&self) -> bool {
        self.rx_has_more()
    }

    #[inline]
    fn rx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.rx_slot(slot)
    }

    #[inline]
    fn tx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.tx_slot(slot)
    }

    #[inline]
    fn lines(&self, slot: u32) -> Option<(Line<'_>, Line<'_>)> {
        self.lines(slot)
    }
}

#[cold]
fn is_closed(error: &roce_transport::Error) -> bool {
    matches!(error, roce_transport::Error::Closed)
}

/// Nothing is sent by a link that somebody has closed.
#[cold]
#[inline(never)] // to keep the other way short
fn unless_closed(error: roce_transport::Error) -> Result<bool, roce_transport::Error> {
    if is_closed(&error) { Ok(false) } else { Err(error) }
}

/// Serves the requests that a [`UnifiedLink`] hands out, as [`RingLoop`](crate::RingLoop) does for a pair of rings.
///
/// Losses and overruns are the link's to count. A request for a handler that is given slices is copied out of its slot at
/// once, for the link may receive into that slot again. One that works [in place](FunctionTable::register_in_place) may
/// read some of a newer request if its peer laps the ring, and nothing notices: its answer goes out.
pub struct UnifiedLoop<L> {
    link: L,
    server: Server,
    answers_per_flush: u64,
    /// Answers that leave with the next flush.
    staged: u64,
}

impl<L: UnifiedLink> UnifiedLoop<L> {
    /// Serves `table` over `link`.
    ///
    /// # Errors
    /// [`DispatchError::FrameTooSmall`] when a frame has no room for a header.
    pub fn new(link: L, table: FunctionTable) -> Result<Self, DispatchError> {
        let server = Server::new(link.geometry(), link.geometry(), table)?;
        Ok(Self { link, server, answers_per_flush: 1, staged: 0 })
    }

    /// Lets the answers to requests that are at hand together leave together, at most `count` at a time. Default: 1,
    /// each at once.
    ///
    /// More makes for more calls per second, where the link sends several at the price of one. An answer then waits
    /// while the requests that came with its own are served, so it is for handlers that are faster than a send. The
    /// answer to the last request at hand, a lone one for instance, waits for nothing.
    #[must_use]
    pub fn answers_per_flush(self, count: u32) -> Self {
        Self { answers_per_flush: count.into(), ..self }
    }

    /// A handle on the counters.
    pub fn stats(&self) -> DispatchStats {
        self.server.stats().clone()
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// Serves what has arrived, at most one message per slot, and says how many were dealt with: answered or
    /// dropped. Never waits.
    ///
    /// # Errors
    /// The link's.
    #[inline]
    pub fn poll(&mut self) -> Result<usize, L::Error> {
        let mut done = 0;
        let num_pages = self.link.geometry().num_pages() as usize;
        while done < num_pages {
            let served = match self.link.rx_poll() {
                Ok(None) => break,
                Ok(Some(slot)) => self.serve(slot),
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                return self.flush_behind(Err(error));
            }
            done += 1;
        }
        if self.staged == 0 { Ok(done) } else { self.flush_behind(Ok(done)) }
    }

    /// What is staged leaves whatever befell the messages behind it.
    #[inline(never)] // to keep the other way short
    fn flush_behind(&mut self, served: Result<usize, L::Error>) -> Result<usize, L::Error> {
        let flushed = if self.staged > 0 { self.flush() } else { Ok(()) };
        served.and_then(|done| flushed.map(|()| done))
    }

    /// Serves until `stop` is set or the link is closed.
    ///
    /// # Errors
    /// The link's.
    pub fn run(&mut self, stop: &AtomicBool, spin: SpinPolicy) -> Result<(), L::Error> {
        let mut backoff = Backoff::new(spin);
        while !stop.load(Ordering::Relaxed) && self.link.is_open() {
            match self.poll()? {
                0 => backoff.idle(),
                _ => backoff.reset(),
            }
        }
        Ok(())
    }

    #[inline]
    fn serve(&mut self, slot: u32) -> Result<(), L::Error> {
        let link = &self.link;
        let slots = move || (link.rx_slot(slot), link.tx_slot(slot));
        let outcome = self.server.exchange(slot, move || link.lines(slot), slots, || true);
        if outcome == Outcome::NoRequest {
            self.server.stats().count(Event::BadMagic);
            return Ok(());
        }
        if self.answers_per_flush > 1 { self.stage(slot) } else { self.publish(slot) }
    }

    #[inline(always)] // into its callers, though there are two
    fn publish(&mut self, slot: u32) -> Result<(), L::Error> {
        if self.link.tx_publish(slot)? {
            self.server.stats().count(Event::Response);
        }
        Ok(())
    }

    #[inline(never)] // to keep the other way short
    fn stage(&mut self, slot: u32) -> Result<(), L::Error> {
        if !self.link.tx_stage(slot)? {
            self.flush()?;
            return self.publish(slot);
        }
        self.staged += 1;
        if self.staged >= self.answers_per_flush || !self.link.rx_has_more() { self.flush() } else { Ok(()) }
    }

    /// Answers count once they have left.
    fn flush(&mut self) -> Result<(), L::Error> {
        let staged = std::mem::take(&mut self.staged);
        self.link.tx_flush()?;
        self.server.stats().count_several(Event::Response, staged);
        Ok(())
    }
}

impl<L> fmt::Debug for UnifiedLoop<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnifiedLoop").field("stats", self.server.stats()).finish_non_exhaustive()
    }
}
