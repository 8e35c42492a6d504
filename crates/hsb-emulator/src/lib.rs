//! A software FPGA: control plane, player, capture and a RoCEv2 data plane.
//!
//! A host writes messages into the playback memory over the register protocol, tells the virtual port where its
//! ring lies and starts the player. The player WRITEs each message into the host's ring over a UC queue pair,
//! waits for the SEND that answers it, and records that in the capture memory, which the host reads back.
//!
//! ```text
//!  host                          Emulator
//!  discovery           <-------  announcing thread
//!  registers over UDP  <------>  control plane thread --- register file, memories
//!  ring                <-- WRITE WITH IMMEDIATE --------  player, in Emulator::run
//!                      --------- SEND ----------------->  capture
//! ```
//!
//! The queue pair comes from any [`roce_core::Device`]. Once a second the board announces itself
//! ([`Enumeration`]), and a host may restart it.
//!
//! # Two boards
//!
//! [`Personality`] chooses between the hardware and the emulator of the host's libraries, and lists what they do
//! differently. A host must get along with both.
//!
//! # Frames
//!
//! A window is a frame: cut to the length that the host wrote into the virtual port, it goes to the host's next page
//! in as many packets as it takes, each a WRITE of its own; the last one carries the immediate. Page, packet
//! sequence number and frame number go on over all configurations until the device restarts.
//!
//! # Where a board of the real kind does otherwise
//!
//! - A packet is no longer than the path MTU of the queue pair, where an FPGA knows only the length that it was told.
//! - On the wire a frame has what a queue pair makes of it: the port that it comes from, its Ethernet addresses and
//!   VLAN tag, and the reserved byte of the BTH, 0 as on an FPGA also where the emulator leaves 0xFF.
//! - Where it is not yet known which queue pair to send to, nothing is sent, and not to queue pair 0 as the emulator
//!   does.
//! - A window longer than the frame is cut, where an FPGA would begin another frame.
//! - The player waits for each answer, and the checksum in the metadata is 0.
//! - Answers are messages to one queue pair: the one of an FPGA's first channel on a device that can choose numbers.
//!   Those in several packets are put together, where an FPGA takes each packet for a message; and what a queue pair
//!   drops (a packet out of sequence, one from another address) does not get in.
//! - An address that a host gives the board is announced and not used.
//! - Registers hold what is written to them, and only those do something that a host's stream needs.
//!
//! # The capture
//!
//! As an integrated logic analyser does it, each 64-byte beat of an answer is one sample. Beat `s` of the answer
//! to window `k` of a pass is sample `(k mod windows) * beats + s`, where `beats` is the window's size in beats;
//! what is longer is cut, and then no sample is marked as the last. A window without an answer leaves its samples
//! invalid. The playback memory has 512 columns, so no pass reaches the end of the capture memory's 8192.
//!
//! # Pairing
//!
//! An answer belongs to the window in flight if it repeats its request id, and its send time where it carries one.
//! All other answers are counted as late and are never taken for an answer to anything.
//!
//! Invariant: no I/O of its own but the sockets of control plane and announcements, and no unsafe code.

#![forbid(unsafe_code)]

mod announce;
mod answer;
mod blocks;
mod capture;
mod clock;
mod control;
mod emulator;
mod error;
mod interface;
mod link;
mod personality;
mod player;
mod regs;
mod stream;
mod summary;

pub use announce::{Enumeration, EnumerationCounts};
pub use blocks::UNDEFINED;
pub use control::ControlCounts;
pub use emulator::{Config, Emulator};
pub use error::EmulatorError;
pub use personality::{Personality, UnknownPersonality};
pub use summary::{Failure, FailureKind, IdList, PassError, RoundTrips, Summary};
