//! The register protocol as the emulator of the host's libraries has it.
//!
//! It looks at neither sequence numbers nor flags but the one that asks for an answer, without which it says
//! nothing at all. It takes every dword command for one of 32 bits. Its answers repeat the data that were written,
//! tell no latched sequence number, and have four zeros at the end whatever their number of pairs.

use roce_rendezvous::hsb::ecb::{Pair, Status};

use super::{Counters, Reaction};
use crate::regs::Registers;

const HEADER: usize = 6;
const ADDRESS: usize = 4;
const PAIR: usize = 8;
const RESPONSE: u8 = 0x80;
const ACK: u8 = 1;

/// It remembers nothing.
#[derive(Debug)]
pub(super) struct LenientProtocol;

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    WriteBlock,
    Read,
    ReadBlock,
    Unknown,
}

impl Kind {
    const fn of(command: u8) -> Self {
        match command {
            0x01 | 0x02 | 0x04 => Self::Write,
            0x09 => Self::WriteBlock,
            0x11 | 0x12 | 0x14 => Self::Read,
            0x19 => Self::ReadBlock,
            _ => Self::Unknown,
        }
    }

    /// The pairs of a request; `None` where they are cut short. What is left over is not looked at.
    fn pairs(self, body: &[u8]) -> Option<Vec<Pair>> {
        let head = Pair::new(word(body, 0)?, 0);
        let mut whole =
            body.chunks_exact(PAIR).filter_map(|pair| Some(Pair::new(word(pair, 0)?, word(pair, ADDRESS)?)));
        match self {
            Self::Unknown | Self::Read => Some(vec![head]),
            Self::Write => whole.next().map(|pair| vec![pair]),
            Self::WriteBlock | Self::ReadBlock => {
                Some(whole.collect()).filter(|pairs: &Vec<Pair>| !pairs.is_empty())
            }
        }
    }
}

impl LenientProtocol {
    #[allow(clippy::unused_self)] // as its counterpart
    pub(super) fn take(&self, datagram: &[u8], registers: &Registers, counters: &Counters) -> Reaction {
        let head = datagram.first_chunk::<HEADER>();
        let request = head.and_then(|&head| {
            let kind = Kind::of(head[0]);
            Some((head, kind, kind.pairs(&datagram[HEADER..])?))
        });
        let Some(([command, flags, high, low, ..], kind, pairs)) = request else {
            Counters::count(&counters.garbage);
            return Reaction::Silence;
        };
        let (status, done) = match kind {
            Kind::Unknown => {
                Counters::count(&counters.refused);
                (Status::InvalidCommand, pairs)
            }
            _ => {
                Counters::count(&counters.executed);
                execute(kind, &pairs, registers)
            }
        };
        if flags & ACK == 0 {
            return Reaction::Silence;
        }
        let mut answer = vec![command | RESPONSE, flags, high, low, status.code(), 0];
        for pair in done {
            answer.extend(pair.address.to_be_bytes());
            answer.extend(pair.data.to_be_bytes());
        }
        answer.extend([0; 4]);
        Reaction::Answer(answer)
    }
}

