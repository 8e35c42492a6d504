//! A counter for the message path.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread at a time changes and any thread reads, and which therefore needs no locked
/// instruction. Put those of one thread on a cache line of their own.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `n` more; wraps.
    #[inline]
    pub fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }

    /// Replaces the number.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
