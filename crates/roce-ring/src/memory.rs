//! What a ring keeps in shared memory: its flags and the bytes of its slots.

use std::sync::Arc;

use roce_core::{DmaRegion, Line, Memory, MemoryPart, OutOfBounds};

use crate::mapping::Mapping;
use crate::primitive::AtomicU64;
use crate::{Geometry, MemoryOptions, Ring, RingError};

const WORD: usize = size_of::<u64>();

/// Foreign code sees the flags as an array of aligned `uint64_t`.
const _: () = assert!(size_of::<AtomicU64>() == WORD && align_of::<AtomicU64>() == WORD);

/// One word per slot, in pages of their own: contiguous, and on a cache line's boundary.
#[derive(Debug)]
pub(crate) struct Flags {
    mapping: Mapping,
    count: usize,
}

impl Flags {
    pub(crate) fn new(geometry: Geometry) -> Result<Self, RingError> {
        let count = geometry.num_pages() as usize;
        Ok(Self { mapping: Mapping::new(count * WORD)?, count })
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let first = self.mapping.base().cast::<AtomicU64>();
        // SAFETY: the mapping holds `count` words, page-aligned and zeroed, as long as `self` lives. An atomic
        // may change behind a shared reference; foreign code accesses it as one aligned word, as documented.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.count) }
    }

    pub(crate) fn addr(&self) -> *mut u64 {
        self.mapping.base().cast().as_ptr()
    }

    pub(crate) fn lock(&self) -> Result<(), RingError> {
        self.mapping.lock()
    }
}

/// The bytes of all slots.
#[derive(Debug)]
pub(crate) struct Data {
    mapping: Arc<Mapping>,
    memory: Memory,
}

impl Data {
    pub(crate) fn new(geometry: Geometry, options: MemoryOptions) -> Result<Self, RingError> {
        let mapping = Arc::new(Mapping::for_data(geometry.data_len(), options)?);
        let memory = Memory::new(Arc::<Mapping>::clone(&mapping));
        Ok(Self { mapping, memory })
    }

    pub(crate) fn region(&self) -> Arc<dyn DmaRegion> {
        Arc::clone(self.memory.region())
    }

    #[inline]
    pub(crate) fn addr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// The `len` bytes at `offset`.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Bytes<'_> {
        match self.memory.part(offset as u64, len) {
            Ok(part) => Bytes(part),
            Err(refused) => out_of_ring(refused),
        }
    }

    pub(crate) fn lock(&self) -> Result<(), RingError> {
        self.mapping.lock()
    }
}

/// The [`Line`]s of two rings: how a service reads a request and writes its answer in as few instructions as can be.
/// An answer's line is as long as a frame, for no more is sent.
///
/// There are none where slots do not begin on the boundary of a word, or a request's slot or an answer's frame is shorter
/// than a line.
#[derive(Debug)]
pub struct Lines {
    rx: Memory,
    tx: Memory,
    rx_stride: usize,
    tx_stride: usize,
    frame_size: usize,
    /// Slots of both that are lines: all, or none.
    count: u32,
}

impl Lines {
    /// Of the rings that requests come from and answers go into.
    pub fn new(rx: &Ring, tx: &Ring) -> Self {
        let [rx_shape, tx_shape] = [rx, tx].map(Ring::geometry);
        let [rx_stride, tx_stride] = [rx_shape, tx_shape].map(|shape| shape.page_size() as usize);
        let frame_size = tx_shape.frame_size() as usize;
        let are_aligned = rx_stride.is_multiple_of(WORD) && tx_stride.is_multiple_of(WORD);
        let are_long_enough = rx_stride.min(frame_size) >= Line::WORDS * WORD;
        let count = rx_shape.num_pages().min(tx_shape.num_pages());
        Self {
            rx: Memory::new(rx.data()),
            tx: Memory::new(tx.data()),
            rx_stride,
            tx_stride,
            frame_size,
            count: if are_aligned && are_long_enough { count } else { 0 },
        }
    }

    /// Those of `slot`, whoever owns it just now.
    #[inline]
    pub fn of(&self, slot: u32) -> Option<(Line<'_>, Line<'_>)> {
        let slot_offset = |stride: usize| slot as usize * stride;
        // SAFETY: a mapping begins on a page's boundary and holds whole slots of whole words, of which this is one of
        // both; a frame is not longer than its slot, and not shorter than a line.
        (slot < self.count).then(|| unsafe {
            (
                self.rx.line_unchecked(slot_offset(self.rx_stride), self.rx_stride),
                self.tx.line_unchecked(slot_offset(self.tx_stride), self.frame_size),
            )
        })
    }
}

/// Bytes of a slot, which somebody else may write at any time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes<'a>(MemoryPart<'a>);

impl<'a> Bytes<'a> {
    /// What another crate may make copies of its own from.
    #[inline]
    pub(crate) fn part(self) -> MemoryPart<'a> {
        self.0
    }

    #[inline]
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.0.as_ptr()
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// Copies the bytes at `offset` out.
    #[inline]
    pub(crate) fn load(self, offset: usize, out: &mut [u8]) {
        self.0.load(offset as u64, out).unwrap_or_else(|refused| out_of_slot(refused));
    }

    /// Copies `from` to the bytes at `offset`.
    #[inline]
    pub(crate) fn store(self, offset: usize, from: &[u8]) {
        self.0.store(offset as u64, from).unwrap_or_else(|refused| out_of_slot(refused));
    }
}

#[cold]
fn out_of_ring(OutOfBounds { offset, len, .. }: OutOfBounds) -> ! {
    panic!("{len} bytes at {offset}: out of the ring")
}

#[cold]
fn out_of_slot(OutOfBounds { offset, len, memory_len }: OutOfBounds) -> ! {
    panic!("{len} bytes at offset {offset} do not lie in a slot of {memory_len} bytes")
}
