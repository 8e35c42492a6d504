//! The atomics: the standard library's, or loom's when a model is checked.
//!
//! No other module names them, so that a model sees every access.

#[cfg(not(roce_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(roce_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
