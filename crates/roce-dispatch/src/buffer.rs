//! Private, aligned memory for one frame.

#![forbid(unsafe_code)]

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// Slots begin on cache lines, so copies of them do too: C handlers read words out of them.
#[derive(FromBytes, IntoBytes, Immutable, Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// `len` bytes on a cache line's boundary, zeroed at first.
pub(crate) struct Buffer {
    lines: Box<[Line]>,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let lines = vec![Line::new_zeroed(); len.div_ceil(size_of::<Line>())].into_boxed_slice();
        Self { lines, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.lines.as_bytes()[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.lines.as_mut_bytes()[..self.len]
    }
}
