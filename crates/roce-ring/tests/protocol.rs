//! The flag protocol, seen from both ends and from foreign code.
#![cfg(not(roce_loom))]
#![allow(clippy::unwrap_used)] // in helpers too, where clippy does not see a test

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use roce_core::{DmaRegion, Line, MemoryPart};
use roce_ring::{Consumer, Geometry, Lines, MemoryOptions, Overwritten, Producer, Ring, SlotBytes};

const MARKERS: [u64; 4] = [0xEEEE_EEEE_EEEE_EEEE, 0xDEAD_0000_0000_0007, 1, u64::MAX];

fn ring(num_pages: u32, page_size: u32) -> (Arc<Ring>, Producer, Consumer) {
    let geometry = Geometry::new(num_pages, page_size, page_size).unwrap();
    let ring = Ring::allocate(geometry, MemoryOptions::default()).unwrap();
    let (producer, consumer) = ring.split().unwrap();
    (ring, producer, consumer)
}

/// A flag as a C program reaches it.
fn foreign_flag(ring: &Ring, slot: u32) -> &AtomicU64 {
    assert!(slot < ring.geometry().num_pages());
    // SAFETY: the word lies inside the flags, which live as long as the ring.
    unsafe { AtomicU64::from_ptr(ring.flag_addr().add(slot as usize)) }
}

fn slot_address(ring: &Ring, slot: u32) -> u64 {
    ring.data_addr().addr() as u64 + ring.geometry().slot_offset(slot)
}

/// The words of a slot's first line are its bytes, and no slot has a line that does not lie in it on words' boundaries.
#[test]
fn a_line_is_the_start_of_its_slot() {
    let shapes = [(64, 64), (72, 72), (384, 384), (64, 384), (384, 64)].map(|shape| (shape, true));
    let without = [(56, 56), (68, 68), (56, 64), (64, 56), (68, 72), (72, 68)].map(|shape| (shape, false));
    let shapes = shapes.into_iter().chain(without);
    for (((rx_page, tx_page), has_lines), pages) in
        shapes.flat_map(|shape| [(shape, [4, 8]), (shape, [8, 4])])
    {
        let (rx, rx_end, _consumer) = ring(pages[0], rx_page);
        let (tx, tx_end, _consumer) = ring(pages[1], tx_page);
        let lines = Lines::new(&rx, &tx);
        assert!(lines.of(4).is_none(), "one has no such slot");
        for slot in 0..4u32 {
            let Some((from, to)) = lines.of(slot) else {
                assert!(!has_lines, "slots of {rx_page} and {tx_page}");
                continue;
            };
            assert!(has_lines, "slots of {rx_page} and {tx_page}");
            let seed = slot.to_le_bytes()[0];
            assert_is_the_start(from, rx_end.slot(slot), rx_page as usize, seed + 1);
            assert_is_the_start(to, tx_end.slot(slot), tx_page as usize, seed + 101);
        }
    }
}

fn assert_is_the_start(line: Line<'_>, slot: SlotBytes<'_>, len: usize, seed: u8) {
    let word = u64::from_ne_bytes([seed; 8]);
    for at in 0..Line::WORDS {
        line.store(at, word.wrapping_add(at as u64));
    }
    let bytes = slot.read::<64>(0);
    for (at, of_slot) in bytes.as_chunks().0.iter().enumerate() {
        assert_eq!(line.load(at), u64::from_ne_bytes(*of_slot));
        assert_eq!(line.load(at), word.wrapping_add(at as u64));
    }
    line.store_first_half(1, 0x0403_0201_u32.to_le());
    assert_eq!(slot.read::<8>(8), [1, 2, 3, 4, bytes[12], bytes[13], bytes[14], bytes[15]]);

    let rest = line.rest(3);
    assert_eq!(rest.len(), len - 24);
    rest.store(0, &[!seed]).expect("the first of them");
    assert_eq!(slot.read::<1>(24), [!seed]);
    assert!(rest.first(len - 23).is_none());
    assert_eq!(rest.first(len - 24).map(MemoryPart::len), Some(len - 24));
    assert_eq!(rest.first(2).map(MemoryPart::len), Some(2));
}

#[test]
fn a_new_ring_is_zeroed_aligned_and_free() {
    let (ring, producer, consumer) = ring(64, 384);
    assert_eq!(ring.data_addr().addr() % 4096, 0);
    assert_eq!(ring.flag_addr().addr() % 64, 0);
    let mut bytes = [1; 384];
    for slot in 0..64 {
        assert!(ring.flag_is_free(slot) && producer.is_free(slot) && consumer.peek(slot).is_none());
        assert_eq!(producer.slot(slot).as_ptr().addr() as u64, slot_address(&ring, slot));
        producer.slot(slot).copy_to(0, &mut bytes);
        assert_eq!(bytes, [0; 384]);
    }
}

