//! On the userspace link the message path calls nothing of the kernel but its socket, allocates nothing, and reads no
//! clock. Threads that wait yield.

mod quiet;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use quiet::{Allowed, WARM_UP, assert_found, assert_quiet, trips};
use roce_conformance::SoftLinks;

fn socket() -> Allowed {
    let sends = [libc::SYS_sendto, libc::SYS_sendmmsg];
    // The last is called once, when many packets have come together for the first time.
    let receives = [libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg, libc::SYS_setsockopt];
    let calls = [&sends[..], &receives].concat();
    Allowed { calls, ..Allowed::default() }
}

#[test]
fn unified() {
    assert_quiet("unified", || (trips::unified(&SoftLinks::new()), socket()));
}

#[test]
fn dispatched() {
    assert_quiet("dispatched", || (trips::dispatched(&SoftLinks::new()), socket()));
}

#[test]
fn threads() {
    assert_quiet("threads", || (trips::threads(&SoftLinks::new()), socket().and_yields()));
}

#[test]
fn forward() {
    assert_quiet("forward", || (trips::forward(&SoftLinks::new()), socket().and_yields()));
}

#[test]
fn bursts() {
    assert_quiet("bursts", || (trips::bursts(&SoftLinks::new()), socket()));
}

#[test]
fn poller() {
    assert_quiet("poller", || (trips::poller(&SoftLinks::new()), socket().and_yields()));
}

#[test]
fn an_allocation_is_found() {
    let trip = |_| drop(black_box(Box::new([0u64; 3])));
    assert_found("an_allocation_is_found", "an allocation of 24 bytes", || (trip, Allowed::default()));
}

#[test]
fn a_look_at_the_clock_is_found() {
    let breach = format!("a system call: number {}", libc::SYS_clock_gettime);
    let trip = |_| _ = black_box(Instant::now());
    assert_found("a_look_at_the_clock_is_found", &breach, || (trip, Allowed::default()));
}

#[test]
fn what_another_thread_does_is_found() {
    let breach = format!("a system call: number {}", libc::SYS_getppid);
    static IS_UP: AtomicBool = AtomicBool::new(false);
    static IS_HELD: AtomicBool = AtomicBool::new(false);
    let another = || {
        IS_UP.store(true, Ordering::Relaxed);
        yield_until(&IS_HELD);
        std::os::unix::process::parent_id()
    };
    let prepare = || {
        thread::Builder::new().name("roce-other".to_owned()).spawn(another).expect("a thread");
        yield_until(&IS_UP);
        let trip = |n| {
            if n == WARM_UP {
                IS_HELD.store(true, Ordering::Relaxed);
                yield_until(&AtomicBool::new(false));
            }
        };
        (trip, Allowed::default().and_yields())
    };
    assert_found("what_another_thread_does_is_found", &breach, prepare);
}

fn yield_until(flag: &AtomicBool) {
    while !flag.load(Ordering::Relaxed) {
        thread::yield_now();
    }
}
