//! The register protocol as the RTL has it.
//!
//! A request is refused for its command, its flags or its sequence number, in this order, and then nothing of it is
//! carried out. An address without a register stops a block, and undoes the latching of the sequence number but none
//! of the pairs before. The RTL has no status for a length that does not fit the command: such a datagram is
//! dropped like any other that is no request.

use roce_rendezvous::hsb::ecb::{Command, Flags, Pair, Request, RequestError, RequestHead, Response, Status};
use roce_rendezvous::hsb::regs;

use super::{Counters, Reaction};
use crate::regs::Registers;

/// The state of the protocol.
#[derive(Debug, Default)]
pub(super) struct FpgaProtocol {
    /// The sequence number of the last request that was accepted.
    latched: u16,
}

impl FpgaProtocol {
    pub(super) fn take(&mut self, datagram: &[u8], registers: &Registers, counters: &Counters) -> Reaction {
        let request = match Request::parse(datagram) {
            Ok(request) => request,
            Err(RequestError::Refused {
                head,
                status: status @ (Status::InvalidCommand | Status::InvalidFlags),
            }) => return self.refuse(head, status, counters),
            Err(error) => {
                Counters::count(&counters.garbage);
                tracing::debug!(%error, "a datagram that is no request was dropped");
                return Reaction::Silence;
            }
        };
        if request.flags.check_sequence && request.sequence != self.latched.wrapping_add(1) {
            return self.refuse(request.head(), Status::SequenceCheck, counters);
        }
        Counters::count(&counters.executed);
        self.execute(&request, registers)
    }

    fn execute(&mut self, request: &Request, registers: &Registers) -> Reaction {
        let mut done = Vec::with_capacity(request.pairs.len());
        let mut status = Status::Success;
        for pair in &request.pairs {
            let data = access(registers, request.command, *pair);
            done.push(Pair::new(pair.address, data.unwrap_or(0)));
            if data.is_none() {
                status = Status::InvalidAddress;
                break;
            }
            if restarts(request.command, *pair) {
                self.latched = 0;
                return Reaction::Restart;
            }
        }
        if status == Status::Success {
            self.latched = request.sequence;
        }
        if request.flags.ack || request.command.is_read() {
            Reaction::Answer(Response::to(request, status, done, self.latched).encode())
        } else {
            Reaction::Silence
        }
    }

    fn refuse(&self, head: RequestHead, status: Status, counters: &Counters) -> Reaction {
        Counters::count(&counters.refused);
        tracing::debug!(command = head.command, sequence = head.sequence, %status, "a request was refused");
        let is_write = Command::from_code(head.command).is_some_and(|command| !command.is_read());
        let wants_ack = head.flags & Flags { ack: true, check_sequence: false }.bits() != 0;
        if wants_ack || !is_write {
            Reaction::Answer(Response::refusal(head, status, self.latched).encode())
        } else {
            Reaction::Silence
        }
    }
}

/// The data word of the answer, 0 for a write; `None` where no register is.
fn access(registers: &Registers, command: Command, pair: Pair) -> Option<u32> {
    if command.is_read() {
        registers.read(pair.address)
    } else {
        registers.write(pair.address, pair.data).map(|()| 0)
    }
}

