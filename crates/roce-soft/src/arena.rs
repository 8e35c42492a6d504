//! Packets that are built and not sent yet.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// Where a packet lies in the arena.
#[derive(Debug, Clone, Copy)]
struct Slot {
    at: usize,
    len: usize,
    ends_message: bool,
}

/// Whether a message can be staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    /// Not before others have left.
    Full,
    /// Not even into an empty arena.
    Never,
}

/// A first-in-first-out store of packets in one block of memory, made once.
#[derive(Debug)]
pub(crate) struct Arena {
    bytes: Box<[u8]>,
    packets: VecDeque<Slot>,
    max_packets: usize,
    messages: usize,
    max_messages: usize,
    /// Behind the last packet.
    tail: usize,
}

impl Arena {
    pub(crate) fn new(len: usize, max_packets: usize, max_messages: usize) -> Self {
        Self {
            bytes: vec![0; len].into(),
            packets: VecDeque::with_capacity(max_packets),
            max_packets,
            messages: 0,
            max_messages,
            tail: 0,
        }
    }

    /// Whether a message of so many packets and bytes, headers included, can be staged.
    pub(crate) fn room(&self, packets: usize, bytes: usize) -> Room {
        if packets > self.max_packets || bytes > self.bytes.len() {
            return Room::Never;
        }
        let free = self.messages < self.max_messages
            && self.packets.len() + packets <= self.max_packets
            && self.tail - self.head() + bytes <= self.bytes.len();
        if free { Room::Free } else { Room::Full }
    }

    /// Makes the room that [`room`](Self::room) promised contiguous, and begins a message.
    pub(crate) fn begin_message(&mut self, bytes: usize) {
        if self.tail + bytes > self.bytes.len() {
            self.compact();
        }
        self.messages += 1;
    }

    /// Room for the next packet of the message.
    pub(crate) fn push(&mut self, len: usize, ends_message: bool) -> &mut [u8] {
        let at = self.tail;
        self.tail += len;
        self.packets.push_back(Slot { at, len, ends_message });
        &mut self.bytes[at..self.tail]
    }

    /// Packets that wait.
    pub(crate) fn packets(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.packets.iter().map(|slot| &self.bytes[slot.at..][..slot.len])
    }

    /// Messages of which at least one packet waits.
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// Forgets the first `n` packets.
    pub(crate) fn pop(&mut self, n: usize) {
        for slot in self.packets.drain(..n) {
            self.messages -= usize::from(slot.ends_message);
        }
        if self.packets.is_empty() {
            self.tail = 0;
        }
    }

    fn head(&self) -> usize {
        self.packets.front().map_or(self.tail, |slot| slot.at)
    }

    /// Moves what waits to the front. Only a link without room makes packets wait.
    fn compact(&mut self) {
        let head = self.head();
        self.bytes.copy_within(head..self.tail, 0);
        self.tail -= head;
        for slot in &mut self.packets {
            slot.at -= head;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(arena: &mut Arena, packets: &[&[u8]]) {
        let bytes = packets.iter().map(|p| p.len()).sum();
        assert_eq!(arena.room(packets.len(), bytes), Room::Free);
        arena.begin_message(bytes);
        for (i, packet) in packets.iter().enumerate() {
            arena.push(packet.len(), i + 1 == packets.len()).copy_from_slice(packet);
        }
    }

    #[test]
    fn keeps_packets_whole_when_it_wraps() {
        let mut arena = Arena::new(10, 4, 4);
        stage(&mut arena, &[b"abc", b"de"]);
        stage(&mut arena, &[b"fghi"]);
        assert_eq!(arena.room(1, 2), Room::Full);
        arena.pop(1);
        assert_eq!(arena.messages(), 2, "half a message waits");
        stage(&mut arena, &[b"jkl"]);
        assert_eq!(arena.packets().collect::<Vec<_>>(), [&b"de"[..], b"fghi", b"jkl"]);
        arena.pop(2);
        assert_eq!(arena.messages(), 1);
        arena.pop(1);
        assert_eq!(arena.messages(), 0);
        stage(&mut arena, &[b"0123456789"]);
    }

    #[test]
    fn bounds() {
        let mut arena = Arena::new(100, 3, 2);
        assert_eq!(arena.room(4, 4), Room::Never);
        assert_eq!(arena.room(1, 101), Room::Never);
        stage(&mut arena, &[b"a"]);
        stage(&mut arena, &[b"b"]);
        assert_eq!(arena.room(1, 1), Room::Full, "two messages are the most");
        arena.pop(1);
        assert_eq!(arena.room(3, 3), Room::Full, "three packets are the most");
        assert_eq!(arena.room(2, 99), Room::Free);
    }
}
