//! The bytes of RoCEv2: what follows the UDP header, and the checksum over it.
//!
//! Reading and writing are apart. [`Packet::parse`] looks at bytes as they came and gives plain values;
//! [`Header::emit`] and [`icrc::seal`] write them.
//!
//! Panic contract: reading takes any bytes of any length and never panics. Writing panics when the buffer
//! is shorter than what its documentation asks for, which is a bug of the caller.

#![forbid(unsafe_code)]

mod bth;
pub mod icrc;
mod immdt;
mod opcode;
mod pseudo;
mod reth;

use std::fmt;

pub use bth::Bth;
pub use opcode::{Opcode, Operation, Position};
pub use pseudo::Flow;
pub(crate) use pseudo::{DONT_FRAGMENT, IPV4_LEN, UDP_LEN, UDP_PROTOCOL};
pub use reth::Reth;

/// The UDP port of RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;

/// The longest header of a UC packet in bytes: BTH, RETH, ImmDt.
pub const MAX_HEADER_LEN: usize = bth::LEN + reth::LEN + immdt::LEN;

/// Payload bytes of the largest packet that InfiniBand knows.
pub const MAX_PAYLOAD: usize = 4096;

/// What precedes the payload in a UC packet.
///
/// [`emit`](Self::emit) wants `reth` and `imm` to be there exactly when the opcode says so; a parsed header is
/// always so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The base transport header.
    pub bth: Bth,
    /// The RDMA extended transport header: in the first packet of a WRITE.
    pub reth: Option<Reth>,
    /// The immediate in host order: in the last packet of a message that has one.
    pub imm: Option<u32>,
}

impl Header {
    /// Bytes on the wire.
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_len()
    }

    /// Never true; a header has at least the BTH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Bytes of the whole UDP payload around `payload_len` bytes: header, payload, pad, ICRC.
    pub const fn packet_len(&self, payload_len: usize) -> usize {
        self.len() + payload_len + self.bth.pad as usize + ICRC_LEN
    }

    /// Writes the header to the front of `buf`.
    ///
    /// # Panics
    /// When `buf` is shorter than [`len`](Self::len), or an extended header that the opcode needs is missing.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) {
        let (bth, mut rest) = buf.split_at_mut(bth::LEN);
        self.bth.emit(bth);
        if self.bth.opcode.has_reth() {
            let (reth, after) = rest.split_at_mut(reth::LEN);
            self.reth.expect("a WRITE FIRST or ONLY has a RETH").emit(reth);
            rest = after;
        }
        if self.bth.opcode.has_imm() {
            immdt::emit(self.imm.expect("a packet WITH IMMEDIATE has one"), rest);
        }
    }

    /// The whole UDP payload of a packet that carries `payload` along `flow`, its ICRC right. Allocates;
    /// queue pairs build theirs in place.
    pub fn packet(&self, flow: &Flow, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; self.packet_len(payload.len())];
        self.emit(&mut bytes);
        bytes[self.len()..][..payload.len()].copy_from_slice(payload);
        icrc::seal(flow, &mut bytes);
        bytes
    }
}

/// A UC packet as it came, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What precedes the payload.
    pub header: Header,
    /// The payload, without the pad.
    pub payload: &'a [u8],
    /// The ICRC that it carries; [`icrc::verify`] says whether it is right.
    pub icrc: u32,
}

/// Why bytes are no UC packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Shorter than its own headers say.
    #[error("{len} bytes are too few: the headers, pad and ICRC take {need}")]
    Truncated {
        /// Bytes that came.
        len: usize,
        /// Bytes that had to come at least.
        need: usize,
    },
    /// Not one of the twelve UC opcodes.
    #[error("opcode {0:#04x} is none of UC SEND or UC RDMA WRITE")]
    Opcode(u8),
    /// A transport header of another version.
    #[error("transport header version {0} (0 is the only one)")]
    Version(u8),
    /// A partition other than the default one.
    #[error("partition key {0:#06x} (0xffff is the default one)")]
    Partition(u16),
}

impl<'a> Packet<'a> {
    /// Reads a UDP payload. Does not look at the ICRC's value.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let truncated = |need| ParseError::Truncated { len: datagram.len(), need };
        let (bth, rest) = Bth::parse(datagram)?.ok_or(truncated(bth::LEN + ICRC_LEN))?;
        let need = bth.opcode.header_len() + bth.pad as usize + ICRC_LEN;
        if datagram.len() < need {
            return Err(truncated(need));
        }
        let (reth, rest) = match bth.opcode.has_reth() {
            true => Reth::parse(rest).map(|(r, rest)| (Some(r), rest)).ok_or(truncated(need))?,
            false => (None, rest),
        };
        let (imm, rest) = match bth.opcode.has_imm() {
            true => immdt::parse(rest).map(|(i, rest)| (Some(i), rest)).ok_or(truncated(need))?,
            false => (None, rest),
        };
        let (body, icrc) = rest.split_last_chunk::<ICRC_LEN>().ok_or(truncated(need))?;
        let payload_len = body.len().checked_sub(bth.pad as usize).ok_or(truncated(need))?;
        Ok(Self {
            header: Header { bth, reth, imm },
            payload: &body[..payload_len],
            icrc: u32::from_le_bytes(*icrc),
        })
    }
}

/// One line: `WRITE_ONLY_IMM qp 0x123 psn 3 va 0x2080 rkey 0xcafebabe dma 128 imm 0x3001 payload 128`.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} payload {}", self.header, self.payload.len())
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bth)?;
        if let Some(reth) = &self.reth {
            write!(f, " {reth}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm {imm:#x}")?;
        }
        Ok(())
    }
}
