//! The lock with a favourite, from many threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use roce_ffi::{Biased, Handles};

/// Two halves that are only equal while nobody is in between.
#[derive(Default)]
struct Pair {
    left: u64,
    right: u64,
}

impl Pair {
    fn step(&mut self) {
        assert_eq!(self.left, self.right, "two threads inside");
        self.left += 1;
        std::hint::black_box(&mut self.left);
        self.right += 1;
    }
}

/// Ends the other threads of a test, also when this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// That stays where it is, as a favourite needs it.
fn lock<T>(value: T) -> &'static Biased<T> {
    Box::leak(Box::new(Biased::new(value)))
}

#[test]
fn a_favourite_and_its_disturber_never_meet() {
    const DISTURBANCES: u64 = 1_500;
    /// Enough calls in a row to be favoured again.
    const CALLS: u64 = 40;
    let gate = lock(Pair::default());
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&is_over);
            while !is_over.load(Ordering::Relaxed) {
                gate.with(Pair::step);
                calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let _ends = Ends(&is_over);
            for _ in 0..DISTURBANCES {
                let before = calls.load(Ordering::Relaxed);
                let mut looks = 0u32;
                while calls.load(Ordering::Relaxed) < before + CALLS && !is_over.load(Ordering::Relaxed) {
                    looks += 1;
                    if looks.is_multiple_of(1000) { thread::yield_now() } else { std::hint::spin_loop() }
                }
                gate.with_lock(Pair::step);
            }
        });
    });
    assert!(gate.with_lock(|pair| pair.left) >= DISTURBANCES * (CALLS + 1));
}

#[test]
fn more_threads_than_seats_all_get_in() {
    const THREADS: u64 = 12;
    const EACH: u64 = 20_000;
    let gate = lock(Pair::default());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..EACH).for_each(|_| gate.with(Pair::step)));
        }
    });
    assert_eq!(gate.with(|pair| pair.right), THREADS * EACH);
}

#[test]
fn a_thread_that_follows_another_is_let_in() {
    let gate = lock(Pair::default());
    for _ in 0..20 {
        thread::scope(|scope| {
            scope.spawn(|| (0..100).for_each(|_| gate.with(Pair::step)));
        });
    }
    assert_eq!(gate.with_lock(|pair| pair.left), 2000);
}

#[test]
fn a_panic_inside_leaves_the_gate_open_for_others() {
    let gate = lock(0u32);
    thread::scope(|scope| {
        scope.spawn(|| (0..100).for_each(|_| gate.with(|n| *n += 1)));
    });
    let panicked = thread::scope(|scope| {
        scope
            .spawn(|| {
                (0..100).for_each(|_| gate.with(|n| *n += 1));
                gate.with(|_| panic!("inside"))
            })
            .join()
    });
    assert!(panicked.is_err());
    assert_eq!(gate.with_lock(|n| *n), 200);
}

#[test]
fn to_enter_again_from_within_is_refused() {
    let gate = lock(0u32);
    (0..100).for_each(|_| gate.with(|n| *n += 1));
    let again = catch_unwind(AssertUnwindSafe(|| gate.with(|_| gate.with(|n| *n += 1))));
    assert!(again.is_err());
    let again = catch_unwind(AssertUnwindSafe(|| gate.with(|_| gate.with_lock(|n| *n += 1))));
    assert!(again.is_err());
    assert_eq!(gate.with(|n| *n), 100);
}

#[test]
fn a_thread_that_was_refused_from_within_is_still_alone() {
    let gate = lock(0u32);
    (0..100).for_each(|_| gate.with(|n| *n += 1));
    thread::scope(|scope| {
        let other = gate.with(|n| {
            assert!(catch_unwind(AssertUnwindSafe(|| gate.with(|_| ()))).is_err());
            assert!(catch_unwind(AssertUnwindSafe(|| gate.with_lock(|_| ()))).is_err());
            let other = scope.spawn(|| gate.with_lock(|n| *n));
            for _ in 0..1000 {
                thread::yield_now();
            }
            assert!(!other.is_finished(), "two threads inside");
            *n += 1;
            other
        });
        assert_eq!(other.join().ok(), Some(101));
    });
}

/// A port that says whether it was used after it was taken away.
struct Port {
    is_out: &'static AtomicBool,
}

#[test]
fn a_detached_port_is_never_used_again() {
    let table: &'static Handles<(), Port> = Box::leak(Box::new(Handles::new(0x7E57)));
    for _ in 0..200 {
        let is_out = Box::leak(Box::new(AtomicBool::new(false)));
        let handle = table.insert(()).expect("room");
        assert!(table.attach(handle, || Some((Port { is_out }, &()))));
        let address = handle.addr();
        let is_out = &*is_out;
        let polled = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let handle = std::ptr::without_provenance_mut(address);
                let poll = |port: &mut Port| assert!(!port.is_out.load(Ordering::Relaxed));
                while table.port(handle, poll).is_some() {
                    polled.fetch_add(1, Ordering::Relaxed);
                }
            });
            while polled.load(Ordering::Relaxed) < 50 {
                thread::yield_now();
            }
            let port = table.detach(std::ptr::without_provenance_mut(address)).expect("attached");
            port.is_out.store(true, Ordering::Relaxed);
            assert!(is_out.load(Ordering::Relaxed));
        });
        table.remove(std::ptr::without_provenance_mut(address)).expect("live");
    }
}
