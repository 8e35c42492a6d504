//! Private, aligned memory for one frame.

#![forbid(unsafe_code)]

use roce_core::Line as Words;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::rpc::HEADER_LEN;

/// Slots begin on cache lines, so copies of them do too: C handlers read words out of them.
#[derive(FromBytes, IntoBytes, Immutable, Clone)]
#[repr(C, align(64))]
struct Line([u64; Words::WORDS]);

/// `len` bytes on a cache line's boundary, zeroed at first; one line of them at least.
pub(crate) struct Buffer {
    lines: Box<[Line]>,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let lines = vec![Line::new_zeroed(); len.div_ceil(size_of::<Line>()).max(1)].into_boxed_slice();
        Self { lines, len }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.lines.as_bytes()[..self.len]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.lines.as_mut_bytes()[..self.len]
    }

    /// The first words, past `len` too where it is shorter.
    #[inline]
    pub(crate) fn first_line(&self) -> &[u64; Words::WORDS] {
        &self.lines[0].0
    }

    /// All but a header.
    #[inline]
    pub(crate) fn behind_header(&mut self) -> &mut [u8] {
        &mut self.lines.as_mut_bytes()[HEADER_LEN..self.len]
    }

    /// All bytes zero. One line, the usual case, needs no call.
    #[inline]
    pub(crate) fn clear(&mut self) {
        let Some((first, more)) = self.lines.split_first_mut() else { return };
        first.0 = [0; Words::WORDS];
        if !more.is_empty() {
            more.zero();
        }
    }
}
