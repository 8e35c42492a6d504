//! What a ring keeps in shared memory, when loom checks a model: atomics of loom's, so that it sees each access.
//!
//! Addresses come from a real mapping, and are never looked behind. Slots are whole words here.

use std::sync::Arc;

use roce_core::DmaRegion;

use crate::mapping::Mapping;
use crate::primitive::{AtomicU64, Ordering};
use crate::{Geometry, MemoryOptions, RingError};

const WORD: usize = size_of::<u64>();

fn zeroed(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// One word per slot.
#[derive(Debug)]
pub(crate) struct Flags {
    words: Vec<AtomicU64>,
    mapping: Mapping,
}

impl Flags {
    pub(crate) fn new(geometry: Geometry) -> Result<Self, RingError> {
        let count = geometry.num_pages() as usize;
        Ok(Self { words: zeroed(count), mapping: Mapping::new(count * WORD)? })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    pub(crate) fn addr(&self) -> *mut u64 {
        self.mapping.base().cast().as_ptr()
    }

    pub(crate) fn lock(&self) -> Result<(), RingError> {
        self.mapping.lock()
    }
}

/// The words of all slots.
#[derive(Debug)]
pub(crate) struct Data {
    words: Vec<AtomicU64>,
    mapping: Arc<Mapping>,
}

impl Data {
    pub(crate) fn new(geometry: Geometry, options: MemoryOptions) -> Result<Self, RingError> {
        let len = geometry.data_len();
        Ok(Self { words: zeroed(len / WORD), mapping: Arc::new(Mapping::for_data(len, options)?) })
    }

    pub(crate) fn region(&self) -> Arc<dyn DmaRegion> {
        Arc::<Mapping>::clone(&self.mapping)
    }

    pub(crate) fn addr(&self) -> *mut u8 {
        self.mapping.base().as_ptr()
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Bytes<'_> {
        assert!(offset.is_multiple_of(WORD) && len.is_multiple_of(WORD), "a model's slots are whole words");
        let words = &self.words[offset / WORD..][..len / WORD];
        Bytes { words, first: self.addr().wrapping_add(offset) }
    }

    pub(crate) fn lock(&self) -> Result<(), RingError> {
        self.mapping.lock()
    }
}

/// The words of a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes<'a> {
    words: &'a [AtomicU64],
    first: *mut u8,
}

impl Bytes<'_> {
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.first
    }

    pub(crate) fn len(self) -> usize {
        self.words.len() * WORD
    }

    pub(crate) fn load(self, offset: usize, out: &mut [u8]) {
        for (word, out) in self.range(offset, out.len()).iter().zip(out.as_chunks_mut::<WORD>().0) {
            *out = word.load(Ordering::Relaxed).to_ne_bytes();
        }
    }

    pub(crate) fn store(self, offset: usize, from: &[u8]) {
        for (word, from) in self.range(offset, from.len()).iter().zip(from.as_chunks::<WORD>().0) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }

    fn range(&self, offset: usize, len: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(WORD) && len.is_multiple_of(WORD), "a model copies whole words");
        &self.words[offset / WORD..][..len / WORD]
    }
}
