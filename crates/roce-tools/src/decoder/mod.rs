//! A minimum-weight perfect matching decoder built from a detector error model.
//!
//! [`DetectorErrorModel`] reads Stim's text format, [`MatchingGraph`] turns its errors into weighted edges, and
//! [`Mwpm`] decodes detection events with them. [`MWPM_DECODE`] is the RPC function that offers it.

mod dem;
mod graph;
mod mwpm;

pub use dem::{Component, DetectorErrorModel, ErrorMechanism};
pub use graph::{Edge, MatchingGraph};
pub use mwpm::{DecodeError, MWPM_DECODE, Mwpm};

/// Why a detector error model cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct DemError {
    /// The line of the model, counted from 1; 0 when the model as a whole is meant.
    pub line: usize,
    /// What is wrong there, and what to do.
    pub reason: String,
}

impl DemError {
    fn new(line: usize, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// The indices of the set bits, LSB first within each byte.
pub(crate) fn set_bits(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes
        .iter()
        .enumerate()
        .flat_map(|(i, &byte)| (0..8).filter(move |b| byte >> b & 1 == 1).map(move |b| i * 8 + b))
}
