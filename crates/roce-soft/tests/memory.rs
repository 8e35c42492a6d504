//! What queue pairs allocate: little when they are made, and nothing afterwards.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Region, connect, fresh_addr, open};
use roce_core::{Device, Mtu, QpAttr, Verb};
use roce_soft::{SoftConfig, SoftDevice};

/// The system's allocator, and how often and how much this thread asked it for.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: it hands every call on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        BYTES.set(BYTES.get() + layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_small_queue_pair_takes_less_than_a_quarter_mebibyte() {
    let (rx, tx) = (Region::new(64 * 384), Region::new(64 * 384));
    let before = BYTES.get();
    let device = open(fresh_addr());
    let attr = QpAttr { rx, tx, send_depth: 64, recv_depth: 64, mtu: None };
    let qp = device.create_qp(&attr).unwrap();
    let bytes = BYTES.get() - before;
    assert!(bytes < 256 << 10, "{bytes} bytes");
    drop(qp);
}

#[test]
fn messages_allocate_nothing() {
    exchange_without_allocating(None);
}

#[test]
fn faults_allocate_nothing() {
    exchange_without_allocating(Some("drop=0.1,dup=0.1,reorder=0.1,delay=0.1:50us,corrupt=0.1,seed=1"));
}

fn exchange_without_allocating(faults: Option<&str>) {
    let faults = faults.map(|f| f.parse().unwrap());
    let device =
        SoftDevice::open(SoftConfig { addr: fresh_addr(), faults, ..SoftConfig::default() }).unwrap();
    let (mut a, mut b) = connect(&device, &open(fresh_addr()), Some(Mtu::B256));
    let write = a.write(5, Some(1));
    let before = CALLS.get();
    let (mut posted, mut received) = (0, 0);
    for i in 0..2000 {
        while posted < 16 {
            b.post(i, 0, 4096);
            posted += 1;
        }
        let len = i * 37 % 2000;
        a.stage(0, len, Verb::Send { imm: None });
        a.stage(3, len, write);
        a.flush();
        while b.poll().is_some() {
            posted -= 1;
            received += 1;
        }
    }
    assert_eq!(CALLS.get(), before);
    assert!(received == 4000 || faults.is_some() && received > 500, "{received} messages");
}
