//! What must hold for any bytes that come over a wire: no panic, and what is understood says the same when it is written
//! and read again.
//!
//! `cargo xtask fuzz` lets libFuzzer look for bytes that break it; the corpora that it has built up are under `corpus/`,
//! and the tests replay them.

#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, SocketAddrV4};

use roce_core::{FrameMetadata, ImmediateLayout};
use roce_dispatch::rpc;
use roce_rendezvous::Message;
use roce_rendezvous::hsb::ecb;
use roce_rendezvous::hsb::enumeration::{Announcement, Reply};
use roce_soft::wire::{Flow, ICRC_LEN, Packet, UDP_PORT, icrc};

/// Checks one property on some bytes; panics where it does not hold.
pub type Check = fn(&[u8]);

/// All of them, by the names of their fuzzers and corpora.
pub const CHECKS: &[(&str, Check)] = &[
    ("enumeration", enumeration),
    ("control_request", control_request),
    ("control_reply", control_reply),
    ("metadata", metadata),
    ("rpc_header", rpc_header),
    ("rocev2_packet", rocev2_packet),
    ("rendezvous_line", rendezvous_line),
];

/// A datagram on the port on which boards announce themselves, or on the one on which they take replies.
pub fn enumeration(bytes: &[u8]) {
    if let Ok(announcement) = Announcement::parse(bytes) {
        assert_eq!(Announcement::parse(&announcement.encode()), Ok(announcement));
    }
    if let Ok(reply) = Reply::parse(bytes) {
        assert_eq!(Reply::parse(&reply.encode()), Ok(reply));
    }
}

/// A datagram on an FPGA's register port.
pub fn control_request(bytes: &[u8]) {
    match ecb::Request::parse(bytes) {
        Ok(request) => {
            let again = ecb::Request::parse(&request.encode()).expect("what was understood once");
            assert_eq!((again.command, again.flags, again.sequence), {
                (request.command, request.flags, request.sequence)
            });
            assert_eq!(again.pairs.len(), request.pairs.len());
        }
        Err(ecb::RequestError::Refused { head, status }) => {
            let refusal = ecb::Response::refusal(head, status, 0).encode();
            let read = ecb::Response::parse(&refusal, 1).expect("a refusal is a response");
            assert_eq!((read.status, read.sequence), (status, head.sequence));
        }
        Err(ecb::RequestError::Truncated(len)) => assert_eq!(len, bytes.len()),
    }
}

/// A datagram that answers one on an FPGA's register port.
pub fn control_reply(bytes: &[u8]) {
    for max_pairs in [0, 1, 3, ecb::MAX_PAIRS] {
        let Some(response) = ecb::Response::parse(bytes, max_pairs) else { continue };
        assert!(response.pairs.len() <= max_pairs);
        assert_eq!(ecb::Response::parse(&response.encode(), response.pairs.len()), Some(response));
    }
}

/// The block behind a frame, and an immediate in front of it.
pub fn metadata(bytes: &[u8]) {
    let Some((imm, block)) = bytes.split_first_chunk::<4>() else { return };
    let imm = u32::from_be_bytes(*imm);
    for layout in [ImmediateLayout::Slot, ImmediateLayout::Hsb, ImmediateLayout::Hsb2510] {
        assert!(u64::from(layout.page(imm)) < layout.pages());
    }
    if let Ok(metadata) = FrameMetadata::decode(block) {
        assert_eq!(FrameMetadata::decode(&metadata.encode()), Ok(metadata));
        let _ = metadata.created.since_epoch();
        for layout in [ImmediateLayout::Hsb, ImmediateLayout::Hsb2510] {
            assert!(layout.agrees(layout.encode(layout.page(imm), metadata.psn), metadata.psn));
        }
    }
}

/// A slot that holds a request or a response, or neither.
pub fn rpc_header(bytes: &[u8]) {
    let mut header = [0; rpc::HEADER_LEN];
    if let Ok(request) = rpc::Request::parse(bytes) {
        request.emit(&mut header);
        assert_eq!(rpc::Request::parse(&header), Ok(request));
        if let Ok(arguments) = request.payload(bytes) {
            assert_eq!(u32::try_from(arguments.len()), Ok(request.arg_len));
        }
    }
    if let Ok(response) = rpc::Response::parse(bytes) {
        response.emit(&mut header);
        assert_eq!(rpc::Response::parse(&header), Ok(response));
        if let Ok(result) = response.payload(bytes) {
            assert_eq!(u32::try_from(result.len()), Ok(response.result_len));
        }
    }
}

/// A datagram on RoCEv2's port.
pub fn rocev2_packet(bytes: &[u8]) {
    let at = |last| SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, last), UDP_PORT);
    let flow = Flow { src: at(1), dst: at(2) };
    let _ = icrc::verify(&flow, bytes);
    let Ok(packet) = Packet::parse(bytes) else { return };
    assert!(packet.header.packet_len(packet.payload.len()) == bytes.len());
    let sealed = packet.header.packet(&flow, packet.payload);
    let again = Packet::parse(&sealed).expect("what was understood once");
    assert_eq!((again.header, again.payload), (packet.header, packet.payload));
    assert_eq!(icrc::verify(&flow, &sealed), Some(0));
    // One bit of what the checksum covers, wherever the bytes say.
    let mut damaged = sealed;
    let bit = usize::from(bytes[0]) * usize::from(bytes[bytes.len() - 1]) % ((damaged.len() - ICRC_LEN) * 8);
    damaged[bit / 8] ^= 1 << (bit % 8);
    // Byte 4 is left out of the checksum, since routers change it.
    assert_eq!(icrc::verify(&flow, &damaged).is_some(), bit / 8 == 4);
}

/// A line on the rendezvous socket.
pub fn rendezvous_line(bytes: &[u8]) {
    if let Ok(message) = Message::from_line(bytes) {
        let line = message.to_line();
        let again = Message::from_line(line.as_bytes()).expect("what was understood once");
        assert_eq!(again.to_line(), line);
    }
}
