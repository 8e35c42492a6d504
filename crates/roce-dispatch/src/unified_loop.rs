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

    /// The bytes of an RX slot.
    fn rx_slot(&self, slot: u32) -> SlotBytes<'_>;

    /// The bytes of a TX slot.
    fn tx_slot(&self, slot: u32) -> SlotBytes<'_>;

    /// The first words of an RX slot, by which short requests are served faster where there are some.
    fn rx_line(&self, _slot: u32) -> Option<Line<'_>> {
        None
    }

    /// The first words of a TX slot.
    fn tx_line(&self, _slot: u32) -> Option<Line<'_>> {
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
        self.rx_poll().or_else(|error| unless_closed(error, None))
    }

    #[inline]
    fn tx_publish(&mut self, slot: u32) -> Result<bool, Self::Error> {
        self.tx_publish(slot).map(|()| true).or_else(|error| unless_closed(error, false))
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
    fn rx_line(&self, slot: u32) -> Option<Line<'_>> {
        self.rx_line(slot)
    }

    #[inline]
    fn tx_line(&self, slot: u32) -> Option<Line<'_>> {
        self.tx_line(slot)
    }
}

#[cold]
fn unless_closed<T>(error: roce_transport::Error, closed: T) -> Result<T, roce_transport::Error> {
    if matches!(error, roce_transport::Error::Closed) { Ok(closed) } else { Err(error) }
}

/// Serves the requests that a [`UnifiedLink`] hands out, as [`RingLoop`](crate::RingLoop) does for a pair of rings.
///
/// Losses and overruns are the link's to count. A request is copied out of its slot at once, for the link may
/// receive into that slot again.
pub struct UnifiedLoop<L> {
    link: L,
    server: Server,
}

impl<L: UnifiedLink> UnifiedLoop<L> {
    /// Serves `table` over `link`.
    ///
    /// # Errors
    /// [`DispatchError::FrameTooSmall`] when a frame has no room for a header.
    pub fn new(link: L, table: FunctionTable) -> Result<Self, DispatchError> {
        let server = Server::new(link.geometry(), link.geometry(), table)?;
        Ok(Self { link, server })
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
    pub fn poll(&mut self) -> Result<usize, L::Error> {
        let mut done = 0;
        for _ in 0..self.link.geometry().num_pages() {
            let Some(slot) = self.link.rx_poll()? else { break };
            self.serve(slot)?;
            done += 1;
        }
        Ok(done)
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
        let lines = (link.rx_line(slot), link.tx_line(slot));
        let outcome = self.server.exchange(lines, slot, || (link.rx_slot(slot), link.tx_slot(slot)), || true);
        if outcome == Outcome::NoRequest {
            self.server.stats().count(Event::BadMagic);
            return Ok(());
        }
        if self.link.tx_publish(slot)? {
            self.server.stats().count(Event::Response);
        }
        Ok(())
    }
}

impl<L> fmt::Debug for UnifiedLoop<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnifiedLoop").field("stats", self.server.stats()).finish_non_exhaustive()
    }
}
