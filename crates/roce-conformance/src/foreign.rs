//! The foreign side of a ring: code that writes flags itself, as a dispatcher in another language does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use roce_ring::Ring;

/// The flags of a ring, in the hands of foreign code.
pub(crate) struct ForeignFlags(Arc<Ring>);

impl ForeignFlags {
    pub(crate) fn of(ring: Arc<Ring>) -> Self {
        Self(ring)
    }

    pub(crate) fn get(&self, slot: u32) -> u64 {
        self.flag(slot).load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, slot: u32, value: u64) {
        self.flag(slot).store(value, Ordering::Release);
    }

    fn flag(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.0.geometry().num_pages());
        // SAFETY: slot is below the number of flags, as checked above.
        let flag = unsafe { self.0.flag_addr().add(slot as usize) };
        // SAFETY: the ring keeps its aligned flags alive as long as `self`, and everyone accesses them atomically.
        unsafe { AtomicU64::from_ptr(flag) }
    }
}
