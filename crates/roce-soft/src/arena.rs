//! Packets that are built and not sent yet.

#![forbid(unsafe_code)]

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
    /// Those before `first` have left.
    packets: Vec<Slot>,
    first: usize,
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
            // Twice as many: then those that have left are cleared away as seldom as they are many.
            packets: Vec::with_capacity(2 * max_packets),
            first: 0,
            max_packets,
            messages: 0,
            max_messages,
            tail: 0,
        }
    }

    /// Whether a message of so many packets and bytes, headers included, can be staged.
    #[inline]
    pub(crate) fn room(&self, packets: usize, bytes: usize) -> Room {
        if packets > self.max_packets || bytes > self.bytes.len() {
            return Room::Never;
        }
        let free = self.messages < self.max_messages
            && self.waiting().len() + packets <= self.max_packets
            && self.tail - self.head() + bytes <= self.bytes.len();
        if free { Room::Free } else { Room::Full }
    }

    /// Makes the room that [`room`](Self::room) promised contiguous, and begins a message.
    #[inline]
    pub(crate) fn begin_message(&mut self, packets: usize, bytes: usize) {
        if self.packets.len() + packets > 2 * self.max_packets || self.tail + bytes > self.bytes.len() {
            self.compact();
        }
        self.messages += 1;
    }

    /// Room for the next packet of the message.
    #[inline]
    pub(crate) fn push(&mut self, len: usize, ends_message: bool) -> &mut [u8] {
        let at = self.tail;
        self.tail += len;
        self.packets.push(Slot { at, len, ends_message });
        &mut self.bytes[at..self.tail]
    }

    /// Packets that wait.
    #[inline]
    pub(crate) fn packets(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.waiting().iter().map(|slot| &self.bytes[slot.at..][..slot.len])
    }

    /// Messages of which at least one packet waits.
    #[inline]
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    /// Forgets the first `n` packets.
    #[inline]
    pub(crate) fn pop(&mut self, n: usize) {
        self.messages -= self.waiting()[..n].iter().filter(|slot| slot.ends_message).count();
        self.first += n;
        if self.waiting().is_empty() {
            self.packets.clear();
            (self.first, self.tail) = (0, 0);
        }
    }

    #[inline]
    fn waiting(&self) -> &[Slot] {
        &self.packets[self.first..]
    }

    #[inline]
    fn head(&self) -> usize {
        self.waiting().first().map_or(self.tail, |slot| slot.at)
    }

    /// Moves what waits to the front. Only a link without room makes packets wait.
    #[cold]
    fn compact(&mut self) {
        let head = self.head();
        self.bytes.copy_within(head..self.tail, 0);
        self.tail -= head;
        self.packets.drain(..self.first);
        self.first = 0;
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
        arena.begin_message(packets.len(), bytes);
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
    fn some_always_wait() {
        let mut arena = Arena::new(1000, 3, 3);
        stage(&mut arena, &[b"0"]);
        for n in 1..50u8 {
            stage(&mut arena, &[&[n], &[n]]);
            assert_eq!(arena.messages(), 2);
            arena.pop(2);
            assert_eq!(arena.packets().collect::<Vec<_>>(), [[n]]);
        }
        assert_eq!(arena.packets.capacity(), 6, "nothing was allocated");
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
