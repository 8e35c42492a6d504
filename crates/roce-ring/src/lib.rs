//! Slot rings with one flag per slot, in host memory.
//!
//! A [`Ring`] is `num_pages` slots of `page_size` bytes, and one `u64` flag per slot. It carries messages one
//! way, from one producer to one consumer. Either side may be this crate ([`Producer`], [`Consumer`]), a C
//! program that was given [`Ring::data_addr`] and [`Ring::flag_addr`], or a transport whose device writes the
//! slots by DMA. So the flags are the only truth that both sides share.
//!
//! # The flag
//!
//! | value | means | who may touch the slot |
//! | --- | --- | --- |
//! | 0 | free | the producer |
//! | an address inside the ring's data, by convention that of the slot | a fresh message | the consumer |
//! | anything else | a marker of the producer's, such as `0xEEEE_EEEE_EEEE_EEEE` (in work) or `0xDEAD` in the top 16 bits (failed) | the producer |
//!
//! The producer fills a free slot and then stores its address with release order; the consumer loads that with
//! acquire order and so sees the whole message. The consumer reads, then stores 0 with release order; the
//! producer loads that with acquire order, and so never writes below a read. A marker is neither taken nor
//! cleared by the consumer. Foreign code must access a flag as one aligned 64-bit word, with these orders.
//!
//! - **RX ring**: the transport produces. It sets the flag once a message is whole. The consumer
//!   [`peek`](Consumer::peek)s, reads in place and [`release`](ReadSlot::release)s.
//! - **TX ring**: the transport consumes. It takes what [`next_published`](Consumer::next_published) answers,
//!   [`claim`](Consumer::claim)s it (stores 0) and posts it. A producer may publish again as soon as it reads 0;
//!   the flag does not say that the message has left.
//!
//! # Overruns
//!
//! A remote sender does not read our flags. When it laps the consumer, its write lands in a slot whose flag is
//! still set. The transport learns so from the completion, calls [`Producer::note_overrun`] and does not publish
//! again: the set flag now stands for the newest message. A consumer that peeked before gets [`Overwritten`] from
//! its release, the flag stays set, and it peeks again. Each overrun loses one message, and none is taken for two.
//!
//! No flag protocol closes one window: DMA puts the bytes down before the completion is seen. A consumer that
//! reads and releases within it may take the newer bytes, or a mix, for the older message. Who must exclude that
//! puts a number and a checksum into the frame, or lets no more messages be under way than the ring has slots.
//!
//! # Example
//!
//! ```
//! use roce_ring::{Geometry, MemoryOptions, Ring};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ring = Ring::allocate(Geometry::new(64, 384, 256)?, MemoryOptions::default())?;
//! let (producer, consumer) = ring.split().expect("not split before");
//!
//! assert!(producer.is_free(0));
//! producer.slot(0).copy_from(0, b"syndrome");
//! producer.publish(0);
//!
//! let message = consumer.peek(0).expect("published above");
//! assert_eq!(&message.bytes().read::<8>(0), b"syndrome");
//! message.release()?;
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

mod consumer;
mod error;
mod geometry;
#[allow(unsafe_code)]
mod mapping;
#[cfg_attr(roce_loom, path = "model.rs")]
#[cfg_attr(not(roce_loom), allow(unsafe_code))]
mod memory;
mod primitive;
mod producer;
mod ring;
mod slot;

pub use consumer::{Consumer, Overwritten, ReadSlot};
pub use error::RingError;
pub use geometry::{Geometry, GeometryError};
pub use mapping::MemoryOptions;
#[cfg(not(roce_loom))] // a model has words of its own
pub use memory::Lines;
pub use producer::Producer;
pub use ring::Ring;
pub use slot::SlotBytes;
