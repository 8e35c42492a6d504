//! Properties of the codec, over packets that nobody wrote down.

mod common;

use std::net::SocketAddrV4;

use proptest::prelude::*;
use roce_core::{Psn, Qpn, Rkey};
use roce_soft::wire::{Bth, Flow, Header, Opcode, Packet, Reth, icrc};

prop_compose! {
    fn any_flow()(src: [u8; 4], src_port: u16, dst: [u8; 4]) -> Flow {
        Flow { src: SocketAddrV4::new(src.into(), src_port), dst: SocketAddrV4::new(dst.into(), 4791) }
    }
}

prop_compose! {
    fn any_header(payload_len: usize)(
        opcode in 0x20..=0x2Bu8,
        qpn: u32,
        psn: u32,
        solicited: bool,
        ack_request: bool,
        addr: u64,
        rkey: u32,
        len: u32,
        imm: u32,
    ) -> Header {
        let opcode = Opcode::from_byte(opcode).expect("a UC opcode");
        let bth = Bth::new(opcode, Qpn::from_low_bits(qpn), Psn::new(psn), payload_len);
        Header {
            bth: Bth { solicited, ack_request, ..bth },
            reth: opcode.has_reth().then_some(Reth { addr, rkey: Rkey::new(rkey), len }),
            imm: opcode.has_imm().then_some(imm),
        }
    }
}

fn any_message() -> impl Strategy<Value = (Header, Vec<u8>)> {
    prop::collection::vec(any::<u8>(), 0..600)
        .prop_flat_map(|payload| (any_header(payload.len()), Just(payload)))
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(flow in any_flow(), (header, payload) in any_message()) {
        let bytes = header.packet(&flow, &payload);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(icrc::verify(&flow, &bytes), Some(0));
        let parsed = Packet::parse(&bytes)?;
        prop_assert_eq!(parsed.header, header);
        prop_assert_eq!(parsed.payload, &payload[..]);
        prop_assert!(!parsed.to_string().is_empty());
    }

    #[test]
    fn any_bytes_are_looked_at_in_peace(flow in any_flow(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Packet::parse(&bytes);
        let _ = icrc::verify(&flow, &bytes);
    }

    #[test]
    fn every_prefix_is_too_short(flow in any_flow(), (header, payload) in any_message()) {
        let whole = header.packet(&flow, &payload);
        for len in 0..header.len() + 4 {
            prop_assert!(Packet::parse(&whole[..len]).is_err());
        }
    }

    #[test]
    fn a_damaged_byte_is_seen(
        flow in any_flow(),
        (header, payload) in any_message(),
        at: prop::sample::Index,
        flip in 1..=255u8,
    ) {
        let mut bytes = header.packet(&flow, &payload);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if at == 4 {
            prop_assert_eq!(icrc::verify(&flow, &bytes), Some(0), "byte 4 belongs to routers");
        } else {
            prop_assert_ne!(icrc::verify(&flow, &bytes), Some(0));
        }
    }
}
