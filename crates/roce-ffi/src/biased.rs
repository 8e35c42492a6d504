//! A lock that costs its usual user two plain stores.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::asm;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::barrier;

/// Threads that may be favoured in turn. Further ones always take the lock.
const SEATS: usize = 7;
/// Calls in a row after which a thread is favoured: two threads that alternate stay with the lock, which is
/// cheaper than to take the favour from each other.
const STREAK: u32 = 16;
/// Looks at a seat before each further one yields the core.
const SPINS: u32 = 64;

/// A value for one thread at a time, and almost always the same one.
///
/// That thread, once it has come a few times in a row, enters without lock and without atomic read-modify-write.
/// Any other thread takes the lock, withdraws the favour, and waits until the favoured thread is out. On systems
/// without `membarrier(2)` nobody is favoured; only a lock that is never moved again has a favourite.
pub struct Biased<T> {
    /// The seat of the favoured thread, or [`NOBODYS`]. Written under the lock alone.
    favoured: AtomicPtr<Seat>,
    seats: [Seat; SEATS],
    /// What the favoured thread shows to get in. No key: nobody is favoured.
    key: fn(&T) -> Option<usize>,
    lock: Mutex<Visits>,
    /// The thread that has the lock, 0 for none: it may not come again.
    holder: AtomicUsize,
    value: UnsafeCell<T>,
}

/// One thread's place, for good: a late store of a thread that lost the favour must meet nobody else's mark.
struct Seat {
    /// 0: not given away. Else the thread's number, with [`INSIDE`] added while it is. Given away under the lock, then
    /// written by its thread alone.
    thread: AtomicUsize,
    /// The key while its thread is favoured, then the key's complement. Written under the lock alone.
    key: AtomicUsize,
}

/// The seat that is never given away: nobody may enter without the lock.
static NOBODYS: Seat = Seat::new();

impl Seat {
    const fn new() -> Self {
        Self { thread: AtomicUsize::new(0), key: AtomicUsize::new(0) }
    }

    /// By its thread alone.
    #[inline]
    fn mark(&self) {
        self.thread.store(self.thread.load(Ordering::Relaxed) + INSIDE, Ordering::Relaxed);
    }

    /// By its thread alone.
    #[inline]
    fn unmark(&self) {
        // Pairs with the load in `withdraw`.
        self.thread.store(self.thread.load(Ordering::Relaxed) - INSIDE, Ordering::Release);
    }

    fn withdraw(&self) {
        self.key.store(!self.key.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Numbers of threads are addresses of aligned things.
const INSIDE: usize = 1;

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
        Self::with_key(value, |_| Some(0))
    }

    /// As [`new`](Self::new), with a key to [`enter`](Self::enter) with. `key` is asked when a thread becomes the
    /// favourite.
    pub(crate) const fn with_key(value: T, key: fn(&T) -> Option<usize>) -> Self {
        Self {
            favoured: AtomicPtr::new(ptr::from_ref(&NOBODYS).cast_mut()),
            seats: [const { Seat::new() }; SEATS],
            key,
            lock: Mutex::new(Visits { last: 0, streak: 0 }),
            holder: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// For the thread that comes often.
    ///
    /// # Panics
    ///
    /// From within `f`.
    #[inline]
    pub fn with<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        match self.enter_where(|seat| ptr::eq(self.favoured.load(Ordering::Relaxed), seat)) {
            Some(mut inside) => f(&mut inside),
            None => self.with_favour(f),
        }
    }

    /// For a thread that comes once.
    ///
    /// # Panics
    ///
    /// From within `f`.
    pub fn with_lock<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _held = self.withdraw();
        // SAFETY: the lock is held and the favoured thread is out, so this is the only access.
        f(unsafe { &mut *self.value.get() })
    }

    /// The favoured thread's way in, with the key that the value had when it became the favourite. `None` for another
    /// thread or key, and for one that is inside already.
    ///
    /// No key shown here may be the complement of one that the value has had.
    #[inline]
    pub(crate) fn enter(&self, key: usize) -> Option<Inside<'_, T>> {
        self.enter_where(|seat| seat.key.load(Ordering::Relaxed) == key)
    }

