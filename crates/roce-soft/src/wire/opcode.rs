//! The twelve opcodes of UC.

use std::fmt;

use super::{bth, immdt, reth};

/// What a message does at the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// SEND: into the responder's next receive.
    Send,
    /// RDMA WRITE: where the requester says.
    Write,
}

/// Where a packet stands in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins here.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A UC opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode {
    operation: Operation,
    position: Position,
    imm: bool,
}

/// The first of the UC opcodes; they follow each other up to 0x2B.
const SEND_FIRST: u8 = 0x20;
const WRITE_FIRST: u8 = 0x26;

impl Opcode {
    /// The opcode of a packet at `position`. An immediate travels only in a packet that ends its message, so
    /// `imm` is ignored elsewhere.
    pub const fn new(operation: Operation, position: Position, imm: bool) -> Self {
        Self { operation, position, imm: imm && position.ends() }
    }

    /// From the first byte of a BTH; `None` for what is not UC.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let (operation, index) = match byte {
            SEND_FIRST..WRITE_FIRST => (Operation::Send, byte - SEND_FIRST),
            WRITE_FIRST..=0x2B => (Operation::Write, byte - WRITE_FIRST),
            _ => return None,
        };
        let (position, imm) = match index {
            0 => (Position::First, false),
            1 => (Position::Middle, false),
            2 => (Position::Last, false),
            3 => (Position::Last, true),
            4 => (Position::Only, false),
            _ => (Position::Only, true),
        };
        Some(Self { operation, position, imm })
    }

    /// The first byte of a BTH.
    pub const fn byte(self) -> u8 {
        let base = match self.operation {
            Operation::Send => SEND_FIRST,
            Operation::Write => WRITE_FIRST,
        };
        let index = match self.position {
            Position::First => 0,
            Position::Middle => 1,
            Position::Last => 2,
            Position::Only => 4,
        };
        base + index + self.imm as u8
    }

    /// What the message does.
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Where the packet stands in it.
    pub const fn position(self) -> Position {
        self.position
    }

    /// Whether an ImmDt follows.
    pub const fn has_imm(self) -> bool {
        self.imm
    }

    /// Whether a RETH follows.
    pub const fn has_reth(self) -> bool {
        matches!(self.operation, Operation::Write) && self.position.starts()
    }

    /// Bytes of the BTH and what extends it.
    pub const fn header_len(self) -> usize {
        bth::LEN + if self.has_reth() { reth::LEN } else { 0 } + if self.imm { immdt::LEN } else { 0 }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.operation {
            Operation::Send => "SEND",
            Operation::Write => "WRITE",
        })?;
        f.write_str(match self.position {
            Position::First => "_FIRST",
            Position::Middle => "_MIDDLE",
            Position::Last => "_LAST",
            Position::Only => "_ONLY",
        })?;
        f.write_str(if self.imm { "_IMM" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_there_and_back() {
        let uc: Vec<u8> = (0..=255).filter(|&b| Opcode::from_byte(b).is_some()).collect();
        assert_eq!(uc, (0x20..=0x2B).collect::<Vec<u8>>());
        for byte in uc {
            assert_eq!(Opcode::from_byte(byte).map(Opcode::byte), Some(byte));
        }
    }

    #[test]
    fn names_and_extended_headers() {
        let of = |b| Opcode::from_byte(b).unwrap();
        assert_eq!(of(0x24).to_string(), "SEND_ONLY");
        assert_eq!(of(0x29).to_string(), "WRITE_LAST_IMM");
        assert_eq!(
            (0x20..=0x2B).map(|b| of(b).header_len()).collect::<Vec<_>>(),
            [12, 12, 12, 16, 12, 16, 28, 12, 12, 16, 28, 32]
        );
    }
}
