//! The register protocol: requests and responses as bytes.
//!
//! Everything is big-endian. A request is a command, flags, a sequence number, two reserved bytes, then
//! pairs of address and data; a response repeats all of it with a status and ends with the sequence number
//! that the FPGA last accepted. Parsing never panics, whatever the bytes.

use std::fmt;

/// Bytes before the first pair, in requests and responses.
const HEADER: usize = 6;
/// Bytes of an address and its data.
const PAIR: usize = 8;
/// The shortest request: a header and an address.
const SHORTEST: usize = HEADER + 4;
/// Bit 7 of the command byte marks a response.
const RESPONSE: u8 = 0x80;
/// Every response has room for one pair, the latched sequence and two bytes of padding.
const SHORTEST_RESPONSE: usize = HEADER + PAIR + 4;

/// The most pairs that an FPGA takes in one packet.
pub const MAX_PAIRS: usize = 511;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Writes one register.
    WriteDword,
    /// Writes each pair in turn, up to the first that fails.
    WriteBlock,
    /// Reads one register.
    ReadDword,
    /// Reads each address in turn, up to the first that fails.
    ReadBlock,
}

impl Command {
    /// The command byte of a request.
    pub const fn code(self) -> u8 {
        match self {
            Self::WriteDword => 0x04,
            Self::WriteBlock => 0x09,
            Self::ReadDword => 0x14,
            Self::ReadBlock => 0x19,
        }
    }

    /// The command of a request's byte; `None` for those that no FPGA carries out.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0x04 => Some(Self::WriteDword),
            0x09 => Some(Self::WriteBlock),
            0x14 => Some(Self::ReadDword),
            0x19 => Some(Self::ReadBlock),
            _ => None,
        }
    }

    /// The command byte of the response.
    pub const fn response_code(self) -> u8 {
        self.code() | RESPONSE
    }

    /// Whether registers are only read.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::ReadDword | Self::ReadBlock)
    }
}

/// The flags of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags {
    /// Bit 0: answer a write too; reads are always answered.
    pub ack: bool,
    /// Bit 1: refuse the request unless its sequence number follows the last accepted one.
    pub check_sequence: bool,
}

impl Flags {
    /// The flags byte.
    pub const fn bits(self) -> u8 {
        self.ack as u8 | (self.check_sequence as u8) << 1
    }

    /// `None` where a bit is set that has no meaning.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits > 3 {
            return None;
        }
        Some(Self { ack: bits & 1 != 0, check_sequence: bits & 2 != 0 })
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// 0x00: done.
    Success,
    /// 0x02: failed for a reason without a code.
    General,
    /// 0x03: no register at the address, or it did not answer.
    InvalidAddress,
    /// 0x04: unknown command.
    InvalidCommand,
    /// 0x05: the packet's length does not fit its command.
    PacketLength,
    /// 0x06: a flag is set that has no meaning.
    InvalidFlags,
    /// 0x07: no room for the request.
    BufferFull,
    /// 0x08: more pairs than a block may have.
    BlockSize,
    /// 0x09: an indirect access failed.
    IndirectAddress,
    /// 0x0A: the command took too long.
    CommandTimeout,
    /// 0x0B: the sequence number does not follow the last accepted one.
    SequenceCheck,
    /// Any other code, as received.
    Unknown(u8),
}

