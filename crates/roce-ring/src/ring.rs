//! A ring: memory, flags, and the two ends.

use std::sync::Arc;

use roce_core::DmaRegion;

use crate::memory::{Data, Flags};
use crate::primitive::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use crate::{Consumer, Geometry, MemoryOptions, Producer, RingError, SlotBytes};

/// Slots and flags. The crate's page tells the protocol.
///
/// All methods that name a slot panic when it is not below [`Geometry::num_pages`].
#[derive(Debug)]
pub struct Ring {
    geometry: Geometry,
    data: Data,
    flags: Flags,
    /// How often a message in the slot was overwritten before the consumer released it.
    generations: Box<[AtomicU32]>,
    is_split: AtomicBool,
}

impl Ring {
    /// Zeroed memory, page-aligned and touched; all slots are free.
    pub fn allocate(geometry: Geometry, options: MemoryOptions) -> Result<Arc<Self>, RingError> {
        let ring = Self {
            geometry,
            data: Data::new(geometry, options)?,
            flags: Flags::new(geometry)?,
            generations: (0..geometry.num_pages()).map(|_| AtomicU32::new(0)).collect(),
            is_split: AtomicBool::new(false),
        };
        if options.lock {
            ring.lock_memory()?;
        }
        Ok(Arc::new(ring))
    }

    /// Locks data and flags into RAM. After an error the ring is as good as before, and may see page faults when
    /// the system swaps.
    pub fn lock_memory(&self) -> Result<(), RingError> {
        self.data.lock()?;
        self.flags.lock()
    }

    /// The two ends, each for one thread. `None` from the second call on. A side that foreign code plays stays
    /// unused.
    pub fn split(self: &Arc<Self>) -> Option<(Producer, Consumer)> {
        let was_split = self.is_split.swap(true, Ordering::Relaxed);
        (!was_split).then(|| (Producer::new(Arc::clone(self)), Consumer::new(Arc::clone(self))))
    }

    /// The shape.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The data as a region to register with a device. It outlives the ring if need be.
    pub fn data(&self) -> Arc<dyn DmaRegion> {
        self.data.region()
    }

    /// The first byte of the data, for foreign code: [`Geometry::data_len`] bytes on a page's boundary.
    pub fn data_addr(&self) -> *mut u8 {
        self.data.addr()
    }

    /// The first flag, for foreign code: [`Geometry::num_pages`] aligned words on a page's boundary, each to be
    /// accessed as one 64-bit word.
    pub fn flag_addr(&self) -> *mut u64 {
        self.flags.addr()
    }

    /// The bytes of `slot`, whoever owns them just now.
    #[inline]
    pub fn slot(&self, slot: u32) -> SlotBytes<'_> {
        let len = self.geometry.page_size() as usize;
        SlotBytes::new(self.data.bytes(slot as usize * len, len))
    }

    /// Whether the flag of `slot` reads 0. If so, the consumer's reads of the slot are over.
    #[inline]
    pub fn flag_is_free(&self, slot: u32) -> bool {
        self.flag(slot).load(Ordering::Acquire) == 0 // pairs with `clear`
    }

    /// Whether `slot` holds a message. If so, all of it is visible.
    #[inline]
    pub(crate) fn is_published(&self, slot: u32) -> bool {
        let value = self.flag(slot).load(Ordering::Acquire); // pairs with `publish`
        value.wrapping_sub(self.base()) < self.geometry.data_len() as u64
    }

    /// Hands `slot` to the consumer.
    #[inline]
    pub(crate) fn publish(&self, slot: u32) {
        let address = self.base() + self.geometry.slot_offset(slot);
        self.flag(slot).store(address, Ordering::Release); // pairs with `is_published`
    }

    /// Hands `slot` back to the producer.
    #[inline]
    pub(crate) fn clear(&self, slot: u32) {
        self.flag(slot).store(0, Ordering::Release); // pairs with `flag_is_free`
    }

    /// The generation that the consumer's reads of `slot` start from; what its producer wrote before is visible.
    #[inline]
    pub(crate) fn generation(&self, slot: u32) -> u32 {
        self.generations[slot as usize].load(Ordering::Acquire) // pairs with `note_overrun`
    }

    /// The generation after the reads that precede this call: a read that saw bytes written after a noted overrun
    /// sees that overrun as well.
    #[inline]
    pub(crate) fn generation_after_reads(&self, slot: u32) -> u32 {
        fence(Ordering::Acquire); // pairs with the fence in `note_overrun`
        self.generations[slot as usize].load(Ordering::Relaxed)
    }

    /// Bumps the generation: after the bytes that were written before, and before those written after.
    pub(crate) fn note_overrun(&self, slot: u32) {
        self.generations[slot as usize].fetch_add(1, Ordering::Release); // pairs with `generation`
        fence(Ordering::Release); // pairs with the fence in `generation_after_reads`
    }

    #[inline]
    fn flag(&self, slot: u32) -> &AtomicU64 {
        &self.flags.words()[slot as usize]
    }

    /// The address that flags count from. Exposed, because foreign code makes a pointer of a flag's value.
    #[inline]
    fn base(&self) -> u64 {
        self.data.addr().expose_provenance() as u64
    }
}
