//! Unified mode: the caller's one thread is the transceiver's only one.

use std::sync::Arc;

use roce_core::{FrameMetadata, Line, ShortMetadata, UcQp};
use roce_ring::{Geometry, Lines, Ring, SlotBytes};

use crate::device::AnyQp;
use crate::error::{Error, Outcome};
use crate::frames::frame_metadata;
use crate::rx::RxPath;
use crate::transceiver::Shared;
use crate::tx::TxPath;

/// The transceiver in the caller's hand: polls requests out of the wire and publishes answers to it, with no
/// thread and no flag in between.
///
/// Dropping it gives the queue pair back. One thread may drive many: poll them in turn, and give the CPU away where it
/// is not yours alone. Each poll of an end that has nothing at hand asks its socket, also where many share one.
///
/// ```no_run
/// # use roce_transport::{Backoff, Error, SpinPolicy, Unified};
/// # fn answer(link: &Unified, slot: u32) {}
/// fn serve(links: &mut [Unified]) -> Result<(), Error> {
///     let mut backoff = Backoff::new(SpinPolicy::default());
///     loop {
///         let mut is_idle = true;
///         for link in links.iter_mut() {
///             if let Some(slot) = link.rx_poll()? {
///                 answer(link, slot);
///                 link.tx_publish(slot)?;
///                 is_idle = false;
///             }
///         }
///         if is_idle { backoff.idle() } else { backoff.reset() }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Unified<Q: UcQp = AnyQp> {
    rx: RxPath<Q::Recv, Arc<Ring>>,
    tx: TxPath<Q::Send>,
    rx_ring: Arc<Ring>,
    tx_ring: Arc<Ring>,
    lines: Lines,
    shared: Arc<Shared>,
}

impl<Q: UcQp> Unified<Q> {
    pub(crate) fn new(
        rx: RxPath<Q::Recv, Arc<Ring>>,
        tx: TxPath<Q::Send>,
        (rx_ring, tx_ring): (Arc<Ring>, Arc<Ring>),
        shared: Arc<Shared>,
    ) -> Self {
        let lines = Lines::new(&rx_ring, &tx_ring);
        Self { rx, tx, rx_ring, tx_ring, lines, shared }
    }

    /// The slot of the next request, if one has arrived. Never blocks.
    ///
    /// The receive is posted again at once, so the slot's bytes stand until the peer laps the ring. A slot
    /// whose TX flag is set, which foreign code may do, is held back until that flag reads 0.
    #[inline]
    pub fn rx_poll(&mut self) -> Result<Option<u32>, Error> {
        self.try_poll().map_err(|e| self.failed(e))
    }

    /// Sends `frame_size` bytes of a TX slot, in any order of slots. The slot may be written again when this
    /// returns. Waits for room in the send queue; fails when closed meanwhile.
    #[inline]
    pub fn tx_publish(&mut self, slot: u32) -> Result<(), Error> {
        self.try_publish(slot, TxPath::send).map_err(|e| self.failed(e))
    }

    /// As [`tx_publish`](Self::tx_publish), without the wait: `false` when the send queue has no room, and then nothing
    /// of the slot is sent.
    #[inline]
    pub fn tx_try_publish(&mut self, slot: u32) -> Result<bool, Error> {
        self.attempt(slot, TxPath::send_or_flush).map_err(|e| self.failed(e))
    }

    /// As [`tx_try_publish`](Self::tx_try_publish), but the frame leaves with the next [`tx_flush`](Self::tx_flush), or
    /// before. Its slot may be written again all the same. What is staged when this is dropped may never leave.
    #[inline]
    pub fn tx_stage(&mut self, slot: u32) -> Result<bool, Error> {
        self.attempt(slot, TxPath::stage_or_flush).map_err(|e| self.failed(e))
    }

    /// Sends what is [staged](Self::tx_stage), after a close too.
    pub fn tx_flush(&mut self) -> Result<(), Error> {
        self.tx.flush().map_err(|e| self.failed(e))
    }

    /// Whether more requests are at hand, so that the next [`rx_poll`](Self::rx_poll) need not ask the link.
    #[inline]
    pub fn rx_has_more(&self) -> bool {
        self.rx.has_more()
    }

    /// As [`tx_publish`](Self::tx_publish), for the first `len` bytes, at most a page.
    pub fn tx_publish_len(&mut self, slot: u32, len: u32) -> Result<(), Error> {
        let page_size = self.geometry().page_size();
        if len > page_size {
            return Err(Error::Length { len, page_size });
        }
        self.try_publish(slot, |tx, slot| tx.send_len(slot, len)).map_err(|e| self.failed(e))
    }

    /// A received request. Its bytes may change when the peer laps the ring: copy what you check.
    pub fn rx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.rx_ring.slot(slot)
    }

    /// What an FPGA tells of the frame in a slot, copied out: see [`frame_metadata`].
    ///
    /// # Errors
    /// When a page ends before the metadata do.
    pub fn rx_metadata(&self, slot: u32) -> Result<FrameMetadata, ShortMetadata> {
        frame_metadata(self.rx_slot(slot), self.geometry())
    }

    /// Where to write an answer.
    pub fn tx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.tx_ring.slot(slot)
    }

    /// The first words of a received request and of its answer, where slots [have](Lines) them.
    #[inline]
    pub fn lines(&self, slot: u32) -> Option<(Line<'_>, Line<'_>)> {
        self.lines.of(slot)
    }

    /// The rings' shape.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.rx_ring.geometry()
    }

    /// Whether the transceiver has neither been closed nor failed.
    #[inline]
    pub fn is_open(&self) -> bool {
        !self.shared.is_stopped()
    }

    #[inline(always)] // into its caller, though there may be several
    fn try_poll(&mut self) -> Outcome<Option<u32>> {
        self.check_open()?;
        self.tx.progress()?;
        self.rx.next()
    }

    #[inline(always)] // into its caller, though there may be several
    fn try_publish(
        &mut self,
        slot: u32,
        send: impl FnOnce(&mut TxPath<Q::Send>, u32) -> Outcome<bool>,
    ) -> Outcome<()> {
        if self.attempt(slot, send)? { Ok(()) } else { Err(self.shared.stopped_by()) }
    }

    #[inline(always)] // into its caller, though there may be several
    fn attempt(
        &mut self,
        slot: u32,
        send: impl FnOnce(&mut TxPath<Q::Send>, u32) -> Outcome<bool>,
    ) -> Outcome<bool> {
        if !self.shared.is_open_for(slot) {
            return Err(self.not_open_for(slot));
        }
        send(&mut self.tx, slot)
    }

    #[inline]
    fn check_open(&self) -> Outcome<()> {
        if self.is_open() { Ok(()) } else { Err(self.shared.stopped_by()) }
    }

    #[cold]
    #[inline(never)]
    fn not_open_for(&self, slot: u32) -> Box<Error> {
        let num_pages = self.geometry().num_pages();
        if self.is_open() { Box::new(Error::Slot { slot, num_pages }) } else { self.shared.stopped_by() }
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, error: Box<Error>) -> Error {
        self.shared.fail(&error);
        *error
    }
}
