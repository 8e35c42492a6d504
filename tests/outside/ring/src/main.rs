//! A message through a ring, from one thread to another.

#![forbid(unsafe_code)]

use std::error::Error;
use std::thread;

use roce_ring::{Geometry, MemoryOptions, Ring};

fn main() -> Result<(), Box<dyn Error>> {
    let ring = Ring::allocate(Geometry::new(4, 64, 64)?, MemoryOptions::default())?;
    let (producer, mut consumer) = ring.split().ok_or("a fresh ring has both ends")?;
    let writer = thread::spawn(move || {
        for slot in 0..4 {
            producer.slot(slot).copy_from(0, &slot.to_le_bytes());
            producer.publish(slot);
        }
    });
    for expected in 0..4u32 {
        let slot = loop {
            match consumer.next_published() {
                Some(slot) => break slot,
                None => thread::yield_now(),
            }
        };
        let message = consumer.peek(slot).ok_or("published a moment ago")?;
        assert_eq!(u32::from_le_bytes(message.bytes().read(0)), expected);
        consumer.claim(slot);
    }
    writer.join().map_err(|_| "the writer panicked")?;
    assert!((0..4).all(|slot| ring.flag_is_free(slot)));
    Ok(())
}
