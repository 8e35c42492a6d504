//! Access to registered memory: bounds checked, and word by word.
//!
//! Another thread may read a slot while a late packet is written into it, or write a slot while it is sent.
//! So every access here is a relaxed atomic one: a race gives old or new bytes, never undefined behaviour.
//! The order comes from outside: the queue that carries a completion releases the bytes before it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use roce_core::DmaRegion;

const WORD: usize = size_of::<u64>();

/// A registered region.
pub(crate) struct Mem {
    base: NonNull<u8>,
    len: usize,
    region: Arc<dyn DmaRegion>,
}

// SAFETY: the pointer leads into `region`, which is Send and Sync and outlives it here, and every access goes
// through atomics, so any thread may have and use this.
unsafe impl Send for Mem {}
// SAFETY: as above; shared use makes only atomic accesses.
unsafe impl Sync for Mem {}

impl std::fmt::Debug for Mem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mem").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Clone for Mem {
    fn clone(&self) -> Self {
        Self { base: self.base, len: self.len, region: Arc::clone(&self.region) }
    }
}

impl Mem {
    pub(crate) fn new(region: &Arc<dyn DmaRegion>) -> Self {
        Self { base: region.base(), len: region.len(), region: Arc::clone(region) }
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether `len` bytes at `offset` lie in the region.
    pub(crate) fn contains(&self, offset: u64, len: u32) -> bool {
        self.locate(offset, len as usize).is_some()
    }

    /// Writes `bytes` at `offset`, or nothing and `None` where they do not lie in the region.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Option<()> {
        let to = self.locate(offset, bytes.len())?;
        let (head, words) = split(to, bytes.len());
        let (bytes_head, rest) = bytes.split_at(head);
        let (bytes_words, bytes_tail) = rest.split_at(words);
        store_bytes(to, bytes_head);
        for (i, word) in bytes_words.chunks_exact(WORD).enumerate() {
            let value = u64::from_ne_bytes(word.try_into().unwrap_or_default());
            // SAFETY: `split` says that `words` bytes at `to + head` are aligned words within the region.
            let at = unsafe { to.add(head + i * WORD) }.cast::<u64>();
            // SAFETY: aligned and in bounds as above; every other access to it is atomic or ordered by a flag.
            unsafe { AtomicU64::from_ptr(at.as_ptr()) }.store(value, Ordering::Relaxed);
        }
        // SAFETY: head + words <= bytes.len(), so this stays within what `locate` checked.
        store_bytes(unsafe { to.add(head + words) }, bytes_tail);
        Some(())
    }

    /// Reads bytes at `offset` to fill `out`, or nothing and `None` where they do not lie in the region.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let from = self.locate(offset, out.len())?;
        let (head, words) = split(from, out.len());
        let (out_head, rest) = out.split_at_mut(head);
        let (out_words, out_tail) = rest.split_at_mut(words);
        load_bytes(from, out_head);
        for (i, word) in out_words.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: `split` says that `words` bytes at `from + head` are aligned words within the region.
            let at = unsafe { from.add(head + i * WORD) }.cast::<u64>();
            // SAFETY: aligned and in bounds as above; every other access to it is atomic or ordered by a flag.
            let value = unsafe { AtomicU64::from_ptr(at.as_ptr()) }.load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
        }
        // SAFETY: head + words <= out.len(), so this stays within what `locate` checked.
        load_bytes(unsafe { from.add(head + words) }, out_tail);
        Some(())
    }

    /// The address of `len` bytes at `offset`, if they lie in the region.
    fn locate(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        // SAFETY: offset <= end <= len of the region, so the address is in it or just behind it.
        (end <= self.len).then(|| unsafe { self.base.add(offset) })
    }
}

/// Of `len` bytes at `at`: those up to the first aligned word, and those in aligned words behind them.
fn split(at: NonNull<u8>, len: usize) -> (usize, usize) {
    let head = at.addr().get().wrapping_neg() % WORD;
    let head = head.min(len);
    (head, (len - head) / WORD * WORD)
}

/// Private, and called only with addresses that `locate` has checked for all of `bytes`.
fn store_bytes(to: NonNull<u8>, bytes: &[u8]) {
    for (i, &byte) in bytes.iter().enumerate() {
        // SAFETY: the caller has checked that all of `bytes` lie in the region at `to`.
        let at = unsafe { to.add(i) };
        // SAFETY: in bounds as above; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(at.as_ptr()) }.store(byte, Ordering::Relaxed);
    }
}

/// Private, and called only with addresses that `locate` has checked for all of `out`.
fn load_bytes(from: NonNull<u8>, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: the caller has checked that all of `out` lie in the region at `from`.
        let at = unsafe { from.add(i) };
        // SAFETY: in bounds as above; a byte is always aligned.
        *byte = unsafe { AtomicU8::from_ptr(at.as_ptr()) }.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Block(Box<UnsafeCell<[u8; 64]>>);

    // SAFETY: the box keeps its 64 bytes in place until the value is dropped.
    unsafe impl DmaRegion for Block {
        fn base(&self) -> NonNull<u8> {
            NonNull::new(self.0.get()).expect("a box is not null").cast()
        }
        fn len(&self) -> usize {
            64
        }
    }
    // SAFETY: the tests use it from one thread.
    unsafe impl Send for Block {}
    // SAFETY: the tests use it from one thread.
    unsafe impl Sync for Block {}

    fn mem() -> Mem {
        let region: Arc<dyn DmaRegion> = Arc::new(Block(Box::new(UnsafeCell::new([0xEE; 64]))));
        Mem::new(&region)
    }

    #[test]
    fn every_offset_and_length() {
        for offset in 0..24 {
            for len in 0..40 {
                let mem = mem();
                let bytes: Vec<u8> = (1..=len).collect();
                assert_eq!(mem.write(offset, &bytes), Some(()));
                let mut all = [0; 64];
                assert_eq!(mem.read(0, &mut all), Some(()));
                let (offset, len) = (offset as usize, len as usize);
                assert_eq!(&all[offset..offset + len], bytes);
                assert!(all[..offset].iter().chain(&all[offset + len..]).all(|&b| b == 0xEE));
                let mut part = vec![0; len];
                assert_eq!(mem.read(offset as u64, &mut part), Some(()));
                assert_eq!(part, bytes);
            }
        }
    }

    #[test]
    fn bounds() {
        let mem = mem();
        assert!(mem.contains(64, 0) && mem.contains(0, 64) && mem.contains(60, 4));
        for (offset, len) in [(65, 0), (61, 4), (0, 65), (u64::MAX, 2), (u64::MAX - 1, 1), (u64::MAX, 0)] {
            assert!(!mem.contains(offset, len), "{offset} {len}");
            assert_eq!(mem.write(offset, &vec![0; len as usize]), None);
            assert_eq!(mem.read(offset, &mut vec![0; len as usize]), None);
        }
    }
}
