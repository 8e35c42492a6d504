//! A lock that costs its usual user two plain stores.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::barrier;

/// Threads that may be favoured in turn. Further ones always take the lock.
const SEATS: usize = 7;
/// Nobody may enter without the lock.
const NOBODY: usize = usize::MAX;
/// Calls in a row after which a thread is favoured: two threads that alternate stay with the lock, which is
/// cheaper than to take the favour from each other.
const STREAK: u32 = 16;
/// Looks at a seat before each further one yields the core.
const SPINS: u32 = 64;

/// A value for one thread at a time, and almost always the same one.
///
/// That thread, once it has come a few times in a row, enters without lock and without atomic read-modify-write.
/// Any other thread takes the lock, withdraws the favour, and waits until the favoured thread is out.
pub struct Biased<T> {
    /// The seat of the favoured thread. Written under the lock alone.
    favoured: AtomicUsize,
    seats: [Seat; SEATS],
    lock: Mutex<Visits>,
    value: UnsafeCell<T>,
}

/// One thread's place, for good: a late store of a thread that lost the favour must meet nobody else's mark.
struct Seat {
    /// 0: not given away yet. Set under the lock.
    thread: AtomicUsize,
    /// Written by that thread alone.
    inside: AtomicBool,
}

/// Who came through the lock, and how often in a row.
struct Visits {
    last: usize,
    streak: u32,
}

// SAFETY: `with` and `with_lock` give the value to one thread at a time, as a mutex does: either under `lock` after
// the favoured thread has left, or to the favoured thread, which marks itself before it checks its favour.
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    /// Nobody is favoured yet.
    pub const fn new(value: T) -> Self {
        Self {
            favoured: AtomicUsize::new(NOBODY),
            seats: [const { Seat { thread: AtomicUsize::new(0), inside: AtomicBool::new(false) } }; SEATS],
            lock: Mutex::new(Visits { last: 0, streak: 0 }),
            value: UnsafeCell::new(value),
        }
    }

    /// For the thread that comes often.
    ///
    /// # Panics
    ///
    /// Where the favoured thread calls it from within `f`. From within the `f` of another thread it never returns.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        match self.enter() {
            Some(inside) => {
                let _leave = Leave(inside);
                // SAFETY: this thread is favoured and marked as inside, so that no other gets past `withdraw`;
                // `enter` refuses a second entry of the same thread.
                f(unsafe { &mut *self.value.get() })
            }
            None => self.with_favour(f),
        }
    }

    /// For a thread that comes once.
    ///
    /// # Panics
    ///
    /// As [`with`](Self::with).
    pub fn with_lock<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _guard = self.withdraw();
        // SAFETY: the lock is held and the favoured thread is out, so this is the only access.
        f(unsafe { &mut *self.value.get() })
    }

    /// The favoured thread's way in: marks it, then checks that the favour still stands. `withdraw` takes the
    /// favour, then looks at the mark. With a barrier between the two on both sides, one sees the other.
    #[inline]
    fn enter(&self) -> Option<&AtomicBool> {
        let at = self.favoured.load(Ordering::Relaxed);
        let seat = self.seats.get(at)?;
        if seat.thread.load(Ordering::Relaxed) != this_thread() {
            return None;
        }
        assert!(!seat.inside.load(Ordering::Relaxed), "entered again from within");
        seat.inside.store(true, Ordering::Relaxed);
        barrier::light(); // meets `heavy` in `withdraw`
        if self.favoured.load(Ordering::Relaxed) == at {
            return Some(&seat.inside);
        }
        seat.inside.store(false, Ordering::Relaxed);
        None
    }

    #[cold]
    fn with_favour<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut visits = self.withdraw();
        let me = this_thread();
        visits.streak = if visits.last == me { visits.streak + 1 } else { 1 };
        visits.last = me;
        // SAFETY: the lock is held and the favoured thread is out, so this is the only access.
        let result = f(unsafe { &mut *self.value.get() });
        if visits.streak >= STREAK {
            self.favour(me);
        }
        result
    }

    /// Takes the lock and the favour, and waits until the favoured thread is out.
    fn withdraw(&self) -> MutexGuard<'_, Visits> {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seat) = self.seats.get(self.favoured.load(Ordering::Relaxed)) {
            self.favoured.store(NOBODY, Ordering::Relaxed);
            barrier::heavy(); // meets `light` in `enter`
            let mut looks = 0;
            // Pairs with the store in `Leave`.
            while seat.inside.load(Ordering::Acquire) {
                assert_ne!(seat.thread.load(Ordering::Relaxed), this_thread(), "entered again from within");
                wait(&mut looks);
            }
        }
        guard
    }

    /// Under the lock.
    fn favour(&self, thread: usize) {
        barrier::prepare();
        let seat = |wanted| self.seats.iter().position(|s| s.thread.load(Ordering::Relaxed) == wanted);
        if let Some(at) = seat(thread).or_else(|| seat(0)) {
            self.seats[at].thread.store(thread, Ordering::Relaxed);
            self.favoured.store(at, Ordering::Relaxed);
        }
    }
}

impl<T> fmt::Debug for Biased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Biased").finish_non_exhaustive()
    }
}

/// Takes the mark off, on a panic too.
struct Leave<'a>(&'a AtomicBool);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release); // pairs with the load in `withdraw`
    }
}

fn wait(looks: &mut u32) {
    if *looks < SPINS {
        *looks += 1;
        hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

/// Never 0, and no other living thread's. A dead one's number may come again, which then stands for both.
#[inline]
#[allow(clippy::cast_possible_truncation)] // a pthread_t has the bits of a pointer
fn this_thread() -> usize {
    // SAFETY: has no preconditions. It is cheaper than a thread-local variable of a shared library.
    let id = unsafe { libc::pthread_self() };
    id as usize
}
