//! The protocol under every interleaving and every stale read that the memory orders allow.
//!
//! Run with `RUSTFLAGS="--cfg roce_loom" cargo test -p roce-ring --release --test loom`.
#![cfg(roce_loom)]
#![allow(clippy::unwrap_used)] // in helpers too, where clippy does not see a test

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use roce_ring::{Consumer, Geometry, MemoryOptions, Overwritten, Producer, Ring, SlotBytes};

/// Two words per slot: enough to see half a message.
const PAGE: u32 = 16;

fn ring(num_pages: u32) -> (Producer, Consumer) {
    let geometry = Geometry::new(num_pages, PAGE, PAGE).unwrap();
    Ring::allocate(geometry, MemoryOptions::default()).unwrap().split().unwrap()
}

fn write(slot: SlotBytes<'_>, value: u64) {
    slot.copy_from(0, &value.to_ne_bytes());
    slot.copy_from(8, &value.to_ne_bytes());
}

fn read(slot: SlotBytes<'_>) -> [u64; 2] {
    [u64::from_ne_bytes(slot.read(0)), u64::from_ne_bytes(slot.read(8))]
}

/// Memory beside the ring that belongs to whoever owns the slot, as an FPGA's or a decoder's would. Loom fails a
/// model in which two accesses to it are not ordered by the flag: that includes a write that a read could see
/// too early, which loom does not show in atomics.
struct Owned(Vec<UnsafeCell<()>>);

// SAFETY: the cells hold nothing; loom checks their accesses, which is the purpose.
unsafe impl Sync for Owned {}
// SAFETY: the cells hold nothing, so there is nothing that could not move to another thread.
unsafe impl Send for Owned {}

impl Owned {
    fn new(num_pages: u32) -> Arc<Self> {
        Arc::new(Self((0..num_pages).map(|_| UnsafeCell::new(())).collect()))
    }

    fn write(&self, slot: u32) {
        self.0[slot as usize].with_mut(|_| ());
    }

    fn read(&self, slot: u32) {
        self.0[slot as usize].with(|_| ());
    }
}

/// Publishes `slots` in this order, with the values 1, 2, ..., and waits for a slot that it published before.
///
/// It does not look at a slot that must be free: loom explores a switch of threads from the last access to a word
/// alone, so that such a look hides the consumer's before it.
fn produce(producer: &Producer, owned: &Owned, slots: &[u32]) {
    for (i, &slot) in slots.iter().enumerate() {
        while slots[..i].contains(&slot) && !producer.is_free(slot) {
            thread::yield_now();
        }
        owned.write(slot);
        write(producer.slot(slot), i as u64 + 1);
        producer.publish(slot);
    }
}

fn hand_off(num_pages: u32, slots: &'static [u32]) {
    loom::model(move || {
        let (producer, consumer) = ring(num_pages);
        let owned = Owned::new(num_pages);
        let theirs = Arc::clone(&owned);
        let thread = thread::spawn(move || produce(&producer, &theirs, slots));
        for (&slot, value) in slots.iter().zip(1..) {
            let message = loop {
                match consumer.peek(slot) {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            owned.read(slot);
            assert_eq!(read(message.bytes()), [value; 2]);
            assert_eq!(message.release(), Ok(()));
        }
        thread.join().unwrap();
    });
}

#[test]
fn rx_hands_off_through_one_slot() {
    hand_off(1, &[0, 0, 0]);
}

#[test]
fn rx_hands_off_around_two_slots() {
    hand_off(2, &[0, 1, 0, 1]);
}

/// Takes as many messages as were published, and gives slot and value of each in the order taken.
fn consume(consumer: &mut Consumer, owned: &Owned, count: usize) -> Vec<(u32, u64)> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let Some(slot) = consumer.next_published() else {
            thread::yield_now();
            continue;
        };
        assert_eq!(consumer.next_published(), Some(slot), "the answer stands until the claim");
        owned.read(slot);
        let [value, again] = read(consumer.peek(slot).unwrap().bytes());
        assert_eq!(value, again);
        consumer.claim(slot);
        taken.push((slot, value));
    }
    taken
}

