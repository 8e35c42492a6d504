//! Memory: how much a transceiver takes, and that the message path takes none.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{monitor, pair, peer_of, publish, soft, take, unused_addr, wait_for};
use roce_transport::{ConfigBuilder, Mode, PollerOptions, SharedPoller, State, Transceiver};

/// Counts what is allocated, by every thread of the process.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; the counters touch no memory of its.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `ptr` came from `alloc` above with this `layout`, so from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The cases count the whole process, so they run one after the other.
#[test]
fn memory() {
    a_transceiver_takes_less_than_a_mebibyte();
    threads_allocate_nothing_once_running();
    unified_allocates_nothing_once_running();
    a_shared_poller_allocates_nothing_once_running_and_frees_all_in_the_end();
}

fn a_transceiver_takes_less_than_a_mebibyte() {
    // What the process keeps for its first socket on an address counts as well.
    let before = BYTES.load(Ordering::Relaxed);
    let a = Transceiver::new(soft(unused_addr()).num_pages(64).page_size(384).build().expect("valid"));
    let b = Transceiver::new(soft(unused_addr()).num_pages(64).page_size(384).build().expect("valid"));
    let end_b = b.setup().expect("set-up");
    a.setup().expect("set-up");
    a.connect(&peer_of(end_b)).expect("connect");
    let heap = (BYTES.load(Ordering::Relaxed) - before) / 2;
    let ring = a.config().geometry().data_len().next_multiple_of(4096) + 4096;
    assert!(heap + 2 * ring < 1 << 20, "{heap} bytes of heap and two rings of {ring}");
}

fn threads_allocate_nothing_once_running() {
    let (a, b) = pair(|b| b, |b| b, |b| b);
    let (mut ends_a, mut ends_b) = (a.take_ends().expect("once"), b.take_ends().expect("once"));
    let monitors = [monitor(&a), monitor(&b)];
    let mut round_trip = |n: u64| {
        let slot = u32::try_from(n % 64).expect("below 64");
        publish(&ends_a.tx, slot, n);
        assert_eq!(wait_for("a request", || take(&mut ends_b.rx, slot)), n);
        publish(&ends_b.tx, slot, n);
        assert_eq!(wait_for("an answer", || take(&mut ends_a.rx, slot)), n);
    };
    (0..200).for_each(&mut round_trip);
    let before = CALLS.load(Ordering::Relaxed);
    (200..2200).for_each(&mut round_trip);
    assert_eq!(CALLS.load(Ordering::Relaxed) - before, 0);
    close(&a, &b);
    for m in monitors {
        m.join().expect("no panic").expect("no error");
    }
}

fn unified_allocates_nothing_once_running() {
    let (a, b) = pair(|b| b, |b| b.mode(Mode::Unified), |b| b.mode(Mode::Unified));
    let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
    let mut round_trip = |n: u32| {
        caller.tx_publish(n % 64).expect("sent");
        let slot = wait_for("a request", || service.rx_poll().expect("open"));
        service.tx_publish(slot).expect("sent");
        wait_for("an answer", || caller.rx_poll().expect("open"));
    };
    (0..200).for_each(&mut round_trip);
    let before = CALLS.load(Ordering::Relaxed);
    (200..2200).for_each(&mut round_trip);
    assert_eq!(CALLS.load(Ordering::Relaxed) - before, 0);
    close(&a, &b);
}

fn a_shared_poller_allocates_nothing_once_running_and_frees_all_in_the_end() {
    let before = in_use();
    let poller = SharedPoller::start(PollerOptions::default()).expect("a thread");
    let forward = |b: ConfigBuilder| b.mode(Mode::Forward);
    let pairs: Vec<_> = (0..8).map(|_| pair(|b| b, |b| b.mode(Mode::Unified), forward)).collect();
    let mut callers: Vec<_> = pairs.iter().map(|(caller, _)| caller.take_unified().expect("once")).collect();
    pairs.iter().for_each(|(_, service)| drop(poller.add(service).expect("connected")));
    let mut round_trip = |n: u32| {
        for caller in &mut callers {
            caller.tx_publish(n % 64).expect("sent");
            wait_for("an echo", || caller.rx_poll().expect("open"));
        }
    };
    (0..200).for_each(&mut round_trip);
    let calls = CALLS.load(Ordering::Relaxed);
    (200..1200).for_each(&mut round_trip);
    assert_eq!(CALLS.load(Ordering::Relaxed) - calls, 0);
    drop((callers, pairs));
    // Nothing lives in the poller of those that are gone.
    assert_eq!(in_use().0, before.0, "descriptors");
    assert_eq!(in_use().1, before.1 + 1, "threads, and the poller's own");
    drop(poller);
    assert_eq!(in_use(), before, "descriptors and threads");
}

/// Open descriptors and threads of the process.
fn in_use() -> (usize, usize) {
    let count = |what| std::fs::read_dir(what).expect("the kernel tells").count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

fn close(a: &Arc<Transceiver>, b: &Arc<Transceiver>) {
    a.close();
    b.close();
    assert_eq!((a.state(), b.state()), (State::Closed, State::Closed));
}
