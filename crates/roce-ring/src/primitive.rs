//! The atomics: the standard library's, or loom's when a model is checked.
//!
//! No other module names them, so that a model sees every access: the copies of bytes, which are `roce-core`'s, give
//! way to the words of `model` then.

#[cfg(not(roce_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(roce_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
