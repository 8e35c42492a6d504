//! RPC frames, the function table and the loops that serve them from a ring.
//!
//! - [`rpc`]: the frame's header, statuses, function ids and packed bits.
//! - [`FunctionTable`]: the functions by id, Rust closures, those that work [in place](FunctionTable::register_in_place), and C handlers.
//! - [`RingLoop`]: serves a pair of rings that a transport's threads fill and empty.
//! - [`UnifiedLoop`]: serves a [`UnifiedLink`], such as [`roce_transport::Unified`], that the loop's own thread drives.
//! - [`caller`]: the other side, which calls such functions over a link, many at a time.
//! - [`DispatchStats`]: what a loop has done so far, readable while it runs.
//! - [`schema`]: what a function takes and gives, and the C layout of function tables.
//!
//! Invariant: one thread serves, one request at a time, and every request gets an answer or a counter that says
//! why not. Handlers have no reference to memory that a peer may write. Unsafe code is
//! in `raw` alone, where C handlers are called.

#![deny(unsafe_code)]

mod buffer;
pub mod caller;
mod error;
mod in_place;
#[allow(unsafe_code)]
mod raw;
mod ring_loop;
pub mod rpc;
pub mod schema;
mod server;
mod stats;
mod table;
mod unified_loop;

pub use error::DispatchError;
pub use in_place::{Arguments, Results};
pub use raw::RawHandler;
pub use ring_loop::RingLoop;
pub use stats::{DispatchCounts, DispatchStats};
pub use table::FunctionTable;
pub use unified_loop::{UnifiedLink, UnifiedLoop};

/// The example there compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
