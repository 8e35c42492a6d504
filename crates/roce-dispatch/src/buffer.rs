//! Private, aligned memory for one frame.

#![forbid(unsafe_code)]

use roce_core::Line as Words;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::rpc::HEADER_LEN;

/// Slots begin on cache lines, so copies of them do too: C handlers read words out of them.
#[derive(FromBytes, IntoBytes, Immutable, Clone)]
#[repr(C, align(64))]
struct Line([u64; Words::WORDS]);

/// `len` bytes on a cache line's boundary, zeroed at first.
pub(crate) struct Buffer {
    /// All of them, if they fit.
    only: Line,
    /// All of them otherwise.
    lines: Box<[Line]>,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let lines = if len > size_of::<Line>() { len.div_ceil(size_of::<Line>()) } else { 0 };
        let lines = vec![Line::new_zeroed(); lines].into_boxed_slice();
        Self { only: Line::new_zeroed(), lines, len }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.lines().as_bytes()[..self.len]
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.lines_mut().as_mut_bytes()[..len]
    }

    /// The first words, past `len` too where it is shorter.
    #[inline]
    pub(crate) fn first_line(&self) -> &[u64; Words::WORDS] {
        &self.lines.first().unwrap_or(&self.only).0
    }

    /// All but a header, made zero. One line, the usual case, needs no call.
    #[inline]
    pub(crate) fn cleared_room(&mut self) -> &mut [u8] {
        if self.lines.is_empty() {
            self.only.0 = [0; Words::WORDS];
            return &mut self.only.as_mut_bytes()[HEADER_LEN..self.len];
        }
        let room = &mut self.lines.as_mut_bytes()[HEADER_LEN..self.len];
        room.fill(0);
        room
    }

    fn lines(&self) -> &[Line] {
        if self.lines.is_empty() { std::slice::from_ref(&self.only) } else { &self.lines }
    }

    fn lines_mut(&mut self) -> &mut [Line] {
        if self.lines.is_empty() { std::slice::from_mut(&mut self.only) } else { &mut self.lines }
    }
}
