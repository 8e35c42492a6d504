//! The bytes of one slot.

use std::marker::PhantomData;
use std::ops::Range;

#[cfg(not(roce_loom))]
use roce_core::MemoryPart;

use crate::memory::Bytes;

/// The bytes of one slot: its whole page, [`Geometry::page_size`](crate::Geometry::page_size) of them.
///
/// A peer or foreign code may write them at any time, so nothing here makes a reference to them. Copies are made
/// of relaxed atomic accesses, as [`Memory`](roce_core::Memory) tells, and are whole only for whoever owns the slot
/// by its flag: who races gets old bytes, new ones or a mix.
#[derive(Debug, Clone, Copy)]
pub struct SlotBytes<'a> {
    bytes: Bytes<'a>,
    /// One thread's view, as the ends that give it out are.
    not_send: PhantomData<*mut u8>,
}

#[allow(clippy::len_without_is_empty)] // a page has at least one byte
impl<'a> SlotBytes<'a> {
    #[inline]
    pub(crate) fn new(bytes: Bytes<'a>) -> Self {
        Self { bytes, not_send: PhantomData }
    }

    /// The first byte, valid for [`len`](Self::len) bytes while the ring lives. Access through it is the caller's
    /// own affair, and must be atomic or ordered by the flag.
    pub fn as_ptr(self) -> *mut u8 {
        self.bytes.as_ptr()
    }

    /// Bytes.
    pub fn len(self) -> usize {
        self.bytes.len()
    }

    /// All of them as memory, with copies of other kinds.
    #[cfg(not(roce_loom))] // a model has words of its own
    pub fn memory(self) -> MemoryPart<'a> {
        self.bytes.part()
    }

    /// Copies the `out.len()` bytes at `offset` out of the slot.
    ///
    /// # Panics
    ///
    /// When they do not all lie in the slot.
    #[inline]
    pub fn copy_to(self, offset: usize, out: &mut [u8]) {
        self.bytes.load(offset, out);
    }

    /// The `N` bytes at `offset`, as for a header.
    ///
    /// # Panics
    ///
    /// When they do not all lie in the slot.
    #[inline]
    pub fn read<const N: usize>(self, offset: usize) -> [u8; N] {
        let mut out = [0; N];
        self.bytes.load(offset, &mut out);
        out
    }

    /// Copies `from` into the slot at `offset`.
    ///
    /// # Panics
    ///
    /// When it does not all fit.
    #[inline]
    pub fn copy_from(self, offset: usize, from: &[u8]) {
        self.bytes.store(offset, from);
    }

    /// Sets the bytes of `range` to 0. A range that ends before it starts is empty.
    ///
    /// # Panics
    ///
    /// When the range does not lie in the slot.
    pub fn fill_zero(self, range: Range<usize>) {
        const ZEROS: [u8; 256] = [0; 256];
        let len = range.len();
        for done in (0..len).step_by(ZEROS.len()) {
            self.bytes.store(range.start + done, &ZEROS[..ZEROS.len().min(len - done)]);
        }
    }
}
