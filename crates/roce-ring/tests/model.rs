//! Random sequences against plain collections.
#![cfg(not(roce_loom))]
#![allow(clippy::unwrap_used)] // in helpers too, where clippy does not see a test

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::sample::select;
use roce_ring::{Consumer, Geometry, MemoryOptions, Overwritten, Producer, Ring};

const PAGE: u32 = 16;
const MARKERS: [u64; 3] = [0xEEEE_EEEE_EEEE_EEEE, 0xDEAD_0000_0000_0001, 4096];

fn ring(num_pages: u32, page_size: u32) -> (Arc<Ring>, Producer, Consumer) {
    let geometry = Geometry::new(num_pages, page_size, page_size).unwrap();
    let ring = Ring::allocate(geometry, MemoryOptions::default()).unwrap();
    let (producer, consumer) = ring.split().unwrap();
    (ring, producer, consumer)
}

fn flag(ring: &Ring, slot: u32) -> &AtomicU64 {
    assert!(slot < ring.geometry().num_pages());
    // SAFETY: the word lies inside the flags, which live as long as the ring.
    unsafe { AtomicU64::from_ptr(ring.flag_addr().add(slot as usize)) }
}

/// Asks as often as it takes to search the whole ring.
fn next_published(consumer: &mut Consumer) -> Option<u32> {
    let calls = 16 * consumer.ring().geometry().num_pages().div_ceil(64) + 1;
    (0..calls).find_map(|_| consumer.next_published())
}

fn fill(producer: &Producer, slot: u32, value: u64) {
    producer.slot(slot).copy_from(8, &value.to_ne_bytes());
}

fn value(consumer: &Consumer, slot: u32) -> u64 {
    u64::from_ne_bytes(consumer.peek(slot).unwrap().bytes().read(8))
}

/// What one slot of the model holds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slot {
    Free,
    Message(u64),
    Marker(u64),
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The producer publishes a slot, or overruns the message in it.
    Publish(u32),
    /// Foreign code stores a marker.
    Mark(u32, u64),
    /// The consumer reads a slot in place, and is overrun while it does if so asked.
    Read(u32, bool),
    /// The consumer takes the next published slot.
    Claim,
}

fn steps(num_pages: u32) -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..num_pages;
    let step = prop_oneof![
        3 => slot.clone().prop_map(Step::Publish),
        1 => (slot.clone(), select(&MARKERS)).prop_map(|(slot, marker)| Step::Mark(slot, marker)),
        2 => (slot, any::<bool>()).prop_map(|(slot, overrun)| Step::Read(slot, overrun)),
        2 => Just(Step::Claim),
    ];
    proptest::collection::vec(step, 0..200)
}

fn ring_and_steps() -> impl Strategy<Value = (u32, Vec<Step>)> {
    select(&[1, 2, 8, 64, 256]).prop_flat_map(|num_pages| (Just(num_pages), steps(num_pages)))
}

struct Model {
    ring: Arc<Ring>,
    producer: Producer,
    consumer: Consumer,
    slots: Vec<Slot>,
    sent: u64,
}

impl Model {
    fn new(num_pages: u32) -> Self {
        let (ring, producer, consumer) = ring(num_pages, PAGE);
        Self { ring, producer, consumer, slots: vec![Slot::Free; num_pages as usize], sent: 0 }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Publish(slot) => self.publish(slot),
            Step::Mark(slot, marker) => {
                flag(&self.ring, slot).store(marker, Ordering::Release);
                self.slots[slot as usize] = Slot::Marker(marker);
            }
            Step::Read(slot, overrun) => self.read(slot, overrun),
            Step::Claim => self.claim(),
        }
    }

    fn publish(&mut self, slot: u32) {
        self.sent += 1;
        fill(&self.producer, slot, self.sent);
        match self.slots[slot as usize] {
            Slot::Message(_) => self.producer.note_overrun(slot),
            Slot::Free | Slot::Marker(_) => self.producer.publish(slot),
        }
        self.slots[slot as usize] = Slot::Message(self.sent);
    }

    fn read(&mut self, slot: u32, overrun: bool) {
        let Slot::Message(expected) = self.slots[slot as usize] else {
            assert!(self.consumer.peek(slot).is_none());
            return;
        };
        assert_eq!(value(&self.consumer, slot), expected);
        let message = self.consumer.peek(slot).unwrap();
        if overrun {
            self.sent += 1;
            fill(&self.producer, slot, self.sent);
            self.producer.note_overrun(slot);
            assert_eq!(message.release(), Err(Overwritten { slot }));
            self.slots[slot as usize] = Slot::Message(self.sent);
        } else {
            assert_eq!(message.release(), Ok(()));
            self.slots[slot as usize] = Slot::Free;
        }
    }

    fn claim(&mut self) {
        let published = |slot: &Slot| matches!(slot, Slot::Message(_));
        let Some(slot) = next_published(&mut self.consumer) else {
            assert!(!self.slots.iter().any(published), "missed: {:?}", self.slots);
            return;
        };
        assert_eq!(self.consumer.next_published(), Some(slot));
        assert_eq!(self.slots[slot as usize], Slot::Message(value(&self.consumer, slot)));
        self.consumer.claim(slot);
        self.slots[slot as usize] = Slot::Free;
    }

    fn compare_flags(&self) {
        let base = self.ring.data_addr().addr() as u64;
        for (slot, expected) in (0..).zip(&self.slots) {
            let seen = flag(&self.ring, slot).load(Ordering::Acquire);
            match *expected {
                Slot::Free => assert_eq!(seen, 0),
                Slot::Marker(marker) => assert_eq!(seen, marker),
                Slot::Message(_) => assert_eq!(seen, base + u64::from(slot * PAGE)),
            }
            assert_eq!(self.producer.is_free(slot), *expected == Slot::Free);
        }
    }
}

