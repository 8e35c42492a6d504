//! The codec of the userspace link: a packet built and sealed, then parsed and checked; and the same copies and CRCs.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};

use roce_core::{Psn, Qpn, Rkey};
use roce_soft::wire::icrc::Icrc;
use roce_soft::wire::{Bth, Flow, Header, Opcode, Operation, Packet, Position, Reth, UDP_PORT};

use super::dispatch::timed;
use super::meter::Sample;
use super::trial::Trial;
use super::wire::request;
use crate::Error;

/// Header bytes outside of the packet that the ICRC covers: those of IPv4 and UDP.
const OUTER: usize = 28;

/// One WRITE WITH IMMEDIATE there and back.
pub(super) fn round_trip(trial: &Trial<'_>) -> Result<Sample, Error> {
    let frame = trial.point.frame;
    let payload = request(frame);
    let mut header = header(frame);
    // Each end has its own.
    let (mut sealer, mut checker) = (Icrc::new(flow()), Icrc::new(flow()));
    let mut packet = vec![0; header.packet_len(payload.len())];
    let mut landed = vec![0; payload.len()];
    timed(trial, move |slot| {
        header.bth.psn = Psn::new(slot);
        let start = header.len();
        header.emit(&mut packet);
        packet[start..start + payload.len()].copy_from_slice(&payload);
        sealer.seal(&mut packet);
        let packet = black_box(&packet);
        let is_right = checker.verify(packet) == Some(0);
        let parsed = Packet::parse(packet).map_err(|_| Error::WrongAnswer)?;
        landed.copy_from_slice(parsed.payload);
        black_box(&landed);
        if is_right && parsed.header == header { Ok(()) } else { Err(Error::WrongAnswer) }
    })
}

/// Two copies, and two CRCs over as many bytes.
pub(super) fn copies_and_crcs(trial: &Trial<'_>) -> Result<Sample, Error> {
    let frame = trial.point.frame;
    let payload = request(frame);
    let header = header(frame);
    let mut packet = vec![0; OUTER + header.packet_len(payload.len())];
    let start = OUTER + header.len();
    let mut landed = vec![0; payload.len()];
    timed(trial, move |slot| {
        packet[OUTER..OUTER + 4].copy_from_slice(&slot.to_le_bytes());
        packet[start..start + payload.len()].copy_from_slice(&payload);
        let sealed = crc32fast::hash(black_box(&packet));
        let checked = crc32fast::hash(black_box(&packet));
        landed.copy_from_slice(&packet[start..start + payload.len()]);
        black_box(&landed);
        if sealed == checked { Ok(()) } else { Err(Error::WrongAnswer) }
    })
}

fn flow() -> Flow {
    let end = |last| SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), UDP_PORT);
    Flow { src: end(1), dst: end(2) }
}

fn header(frame: u32) -> Header {
    let opcode = Opcode::new(Operation::Write, Position::Only, true);
    Header {
        bth: Bth::new(opcode, Qpn::from_low_bits(0x123), Psn::new(0), frame as usize),
        reth: Some(Reth { addr: 0, rkey: Rkey::new(0xCAFE_BABE), len: frame }),
        imm: Some(0),
    }
}