#[test]
fn a_message_goes_from_end_to_end() {
    let (ring, producer, consumer) = ring(4, 64);
    producer.slot(2).copy_from(8, b"syndrome");
    producer.publish(2);
    assert_eq!(foreign_flag(&ring, 2).load(Ordering::Acquire), slot_address(&ring, 2));
    assert!(!producer.is_free(2));

    let message = consumer.peek(2).unwrap();
    assert_eq!(message.slot(), 2);
    assert_eq!(&message.bytes().read::<8>(8), b"syndrome");
    assert!(!message.overwritten());
    assert_eq!(message.release(), Ok(()));
    assert!(producer.is_free(2) && consumer.peek(2).is_none());
    assert_eq!(foreign_flag(&ring, 2).load(Ordering::Acquire), 0);
}

#[test]
fn a_dropped_read_leaves_the_message() {
    let (_ring, producer, consumer) = ring(1, 8);
    producer.publish(0);
    drop(consumer.peek(0).unwrap());
    assert!(consumer.peek(0).is_some());
}

#[test]
fn an_overwritten_slot_is_not_released() {
    let (ring, producer, consumer) = ring(2, 8);
    producer.slot(1).copy_from(0, b"older");
    producer.publish(1);

    let older = consumer.peek(1).unwrap();
    producer.slot(1).copy_from(0, b"newer");
    producer.note_overrun(1);
    assert!(older.overwritten());
    assert_eq!(older.release(), Err(Overwritten { slot: 1 }));
    assert!(!ring.flag_is_free(1));

    let newer = consumer.peek(1).unwrap();
    assert_eq!(&newer.bytes().read::<5>(0), b"newer");
    assert_eq!(newer.release(), Ok(()));
    assert!(ring.flag_is_free(1));
}

#[test]
fn an_overrun_before_the_peek_is_history() {
    let (_ring, producer, consumer) = ring(2, 8);
    producer.publish(0);
    producer.note_overrun(0);
    assert_eq!(consumer.peek(0).unwrap().release(), Ok(()));
}

#[test]
fn markers_are_neither_taken_nor_cleared() {
    let (ring, producer, mut consumer) = ring(4, 64);
    let end = ring.data_addr().addr() as u64 + 4 * 64;
    let before = ring.data_addr().addr() as u64 - 1;
    for marker in MARKERS.into_iter().chain([before, end]) {
        foreign_flag(&ring, 0).store(marker, Ordering::Release);
        assert!(!producer.is_free(0));
        assert!(consumer.peek(0).is_none());
        assert!((0..64).all(|_| consumer.next_published().is_none()));
        assert_eq!(foreign_flag(&ring, 0).load(Ordering::Acquire), marker);
    }
    foreign_flag(&ring, 0).store(end - 1, Ordering::Release);
    assert!(consumer.peek(0).is_some(), "the last byte lies inside");
}

#[test]
fn one_look_at_all_slots_finds_them_in_ring_order() {
    let (_ring, producer, mut consumer) = ring(256, 8);
    assert_eq!(consumer.find_published(), None);
    for slot in [255, 3, 200] {
        producer.publish(slot);
    }
    consumer.claim(99); // never published: moves on
    for slot in [200, 255, 3] {
        assert_eq!(consumer.find_published(), Some(slot));
        consumer.claim(slot);
    }
    assert_eq!(consumer.find_published(), None);
}

#[test]
fn a_foreign_consumer_frees_a_slot() {
    let (ring, producer, _consumer) = ring(2, 16);
    producer.slot(1).copy_from(3, &[7]);
    producer.publish(1);
    let seen = foreign_flag(&ring, 1).load(Ordering::Acquire);
    // SAFETY: the flag hands over this slot, whose fourth byte lies inside the ring.
    let byte = unsafe {
        std::ptr::with_exposed_provenance::<u8>(usize::try_from(seen).unwrap() + 3).read_volatile()
    };
    assert_eq!(byte, 7);
    foreign_flag(&ring, 1).store(0, Ordering::Release);
    assert!(producer.is_free(1));
}

#[test]
fn a_ring_splits_once() {
    let (ring, producer, consumer) = ring(1, 1);
    assert!(ring.split().is_none());
    drop((producer, consumer));
    assert!(ring.split().is_none());
}

#[test]
fn the_region_outlives_the_ring() {
    let (ring, producer, consumer) = ring(2, 8);
    producer.slot(0).copy_from(0, b"kept");
    let region: Arc<dyn DmaRegion> = ring.data();
    drop((ring, producer, consumer));
    assert_eq!(region.len(), 16);
    // SAFETY: the region is mapped while the Arc lives, and nobody else accesses it.
    assert_eq!(unsafe { region.base().cast::<[u8; 4]>().read_volatile() }, *b"kept");
}