proptest! {
    #[test]
    fn any_sequence_leaves_the_flags_of_the_model((num_pages, steps) in ring_and_steps()) {
        let mut model = Model::new(num_pages);
        for step in steps {
            model.step(step);
            model.compare_flags();
        }
    }

    /// A producer in ring order that leaves slots out, and never is a lap ahead.
    #[test]
    fn messages_leave_in_the_order_of_publication(
        num_pages in select(&[1, 2, 8, 128, 512]),
        // Slots to leave out before each message, and messages to take after it.
        rounds in proptest::collection::vec((0_u32..100, 0_usize..3), 1..100),
    ) {
        let (_ring, producer, mut consumer) = ring(num_pages, PAGE);
        let mut published = VecDeque::new();
        // Positions count on, slots are positions modulo the ring.
        let (mut position, mut taken_up_to) = (0, 0);
        for (value, (leave_out, takes)) in (1..).zip(rounds) {
            position += leave_out % num_pages;
            if position - taken_up_to < num_pages {
                let slot = position % num_pages;
                prop_assert!(producer.is_free(slot));
                fill(&producer, slot, value);
                producer.publish(slot);
                published.push_back((position, value));
                position += 1;
            }
            for _ in 0..takes {
                let slot = next_published(&mut consumer);
                prop_assert_eq!(slot, published.front().map(|(position, _)| position % num_pages));
                if let Some((position, expected)) = published.pop_front() {
                    prop_assert_eq!(self::value(&consumer, position % num_pages), expected);
                    consumer.claim(position % num_pages);
                    taken_up_to = position + 1;
                }
            }
        }
    }

    /// Any alignment of slot, offset and length.
    #[test]
    fn copies_are_exact_and_stay_inside(
        page_size in 1_u32..70,
        slot in 0_u32..4,
        (from, to) in (0_usize..70, 0_usize..70),
        bytes in proptest::collection::vec(any::<u8>(), 70),
    ) {
        let (_ring, producer, _consumer) = ring(4, page_size);
        let page = page_size as usize;
        let range = from.min(to).min(page)..from.max(to).min(page);
        let mut all = vec![0xA5; page * 4];
        for slot in 0..4 {
            producer.slot(slot).copy_from(0, &all[..page]);
        }

        producer.slot(slot).copy_from(range.start, &bytes[range.clone()]);
        all[slot as usize * page..][range.clone()].copy_from_slice(&bytes[range.clone()]);
        prop_assert_eq!(whole(&producer, page), &all[..]);

        let mut out = vec![0; range.len()];
        producer.slot(slot).copy_to(range.start, &mut out);
        prop_assert_eq!(&out, &bytes[range.clone()]);

        producer.slot(slot).fill_zero(range.clone());
        all[slot as usize * page..][range].fill(0);
        prop_assert_eq!(whole(&producer, page), &all[..]);
    }
}

/// The bytes of all four slots.
fn whole(producer: &Producer, page: usize) -> Vec<u8> {
    let mut out = vec![0; page * 4];
    for (slot, page) in (0..).zip(out.chunks_exact_mut(page)) {
        producer.slot(slot).copy_to(0, page);
    }
    out
}

#[test]
fn a_long_slot_is_zeroed_and_no_more() {
    let (_ring, producer, _consumer) = ring(1, 1000);
    producer.slot(0).copy_from(0, &[1; 1000]);
    producer.slot(0).fill_zero(3..997);
    let bytes = producer.slot(0).read::<1000>(0);
    assert_eq!(bytes[..3], [1; 3]);
    assert_eq!(bytes[3..997], [0; 994]);
    assert_eq!(bytes[997..], [1; 3]);
}

#[test]
#[should_panic = "2 bytes at offset 15 do not lie in a slot of 16 bytes"]
fn a_read_beyond_the_slot_panics() {
    let (_ring, producer, _consumer) = ring(2, PAGE);
    producer.slot(0).read::<2>(15);
}

#[test]
#[should_panic = "1 bytes at offset 18446744073709551615 do not lie in a slot of 16 bytes"]
fn a_write_beyond_the_slot_panics() {
    let (_ring, producer, _consumer) = ring(2, PAGE);
    producer.slot(0).copy_from(usize::MAX, &[0]);
}

#[test]
#[should_panic = "do not lie in a slot of 16 bytes"]
fn zeros_beyond_the_slot_panic() {
    let (_ring, producer, _consumer) = ring(2, PAGE);
    producer.slot(0).fill_zero(8..17);
}

#[test]
#[should_panic = "out of the ring"]
fn a_slot_beyond_the_ring_panics() {
    let (_ring, producer, _consumer) = ring(2, PAGE);
    producer.slot(2);
}
