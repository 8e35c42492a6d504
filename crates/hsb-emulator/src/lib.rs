//! A software FPGA: control plane, player, capture and a RoCEv2 data plane.
//!
//! A host writes messages into the playback memory over the register protocol, tells the virtual port where its
//! ring lies and starts the player. The player WRITEs each message into the host's ring over a UC queue pair,
//! waits for the SEND that answers it, and records that in the capture memory, which the host reads back.
//!
//! ```text
//!  host                          Emulator
//!  registers over UDP  <------>  control plane thread --- register file, memories
//!  ring                <-- WRITE WITH IMMEDIATE --------  player, in Emulator::run
//!                      --------- SEND ----------------->  capture
//! ```
//!
//! The queue pair comes from any [`roce_core::Device`].
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
//! Invariant: no I/O of its own but the control plane's socket, and no unsafe code.

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
