//! The receiving side: packets into messages.
//!
//! UC has no acknowledgements: whatever is wrong drops the packet and with it the message that it belongs to,
//! and the next FIRST or ONLY starts afresh (InfiniBand Architecture Specification, 9.8.3).

use roce_core::{Lead, Mtu, Psn, RecvKind, RecvWr, Rkey};

use super::sequence::Sequence;
use crate::counters::DropReason;
use crate::wire::{MAX_PAYLOAD, Operation, Packet, Position, Reth};

/// A message that has arrived whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Of the receive that it consumed.
    pub(crate) id: u32,
    pub(crate) kind: RecvKind,
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) lead: Lead,
}

/// What to do with a good packet: write its payload there, then complete that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Where the payload goes in the region, in bytes.
    pub(crate) offset: u64,
    pub(crate) completion: Option<Completion>,
}

/// The message in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    None,
    /// Its receive is the one at the head.
    Send {
        filled: u32,
    },
    Write {
        at: u64,
        left: u32,
        len: u32,
    },
    /// One that was dropped; the rest of it is still coming.
    Dropped,
}

/// The receiving side of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    mtu: usize,
    rkey: Rkey,
    region_len: u64,
    /// `None` until the first packet: a sender may have started long before us.
    expected: Option<Psn>,
    sequence: Sequence,
    message: Message,
    /// Where the message in progress began.
    began: Psn,
    /// The receive that the next SEND or immediate consumes, once it was asked for.
    head: Option<RecvWr>,
    torn: u64,
}

impl Responder {
    pub(crate) fn new(mtu: Mtu, rkey: Rkey, region_len: usize) -> Self {
        Self {
            mtu: mtu.bytes() as usize,
            rkey,
            region_len: region_len as u64,
            expected: None,
            sequence: Sequence::default(),
            message: Message::None,
            began: Psn::default(),
            head: None,
            torn: 0,
        }
    }

    /// Packets that sequence numbers show to be missing. One that comes late was counted here before.
    pub(crate) fn lost(&self) -> u64 {
        self.sequence.lost()
    }

    /// Packets behind a later one: duplicates, or overtaken on the way.
    pub(crate) fn late(&self) -> u64 {
        self.sequence.late()
    }

    /// Messages that began and were never finished.
    pub(crate) fn torn(&self) -> u64 {
        self.torn
    }

