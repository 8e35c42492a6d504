//! Two threads at full speed over rings so small that each message meets the other end.
#![cfg(not(roce_loom))]
#![allow(clippy::unwrap_used)] // in helpers too, where clippy does not see a test

use std::thread;

use roce_ring::{Consumer, Geometry, MemoryOptions, Producer, Ring, SlotBytes};

const MESSAGES: u64 = 50_000;
/// Odd, so that slots start at any alignment.
const PAGE: u32 = 43;

fn ring(num_pages: u32) -> (Producer, Consumer) {
    let geometry = Geometry::new(num_pages, PAGE, PAGE).unwrap();
    Ring::allocate(geometry, MemoryOptions::default()).unwrap().split().unwrap()
}

/// Spins a while, then lets the other thread run: there may be one core for both.
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        for _ in 0..64 {
            if let Some(found) = look() {
                return found;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
}

/// The number, over and over.
fn write(slot: SlotBytes<'_>, number: u64) {
    let mut bytes = [0; PAGE as usize];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&number.to_le_bytes()[..chunk.len()]);
    }
    slot.copy_from(0, &bytes);
}

/// The number, if the message is whole.
fn read(slot: SlotBytes<'_>) -> Option<u64> {
    let bytes = slot.read::<{ PAGE as usize }>(0);
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let whole = bytes.chunks(8).all(|chunk| *chunk == number.to_le_bytes()[..chunk.len()]);
    whole.then_some(number)
}

fn slot_of(number: u64, num_pages: u32) -> u32 {
    u32::try_from(number % u64::from(num_pages)).unwrap()
}

#[test]
fn rx_delivers_each_message_once_and_whole() {
    for num_pages in [1, 2, 16] {
        let (producer, consumer) = ring(num_pages);
        let thread = thread::spawn(move || {
            for number in 0..MESSAGES {
                let slot = slot_of(number, num_pages);
                wait_for(|| producer.is_free(slot).then_some(()));
                write(producer.slot(slot), number);
                producer.publish(slot);
            }
        });
        for number in 0..MESSAGES {
            let message = wait_for(|| consumer.peek(slot_of(number, num_pages)));
            assert_eq!(read(message.bytes()), Some(number));
            message.release().unwrap();
        }
        thread.join().unwrap();
    }
}

#[test]
fn tx_takes_each_message_in_order() {
    for num_pages in [1, 2, 16] {
        let (producer, mut consumer) = ring(num_pages);
        let thread = thread::spawn(move || {
            for number in 0..MESSAGES {
                let slot = slot_of(number, num_pages);
                wait_for(|| producer.is_free(slot).then_some(()));
                write(producer.slot(slot), number);
                producer.publish(slot);
            }
        });
        for number in 0..MESSAGES {
            let slot = wait_for(|| consumer.next_published());
            assert_eq!(slot, slot_of(number, num_pages));
            assert_eq!(consumer.peek(slot).and_then(|message| read(message.bytes())), Some(number));
            consumer.claim(slot);
        }
        thread.join().unwrap();
    }
}

/// Slots in an order of the producer's own, some never used again.
#[test]
fn tx_loses_nothing_published_in_any_order() {
    let num_pages = 256;
    let (producer, mut consumer) = ring(num_pages);
    let thread = thread::spawn(move || {
        for number in 0..MESSAGES {
            // Strides over the ring, and stays off every third slot.
            let slot = slot_of(number * 37 % 85 * 3 + number % 2, num_pages);
            wait_for(|| producer.is_free(slot).then_some(()));
            write(producer.slot(slot), number);
            producer.publish(slot);
        }
    });
    let mut missing = vec![true; usize::try_from(MESSAGES).unwrap()];
    for _ in 0..MESSAGES {
        let slot = wait_for(|| consumer.next_published());
        let number = consumer.peek(slot).and_then(|message| read(message.bytes())).unwrap();
        let was_missing = std::mem::replace(&mut missing[usize::try_from(number).unwrap()], false);
        assert!(was_missing, "message {number} came twice");
        consumer.claim(slot);
    }
    thread.join().unwrap();
    assert!(!missing.contains(&true));
}

/// A sender that never waits: whatever it laps is lost, and nothing else.
#[test]
fn each_overrun_loses_one_message() {
    let num_pages = 4;
    let (producer, consumer) = ring(num_pages);
    let thread = thread::spawn(move || {
        let mut overruns = 0;
        for number in 0..MESSAGES {
            let slot = slot_of(number, num_pages);
            write(producer.slot(slot), number);
            if producer.is_free(slot) {
                producer.publish(slot);
            } else {
                producer.note_overrun(slot);
                overruns += 1;
            }
            if number % 64 == 0 {
                thread::yield_now();
            }
        }
        overruns
    });

    let mut taken = 0;
    let mut sweep = || {
        let before = taken;
        for slot in 0..num_pages {
            let message = consumer.peek(slot);
            taken += u64::from(message.is_some_and(|message| message.release().is_ok()));
        }
        taken > before
    };
    while !thread.is_finished() {
        if !sweep() {
            thread::yield_now();
        }
    }
    let overruns: u64 = thread.join().unwrap();
    while sweep() {}
    assert_eq!(taken + overruns, MESSAGES);
}