fn restarts(command: Command, pair: Pair) -> bool {
    !command.is_read() && pair.address & !3 == regs::RESET && pair.data & regs::RESET_DEVICE != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{Board, hex, request};
    use super::*;
    use crate::blocks::UNDEFINED;
    use crate::personality::Personality;

    fn board() -> Board {
        Board::new(Personality::Fpga)
    }

    /// Status and latched sequence number of the answer to a request with one pair.
    fn status(board: &mut Board, bytes: &[u8]) -> (Status, u16) {
        let answer = board.answer(bytes);
        assert_eq!(answer.len(), 18);
        let response = Response::parse(&answer, 1).expect("well-formed");
        (response.status, response.latched)
    }

    #[test]
    fn the_bytes_of_an_fpga() {
        let mut board = board();
        board.exchange("14 01 0100 0000 00000080", "94 01 0100 00 00 00000080 00002606 0100 0000");
        board.exchange("14 01 0101 0000 00000080 00000000", "94 01 0101 00 00 00000080 00002606 0101 0000");
        board.exchange("04 03 0102 0000 00001004 11223344", "84 03 0102 00 00 00001004 00000000 0102 0000");
        assert_eq!(board.registers.read(0x1004), Some(0x1122_3344));
        board.exchange("09 03 0103 0000 00001004 11223345", "89 03 0103 00 00 00001004 00000000 0103 0000");
        board.exchange(
            "09 01 0104 0000 00001004 00000001 00001008 00000002 0000100c 00000003",
            "89 01 0104 00 00 00001004 00000000 00001008 00000000 0000100c 00000000 0104",
        );
        board.exchange(
            "19 01 0105 0000 00001004 00000000 00001008 00000000",
            "99 01 0105 00 00 00001004 00000001 00001008 00000002 0105",
        );
        board.exchange("04 03 0106 0000 dead0000 00000001", "84 03 0106 03 00 dead0000 00000000 0105 0000");
        board.exchange("55 01 0107 0000 00000080 00000000", "55 01 0107 04 00 00000080 00000000 0105 0000");
        board.exchange("14 ff 0108 0000 00000080", "94 ff 0108 06 00 00000080 00000000 0105 0000");
        board.exchange("14 03 0200 0000 00000080", "94 03 0200 0b 00 00000080 00000000 0105 0000");
        board.exchange("14 03 0106 0000 00001038", "94 03 0106 00 00 00001038 badadd12 0106 0000");
        assert_eq!(board.counts(), [8, 3, 0]);
    }

    #[test]
    fn the_sequence_rule() {
        let mut board = board();
        let read = |bits, sequence| request(Command::ReadDword, bits, sequence, &[(0x80, 0)]);
        assert_eq!(status(&mut board, &read(1, 0xFFFE)), (Status::Success, 0xFFFE), "unchecked");
        assert_eq!(status(&mut board, &read(3, 0xFFFE)), (Status::SequenceCheck, 0xFFFE), "again");
        assert_eq!(status(&mut board, &read(3, 0xFFFF)), (Status::Success, 0xFFFF));
        assert_eq!(status(&mut board, &read(3, 1)), (Status::SequenceCheck, 0xFFFF), "one left out");
        assert_eq!(status(&mut board, &read(3, 0)), (Status::Success, 0), "across the wrap");

        let write = request(Command::WriteDword, 3, 5, &[(0x1000, 9)]);
        assert_eq!(status(&mut board, &write), (Status::SequenceCheck, 0));
        assert_eq!(board.registers.read(0x1000), Some(0), "not carried out");
        for command in [Command::WriteDword, Command::ReadDword, Command::WriteBlock, Command::ReadBlock] {
            let nowhere = request(command, 3, 1, &[(0xDEAD_0000, 9)]);
            assert_eq!(status(&mut board, &nowhere), (Status::InvalidAddress, 0));
        }
        assert_eq!(status(&mut board, &read(3, 1)), (Status::Success, 1), "they were not latched");
    }

    #[test]
    fn refusals_latch_nothing_and_take_the_first_cause() {
        let mut board = board();
        let mut bad = request(Command::ReadDword, 3, 9, &[(0xDEAD_0000, 0)]);
        assert_eq!(status(&mut board, &bad), (Status::SequenceCheck, 0));
        bad[1] = 0xFF;
        assert_eq!(status(&mut board, &bad), (Status::InvalidFlags, 0));
        for command in [0x01, 0x02, 0x0A, 0x11, 0x12, 0x20, 0x55] {
            bad[0] = command;
            assert_eq!(status(&mut board, &bad), (Status::InvalidCommand, 0));
            assert_eq!(board.answer(&bad)[0], command);
        }
        assert_eq!(board.counts(), [0, 16, 0]);
    }

    #[test]
    fn writes_are_answered_on_request_and_reads_always() {
        let mut board = board();
        for command in [Command::WriteDword, Command::WriteBlock] {
            assert_eq!(board.take(&request(command, 0, 1, &[(0x1000, 8)])), Reaction::Silence);
            assert_eq!(board.registers.read(0x1000), Some(8), "carried out in silence");
            assert_eq!(board.take(&request(command, 2, 9, &[(0x1000, 7)])), Reaction::Silence);
            assert_eq!(board.registers.read(0x1000), Some(8), "refused in silence");
            assert_eq!(board.take(&request(command, 0, 1, &[(0xDEAD_0000, 8)])), Reaction::Silence);
        }
        assert_eq!(
            status(&mut board, &request(Command::ReadBlock, 0, 2, &[(0x80, 0)])),
            (Status::Success, 2)
        );
        let jump = request(Command::ReadDword, 2, 9, &[(0x80, 0)]);
        assert_eq!(status(&mut board, &jump), (Status::SequenceCheck, 2));
    }

    #[test]
    fn a_block_stops_at_the_first_pair_that_fails() {
        let mut board = board();
        let pairs = [(0x1000, 1), (0xDEAD_0000, 2), (0x1004, 3)];
        let answer = board.answer(&request(Command::WriteBlock, 1, 7, &pairs));
        assert_eq!(answer, hex("89 01 0007 03 00 00001000 00000000 dead0000 00000000 0000"));
        assert_eq!((board.registers.read(0x1000), board.registers.read(0x1004)), (Some(1), Some(0)));
        let answer = board.answer(&request(Command::ReadBlock, 1, 7, &pairs));
        assert_eq!(answer, hex("99 01 0007 03 00 00001000 00000001 dead0000 00000000 0000"));
    }

    #[test]
    fn the_largest_block_and_one_more() {
        let mut board = board();
        let pairs: Vec<(u32, u32)> = (0..512).map(|n| (0x2000 + 4 * n, n)).collect();
        let answer = board.answer(&request(Command::WriteBlock, 1, 1, &pairs[..511]));
        assert_eq!(answer.len(), 8 + 8 * 511);
        assert_eq!(board.registers.read(0x2000 + 4 * 510), Some(510));
        assert_eq!(board.take(&request(Command::WriteBlock, 1, 2, &pairs)), Reaction::Silence);
        assert_eq!(board.counts(), [1, 0, 1]);
    }

    #[test]
    fn lengths_that_do_not_fit_are_no_requests() {
        let mut board = board();
        for bytes in
            ["", "14", "14 01 0100 0000 000000", "04 01 0001 0000 00001000", "14 01 0001 0000 00000080 0000"]
        {
            assert_eq!(board.take(&hex(bytes)), Reaction::Silence, "{bytes}");
        }
        for bytes in [
            "09 01 0001 0000 00001000",
            "19 01 0001 0000 00001000 00000000 00",
            "04 01 0001 0000 00001000 00000000 00",
        ] {
            assert_eq!(board.take(&hex(bytes)), Reaction::Silence, "{bytes}");
        }
        assert_eq!(board.counts(), [0, 0, 8]);
        assert_eq!(board.registers.read(0x1000), Some(0));
    }

    #[test]
    fn a_reset_is_not_answered() {
        let mut board = board();
        assert_eq!(
            status(&mut board, &request(Command::WriteDword, 1, 1, &[(0x8, 3)])),
            (Status::Success, 1)
        );
        assert_eq!(
            status(&mut board, &request(Command::WriteDword, 3, 2, &[(0x4, 4)])),
            (Status::Success, 2)
        );
        assert_eq!(status(&mut board, &request(Command::ReadDword, 3, 3, &[(0x4, 8)])), (Status::Success, 3));
        for command in [Command::WriteDword, Command::WriteBlock] {
            assert_eq!(board.take(&request(command, 1, 4, &[(0x4, 8), (0x1000, 1)][..1])), Reaction::Restart);
        }
        let block = request(Command::WriteBlock, 1, 4, &[(0x4, 8), (0x1000, 1)]);
        assert_eq!(board.take(&block), Reaction::Restart);
        assert_eq!(board.registers.read(0x1000), Some(0), "what follows is not carried out");
        let next = request(Command::ReadDword, 3, 1, &[(0x80, 0)]);
        assert_eq!(status(&mut board, &next), (Status::Success, 1), "sequence numbers begin anew");
    }

    #[test]
    fn holes_answer_and_nowhere_does_not() {
        let mut board = board();
        let hole = request(Command::ReadDword, 1, 1, &[(0x1030, 0)]);
        let answer = Response::parse(&board.answer(&hole), 1).expect("well-formed");
        assert_eq!((answer.status, answer.pairs[0].data), (Status::Success, UNDEFINED));
        let nowhere = request(Command::ReadDword, 1, 2, &[(0x1800, 0)]);
        assert_eq!(status(&mut board, &nowhere), (Status::InvalidAddress, 1));
    }

    proptest! {
        #[test]
        fn any_datagram_is_counted_once(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut board = board();
            let reaction = board.take(&bytes);
            prop_assert_eq!(board.counts().iter().sum::<u64>(), 1);
            let answered = matches!(reaction, Reaction::Answer(_));
            prop_assert!(!(answered && bytes.len() < 10));
        }

        #[test]
        fn nearly_requests_are_counted_once(
            command in prop::sample::select(vec![0x04_u8, 0x09, 0x14, 0x19]), flags in 0..5_u8,
            rest in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut board = board();
            board.take(&[&[command, flags], &rest[..]].concat());
            prop_assert_eq!(board.counts().iter().sum::<u64>(), 1);
        }
    }
}
