//! The end that fills slots.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Ring, SlotBytes};

/// The end that fills slots. One thread's: it may move, and cannot be shared.
///
/// All methods panic when `slot` is not below [`Geometry::num_pages`](crate::Geometry::num_pages).
#[derive(Debug)]
pub struct Producer {
    ring: Arc<Ring>,
    not_sync: PhantomData<Cell<()>>,
}

impl Producer {
    pub(crate) fn new(ring: Arc<Ring>) -> Self {
        Self { ring, not_sync: PhantomData }
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Whether `slot` may be filled: its flag reads 0.
    #[inline]
    pub fn is_free(&self, slot: u32) -> bool {
        self.ring.flag_is_free(slot)
    }

    /// The bytes of `slot`, the producer's own while it is free.
    #[inline]
    pub fn slot(&self, slot: u32) -> SlotBytes<'_> {
        self.ring.slot(slot)
    }

    /// Hands `slot` to the consumer, with all that was written to it.
    #[inline]
    pub fn publish(&self, slot: u32) {
        self.ring.publish(slot);
    }

    /// Says that a message still flagged in `slot` was overwritten. Not to be followed by
    /// [`publish`](Self::publish): the set flag now stands for the newer message.
    ///
    /// A consumer that peeked before this call, and releases after it, learns of it. A producer that knows
    /// beforehand calls it before it writes, and then no such consumer takes a mix of two messages for one.
    #[cold]
    pub fn note_overrun(&self, slot: u32) {
        self.ring.note_overrun(slot);
    }
}
