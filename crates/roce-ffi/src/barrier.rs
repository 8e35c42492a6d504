//! A memory barrier whose price one side pays.
//!
//! Two threads that each store and then load what the other stores need a full barrier between the two, or both
//! may miss the other's store. Where the system can run a barrier on all threads of the process
//! (`membarrier(2)`), the frequent side gets away with an order for the compiler alone.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// From `linux/membarrier.h`.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

static IS_ASYMMETRIC: AtomicBool = AtomicBool::new(false);

/// To be called before the first [`light`] and [`heavy`] that shall meet, by a thread that both come after.
pub(crate) fn prepare() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| IS_ASYMMETRIC.store(membarrier(REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed));
}

/// The frequent side's.
#[inline]
pub(crate) fn light() {
    if IS_ASYMMETRIC.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The rare side's.
pub(crate) fn heavy() {
    if IS_ASYMMETRIC.load(Ordering::Relaxed) {
        assert!(membarrier(PRIVATE_EXPEDITED), "membarrier fails though this process registered for it");
    } else {
        fence(Ordering::SeqCst);
    }
}

#[cfg(not(miri))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: these commands take flags 0 and touch no memory; one that the kernel lacks fails.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(miri)]
fn membarrier(_: libc::c_int) -> bool {
    false
}