fn transmit(
    num_pages: u32,
    slots: &'static [u32],
    accept: impl Fn(&[(u32, u64)]) -> bool + Send + Sync + 'static,
) {
    loom::model(move || {
        let (producer, mut consumer) = ring(num_pages);
        let owned = Owned::new(num_pages);
        let theirs = Arc::clone(&owned);
        let thread = thread::spawn(move || produce(&producer, &theirs, slots));
        let taken = consume(&mut consumer, &owned, slots.len());
        thread.join().unwrap();
        assert_eq!(consumer.next_published(), None);
        assert!(accept(&taken), "{taken:?}");
    });
}

#[test]
fn tx_takes_slots_in_the_order_of_publication() {
    transmit(2, &[0, 1], |taken| taken == [(0, 1), (1, 2)]);
}

#[test]
fn tx_keeps_the_order_around_the_ring() {
    transmit(2, &[0, 1, 0], |taken| taken == [(0, 1), (1, 2), (0, 3)]);
}

#[test]
fn tx_keeps_the_order_behind_a_hole() {
    transmit(4, &[1, 2], |taken| taken == [(1, 1), (2, 2)]);
}

#[test]
fn tx_loses_nothing_that_is_published_out_of_order() {
    transmit(2, &[1, 0], |taken| matches!(taken, [(1, 1), (0, 2)] | [(0, 2), (1, 1)]));
}

const OLDER: u64 = 1;
const NEWER: u64 = 2;

/// A ring of one slot that holds the older message.
fn ring_with_older() -> (Producer, Consumer) {
    let (producer, consumer) = ring(1);
    write(producer.slot(0), OLDER);
    producer.publish(0);
    (producer, consumer)
}

#[test]
fn an_overrun_noted_before_it_is_written_spoils_every_read_that_meets_it() {
    loom::model(|| {
        let (producer, consumer) = ring_with_older();
        let message = consumer.peek(0).unwrap();
        let thread = thread::spawn(move || {
            producer.note_overrun(0);
            write(producer.slot(0), NEWER);
        });
        let seen = read(message.bytes());
        if message.release().is_ok() {
            assert_eq!(seen, [OLDER; 2]);
        }
        thread.join().unwrap();
    });
}

/// As a device does it: the bytes land, then the transport sees the completion.
#[test]
fn an_overrun_loses_one_message_and_doubles_none() {
    loom::model(|| {
        let (producer, consumer) = ring_with_older();
        let thread = thread::spawn(move || {
            write(producer.slot(0), NEWER);
            let was_free = producer.is_free(0);
            if was_free {
                producer.publish(0)
            } else {
                producer.note_overrun(0)
            }
            was_free
        });

        match consumer.peek(0).unwrap().release() {
            Ok(()) => {
                let was_published = thread.join().unwrap();
                assert_eq!(consumer.peek(0).is_some(), was_published);
            }
            Err(error) => {
                assert_eq!(error, Overwritten { slot: 0 });
                let newer = consumer.peek(0).expect("the flag stands for the newer message");
                assert_eq!(read(newer.bytes()), [NEWER; 2]);
                assert_eq!(newer.release(), Ok(()));
                assert!(!thread.join().unwrap());
                assert!(consumer.peek(0).is_none());
            }
        }
    });
}

#[test]
fn a_peek_after_a_noted_overrun_sees_the_newer_message() {
    loom::model(|| {
        let (producer, consumer) = ring_with_older();
        let older = consumer.peek(0).unwrap();
        let thread = thread::spawn(move || {
            write(producer.slot(0), NEWER);
            producer.note_overrun(0);
        });
        if older.overwritten() {
            let newer = consumer.peek(0).unwrap();
            assert_eq!(read(newer.bytes()), [NEWER; 2]);
            assert_eq!(newer.release(), Ok(()));
            assert_eq!(older.release(), Err(Overwritten { slot: 0 }));
        }
        thread.join().unwrap();
    });
}

#[test]
fn one_of_two_splits_succeeds() {
    loom::model(|| {
        let geometry = Geometry::new(1, PAGE, PAGE).unwrap();
        let ring = Ring::allocate(geometry, MemoryOptions::default()).unwrap();
        let theirs = Arc::clone(&ring);
        let thread = thread::spawn(move || theirs.split().is_some());
        let ours = ring.split().is_some();
        assert!(ours != thread.join().unwrap());
    });
}
