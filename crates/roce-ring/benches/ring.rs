//! The ring per message: flags on one thread, bytes of a slot, and a hand-off between two threads.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce_ring::{Consumer, Geometry, MemoryOptions, Producer, Ring};

const PAGES: u32 = 64;

fn ends(page: u32) -> (Producer, Consumer) {
    let geometry = Geometry::new(PAGES, page, page).expect("a shape that can be");
    Ring::allocate(geometry, MemoryOptions::default()).expect("memory").split().expect("the first split")
}

fn flags(c: &mut Criterion) {
    let (producer, mut consumer) = ends(384);
    let mut slot = 0;
    c.bench_function("publish, find, claim", |b| {
        b.iter(|| {
            producer.publish(slot);
            let found = consumer.next_published().expect("published above");
            consumer.claim(found);
            slot = (slot + 1) % PAGES;
        });
    });
    c.bench_function("look in vain", |b| b.iter(|| black_box(consumer.next_published())));
}

fn bytes(c: &mut Criterion) {
    let mut group = c.benchmark_group("slot");
    for len in [64usize, 256, 1024, 4096] {
        let (producer, _consumer) = ends(u32::try_from(len).expect("a short slot"));
        let mut copy = vec![0u8; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("copy in", len), |b| {
            b.iter(|| producer.slot(0).copy_from(0, black_box(&copy)));
        });
        group.bench_function(BenchmarkId::new("copy out", len), |b| {
            b.iter(|| producer.slot(0).copy_to(0, black_box(&mut copy)));
        });
    }
    group.finish();
}

/// There and back; a thread that waits long yields, since there may be one CPU for both.
fn hand_off(c: &mut Criterion) {
    let (to_peer, mut at_peer) = ends(384);
    let (to_us, mut at_us) = ends(384);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            while let Some(slot) = wait(&mut at_peer, over) {
                at_peer.claim(slot);
                to_us.publish(slot);
            }
        });
        let mut slot = 0;
        c.bench_function("to another thread and back", |b| {
            b.iter_custom(|trips| {
                let started = Instant::now();
                for _ in 0..trips {
                    to_peer.publish(slot);
                    let back = wait(&mut at_us, over).expect("it is not over");
                    at_us.claim(back);
                    slot = (slot + 1) % PAGES;
                }
                started.elapsed()
            });
        });
        over.store(true, Ordering::Relaxed);
    });
}

fn wait(consumer: &mut Consumer, over: &AtomicBool) -> Option<u32> {
    let mut looks = 0u32;
    loop {
        if let Some(slot) = consumer.next_published() {
            return Some(slot);
        }
        if over.load(Ordering::Relaxed) {
            return None;
        }
        looks += 1;
        if looks > 1000 { thread::yield_now() } else { spin_loop() }
    }
}

criterion_group!(benches, flags, bytes, hand_off);
criterion_main!(benches);
