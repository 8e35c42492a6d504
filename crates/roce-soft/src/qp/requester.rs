//! The sending side: messages into packets.

use roce_core::{Mtu, Psn, Qpn, Verb};

use crate::wire::{Bth, Header, Opcode, Operation, Position, Reth};

/// Packets of a message of `len` bytes; an empty message takes one.
#[inline]
pub(crate) fn packets_of(len: u32, mtu: Mtu) -> u32 {
    len.div_ceil(mtu.bytes()).max(1)
}

/// The next packet sequence number towards one peer.
#[derive(Debug)]
pub(crate) struct Requester {
    peer: Qpn,
    psn: Psn,
    mtu: Mtu,
}

impl Requester {
    pub(crate) fn new(peer: Qpn, mtu: Mtu) -> Self {
        Self { peer, psn: Psn::new(0), mtu }
    }

    /// With the sequence number of the first packet.
    pub(crate) fn starting_at(self, psn: Psn) -> Self {
        Self { psn, ..self }
    }

    /// The packets of a message of `len` bytes. Their sequence numbers are taken.
    #[inline]
    pub(crate) fn message(&mut self, verb: &Verb, len: u32) -> Segments {
        let count = packets_of(len, self.mtu);
        let first_psn = self.psn;
        self.psn = self.psn.add(count);
        Segments { verb: *verb, len, peer: self.peer, first_psn, mtu: self.mtu, count, next: 0 }
    }
}

/// One packet of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    /// Where its payload starts in the message, in bytes.
    pub(crate) offset: u32,
    /// Payload bytes.
    pub(crate) len: u32,
}

/// The packets of one message, in order.
#[derive(Debug)]
pub(crate) struct Segments {
    verb: Verb,
    len: u32,
    peer: Qpn,
    first_psn: Psn,
    mtu: Mtu,
    count: u32,
    next: u32,
}

impl Iterator for Segments {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let index = self.next;
        if index == self.count {
            return None;
        }
        self.next += 1;
        let position = match (index == 0, self.next == self.count) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        let offset = index * self.mtu.bytes();
        let len = self.mtu.bytes().min(self.len - offset);
        Some(Segment { header: self.header(position, index, len), offset, len })
    }
}

impl Segments {
    /// The packet of a message that is no longer than one.
    #[inline]
    pub(crate) fn only(&self) -> Option<Segment> {
        let segment =
            || Segment { header: self.header(Position::Only, 0, self.len), offset: 0, len: self.len };
        (self.count == 1).then(segment)
    }

    #[inline]
    fn header(&self, position: Position, index: u32, payload_len: u32) -> Header {
        let (operation, reth, imm) = match self.verb {
            Verb::Send { imm } => (Operation::Send, None, imm),
            Verb::Write { addr, rkey, imm } => {
                (Operation::Write, Some(Reth { addr, rkey, len: self.len }), imm)
            }
        };
        let opcode = Opcode::new(operation, position, imm.is_some());
        let psn = self.first_psn.add(index);
        Header {
            bth: Bth::new(opcode, self.peer, psn, payload_len as usize),
            reth: reth.filter(|_| opcode.has_reth()),
            imm: imm.filter(|_| opcode.has_imm()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce_core::Rkey;

    fn opcodes(verb: &Verb, len: u32) -> Vec<String> {
        let mut requester = Requester::new(Qpn::from_low_bits(2), Mtu::B256);
        let segments = requester.message(verb, len);
        let only = segments.only().map(|s| (s.header, s.offset, s.len));
        let all: Vec<Segment> = segments.collect();
        let first = all.first().map(|s| (s.header, s.offset, s.len));
        assert_eq!(only, first.filter(|_| all.len() == 1));
        all.iter().map(|s| s.header.bth.opcode.to_string()).collect()
    }

    #[test]
    fn one_message_one_to_three_packets() {
        let send = Verb::Send { imm: None };
        assert_eq!(opcodes(&send, 0), ["SEND_ONLY"]);
        assert_eq!(opcodes(&send, 256), ["SEND_ONLY"]);
        assert_eq!(opcodes(&send, 257), ["SEND_FIRST", "SEND_LAST"]);
        let write = Verb::Write { addr: 1, rkey: Rkey::new(7), imm: Some(9) };
        assert_eq!(opcodes(&write, 1), ["WRITE_ONLY_IMM"]);
        assert_eq!(opcodes(&write, 768), ["WRITE_FIRST", "WRITE_MIDDLE", "WRITE_LAST_IMM"]);
    }

    #[test]
    fn sequence_numbers_go_on_from_the_one_given() {
        let mut requester = Requester::new(Qpn::from_low_bits(2), Mtu::B256).starting_at(Psn::new(0xFF_FFFF));
        let psns = requester.message(&Verb::Send { imm: None }, 300).map(|s| s.header.bth.psn.get());
        assert_eq!(psns.collect::<Vec<_>>(), [0xFF_FFFF, 0]);
    }

    #[test]
    fn headers_of_a_long_write() {
        let mut requester = Requester::new(Qpn::from_low_bits(2), Mtu::B256);
        requester.message(&Verb::Send { imm: None }, 512);
        let verb = Verb::Write { addr: 0x80, rkey: Rkey::new(7), imm: Some(9) };
        let [first, last] = requester.message(&verb, 259).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(first.header.bth.psn, Psn::new(2));
        assert_eq!(first.header.reth, Some(Reth { addr: 0x80, rkey: Rkey::new(7), len: 259 }));
        assert_eq!(first.header.imm, None);
        assert_eq!((first.offset, first.len, first.header.bth.pad), (0, 256, 0));
        assert_eq!(last.header.bth.psn, Psn::new(3));
        assert_eq!((last.header.reth, last.header.imm), (None, Some(9)));
        assert_eq!((last.offset, last.len, last.header.bth.pad), (256, 3, 1));
    }
}
