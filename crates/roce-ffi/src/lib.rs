//! What the C libraries of this workspace share.
//!
//! - [`Handles`]: opaque handles that are looked up and never dereferenced, so that a null, foreign or stale one
//!   is found out.
//! - [`Biased`]: the lock around what a polling thread drives: its usual thread enters without an atomic
//!   read-modify-write, any other may take it away.
//! - [`wall`]: no panic crosses into C.
//! - [`text`]: strings from C, checked.
//! - [`report`], [`warnings_to_stderr`]: what a C program's user gets to read.
//!
//! Invariant: nothing here knows a transport.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod barrier;
#[allow(unsafe_code)]
mod biased;
#[allow(unsafe_code)]
mod handles;
mod log;
mod report;
#[allow(unsafe_code)]
mod text;
mod wall;

pub use biased::Biased;
pub use handles::{BadHandle, Entries, Favourite, Handles, Place};
pub use log::warnings_to_stderr;
pub use report::report;
pub use text::{TextError, text};
pub use wall::wall;
