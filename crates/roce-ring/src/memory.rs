//! What a ring keeps in shared memory: its flags and the bytes of its slots.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use roce_core::DmaRegion;

use crate::mapping::Mapping;
use crate::primitive::{AtomicU8, AtomicU64, Ordering};
use crate::{Geometry, MemoryOptions, RingError};

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
pub(crate) struct Data(Arc<Mapping>);

impl Data {
    pub(crate) fn new(geometry: Geometry, options: MemoryOptions) -> Result<Self, RingError> {
        Ok(Self(Arc::new(Mapping::for_data(geometry.data_len(), options)?)))
    }

    pub(crate) fn region(&self) -> Arc<dyn DmaRegion> {
        Arc::<Mapping>::clone(&self.0)
    }

    #[inline]
    pub(crate) fn addr(&self) -> *mut u8 {
        self.0.base().as_ptr()
    }

    /// The `len` bytes at `offset`.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Bytes<'_> {
        assert!(
            offset <= self.0.len() && len <= self.0.len() - offset,
            "{len} bytes at {offset}: out of the ring"
        );
        // SAFETY: the assertion keeps the result within the mapping.
        let first = unsafe { self.0.base().add(offset) };
        Bytes { first, len, data: PhantomData }
    }

    pub(crate) fn lock(&self) -> Result<(), RingError> {
        self.0.lock()
    }
}

/// Bytes that somebody else may write at any time: no reference to them exists, and every access is atomic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes<'a> {
    first: NonNull<u8>,
    len: usize,
    data: PhantomData<&'a Data>,
}

impl Bytes<'_> {
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.first.as_ptr()
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Copies the bytes at `offset` out: words where they are aligned, single bytes at the edges.
    #[inline]
    pub(crate) fn load(self, offset: usize, out: &mut [u8]) {
        let (at, head) = self.range(offset, out.len());
        let (edge, rest) = out.split_at_mut(head);
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let behind = at.wrapping_add(head + words.len() * WORD);
        // SAFETY: `range` found all these bytes inside the slot, and `head` leads to the boundary of a word.
        unsafe {
            load_bytes(at, edge);
            load_words(at.wrapping_add(head).cast(), words);
            load_bytes(behind, tail);
        }
    }

    /// Copies `from` to the bytes at `offset`, as [`load`](Self::load) does.
    #[inline]
    pub(crate) fn store(self, offset: usize, from: &[u8]) {
        let (at, head) = self.range(offset, from.len());
        let (edge, rest) = from.split_at(head);
        let (words, tail) = rest.as_chunks::<WORD>();
        let behind = at.wrapping_add(head + words.len() * WORD);
        // SAFETY: `range` found all these bytes inside the slot, and `head` leads to the boundary of a word.
        unsafe {
            store_bytes(at, edge);
            store_words(at.wrapping_add(head).cast(), words);
            store_bytes(behind, tail);
        }
    }

    /// The address of `offset`, and how many of the `len` bytes there precede the first aligned word.
    #[inline]
    fn range(self, offset: usize, len: usize) -> (*mut u8, usize) {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{len} bytes at offset {offset} do not lie in a slot of {} bytes",
            self.len
        );
        // SAFETY: the assertion keeps the result within the slot.
        let at = unsafe { self.first.as_ptr().add(offset) };
        (at, at.align_offset(WORD).min(len))
    }
}

/// # Safety
///
/// The bytes at `at`, as many as `out` has, are inside a mapping.
unsafe fn load_bytes(at: *mut u8, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise covers byte `i`, which has no alignment to keep.
        *byte = unsafe { AtomicU8::from_ptr(at.wrapping_add(i)) }.load(Ordering::Relaxed);
    }
}

/// # Safety
///
/// The words at `at`, as many as `out` has, are aligned and inside a mapping.
unsafe fn load_words(at: *mut u64, out: &mut [[u8; WORD]]) {
    for (i, word) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise covers word `i`.
        *word = unsafe { AtomicU64::from_ptr(at.wrapping_add(i)) }.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// # Safety
///
/// The bytes at `at`, as many as `from` has, are inside a mapping.
unsafe fn store_bytes(at: *mut u8, from: &[u8]) {
    for (i, byte) in from.iter().enumerate() {
        // SAFETY: the caller's promise covers byte `i`, which has no alignment to keep.
        unsafe { AtomicU8::from_ptr(at.wrapping_add(i)) }.store(*byte, Ordering::Relaxed);
    }
}

/// # Safety
///
/// The words at `at`, as many as `from` has, are aligned and inside a mapping.
unsafe fn store_words(at: *mut u64, from: &[[u8; WORD]]) {
    for (i, word) in from.iter().enumerate() {
        // SAFETY: the caller's promise covers word `i`.
        unsafe { AtomicU64::from_ptr(at.wrapping_add(i)) }
            .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
}
