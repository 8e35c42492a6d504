//! The end that empties slots.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use crate::{Ring, SlotBytes};

/// The end that empties slots. One thread's: it may move, and cannot be shared.
///
/// All methods panic when `slot` is not below [`Geometry::num_pages`](crate::Geometry::num_pages).
#[derive(Debug)]
pub struct Consumer {
    ring: Arc<Ring>,
    /// Where [`next_published`](Self::next_published) expects the next message.
    cursor: u32,
    /// How many looks in a row found the cursor's slot not published.
    idle_looks: u32,
    /// How many slots behind the cursor the next search starts.
    searched: u32,
    not_sync: PhantomData<Cell<()>>,
}

/// Looks at an unpublished cursor slot for each search of the slots behind it. A model has no time for vain ones.
const LOOKS_PER_SEARCH: u32 = if cfg!(roce_loom) { 1 } else { 16 };
/// Slots that one search looks at: eight cache lines of flags.
const SLOTS_PER_SEARCH: u32 = 64;

const _: () = assert!(LOOKS_PER_SEARCH.is_power_of_two(), "the idle looks are counted by wrapping");

impl Consumer {
    pub(crate) fn new(ring: Arc<Ring>) -> Self {
        Self { ring, cursor: 0, idle_looks: 0, searched: 0, not_sync: PhantomData }
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// The message in `slot`, if there is one. `None` for a free slot and for a marker.
    ///
    /// Whoever peeks the same slot twice releases it once.
    #[inline]
    pub fn peek(&self, slot: u32) -> Option<ReadSlot<'_>> {
        let published = self.ring.is_published(slot);
        published.then(|| ReadSlot { consumer: self, slot, generation: self.ring.generation(slot) })
    }

    /// The next published slot. A producer that publishes in ring order, slots left out or not, and stays less than
    /// a lap ahead of the last claim is met in its order; of any other, every message is met in ring order. Until
    /// [`claim`](Self::claim), further calls answer the same.
    ///
    /// A slot that is never published holds nothing up: every 16th call in vain looks behind it, at 64 slots each
    /// time. All other calls cost one load.
    #[inline]
    pub fn next_published(&mut self) -> Option<u32> {
        if self.ring.is_published(self.cursor) {
            return Some(self.cursor);
        }
        self.idle_looks = self.idle_looks.wrapping_add(1);
        if self.idle_looks.is_multiple_of(LOOKS_PER_SEARCH) { self.search_behind_cursor() } else { None }
    }

    /// As [`next_published`](Self::next_published), but looks at all slots at once: for the end, when no further call
    /// may come.
    pub fn find_published(&mut self) -> Option<u32> {
        let first = self.first_published(0..self.ring.geometry().num_pages())?;
        Some(self.ring.geometry().slot_after(self.cursor, first))
    }

    /// Takes `slot`: stores 0, so that its producer may fill it again. [`next_published`](Self::next_published)
    /// goes on behind it.
    #[inline]
    pub fn claim(&mut self, slot: u32) {
        self.ring.clear(slot);
        self.move_cursor(self.ring.geometry().slot_after(slot, 1));
    }

    #[cold]
    fn search_behind_cursor(&mut self) -> Option<u32> {
        let slots = self.ring.geometry().num_pages();
        let start = self.searched + 1;
        let end = start.saturating_add(SLOTS_PER_SEARCH).min(slots);
        self.searched = if end == slots { 0 } else { end - 1 };

        let first = self.first_published(start..end)?;
        let slot = self.ring.geometry().slot_after(self.cursor, first);
        self.move_cursor(slot);
        Some(slot)
    }

    /// How far behind the cursor the first message is that this finds in `distances`, or before them.
    fn first_published(&self, mut distances: Range<u32>) -> Option<u32> {
        let later = distances.find(|&distance| self.is_published_behind(distance))?;
        // A producer that publishes in ring order had published the slots before this one: they are visible now.
        (0..later).find(|&distance| self.is_published_behind(distance)).or(Some(later))
    }

    fn is_published_behind(&self, distance: u32) -> bool {
        self.ring.is_published(self.ring.geometry().slot_after(self.cursor, distance))
    }

    fn move_cursor(&mut self, slot: u32) {
        self.cursor = slot;
        self.idle_looks = 0;
        self.searched = 0;
    }
}

/// The slot was overwritten while it was being read. What was read is not to be trusted; the newer message can be
/// peeked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} was overwritten while it was read; peek it again for the newer message")]
pub struct Overwritten {
    /// Which.
    pub slot: u32,
}

/// A message that the consumer owns. Dropping it without [`release`](Self::release) leaves it published.
#[derive(Debug)]
#[must_use = "the slot stays taken until it is released"]
pub struct ReadSlot<'a> {
    consumer: &'a Consumer,
    slot: u32,
    generation: u32,
}

impl ReadSlot<'_> {
    /// Which slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Its bytes, to be read before [`release`](Self::release).
    #[inline]
    pub fn bytes(&self) -> SlotBytes<'_> {
        self.consumer.ring.slot(self.slot)
    }

    /// Whether an overrun was noted since the peek, so that the bytes read so far are not to be trusted.
    #[inline]
    pub fn overwritten(&self) -> bool {
        self.consumer.ring.generation_after_reads(self.slot) != self.generation
    }

    /// Hands the slot back to the producer. When it was overwritten since the peek, the flag stays set and the
    /// newer message can be peeked.
    #[inline]
    pub fn release(self) -> Result<(), Overwritten> {
        if self.overwritten() {
            return Err(Overwritten { slot: self.slot });
        }
        self.consumer.ring.clear(self.slot);
        Ok(())
    }
}
