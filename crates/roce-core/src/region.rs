//! Memory that a device writes.

use std::ptr::NonNull;

/// A block of host memory that a queue pair may read and write.
///
/// No `&[u8]` or `&mut [u8]` is ever made over it: the peer may write at any time. Whoever reads it does so
/// through raw pointers, after the flag or completion that hands the bytes over.
///
/// # Safety
///
/// An implementor promises that [`base`](Self::base) and [`len`](Self::len) never change, and that the
/// `len` bytes at `base` stay allocated, readable and writable until the value is dropped.
pub unsafe trait DmaRegion: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;

    /// Bytes.
    fn len(&self) -> usize;

    /// Whether the region holds no byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Which of a queue pair's two regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegionId {
    /// The region that receives; the peer writes it by offset, under its rkey.
    Rx,
    /// The region that messages are sent from; no peer can reach it.
    Tx,
}
