//! Copies of messages that are too long to post inline, so that their slots are free once they are staged.

use std::io;
use std::ptr::{self, NonNull};

use roce_core::{DmaRegion, PostError, Sge};

use crate::mem::Span;
use crate::sys::ibv_sge;

/// The granule of a slot: no two share a cache line.
const CACHE_LINE: usize = 64;

/// A place for each send that may be on its way, in registered memory.
///
/// The place follows from the number of the send: of any `slots` successive numbers no two have the same one, and
/// the send window lets no more be staged and posted at once. So a place is free when it comes round again.
#[derive(Debug)]
pub(crate) struct Staging {
    span: Span,
    slots: u64,
    slot_len: usize,
}

impl Staging {
    /// Divides `span` into `slots`, at least 1, of one length.
    pub(crate) fn new(span: Span, slots: u32) -> Self {
        let slot_len = span.region().len() / slots.max(1) as usize;
        Self { span, slots: u64::from(slots.max(1)), slot_len }
    }

    /// Copies the bytes of send `number` to its place, and names them there; `None` where they are too many.
    #[inline]
    pub(crate) fn copy(&mut self, number: u64, from: &Span, sge: Sge) -> Result<Option<ibv_sge>, PostError> {
        if sge.len as usize > self.slot_len {
            return Ok(None);
        }
        let place = number % self.slots * self.slot_len as u64;
        // SAFETY: the memory is known to its queue pair, of which there is one sending half, and `self` is that one's.
        unsafe { from.copy_to(sge.offset, sge.len, &self.span, place) }?;
        self.span.sge(place, sge.len).map(Some)
    }
}

/// The memory below, from the kernel: whole pages, which nothing else lies in.
pub(crate) struct StagingMemory {
    base: NonNull<u8>,
    len: usize,
}

impl StagingMemory {
    /// For `depth` sends from a region of `tx_len` bytes: each may have its share of the region.
    pub(crate) fn for_region(tx_len: usize, depth: u32) -> io::Result<Self> {
        let depth = depth.max(1) as usize;
        Self::map(slot_len(tx_len, depth).saturating_mul(depth))
    }

    /// Its pages come with the registration, which pins them.
    fn map(len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses the place, so no other mapping is touched.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { base, len })
    }
}

/// A region of one message for each send has slots as long as its own.
fn slot_len(tx_len: usize, depth: usize) -> usize {
    tx_len.div_ceil(depth).max(1).next_multiple_of(CACHE_LINE)
}

impl Drop for StagingMemory {
    fn drop(&mut self) {
        // SAFETY: the range that `map` mapped, and whoever looks into it holds this value. It cannot fail on a
        // whole mapping.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping stays in place, readable and writable, until the value is dropped, and nobody makes
// references to it.
unsafe impl DmaRegion for StagingMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
}
// SAFETY: a mapping belongs to no thread.
unsafe impl Send for StagingMemory {}
// SAFETY: the value itself never changes, and its bytes are reached by raw pointers alone.
unsafe impl Sync for StagingMemory {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::tests::Block;
    use roce_core::RegionId;
    use std::sync::Arc;

    const LKEY: u32 = 77;

    fn staging(tx_len: usize, depth: u32) -> Staging {
        let memory: Arc<dyn DmaRegion> = Arc::new(StagingMemory::for_region(tx_len, depth).expect("mapped"));
        Staging::new(Span::new(&memory, 0, LKEY), depth)
    }

    fn sge(offset: u64, len: u32) -> Sge {
        Sge { region: RegionId::Tx, offset, len }
    }

    #[test]
    fn a_slot_takes_a_message_of_a_usual_ring_and_fills_cache_lines() {
        let len = |tx_len, depth| staging(tx_len, depth).slot_len;
        assert_eq!((len(64 * 4096, 64), len(4096, 1), len(64 * 384, 64)), (4096, 4096, 384));
        assert_eq!((len(1000, 3), len(100, 16), len(1, 1)), (384, 64, 64));
        let memory = StagingMemory::for_region(1000, 3).expect("mapped");
        assert_eq!((memory.len(), memory.base().addr().get() % 4096), (3 * 384, 0));
    }

    #[test]
    fn more_than_there_is_memory_is_an_error() {
        let refused =
            |tx_len, depth| StagingMemory::for_region(tx_len, depth).err().map(|e| e.raw_os_error());
        assert_eq!(refused(isize::MAX as usize, 2), Some(Some(libc::ENOMEM)));
        assert_eq!(refused(isize::MAX as usize, 3), Some(Some(libc::ENOMEM)));
    }

    #[test]
    fn messages_up_to_a_slot_are_copied() {
        let (source, mut staging) = (Span::new(&Block::region(), 0x1000, 9), staging(4 * 64, 4));
        let entry = staging.copy(6, &source, sge(5, 64)).expect("inside").expect("it fits");
        assert_eq!((entry.addr, entry.length, entry.lkey), (2 * 64, 64, LKEY), "a place of its own");
        let mut copied = [0; 64];
        staging.span.load(2 * 64, &mut copied).expect("inside");
        assert_eq!(copied.to_vec(), (5..69).collect::<Vec<u8>>());
        assert!(staging.copy(6, &source, sge(5, 65)).expect("inside").is_none(), "a byte too long");
        let outside = staging.copy(6, &source, sge(250, 7));
        assert!(matches!(outside, Err(PostError::OutOfRange { offset: 250, len: 7, region_len: 256 })));
    }

    /// Whatever the depth, and from whichever send on.
    #[test]
    fn as_many_sends_as_the_queue_holds_have_places_of_their_own() {
        let source = Span::new(&Block::region(), 0, 9);
        for depth in [1, 2, 3, 16, 37] {
            let mut staging = staging(200 * depth as usize, depth);
            for first in [1, 2, 15, 36, 1 << 40] {
                let mut place =
                    |n| staging.copy(n, &source, sge(0, 200)).expect("inside").expect("fits").addr;
                let mut places: Vec<u64> = (first..first + u64::from(depth)).map(&mut place).collect();
                assert_eq!(place(first), place(first + u64::from(depth)), "the round is one depth");
                places.sort_unstable();
                assert!(places.windows(2).all(|pair| pair[0] + 200 <= pair[1]), "{places:?}");
            }
        }
    }
}
