//! Bytes of a registered region, as work requests name them.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use roce_core::{DmaRegion, PostError};

use crate::sys::ibv_sge;

const WORD: usize = size_of::<u64>();

/// A registered region, with the address and key under which the device knows it.
#[derive(Clone)]
pub(crate) struct Span {
    base: NonNull<u8>,
    len: usize,
    /// The address of the first byte in a work request: the region's own, or what it was registered with.
    origin: u64,
    lkey: u32,
    region: Arc<dyn DmaRegion>,
}

// SAFETY: the pointer leads into `region`, which is Send and Sync and kept alive here; it is only read through
// atomics.
unsafe impl Send for Span {}
// SAFETY: shared use makes only atomic reads of the region.
unsafe impl Sync for Span {}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("len", &self.len).field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Span {
    pub(crate) fn new(region: &Arc<dyn DmaRegion>, origin: u64, lkey: u32) -> Self {
        Self { base: region.base(), len: region.len(), origin, lkey, region: Arc::clone(region) }
    }

    pub(crate) fn region(&self) -> &Arc<dyn DmaRegion> {
        &self.region
    }

    /// `len` bytes at `offset`, by address and key.
    #[inline]
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Result<ibv_sge, PostError> {
        self.locate(offset, len)?;
        Ok(ibv_sge { addr: self.origin + offset, length: len, lkey: self.lkey })
    }

    /// Copies the bytes at `offset` to `out`, all of it. Whoever writes them meanwhile gives old or new bytes,
    /// never undefined behaviour.
    #[inline]
    pub(crate) fn load(&self, offset: u64, out: &mut [u8]) -> Result<(), PostError> {
        let len = u32::try_from(out.len()).unwrap_or(u32::MAX);
        let from = self.locate(offset, len)?;
        let head = from.align_offset(WORD).min(out.len());
        let (edge, rest) = out.split_at_mut(head);
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let behind = from.wrapping_add(head + words.len() * WORD);
        // SAFETY: `locate` found all these bytes inside the region, and `head` leads to the boundary of a word.
        unsafe {
            load_bytes(from, edge);
            load_words(from.wrapping_add(head).cast(), words);
            load_bytes(behind, tail);
        }
        Ok(())
    }

    /// The address of `len` bytes at `offset`, where they lie in the region.
    #[inline]
    fn locate(&self, offset: u64, len: u32) -> Result<*mut u8, PostError> {
        let inside = offset.checked_add(u64::from(len)).is_some_and(|end| end <= self.len as u64);
        match usize::try_from(offset) {
            // SAFETY: offset <= end <= len, so the address is in the region or just behind it.
            Ok(at) if inside => Ok(unsafe { self.base.as_ptr().add(at) }),
            _ => Err(PostError::OutOfRange { offset, len, region_len: self.len }),
        }
    }
}

/// # Safety
///
/// The bytes at `from`, as many as `out` has, lie in a region.
unsafe fn load_bytes(from: *mut u8, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise covers byte `i`, which has no alignment to keep.
        *byte = unsafe { AtomicU8::from_ptr(from.wrapping_add(i)) }.load(Ordering::Relaxed);
    }
}

/// # Safety
///
/// The words at `from`, as many as `out` has, are aligned and lie in a region.
unsafe fn load_words(from: *mut u64, out: &mut [[u8; WORD]]) {
    for (i, word) in out.iter_mut().enumerate() {
        // SAFETY: the caller's promise covers word `i`.
        *word = unsafe { AtomicU64::from_ptr(from.wrapping_add(i)) }.load(Ordering::Relaxed).to_ne_bytes();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::UnsafeCell;

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
    fn every_offset_and_length() {
        let span = Span::new(&Block::region(), 0, 1);
        for offset in 0..24u8 {
            for len in 0..40u8 {
                let mut out = vec![0; usize::from(len)];
                span.load(u64::from(offset), &mut out).expect("inside");
                assert_eq!(out, (offset..offset + len).collect::<Vec<u8>>());
            }
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
        assert!(span.load(250, &mut [0; 7]).is_err());
    }
}
