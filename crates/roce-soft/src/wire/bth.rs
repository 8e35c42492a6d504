//! The base transport header: 12 bytes in front of every packet.

use std::fmt;

use roce_core::{Psn, Qpn};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Opcode, ParseError};

pub(super) const LEN: usize = size_of::<View>();

/// The only partition of a RoCE port that nobody configured; its top bit means full membership.
const DEFAULT_PARTITION: u16 = 0xFFFF;
const PARTITION_MASK: u16 = 0x7FFF;

const SOLICITED: u8 = 0x80;
const PAD_SHIFT: u8 = 4;
const PAD_MASK: u8 = 3;
const VERSION_MASK: u8 = 0x0F;
const ACK_REQUEST: u8 = 0x80;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct View {
    opcode: u8,
    flags: u8,
    partition: U16,
    congestion: u8,
    dest_qp: [u8; 3],
    ack: u8,
    psn: [u8; 3],
}

/// The base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Whether the receiver should raise an event.
    pub solicited: bool,
    /// Bytes that fill the payload up to a multiple of four: 0 to 3.
    pub pad: u8,
    /// The queue pair that it goes to.
    pub dest_qp: Qpn,
    /// Whether the sender wants an acknowledgement; UC has none.
    pub ack_request: bool,
    /// Its sequence number.
    pub psn: Psn,
}

impl Bth {
    /// The header of a packet with `payload_len` bytes, in the default partition.
    #[allow(clippy::cast_possible_truncation)] // below 4
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn, payload_len: usize) -> Self {
        let pad = payload_len.wrapping_neg() as u8 & PAD_MASK;
        Self { opcode, solicited: false, pad, dest_qp, ack_request: false, psn }
    }

    /// The header at the front of `bytes` and what follows it. `Ok(None)`: too few bytes.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, &[u8])>, ParseError> {
        let Ok((view, rest)) = View::ref_from_prefix(bytes) else { return Ok(None) };
        let opcode = Opcode::from_byte(view.opcode).ok_or(ParseError::Opcode(view.opcode))?;
        if view.flags & VERSION_MASK != 0 {
            return Err(ParseError::Version(view.flags & VERSION_MASK));
        }
        let partition = view.partition.get();
        if partition & PARTITION_MASK != PARTITION_MASK {
            return Err(ParseError::Partition(partition));
        }
        let bth = Self {
            opcode,
            solicited: view.flags & SOLICITED != 0,
            pad: view.flags >> PAD_SHIFT & PAD_MASK,
            dest_qp: Qpn::from_low_bits(from_24(view.dest_qp)),
            ack_request: view.ack & ACK_REQUEST != 0,
            psn: Psn::new(from_24(view.psn)),
        };
        Ok(Some((bth, rest)))
    }

    /// Writes the header to `buf`, which has [`LEN`] bytes.
    #[inline]
    pub(super) fn emit(&self, buf: &mut [u8]) {
        let view = View {
            opcode: self.opcode.byte(),
            flags: if self.solicited { SOLICITED } else { 0 } | (self.pad & PAD_MASK) << PAD_SHIFT,
            partition: U16::new(DEFAULT_PARTITION),
            congestion: 0,
            dest_qp: to_24(self.dest_qp.get()),
            ack: if self.ack_request { ACK_REQUEST } else { 0 },
            psn: to_24(self.psn.get()),
        };
        buf.copy_from_slice(view.as_bytes());
    }
}

fn from_24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

fn to_24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qp {} psn {}", self.opcode, self.dest_qp, self.psn)?;
        if self.pad != 0 {
            write!(f, " pad {}", self.pad)?;
        }
        Ok(())
    }
}
