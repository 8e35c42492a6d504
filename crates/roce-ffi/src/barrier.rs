//! A memory barrier whose price one side pays.
//!
//! Two threads that each store and then load what the other stores need a full barrier between the two, or both
//! may miss the other's store. Where the system runs a barrier on all threads of the process (`membarrier(2)`, Linux
//! 4.14), the frequent side gets away with an order for the compiler alone.

use std::sync::LazyLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// From `linux/membarrier.h`.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Whether [`light`] and [`heavy`] work here. To be asked before the first use.
pub(crate) fn is_there() -> bool {
    static REGISTERED: LazyLock<bool> = LazyLock::new(|| membarrier(REGISTER_PRIVATE_EXPEDITED));
    cfg!(miri) || *REGISTERED
}

/// The frequent side's.
#[inline]
pub(crate) fn light() {
    if cfg!(miri) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The rare side's.
pub(crate) fn heavy() {
    if cfg!(miri) {
        fence(Ordering::SeqCst);
    } else {
        assert!(membarrier(PRIVATE_EXPEDITED), "membarrier fails though this process registered for it");
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: these commands take flags 0 and touch no memory; one that the kernel lacks fails.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