    /// Takes a packet that is undamaged and from the peer. `next_receive` hands over the oldest receive.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        packet: &Packet<'_>,
        next_receive: impl FnMut() -> Option<RecvWr>,
    ) -> Result<Accepted, DropReason> {
        let psn = packet.header.bth.psn;
        self.sequence.note(psn);
        let mut outcome = self.take(packet, next_receive);
        if let Ok(accepted) = &mut outcome {
            self.sequence.landed(psn);
            if let Some(completion) = &mut accepted.completion {
                completion.lead = self.sequence.complete(self.began, psn);
            }
        }
        outcome
    }

    #[inline]
    fn take(
        &mut self,
        packet: &Packet<'_>,
        next_receive: impl FnMut() -> Option<RecvWr>,
    ) -> Result<Accepted, DropReason> {
        let bth = &packet.header.bth;
        let position = bth.opcode.position();
        let in_sequence = self.expected == Some(bth.psn);
        if position.starts() || !in_sequence {
            self.abandon();
        }
        if !position.starts() && !in_sequence {
            self.message = Message::Dropped;
            return Err(DropReason::PsnGap);
        }
        if position.starts() {
            self.began = bth.psn;
        }
        self.expected = Some(bth.psn.next());
        let outcome = match bth.opcode.operation() {
            Operation::Send => self.send(packet, next_receive),
            Operation::Write => self.write(packet, next_receive),
        };
        if outcome.is_err() {
            self.abandon();
        }
        match (position.ends(), outcome.is_err()) {
            (true, _) => self.message = Message::None,
            (false, true) => self.message = Message::Dropped,
            (false, false) => {}
        }
        outcome
    }

    #[inline]
    fn send(
        &mut self,
        packet: &Packet<'_>,
        next_receive: impl FnMut() -> Option<RecvWr>,
    ) -> Result<Accepted, DropReason> {
        let position = packet.header.bth.opcode.position();
        let filled = match self.message {
            _ if position.starts() => 0,
            Message::Send { filled } => filled,
            Message::Dropped => return Err(DropReason::RestOfMessage),
            Message::None | Message::Write { .. } => return Err(DropReason::OpcodeSequence),
        };
        let payload = self.payload_len(packet)?;
        let wr = self.head(next_receive)?;
        let room = wr.len - filled;
        if payload > room {
            return Err(DropReason::BadLength);
        }
        let len = filled + payload;
        if !position.ends() {
            self.message = Message::Send { filled: len };
        }
        let completion = position.ends().then(|| self.complete(wr, RecvKind::Send, len, packet.header.imm));
        Ok(Accepted { offset: wr.offset + u64::from(filled), completion })
    }

    #[inline]
    fn write(
        &mut self,
        packet: &Packet<'_>,
        next_receive: impl FnMut() -> Option<RecvWr>,
    ) -> Result<Accepted, DropReason> {
        let position = packet.header.bth.opcode.position();
        let (at, left, len) = match (self.message, packet.header.reth) {
            (_, Some(reth)) => {
                self.check_target(&reth)?;
                (reth.addr, reth.len, reth.len)
            }
            (Message::Write { at, left, len }, None) => (at, left, len),
            (Message::Dropped, None) => return Err(DropReason::RestOfMessage),
            (Message::None | Message::Send { .. }, None) => return Err(DropReason::OpcodeSequence),
        };
        let payload = self.payload_len(packet)?;
        let fits = if position.ends() { payload == left } else { payload < left };
        if !fits {
            return Err(DropReason::BadLength);
        }
        let completion = match packet.header.imm {
            Some(_) => {
                let wr = self.head(next_receive)?;
                Some(self.complete(wr, RecvKind::WriteWithImm, len, packet.header.imm))
            }
            None => None,
        };
        if !position.ends() {
            self.message = Message::Write { at: at + u64::from(payload), left: left - payload, len };
        }
        Ok(Accepted { offset: at, completion })
    }

    /// The key and the bounds. An empty WRITE touches nothing, and needs neither (C9-88).
    #[inline]
    fn check_target(&self, reth: &Reth) -> Result<(), DropReason> {
        if reth.len == 0 {
            return Ok(());
        }
        if reth.rkey != self.rkey {
            return Err(DropReason::WrongRkey);
        }
        match reth.addr.checked_add(u64::from(reth.len)) {
            Some(end) if end <= self.region_len => Ok(()),
            _ => Err(DropReason::OutOfBounds),
        }
    }

    /// The payload's length, if a packet at this position may have it.
    ///
    /// A packet that is the whole message may exceed the path MTU: an FPGA fills the Ethernet frame and knows
    /// no path MTU.
    #[allow(clippy::cast_possible_truncation)] // at most MAX_PAYLOAD
    #[inline]
    fn payload_len(&self, packet: &Packet<'_>) -> Result<u32, DropReason> {
        let len = packet.payload.len();
        let allowed = match packet.header.bth.opcode.position() {
            Position::First | Position::Middle => len == self.mtu && packet.header.bth.pad == 0,
            Position::Last => (1..=self.mtu).contains(&len),
            Position::Only => len <= MAX_PAYLOAD,
        };
        if allowed { Ok(len as u32) } else { Err(DropReason::BadLength) }
    }

    /// The receive at the head. It stays there until a message completes it.
    #[inline]
    fn head(&mut self, mut next: impl FnMut() -> Option<RecvWr>) -> Result<RecvWr, DropReason> {
        if self.head.is_none() {
            self.head = next();
        }
        self.head.ok_or(DropReason::NoReceive)
    }

    #[inline]
    fn complete(&mut self, wr: RecvWr, kind: RecvKind, len: u32, imm: Option<u32>) -> Completion {
        self.head = None;
        Completion { id: wr.id, kind, len, imm, lead: Lead::NONE }
    }

    #[inline]
    fn abandon(&mut self) {
        if matches!(self.message, Message::Send { .. } | Message::Write { .. }) {
            self.torn += 1;
        }
        self.message = Message::None;
    }
}