impl Status {
    /// The status byte.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0x00,
            Self::General => 0x02,
            Self::InvalidAddress => 0x03,
            Self::InvalidCommand => 0x04,
            Self::PacketLength => 0x05,
            Self::InvalidFlags => 0x06,
            Self::BufferFull => 0x07,
            Self::BlockSize => 0x08,
            Self::IndirectAddress => 0x09,
            Self::CommandTimeout => 0x0A,
            Self::SequenceCheck => 0x0B,
            Self::Unknown(code) => code,
        }
    }

    /// The status of a response's byte.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0x00 => Self::Success,
            0x02 => Self::General,
            0x03 => Self::InvalidAddress,
            0x04 => Self::InvalidCommand,
            0x05 => Self::PacketLength,
            0x06 => Self::InvalidFlags,
            0x07 => Self::BufferFull,
            0x08 => Self::BlockSize,
            0x09 => Self::IndirectAddress,
            0x0A => Self::CommandTimeout,
            0x0B => Self::SequenceCheck,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Success => "success",
            Self::General => "general failure",
            Self::InvalidAddress => "no register at that address, or it did not answer",
            Self::InvalidCommand => "unknown command",
            Self::PacketLength => "the packet's length does not fit its command",
            Self::InvalidFlags => "meaningless flags",
            Self::BufferFull => "no room for the request",
            Self::BlockSize => "too many pairs in a block",
            Self::IndirectAddress => "indirect access failed",
            Self::CommandTimeout => "the command took too long",
            Self::SequenceCheck => "out of sequence",
            Self::Unknown(_) => "unknown status",
        };
        write!(f, "{words} (status {:#04x})", self.code())
    }
}

/// A register and its value. In a read request the data is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    /// Byte address, a multiple of 4.
    pub address: u32,
    /// The register's 32 bits.
    pub data: u32,
}

impl Pair {
    /// `data` for the register at `address`.
    pub const fn new(address: u32, data: u32) -> Self {
        Self { address, data }
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// How.
    pub flags: Flags,
    /// The transaction's number; a repeated request keeps it.
    pub sequence: u16,
    /// Exactly one for the dword commands, 1 to [`MAX_PAIRS`] for blocks.
    pub pairs: Vec<Pair>,
}

/// What every request begins with, understood or not: enough to refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// The command byte.
    pub command: u8,
    /// The flags byte.
    pub flags: u8,
    /// The transaction's number.
    pub sequence: u16,
    /// The first address.
    pub address: u32,
}

/// Bytes that are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too short to be answered.
    #[error("{0} bytes are no register request; the shortest has {SHORTEST}")]
    Truncated(usize),
    /// To be answered with [`Response::refusal`].
    #[error("request {:#04x} refused: {status}", head.command)]
    Refused {
        /// What it began with.
        head: RequestHead,
        /// Why.
        status: Status,
    },
}

impl Request {
    /// Its bytes. A dword read has no data word: 10 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + PAIR * self.pairs.len());
        out.extend([self.command.code(), self.flags.bits()]);
        out.extend(self.sequence.to_be_bytes());
        out.extend([0, 0]);
        put_pairs(&mut out, &self.pairs);
        if self.command == Command::ReadDword {
            out.truncate(SHORTEST);
        }
        out
    }

    /// Checks in the order that an FPGA does: command, flags, then the length.
    pub fn parse(bytes: &[u8]) -> Result<Self, RequestError> {
        let head = RequestHead::parse(bytes).ok_or(RequestError::Truncated(bytes.len()))?;
        let refused = |status| RequestError::Refused { head, status };
        let command = Command::from_code(head.command).ok_or(refused(Status::InvalidCommand))?;
        let flags = Flags::from_bits(head.flags).ok_or(refused(Status::InvalidFlags))?;
        let pairs = request_pairs(command, &bytes[HEADER..]).map_err(refused)?;
        Ok(Self { command, flags, sequence: head.sequence, pairs })
    }

    /// What a refusal of it repeats.
    pub fn head(&self) -> RequestHead {
        RequestHead {
            command: self.command.code(),
            flags: self.flags.bits(),
            sequence: self.sequence,
            address: self.pairs.first().map_or(0, |pair| pair.address),
        }
    }
}

impl RequestHead {
    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            command: *bytes.first()?,
            flags: *bytes.get(1)?,
            sequence: u16_at(bytes, 2)?,
            address: u32_at(bytes, HEADER)?,
        })
    }
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The command byte: the request's with bit 7 set. An FPGA repeats an unknown command unchanged.
    pub command: u8,
    /// The request's flags byte.
    pub flags: u8,
    /// The request's transaction number.
    pub sequence: u16,
    /// How it ended.
    pub status: Status,
    /// The addresses, and the values read; 0 for writes. A block that failed ends with the failing pair.
    pub pairs: Vec<Pair>,
    /// The transaction number that the FPGA accepted last.
    pub latched: u16,
}