    /// The thread is marked, then it is checked that the favour still `stands`. `withdraw` takes the favour, then looks
    /// at the mark. With a barrier between the two on both sides, one sees the other.
    #[inline]
    fn enter_where(&self, stands: impl FnOnce(&Seat) -> bool) -> Option<Inside<'_, T>> {
        let seat = self.favoured_seat();
        if seat.thread.load(Ordering::Relaxed) != this_thread() {
            return None;
        }
        seat.mark();
        // Dropped, which takes the mark off, where the favour is gone.
        let inside = Inside { seat, value: self.value.get(), gate: PhantomData };
        barrier::light(); // meets `heavy` in `withdraw`
        if stands(seat) { Some(inside) } else { None }
    }

    #[inline]
    fn favoured_seat(&self) -> &Seat {
        // SAFETY: `NOBODYS`, or one of `seats`: `favour` puts that there where `self` is never moved again.
        unsafe { &*self.favoured.load(Ordering::Relaxed) }
    }

    #[cold]
    fn with_favour<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut held = self.withdraw();
        let (me, visits) = (this_thread(), &mut held.visits);
        visits.streak = if visits.last == me { visits.streak.saturating_add(1) } else { 1 };
        visits.last = me;
        // SAFETY: the lock is held and the favoured thread is out, so this is the only access.
        let value = unsafe { &mut *self.value.get() };
        let result = f(value);
        if visits.streak >= STREAK
            && let Some(key) = (self.key)(value)
        {
            self.favour(me, key);
        }
        result
    }

    /// Takes the lock and the favour, and waits until the favoured thread is out.
    fn withdraw(&self) -> Held<'_> {
        let me = this_thread();
        assert_ne!(self.holder.load(Ordering::Relaxed), me, "entered again from within");
        let visits = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.holder.store(me, Ordering::Relaxed);
        let held = Held { visits, holder: &self.holder };
        let seat = self.favoured_seat();
        if !ptr::eq(seat, &NOBODYS) {
            // Before the favour goes, which alone tells others that somebody is inside.
            assert_ne!(seat.thread.load(Ordering::Relaxed), me | INSIDE, "entered again from within");
            self.favoured.store(ptr::from_ref(&NOBODYS).cast_mut(), Ordering::Relaxed);
            seat.withdraw();
            barrier::heavy(); // meets `light` in `enter`
            let mut looks = 0;
            // Pairs with the store in `unmark`.
            while seat.thread.load(Ordering::Acquire) & INSIDE != 0 {
                wait(&mut looks);
            }
        }
        held
    }

    /// Under the lock.
    fn favour(&'static self, thread: usize, key: usize) {
        if !barrier::is_there() {
            return;
        }
        let seat_of = |wanted| self.seats.iter().find(|seat| seat.thread.load(Ordering::Relaxed) == wanted);
        if let Some(seat) = seat_of(thread).or_else(|| seat_of(0)) {
            seat.thread.store(thread, Ordering::Relaxed);
            seat.key.store(key, Ordering::Relaxed);
            self.favoured.store(ptr::from_ref(seat).cast_mut(), Ordering::Relaxed);
        }
    }
}

impl<T> fmt::Debug for Biased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Biased").finish_non_exhaustive()
    }
}

/// The value, in the hand of the favoured thread. On drop its mark is taken off.
pub(crate) struct Inside<'a, T> {
    seat: &'a Seat,
    value: *mut T,
    gate: PhantomData<&'a mut T>,
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread is favoured and marked as inside, so that no other gets past `withdraw`; `enter` lets
        // no thread in twice, and this type stays on its thread.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: whoever is inside is alone, and the borrow of `self` is exclusive.
        unsafe { &mut *self.value }
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.seat.unmark();
    }
}

impl<T> fmt::Debug for Inside<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

/// The lock, with the favoured thread out.
struct Held<'a> {
    visits: MutexGuard<'a, Visits>,
    holder: &'a AtomicUsize,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
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

/// Never 0, even, and no other living thread's. A dead one's number may come again, which then stands for both.
#[inline]
fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let id: usize;
        // SAFETY: by the ABI the thread's control block begins with its own address. One instruction, where a call of
        // pthread_self, which gives the same, needs a dozen with what it spills.
        unsafe { asm!("mov {}, fs:[0]", out(reg) id, options(readonly, nostack, preserves_flags)) };
        id
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: has no preconditions.
        let id = unsafe { libc::pthread_self() };
        id as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As where nobody can be favoured and one thread polls for minutes.
    #[test]
    fn calls_in_a_row_are_counted_to_the_end_of_the_number() {
        let gate: &'static Biased<u32> = Box::leak(Box::new(Biased::with_key(0, |_| None)));
        *gate.lock.lock().unwrap() = Visits { last: this_thread(), streak: u32::MAX };
        gate.with(|n| *n += 1);
        assert_eq!(gate.with(|n| *n), 1);
    }
}
