//! Bytes of a registered region, as work requests name them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use roce_core::{DmaRegion, Memory, OutOfBounds, PostError};

use crate::sys::ibv_sge;

const WORD: usize = size_of::<u64>();

/// A registered region, with the address and key under which the device knows it.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    memory: Memory,
    /// The address of the first byte in a work request: the region's own, or what it was registered with.
    origin: u64,
    lkey: u32,
}

impl Span {
    pub(crate) fn new(region: &Arc<dyn DmaRegion>, origin: u64, lkey: u32) -> Self {
        Self { memory: Memory::new(Arc::clone(region)), origin, lkey }
    }

    pub(crate) fn region(&self) -> &Arc<dyn DmaRegion> {
        self.memory.region()
    }

    /// `len` bytes at `offset`, by address and key.
    #[inline]
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Result<ibv_sge, PostError> {
        if self.memory.contains(offset, len as usize) {
            Ok(ibv_sge { addr: self.origin + offset, length: len, lkey: self.lkey })
        } else {
            Err(PostError::OutOfRange { offset, len, region_len: self.memory.len() })
        }
    }

    /// Copies the bytes at `offset` to `out`, all of it.
    #[inline]
    pub(crate) fn load(&self, offset: u64, out: &mut [u8]) -> Result<(), PostError> {
        self.memory.load(offset, out).map_err(out_of_range)
    }

    /// Copies `len` bytes at `offset` to `place` in `to`, as [`Memory::load`] reads them.
    ///
    /// # Safety
    ///
    /// No other thread of this process accesses those bytes of `to` meanwhile.
    #[inline]
    pub(crate) unsafe fn copy_to(
        &self,
        offset: u64,
        len: u32,
        to: &Self,
        place: u64,
    ) -> Result<(), PostError> {
        let from = self.memory.part(offset, len as usize).map_err(out_of_range)?;
        let to = to.memory.part(place, len as usize).map_err(out_of_range)?;
        // SAFETY: both parts have that many bytes, in regions that live as long as the spans; the rest is promised.
        unsafe { copy_words(from.as_ptr(), to.as_ptr(), len as usize) };
        Ok(())
    }
}

/// In one pass, without a reference to either: a copy by way of the stack takes three times as long.
///
/// # Safety
///
/// `len` bytes of live regions at both, and no other thread accesses those at `to` meanwhile.
#[inline]
unsafe fn copy_words(from: *mut u8, to: *mut u8, len: usize) {
    let edge = from.align_offset(WORD).min(len);
    let words = (len - edge) / WORD;
    let tail = edge + words * WORD;
    for i in (0..edge).chain(tail..len) {
        // SAFETY: the caller's promise covers byte `i` of both.
        unsafe { to.add(i).write(AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed)) };
    }
    for i in (edge..tail).step_by(WORD) {
        // SAFETY: the caller's promise covers the word at `i` of both, and that of `from` is aligned.
        unsafe {
            let word = AtomicU64::from_ptr(from.add(i).cast()).load(Ordering::Relaxed);
            to.add(i).cast::<u64>().write_unaligned(word);
        }
    }
}

#[cold]
fn out_of_range(refused: OutOfBounds) -> PostError {
    let len = u32::try_from(refused.len).unwrap_or(u32::MAX);
    PostError::OutOfRange { offset: refused.offset, len, region_len: refused.memory_len }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::UnsafeCell;
    use std::ptr::NonNull;

    /// 256 bytes, each its own index, at the start of a page.
    pub(crate) struct Block(Box<Page>);

    #[repr(align(4096))]
    struct Page(UnsafeCell<[u8; 256]>);

    impl Block {
        pub(crate) fn region() -> Arc<dyn DmaRegion> {
            Arc::new(Self(Box::new(Page(UnsafeCell::new(std::array::from_fn(|i| i.to_le_bytes()[0]))))))
        }
    }

    // SAFETY: the box keeps its bytes in place until the value is dropped.
    unsafe impl DmaRegion for Block {
        fn base(&self) -> NonNull<u8> {
            NonNull::new(self.0.0.get()).expect("a box is not null").cast()
        }
        fn len(&self) -> usize {
            256
        }
    }
    // SAFETY: the tests write it only while they make it.
    unsafe impl Send for Block {}
    // SAFETY: the tests write it only while they make it.
    unsafe impl Sync for Block {}

    #[test]
    fn bytes_count_from_the_start_whatever_the_origin() {
        let span = Span::new(&Block::region(), 0x1000, 1);
        let mut out = [0; 5];
        span.load(3, &mut out).expect("inside");
        assert_eq!(out, [3, 4, 5, 6, 7]);
    }

    proptest! {
        /// Whatever the alignment of either, as a slice is copied, and nothing beside it is touched.
        #[test]
        fn copies_are_exact(offset in 0u32..=256, place in 0u32..=256, len in 0u32..=257) {
            let (from, to) = (Span::new(&Block::region(), 0x1000, 1), Span::new(&Block::region(), 0, 2));
            let mut expected: Vec<u8> = (0..=255).collect();
            let inside = offset.max(place) + len <= 256;
            if inside {
                let (source, target) = (offset as usize, place as usize);
                let bytes = expected[source..source + len as usize].to_vec();
                expected[target..target + len as usize].copy_from_slice(&bytes);
            }
            // SAFETY: the region is known to this test alone.
            let copied = unsafe { from.copy_to(offset.into(), len, &to, place.into()) };
            prop_assert_eq!(copied.is_ok(), inside);
            let mut all = vec![0; 256];
            to.load(0, &mut all).expect("inside");
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn addresses_count_from_the_origin() {
        let region = Block::region();
        let by_offset = Span::new(&region, 0, 7).sge(128, 64).expect("inside");
        assert_eq!((by_offset.addr, by_offset.length, by_offset.lkey), (128, 64, 7));
        let base = region.base().addr().get() as u64;
        assert_eq!(Span::new(&region, base, 7).sge(128, 64).map(|s| s.addr).ok(), Some(base + 128));
    }

    #[test]
    fn bounds() {
        let span = Span::new(&Block::region(), 0, 1);
        assert!(span.sge(256, 0).is_ok() && span.sge(0, 256).is_ok());
        for (offset, len) in [(257, 0), (255, 2), (0, 257), (u64::MAX, 1), (u64::MAX, 0)] {
            let refused = span.sge(offset, len).err().map(|e| e.to_string());
            assert!(refused.is_some_and(|text| text.contains("256 bytes")), "{offset} {len}");
        }
        let refused = span.load(250, &mut [0; 7]);
        assert!(matches!(refused, Err(PostError::OutOfRange { offset: 250, len: 7, region_len: 256 })));
    }
}