impl Response {
    /// The answer to a request that was carried out, as far as `pairs` tells.
    pub fn to(request: &Request, status: Status, pairs: Vec<Pair>, latched: u16) -> Self {
        Self {
            command: request.command.response_code(),
            flags: request.flags.bits(),
            sequence: request.sequence,
            status,
            pairs,
            latched,
        }
    }

    /// The answer to a request that was not carried out at all.
    pub fn refusal(head: RequestHead, status: Status, latched: u16) -> Self {
        let known = Command::from_code(head.command);
        Self {
            command: known.map_or(head.command, Command::response_code),
            flags: head.flags,
            sequence: head.sequence,
            status,
            pairs: vec![Pair::new(head.address, 0)],
            latched,
        }
    }

    /// Its bytes in the FPGA's shape: 18 for one pair, `8 + 8 n` for more.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SHORTEST_RESPONSE.max(HEADER + PAIR * self.pairs.len() + 2));
        out.extend([self.command, self.flags]);
        out.extend(self.sequence.to_be_bytes());
        out.extend([self.status.code(), 0]);
        put_pairs(&mut out, &self.pairs);
        out.extend(self.latched.to_be_bytes());
        out.resize(out.len().max(SHORTEST_RESPONSE), 0);
        out
    }

    /// Reads a response with at most `max_pairs` pairs, the number that the request had; what follows the
    /// latched sequence is ignored, as some devices pad. `None` for bytes that cannot be a response.
    pub fn parse(bytes: &[u8], max_pairs: usize) -> Option<Self> {
        let count = max_pairs.min(bytes.len().checked_sub(HEADER + 2)? / PAIR);
        let tail = HEADER + PAIR * count;
        Some(Self {
            command: bytes[0],
            flags: bytes[1],
            sequence: u16_at(bytes, 2)?,
            status: Status::from_code(bytes[4]),
            pairs: pairs_in(&bytes[HEADER..tail]),
            latched: u16_at(bytes, tail)?,
        })
    }
}

fn request_pairs(command: Command, body: &[u8]) -> Result<Vec<Pair>, Status> {
    let whole = !body.is_empty() && body.len().is_multiple_of(PAIR);
    match command {
        Command::ReadDword if body.len() == 4 => Ok(vec![Pair::new(u32_at(body, 0).unwrap_or(0), 0)]),
        Command::ReadDword | Command::WriteDword if body.len() == PAIR => Ok(pairs_in(body)),
        Command::ReadBlock | Command::WriteBlock if body.len() > PAIR * MAX_PAIRS => Err(Status::BlockSize),
        Command::ReadBlock | Command::WriteBlock if whole => Ok(pairs_in(body)),
        _ => Err(Status::PacketLength),
    }
}

fn put_pairs(out: &mut Vec<u8>, pairs: &[Pair]) {
    for pair in pairs {
        out.extend(pair.address.to_be_bytes());
        out.extend(pair.data.to_be_bytes());
    }
}

