//! Packets that others made: the FPGA's emulator, and soft-RoCE of Linux.

#![allow(clippy::unwrap_used)]

mod common;

use common::{CapturedPacket, read_pcap};
use roce_core::{Psn, Qpn, Rkey};
use roce_soft::wire::{Bth, Flow, Header, Packet, Reth, icrc};

fn frame(hex: &str) -> CapturedPacket {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    CapturedPacket::from_frame(&bytes)
}

/// The metadata packet of a frame, as the emulator of the FPGA sends it.
const METADATA: &str = "
    16 78 8b c4 46 8b 1e b5 79 8b 20 3d 08 00 45 00 00 c0 00 00 40 00 40 11 b8 d9 c0 a8 00 02 c0 a8
    00 01 30 00 12 b7 00 ac 00 00 2b 00 ff ff ff 00 01 23 00 00 00 03 00 00 00 00 00 00 20 80 ca fe
    ba be 00 00 00 80 00 00 30 01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 00 6b 0c 5c cc 13 90
    33 92 00 00 00 00 00 00 10 00 00 00 00 00 00 00 00 00 6b 0c 5c cc 13 92 94 a5 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 94 f3 60 1c";

/// A SEND of 16 bytes from a host to an FPGA.
const SEND: &str = "
    02 00 00 00 00 02 02 00 00 00 00 01 08 00 45 00 00 3c 00 00 40 00 40 11 b9 5d c0 a8 00 01 c0 a8
    00 02 c0 00 12 b7 00 28 00 00 24 00 ff ff 00 00 00 02 00 00 00 00 00 01 02 03 04 05 06 07 08 09
    0a 0b 0c 0d 0e 0f 6d 5e 32 a7";

/// A frame of 32 bytes from an FPGA, without metadata.
const WRITE: &str = "
    02 00 00 00 00 01 02 00 00 00 00 02 08 00 45 00 00 60 00 00 40 00 40 11 b9 39 c0 a8 00 02 c0 a8
    00 01 30 00 12 b7 00 4c 00 00 2b 00 ff ff 00 00 01 23 00 00 00 10 00 00 00 00 00 00 01 00 ca fe
    ba be 00 00 00 20 00 01 00 02 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 11 12 13 14 15
    16 17 18 19 1a 1b 1c 1d 1e 1f 03 bf b3 d2";

#[test]
fn of_the_fpga() {
    for (hex, text) in [
        (METADATA, "WRITE_ONLY_IMM qp 0x123 psn 3 va 0x2080 rkey 0xcafebabe dma 128 imm 0x3001 payload 128"),
        (SEND, "SEND_ONLY qp 0x2 psn 0 payload 16"),
        (WRITE, "WRITE_ONLY_IMM qp 0x123 psn 16 va 0x100 rkey 0xcafebabe dma 32 imm 0x10002 payload 32"),
    ] {
        let CapturedPacket { flow, ip_id, datagram, .. } = frame(hex);
        assert_eq!(ip_id, 0);
        assert_eq!(icrc::verify(&flow, &datagram), Some(0));
        assert_eq!(Packet::parse(&datagram).unwrap().to_string(), text);
    }
}

#[test]
fn ours_are_the_same_to_the_byte() {
    let CapturedPacket { flow, datagram, .. } = frame(WRITE);
    let parsed = Packet::parse(&datagram).unwrap();
    let opcode = parsed.header.bth.opcode;
    let header = Header {
        bth: Bth::new(opcode, Qpn::from_low_bits(0x123), Psn::new(16), 32),
        reth: Some(Reth { addr: 0x100, rkey: Rkey::new(0xCAFE_BABE), len: 32 }),
        imm: Some(0x1_0002),
    };
    assert_eq!(parsed.header, header);
    assert_eq!(header.packet(&flow, parsed.payload), datagram);

    let CapturedPacket { flow, datagram, .. } = frame(SEND);
    let parsed = Packet::parse(&datagram).unwrap();
    assert_eq!(parsed.header.packet(&flow, parsed.payload), datagram);
}

#[test]
fn of_linux_soft_roce_with_their_running_ip_identifications() {
    let mut seen = 0;
    for name in ["uc_write_imm_and_send", "uc_send_multi", "uc_write_multi"] {
        let path = format!("{}/tests/data/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
        for CapturedPacket { flow, ip_id, datagram, .. } in read_pcap(path) {
            assert_ne!(ip_id, 0);
            assert_eq!(icrc::verify(&flow, &datagram), Some(ip_id), "{name}");
            let packet = Packet::parse(&datagram).unwrap();
            // Ours would have identification 0, and all but the ICRC the same.
            let ours = packet.header.packet(&flow, packet.payload);
            assert_eq!(ours[..ours.len() - 4], datagram[..datagram.len() - 4], "{packet}");
            let elsewhere = Flow { src: flow.dst, dst: flow.src };
            assert_ne!(icrc::verify(&elsewhere, &datagram), Some(ip_id));
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen} packets");
}
