//! Memory to register, with canaries, and contents that tell messages apart.

use std::ops::Range;
use std::sync::Arc;

use roce_core::DmaRegion;
use roce_ring::{Geometry, MemoryOptions, Ring};

/// What memory holds where no message has come.
const CANARY: u8 = 0xC5;

/// A block of registered memory: a ring of one slot, since a ring's bytes may be read while a peer writes them.
pub(crate) struct Memory {
    ring: Arc<Ring>,
    /// Who holds the bytes when no queue pair does.
    holders: usize,
}

impl Memory {
    /// `len` bytes of canaries.
    pub(crate) fn new(len: u32) -> Self {
        let geometry = Geometry::new(1, len, len).expect("one slot");
        let ring = Ring::allocate(geometry, MemoryOptions::default()).expect("memory");
        let memory = Self { holders: Arc::strong_count(&ring.data()), ring };
        memory.wipe();
        memory
    }

    pub(crate) fn region(&self) -> Arc<dyn DmaRegion> {
        self.ring.data()
    }

    /// Nothing but canaries again.
    pub(crate) fn wipe(&self) {
        self.set(0, &vec![CANARY; self.ring.geometry().data_len()]);
    }

    pub(crate) fn set(&self, offset: usize, bytes: &[u8]) {
        self.ring.slot(0).copy_from(offset, bytes);
    }

    pub(crate) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ring.slot(0).copy_to(offset, &mut bytes);
        bytes
    }

    /// Asserts that no queue pair holds it any more.
    pub(crate) fn assert_free(&self, what: &str) {
        assert_eq!(Arc::strong_count(&self.region()), self.holders, "{what}: the region is still held");
    }

    /// Asserts that `bytes` lie at `offset`, and nothing but canaries elsewhere.
    pub(crate) fn assert_only(&self, what: &str, offset: usize, bytes: &[u8]) {
        assert!(self.get(offset, bytes.len()) == bytes, "{what}: other bytes than were sent");
        let end = offset + bytes.len();
        for outside in [0..offset, end..self.ring.geometry().data_len()] {
            self.assert_untouched(what, outside);
        }
    }

    /// Asserts that nothing but canaries lie in the range.
    pub(crate) fn assert_untouched(&self, what: &str, range: Range<usize>) {
        let bytes = self.get(range.start, range.len());
        let touched = bytes.iter().position(|&byte| byte != CANARY);
        assert!(touched.is_none(), "{what}: byte {} was written", range.start + touched.unwrap_or_default());
    }
}

/// The content of a message: each number has its own, and no two places are alike for long.
#[allow(clippy::cast_possible_truncation)] // a byte of it
pub(crate) fn content(number: u64, len: usize) -> Vec<u8> {
    let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (0..len as u64).map(|at| (seed.wrapping_add(at.wrapping_mul(0x0101_0083)) >> 3) as u8).collect()
}