/// The pairs up to the first without a register, with what was read; what was written stays as it was asked for.
fn execute(kind: Kind, pairs: &[Pair], registers: &Registers) -> (Status, Vec<Pair>) {
    let mut done = Vec::with_capacity(pairs.len());
    for &pair in pairs {
        let data = match kind {
            Kind::Read | Kind::ReadBlock => registers.read(pair.address),
            _ => registers.write(pair.address, pair.data).map(|()| pair.data),
        };
        done.push(Pair::new(pair.address, data.unwrap_or(pair.data)));
        if data.is_none() {
            return (Status::InvalidAddress, done);
        }
    }
    (Status::Success, done)
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roce_rendezvous::hsb::ecb::Command;

    use super::super::testing::{Board, hex, request};
    use super::*;
    use crate::personality::Personality;

    fn board() -> Board {
        Board::new(Personality::Lenient)
    }

    #[test]
    fn the_bytes_of_the_emulator() {
        let mut board = board();
        board.exchange("14 01 0100 0000 00000080", "94 01 0100 00 00 00000080 00002602 00000000");
        board.exchange("14 01 0100 0000 00000080 00000000", "94 01 0100 00 00 00000080 00002602 00000000");
        board.exchange("04 03 0102 0000 00001004 11223344", "84 03 0102 00 00 00001004 11223344 00000000");
        board.exchange("09 03 0102 0000 00001004 11223344", "89 03 0102 00 00 00001004 11223344 00000000");
        assert_eq!(board.registers.read(0x1004), Some(0x1122_3344));
        board.exchange(
            "09 01 0200 0000 00001004 00000001 00001008 00000002 0000100c 00000003",
            "89 01 0200 00 00 00001004 00000001 00001008 00000002 0000100c 00000003 00000000",
        );
        board.exchange(
            "19 01 0200 0000 00001004 00000000 00001008 00000000",
            "99 01 0200 00 00 00001004 00000001 00001008 00000002 00000000",
        );
        board.exchange("04 03 0104 0000 dead0000 00000001", "84 03 0104 03 00 dead0000 00000001 00000000");
        board.exchange("55 01 0105 0000 00000080 00000000", "d5 01 0105 04 00 00000080 00000000 00000000");
        board.exchange("14 ff 0105 0000 00000080", "94 ff 0105 00 00 00000080 00002602 00000000");
        assert_eq!(board.counts(), [8, 1, 0]);
    }

    #[test]
    fn nothing_is_out_of_sequence() {
        let mut board = board();
        for sequence in [7, 3, 3, 0xFFFF] {
            let answer = board.answer(&request(Command::ReadDword, 3, sequence, &[(0x80, 0)]));
            assert_eq!((answer[4], &answer[14..]), (0, &[0; 4][..]));
        }
    }

    #[test]
    fn without_the_flag_nothing_is_answered() {
        let mut board = board();
        for command in [Command::ReadDword, Command::ReadBlock, Command::WriteDword, Command::WriteBlock] {
            for bits in [0, 2] {
                assert_eq!(board.take(&request(command, bits, 1, &[(0x1000, 8)])), Reaction::Silence);
            }
        }
        assert_eq!(board.registers.read(0x1000), Some(8), "carried out all the same");
        let mut unknown = request(Command::ReadDword, 0, 1, &[(0x80, 0)]);
        unknown[0] = 0x55;
        assert_eq!(board.take(&unknown), Reaction::Silence);
    }

    #[test]
    fn narrower_commands_are_dword_commands() {
        let mut board = board();
        board.exchange("01 01 0001 0000 00001000 aabbccdd", "81 01 0001 00 00 00001000 aabbccdd 00000000");
        board.exchange("12 01 0002 0000 00001000", "92 01 0002 00 00 00001000 aabbccdd 00000000");
        board.exchange("02 01 0003 0000 00001000 00000001", "82 01 0003 00 00 00001000 00000001 00000000");
        board.exchange("11 01 0004 0000 00001000", "91 01 0004 00 00 00001000 00000001 00000000");
    }

    #[test]
    fn a_block_stops_at_the_first_pair_that_fails() {
        let mut board = board();
        let pairs = [(0x1000, 1), (0xDEAD_0000, 2), (0x1004, 3)];
        let answer = board.answer(&request(Command::WriteBlock, 1, 7, &pairs));
        assert_eq!(answer, hex("89 01 0007 03 00 00001000 00000001 dead0000 00000002 00000000"));
        assert_eq!((board.registers.read(0x1000), board.registers.read(0x1004)), (Some(1), Some(0)));
    }

    #[test]
    fn a_reset_is_answered_and_has_no_effect() {
        let mut board = board();
        board.answer(&request(Command::WriteDword, 1, 1, &[(0x1000, 5)]));
        board.exchange("09 03 0002 0000 00000004 00000008", "89 03 0002 00 00 00000004 00000008 00000000");
        assert_eq!(board.registers.read(0x1000), Some(5));
    }

    proptest! {
        #[test]
        fn any_datagram_is_counted_once(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut board = board();
            let reaction = board.take(&bytes);
            prop_assert_eq!(board.counts().iter().sum::<u64>(), 1);
            if let Reaction::Answer(answer) = reaction {
                prop_assert!(bytes[1] & 1 == 1 && answer[0] == bytes[0] | 0x80);
                prop_assert_eq!(&answer[1..4], &bytes[1..4]);
                prop_assert_eq!(answer.len() % 8, 2);
            }
        }
    }
}