fn pairs_in(bytes: &[u8]) -> Vec<Pair> {
    let words = |chunk: &[u8]| Some(Pair::new(u32_at(chunk, 0)?, u32_at(chunk, 4)?));
    bytes.chunks_exact(PAIR).filter_map(words).collect()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u16::from_be_bytes(*field))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_be_bytes(*field))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ACK: Flags = Flags { ack: true, check_sequence: false };
    const CHECKED: Flags = Flags { ack: true, check_sequence: true };

    fn request(command: Command, flags: Flags, sequence: u16, pairs: &[(u32, u32)]) -> Request {
        let pairs = pairs.iter().map(|&(a, d)| Pair::new(a, d)).collect();
        Request { command, flags, sequence, pairs }
    }

    #[test]
    fn read_of_the_version() {
        let read = request(Command::ReadDword, ACK, 0x100, &[(0x80, 0)]);
        let bytes = [0x14, 1, 1, 0, 0, 0, 0, 0, 0, 0x80];
        assert_eq!(read.encode(), bytes);
        assert_eq!(Request::parse(&bytes), Ok(read.clone()));

        let reply = Response::to(&read, Status::Success, vec![Pair::new(0x80, 0x2606)], 0x100);
        let bytes = [0x94, 1, 1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0x26, 6, 1, 0, 0, 0];
        assert_eq!(reply.encode(), bytes);
        assert_eq!(Response::parse(&bytes, 1), Some(reply));
    }

    #[test]
    fn a_dword_read_may_carry_a_data_word() {
        let bytes = [0x14, 1, 1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0];
        let read = request(Command::ReadDword, ACK, 0x100, &[(0x80, 0)]);
        assert_eq!(Request::parse(&bytes), Ok(read));
    }

    #[test]
    fn write_as_a_dword_and_as_a_block() {
        let bytes = [4, 3, 1, 2, 0, 0, 0, 0, 0x10, 4, 0x11, 0x22, 0x33, 0x44];
        let write = request(Command::WriteDword, CHECKED, 0x102, &[(0x1004, 0x1122_3344)]);
        assert_eq!(write.encode(), bytes);
        let reply = Response::to(&write, Status::Success, vec![Pair::new(0x1004, 0)], 0x102);
        assert_eq!(reply.encode(), [0x84, 3, 1, 2, 0, 0, 0, 0, 0x10, 4, 0, 0, 0, 0, 1, 2, 0, 0]);

        let block = Request { command: Command::WriteBlock, ..write };
        assert_eq!(block.encode()[0], 9);
        assert_eq!(block.encode()[1..], bytes[1..]);
        let reply = Response::to(&block, Status::Success, vec![Pair::new(0x1004, 0)], 0x102);
        assert_eq!((reply.encode()[0], reply.encode().len()), (0x89, 18));
    }

    #[test]
    fn block_of_three_ends_with_the_latched_sequence() {
        let pairs = [(0x1000, 1), (0x1004, 2), (0x1008, 3)];
        let block = request(Command::WriteBlock, ACK, 0x200, &pairs);
        assert_eq!(block.encode().len(), 30);
        let done: Vec<Pair> = block.pairs.iter().map(|p| Pair::new(p.address, 0)).collect();
        let bytes = Response::to(&block, Status::Success, done, 0x200).encode();
        assert_eq!((bytes.len(), &bytes[..6]), (32, [0x89, 1, 2, 0, 0, 0].as_slice()));
        assert_eq!(bytes[30..], [2, 0]);
    }

    #[test]
    fn four_trailing_bytes_of_a_lenient_device_are_no_pair() {
        let mut bytes = vec![0x89, 1, 2, 0, 0, 0];
        put_pairs(&mut bytes, &[Pair::new(0x1000, 1), Pair::new(0x1004, 2), Pair::new(0x1008, 3)]);
        bytes.extend([0; 4]);
        assert_eq!(bytes.len(), 34);
        let reply = Response::parse(&bytes, 3).expect("a response");
        assert_eq!((reply.pairs.len(), reply.latched), (3, 0));
        assert_eq!(reply.pairs[2], Pair::new(0x1008, 3));
    }

    /// What an independent emulator answered to requests of this form: latched sequence 0, written data repeated, four
    /// bytes after the pairs.
    #[test]
    fn answers_of_an_independent_emulator() {
        let read = [0x94, 1, 1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0x26, 2, 0, 0, 0, 0];
        let version = Response::parse(&read, 1).expect("a response");
        assert_eq!((version.sequence, version.status), (0x100, Status::Success));
        assert_eq!((version.pairs, version.latched), (vec![Pair::new(0x80, 0x2602)], 0));

        for command in [0x84, 0x89] {
            let written = [command, 3, 1, 2, 0, 0, 0, 0, 0x10, 4, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0];
            let reply = Response::parse(&written, 1).expect("a response");
            assert_eq!((reply.command, reply.flags, reply.sequence), (command, 3, 0x102));
            assert_eq!((reply.pairs, reply.latched), (vec![Pair::new(0x1004, 0x1122_3344)], 0));
        }

        let unknown = [0xD5, 3, 1, 4, 4, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0];
        let reply = Response::parse(&unknown, 1).expect("a response");
        assert_eq!((reply.command, reply.status), (0xD5, Status::InvalidCommand));
    }

    #[test]
    fn bad_address_keeps_its_status() {
        let bytes = [0x84, 3, 1, 4, 3, 0, 0xDE, 0xAD, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0];
        let reply = Response::parse(&bytes, 1).expect("a response");
        assert_eq!((reply.status, reply.latched), (Status::InvalidAddress, 0x103));
    }

    #[test]
    fn refusals_take_the_first_cause() {
        let refused = |bytes: &[u8]| match Request::parse(bytes) {
            Err(RequestError::Refused { head, status }) => Some((head, status)),
            _ => None,
        };
        let (head, status) = refused(&[0x55, 0xFF, 1, 5, 0, 0, 0, 0, 0, 0x80]).expect("refused");
        assert_eq!(status, Status::InvalidCommand);
        // An FPGA repeats a command that it does not know without bit 7.
        let reply = Response::refusal(head, status, 0x104).encode();
        assert_eq!(reply, [0x55, 0xFF, 1, 5, 4, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 1, 4, 0, 0]);

        let (head, status) = refused(&[0x14, 0xFF, 1, 5, 0, 0, 0, 0, 0, 0x80]).expect("refused");
        assert_eq!(status, Status::InvalidFlags);
        assert_eq!(Response::refusal(head, status, 0x104).encode()[..5], [0x94, 0xFF, 1, 5, 6]);

        let (_, status) = refused(&[0x04, 3, 1, 5, 0, 0, 0, 0, 0, 0x80]).expect("refused");
        assert_eq!(status, Status::PacketLength);
        let mut block = vec![0x19, 3, 1, 5, 0, 0];
        block.extend(vec![0; PAIR * (MAX_PAIRS + 1)]);
        assert_eq!(refused(&block).map(|r| r.1), Some(Status::BlockSize));
        block.truncate(HEADER + PAIR * MAX_PAIRS);
        assert_eq!(Request::parse(&block).map(|r| r.pairs.len()), Ok(MAX_PAIRS));
    }

    #[test]
    fn too_short_to_answer() {
        assert_eq!(Request::parse(&[]), Err(RequestError::Truncated(0)));
        assert_eq!(Request::parse(&[0x14, 1, 1, 0, 0, 0, 0, 0, 0]), Err(RequestError::Truncated(9)));
        assert_eq!(Response::parse(&[0x94; 7], 1), None);
    }

    fn any_request() -> impl Strategy<Value = Request> {
        let command = prop_oneof![
            Just(Command::WriteDword),
            Just(Command::WriteBlock),
            Just(Command::ReadDword),
            Just(Command::ReadBlock)
        ];
        let pairs = prop::collection::vec((any::<u32>(), any::<u32>()), 1..=MAX_PAIRS);
        (command, 0..4_u8, any::<u16>(), pairs).prop_map(|(command, bits, sequence, mut pairs)| {
            if matches!(command, Command::WriteDword | Command::ReadDword) {
                pairs.truncate(1);
            }
            if command == Command::ReadDword {
                pairs[0].1 = 0;
            }
            request(command, Flags::from_bits(bits).expect("two bits"), sequence, &pairs)
        })
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(request in any_request()) {
            prop_assert_eq!(Request::parse(&request.encode()), Ok(request));
        }

        #[test]
        fn responses_survive_the_wire(request in any_request(), status: u8, latched: u16) {
            let reply = Response::to(&request, Status::from_code(status), request.pairs.clone(), latched);
            prop_assert_eq!(Response::parse(&reply.encode(), request.pairs.len()), Some(reply));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), max in 0..600_usize) {
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert!(bytes.len() >= SHORTEST && !request.pairs.is_empty());
            }
            if let Some(reply) = Response::parse(&bytes, max) {
                prop_assert!(reply.pairs.len() <= max && HEADER + PAIR * reply.pairs.len() + 2 <= bytes.len());
            }
        }

        #[test]
        fn every_status_code_is_kept(code: u8) {
            prop_assert_eq!(Status::from_code(code).code(), code);
        }
    }
}
