//! Bytes of a registered region, as work requests name them.

use std::sync::Arc;

use roce_core::{DmaRegion, Memory, OutOfBounds, PostError};

use crate::sys::ibv_sge;

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
}

#[cold]
fn out_of_range(refused: OutOfBounds) -> PostError {
    let len = u32::try_from(refused.len).unwrap_or(u32::MAX);
    PostError::OutOfRange { offset: refused.offset, len, region_len: refused.memory_len }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
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
