//! Unified mode: the caller's one thread is the transceiver's only one.

use std::sync::Arc;

use roce_core::{RegionId, UcQp};
use roce_ring::{Geometry, Ring, SlotBytes};

use crate::device::AnyQp;
use crate::error::Error;
use crate::rx::RxPath;
use crate::spin::SpinPolicy;
use crate::transceiver::Shared;
use crate::tx::TxPath;

/// The transceiver in the caller's hand: polls requests out of the wire and publishes answers to it, with no
/// thread and no flag in between.
///
/// Dropping it gives the queue pair back.
#[derive(Debug)]
pub struct Unified<Q: UcQp = AnyQp> {
    rx: RxPath<Q::Recv>,
    tx: TxPath<Q::Send>,
    rx_ring: Arc<Ring>,
    tx_ring: Arc<Ring>,
    spin: SpinPolicy,
    shared: Arc<Shared>,
}

impl<Q: UcQp> Unified<Q> {
    pub(crate) fn new(
        rx: RxPath<Q::Recv>,
        tx: TxPath<Q::Send>,
        (rx_ring, tx_ring): (Arc<Ring>, Arc<Ring>),
        spin: SpinPolicy,
        shared: Arc<Shared>,
    ) -> Self {
        Self { rx, tx, rx_ring, tx_ring, spin, shared }
    }

    /// The slot of the next request, if one has arrived. Never blocks.
    ///
    /// The receive is posted again at once, so the slot's bytes stand until the peer laps the ring. A slot
    /// whose TX flag is set, which foreign code may do, is held back until that flag reads 0.
    pub fn rx_poll(&mut self) -> Result<Option<u32>, Error> {
        self.check_open()?;
        let polled = self.try_poll();
        self.keep_error(polled)
    }

    /// Sends `frame_size` bytes of a TX slot, in any order of slots. The slot may be written again when this
    /// returns. Waits for room in the send queue; fails when closed meanwhile.
    pub fn tx_publish(&mut self, slot: u32) -> Result<(), Error> {
        self.tx_publish_len(slot, self.geometry().frame_size())
    }

    /// As [`tx_publish`](Self::tx_publish), for the first `len` bytes, at most a page.
    pub fn tx_publish_len(&mut self, slot: u32, len: u32) -> Result<(), Error> {
        self.check_open()?;
        let (num_pages, page_size) = (self.geometry().num_pages(), self.geometry().page_size());
        if slot >= num_pages {
            return Err(Error::Slot { slot, num_pages });
        }
        if len > page_size {
            return Err(Error::Length { len, page_size });
        }
        let published = self.try_publish(slot, len);
        self.keep_error(published)
    }

    /// A received request. Its bytes may change when the peer laps the ring: copy what you check.
    pub fn rx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.rx_ring.slot(slot)
    }

    /// Where to write an answer.
    pub fn tx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.tx_ring.slot(slot)
    }

    /// The rings' shape.
    pub fn geometry(&self) -> Geometry {
        self.rx_ring.geometry()
    }

    /// Whether the transceiver has neither been closed nor failed.
    pub fn is_open(&self) -> bool {
        !self.shared.is_stopped()
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.is_open() { Ok(()) } else { Err(self.shared.error().unwrap_or(Error::Closed)) }
    }

    fn keep_error<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|e| self.shared.fail(e))
    }

    fn try_poll(&mut self) -> Result<Option<u32>, Error> {
        self.tx.progress()?;
        self.rx.next(|slot| self.tx_ring.flag_is_free(slot))
    }

    fn try_publish(&mut self, slot: u32, len: u32) -> Result<(), Error> {
        if !self.tx.stage_waiting(RegionId::Tx, slot, len, self.spin)? {
            return Err(Error::Closed);
        }
        self.tx.flush()
    }
}
