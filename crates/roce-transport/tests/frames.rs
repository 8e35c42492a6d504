//! Frames as an FPGA sends them: many WRITEs, the last with the immediate, and whatever of them gets lost. Each packet is
//! made and sent here, so that a test says which one is missing.
#![allow(clippy::cast_possible_truncation)] // small numbers

mod common;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;

use common::{monitor, soft, unused_addr, wait_for, wait_until};
use roce_core::{FrameMetadata, FrameTime, ImmediateLayout, METADATA_LEN, PeerEndpoint, Psn, Qpn, Rkey};
use roce_soft::wire::{Bth, Flow, Header, Opcode, Operation, Position, Reth};
use roce_transport::{
    ConfigBuilder, ConfigError, ImmediateFormat, Mode, Stats, TornFrames, Transceiver, Unified,
    frame_metadata,
};

const PAGES: u32 = 4;
const PAYLOAD: usize = 256;

/// Where a frame's metadata go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metadata {
    Off,
    /// In a packet of their own.
    Separate,
    /// Behind the last data, in the same packet.
    Merged,
}

/// What an FPGA sends, from a socket.
struct Fpga {
    socket: UdpSocket,
    flow: Flow,
    qpn: Qpn,
    rkey: Rkey,
    layout: ImmediateLayout,
    frame_size: usize,
    page_size: usize,
    metadata: Metadata,
    psn: Psn,
    frames: u16,
    /// The reserved byte of the BTH.
    reserved: u8,
}

impl Fpga {
    fn packets(&self) -> usize {
        self.frame_size.div_ceil(PAYLOAD) + usize::from(self.metadata == Metadata::Separate)
    }

    /// A frame to `page`, but for those of its packets.
    fn frame_without(&mut self, page: u32, missing: &[usize]) {
        for (at, packet) in self.next_frame(page).into_iter().enumerate() {
            if !missing.contains(&at) {
                self.send(&packet);
            }
        }
    }

    fn send(&self, packet: &[u8]) {
        self.socket.send_to(packet, self.flow.dst).expect("sent");
    }

    /// The packets of a frame to `page`.
    fn next_frame(&mut self, page: u32) -> Vec<Vec<u8>> {
        let parts = self.parts();
        let last = parts.len() - 1;
        let mut packets = Vec::new();
        for (at, (offset, payload)) in parts.into_iter().enumerate() {
            let imm = (at == last).then(|| self.layout.encode(page, self.psn));
            let addr = u64::from(page) * self.page_size as u64 + offset as u64;
            packets.push(self.packet(addr, &payload, imm));
            self.psn = self.psn.next();
        }
        self.frames += 1;
        packets
    }

    fn frame(&mut self, page: u32) {
        self.frame_without(page, &[]);
    }

    /// Offset in the page and bytes of each packet.
    fn parts(&self) -> Vec<(usize, Vec<u8>)> {
        let data = content(self.frames, self.frame_size);
        let mut parts: Vec<_> = data.chunks(PAYLOAD).map(<[u8]>::to_vec).enumerate().collect();
        parts.iter_mut().for_each(|(at, _)| *at *= PAYLOAD);
        let metadata = FrameMetadata {
            psn: self.psn.add(self.packets() as u32 - 1),
            bytes_written: self.frame_size as u64,
            frame_number: self.frames,
            created: FrameTime { seconds: 7, nanoseconds: 8 },
            ..FrameMetadata::default()
        };
        let behind = self.frame_size.next_multiple_of(METADATA_LEN);
        match self.metadata {
            Metadata::Off => {}
            Metadata::Separate => parts.push((behind, metadata.encode().to_vec())),
            Metadata::Merged => {
                let (offset, last) = parts.last_mut().expect("a packet");
                last.resize(behind - *offset, 0);
                last.extend(metadata.encode());
            }
        }
        parts
    }

    fn packet(&self, addr: u64, payload: &[u8], imm: Option<u32>) -> Vec<u8> {
        let opcode = Opcode::new(Operation::Write, Position::Only, imm.is_some());
        let bth = Bth { pad: 0, ..Bth::new(opcode, self.qpn, self.psn, payload.len()) };
        let reth = Some(Reth { addr, rkey: self.rkey, len: payload.len() as u32 });
        let mut packet = Header { bth, reth, imm }.packet(&self.flow, payload);
        packet[4] = self.reserved; // the ICRC takes it for 0xFF
        packet
    }
}

fn content(frame: u16, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u16).wrapping_mul(7).wrapping_add(frame.wrapping_mul(41)) as u8).collect()
}

/// Shape of the frames.
#[derive(Debug, Clone, Copy)]
struct Shape {
    frame_size: usize,
    metadata: Metadata,
    layout: ImmediateLayout,
    psn: u32,
}

impl Shape {
    /// Three packets of data, and one of metadata.
    const FOUR: Self =
        Self { frame_size: 700, metadata: Metadata::Separate, layout: ImmediateLayout::Hsb, psn: 0xFF_FFF0 };

    fn config(self, addr: Ipv4Addr) -> ConfigBuilder {
        let format = match self.layout {
            ImmediateLayout::Hsb2510 => ImmediateFormat::Hsb2510,
            _ => ImmediateFormat::Hsb,
        };
        let page_size = self.frame_size.next_multiple_of(METADATA_LEN) + METADATA_LEN;
        soft(addr)
            .num_pages(PAGES)
            .page_size(page_size as u32)
            .frame_size(self.frame_size as u32)
            .immediate(format)
    }
}

/// A transceiver, and the FPGA that it is connected with.
fn connected(shape: Shape, config: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> (Arc<Transceiver>, Fpga) {
    let (ours, theirs) = (unused_addr(), unused_addr());
    let config = config(shape.config(ours)).build().expect("valid");
    let page_size = config.geometry().page_size() as usize;
    let transceiver = Arc::new(Transceiver::new(config));
    let end = transceiver.setup().expect("set-up");
    let qpn = Qpn::from_low_bits(2);
    transceiver.connect(&PeerEndpoint { qpn, rkey: None, ip: theirs }).expect("connected");
    let socket = UdpSocket::bind((theirs, 0)).expect("a socket");
    let port = socket.local_addr().expect("an address").port();
    let flow = Flow { src: SocketAddrV4::new(theirs, port), dst: SocketAddrV4::new(ours, 4791) };
    let Shape { frame_size, metadata, layout, psn } = shape;
    let fpga = Fpga {
        socket,
        flow,
        qpn: end.qpn,
        rkey: end.rkey,
        layout,
        frame_size,
        page_size,
        metadata,
        psn: Psn::new(psn),
        frames: 0,
        reserved: 0,
    };
    (transceiver, fpga)
}

fn unified(
    shape: Shape,
    config: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
) -> (Arc<Transceiver>, Unified, Fpga) {
    let (transceiver, fpga) = connected(shape, |c| config(c).mode(Mode::Unified));
    let unified = transceiver.take_unified().expect("connected");
    (transceiver, unified, fpga)
}

/// The slot of the next frame, which is `frame` to the last byte.
fn take(unified: &mut Unified, frame: u16) -> u32 {
    let slot = wait_for("a frame", || unified.rx_poll().expect("open"));
    assert_eq!(bytes_of(unified, slot), content(frame, unified.geometry().frame_size() as usize));
    slot
}

fn bytes_of(unified: &Unified, slot: u32) -> Vec<u8> {
    let mut bytes = vec![0; unified.geometry().frame_size() as usize];
    unified.rx_slot(slot).copy_to(0, &mut bytes);
    bytes
}

/// The counters of what arrives, but for the wire.
fn counts(transceiver: &Transceiver) -> Stats {
    Stats { wire: Vec::new(), ..transceiver.stats() }
}

fn wire(transceiver: &Transceiver, name: &str) -> u64 {
    transceiver.stats().wire.iter().find(|(known, _)| *known == name).expect("a counter").1
}

#[test]
fn frames_of_any_number_of_packets_come_whole() {
    for layout in [ImmediateLayout::Hsb, ImmediateLayout::Hsb2510] {
        for metadata in [Metadata::Off, Metadata::Separate, Metadata::Merged] {
            for (packets, psn) in [(1, 0), (2, 0xFF_FFFE), (3, 0x0F_FFF8), (40, 12345)] {
                // The last packet is short, and of an odd length.
                let frame_size = packets * PAYLOAD - 155;
                whole(Shape { frame_size, metadata, layout, psn });
            }
        }
    }
}

fn whole(shape: Shape) {
    let (transceiver, mut unified, mut fpga) =
        unified(shape, |c| c.metadata(shape.metadata != Metadata::Off));
    for frame in 0..10_u16 {
        fpga.reserved = if frame % 2 == 0 { 0xFF } else { 0 };
        fpga.frame(u32::from(frame) % PAGES);
        assert_eq!(take(&mut unified, frame), u32::from(frame) % PAGES, "{shape:?}");
        if shape.metadata != Metadata::Off {
            let metadata = unified.rx_metadata(u32::from(frame) % PAGES).expect("room for it");
            let expected = (fpga.psn.get().wrapping_sub(1) & 0xFF_FFFF, frame, shape.frame_size as u64);
            assert_eq!((metadata.psn.get(), metadata.frame_number, metadata.bytes_written), expected);
            assert_eq!(metadata.created, FrameTime { seconds: 7, nanoseconds: 8 });
        }
    }
    assert_eq!(counts(&transceiver), Stats { received: 10, ..Stats::default() }, "{shape:?}");
}

/// The third of seven frames lacks one packet; gives the frames that were handed out, and the counters.
fn with_one_missing(metadata: Metadata, missing: usize, torn: TornFrames) -> (Vec<u16>, Stats) {
    let shape = Shape { metadata, ..Shape::FOUR };
    let (transceiver, mut unified, mut fpga) = unified(shape, |c| c.torn_frames(torn));
    let mut arrived = Vec::new();
    for frame in 0..7_u16 {
        fpga.frame_without(
            u32::from(frame) % PAGES,
            if frame == 2 { std::slice::from_ref(&missing) } else { &[] },
        );
        let is_last = |at| at + 1 == fpga.packets();
        if frame == 2 && (is_last(missing) || torn == TornFrames::Drop) {
            continue;
        }
        let slot = wait_for("a frame", || unified.rx_poll().expect("open"));
        assert_eq!(slot, u32::from(frame) % PAGES);
        let whole = bytes_of(&unified, slot) == content(frame, shape.frame_size);
        assert_eq!(whole, frame != 2, "frame {frame}");
        arrived.push(frame);
    }
    assert_eq!(unified.rx_poll().expect("open"), None);
    (arrived, counts(&transceiver))
}

#[test]
fn a_frame_without_its_last_packet_is_lost_and_without_another_one_torn() {
    for metadata in [Metadata::Off, Metadata::Separate, Metadata::Merged] {
        let packets = 3 + usize::from(metadata == Metadata::Separate);
        for missing in 0..packets {
            let (arrived, stats) = with_one_missing(metadata, missing, TornFrames::Drop);
            let lost = u64::from(missing + 1 == packets);
            let expected = Stats { received: 6, lost, lost_packets: 1, torn: 1 - lost, ..Stats::default() };
            assert_eq!(stats, expected, "{metadata:?}, without packet {missing}");
            assert_eq!(arrived, [0, 1, 3, 4, 5, 6]);
        }
    }
}

#[test]
fn a_torn_frame_is_handed_out_to_who_wants_it() {
    let (arrived, stats) = with_one_missing(Metadata::Separate, 1, TornFrames::Deliver);
    assert_eq!(arrived, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(stats, Stats { received: 7, lost_packets: 1, torn: 1, ..Stats::default() });
}

#[test]
fn the_end_of_one_frame_and_the_beginning_of_the_next() {
    let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, |c| c);
    for frame in 0..6_u16 {
        let missing: &[usize] = match frame {
            2 => &[3],
            3 => &[0],
            _ => &[],
        };
        fpga.frame_without(u32::from(frame) % PAGES, missing);
        if missing.is_empty() {
            take(&mut unified, frame);
        }
    }
    let expected = Stats { received: 4, lost: 1, lost_packets: 2, torn: 1, ..Stats::default() };
    assert_eq!(counts(&transceiver), expected);
    assert_eq!(wire(&transceiver, "rx_lost_packets"), 2);
}

#[test]
fn whole_frames_that_are_lost_tear_no_other() {
    let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, |c| c.frame_packets(4));
    for frame in 0..8_u16 {
        let lost = (3..5).contains(&frame);
        fpga.frame_without(u32::from(frame) % PAGES, if lost { &[0, 1, 2, 3] } else { &[] });
        if !lost {
            take(&mut unified, frame);
        }
    }
    let expected = Stats { received: 6, lost: 2, lost_packets: 8, ..Stats::default() };
    assert_eq!(counts(&transceiver), expected);
}

#[test]
fn who_knows_the_number_of_packets_sees_that_the_first_frame_has_no_beginning() {
    for (told, arrived) in [(Some(4), 1), (None, 2)] {
        let config = |c: ConfigBuilder| match told {
            Some(packets) => c.frame_packets(packets),
            None => c,
        };
        let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, config);
        fpga.frame_without(0, &[0]);
        fpga.frame(1);
        let mut slots = Vec::new();
        wait_until("the second frame", || {
            slots.extend(unified.rx_poll().expect("open"));
            slots.last() == Some(&1)
        });
        assert_eq!(slots.len(), arrived);
        let (received, torn) = (arrived as u64, 2 - arrived as u64);
        assert_eq!(counts(&transceiver), Stats { received, torn, ..Stats::default() });
    }
}

#[test]
fn pages_that_the_ring_has_not_are_dropped() {
    let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, |c| c);
    fpga.frame(0);
    take(&mut unified, 0);
    // An immediate that names no page, from a packet that lies in the ring.
    let imm = fpga.layout.encode(PAGES, fpga.psn);
    fpga.send(&fpga.packet(0, &[], Some(imm)));
    fpga.psn = fpga.psn.next();
    wait_until("the drop", || {
        assert_eq!(unified.rx_poll().expect("open"), None);
        counts(&transceiver).dropped == 1
    });
    assert_eq!(counts(&transceiver).lost_packets, 0);
    // An FPGA that was told of fewer pages counts on: nothing of this frame lands.
    fpga.frame(PAGES);
    wait_until("the packets refused", || {
        assert_eq!(unified.rx_poll().expect("open"), None);
        wire(&transceiver, "rx_drop_out_of_bounds") == 4
    });
    fpga.frame(1);
    take(&mut unified, 3 - 1);
    let expected = Stats { received: 3, dropped: 1, lost_packets: 4, ..Stats::default() };
    assert_eq!(counts(&transceiver), expected);
}

#[test]
fn a_reader_learns_of_a_torn_frame_in_its_slot() {
    let (transceiver, mut fpga) = connected(Shape::FOUR, |c| c.mode(Mode::RxOnly).frame_packets(4));
    let ends = transceiver.take_ends().expect("once");
    let running = monitor(&transceiver);
    fpga.frame(0);
    let frame = wait_for("a frame", || ends.rx.peek(0));
    let metadata = frame_metadata(frame.bytes(), ends.rx.ring().geometry()).expect("room for it");
    assert_eq!((metadata.frame_number, metadata.psn), (0, Psn::new(0xFF_FFF3)));
    for page in 1..PAGES {
        fpga.frame(page);
        let other = wait_for("a frame", || ends.rx.peek(page));
        other.release().expect("not overwritten");
    }
    fpga.frame_without(0, &[1]);
    wait_until("the overrun", || transceiver.stats().overruns == 1);
    assert!(frame.release().is_err(), "overwritten while it was read");
    let expected = Stats { received: 4, lost_packets: 1, torn: 1, overruns: 1, ..Stats::default() };
    assert_eq!(counts(&transceiver), expected);
    transceiver.close();
    running.join().expect("no panic").expect("no error");
}

#[test]
fn a_torn_frame_takes_the_place_of_one_that_waits() {
    let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, |c| c.frame_packets(4));
    fpga.frame(0);
    fpga.frame(1);
    fpga.frame_without(0, &[2]);
    fpga.frame(1);
    // All are on the loopback interface when the last was sent, and taken in at once.
    assert_eq!(wait_for("a frame", || unified.rx_poll().expect("open")), 1);
    assert_eq!(bytes_of(&unified, 1), content(3, Shape::FOUR.frame_size));
    assert_eq!(unified.rx_poll().expect("open"), None);
    let stats = counts(&transceiver);
    assert_eq!((stats.received, stats.torn, stats.overruns, stats.lost_packets), (3, 1, 2, 1));
}

#[test]
fn torn_frames_are_not_sent_back() {
    let shape = Shape::FOUR;
    let (transceiver, mut fpga) = connected(shape, |c| c.mode(Mode::Forward));
    let running = monitor(&transceiver);
    for frame in 0..6_u16 {
        fpga.frame_without(u32::from(frame) % PAGES, if frame == 3 { &[0] } else { &[] });
        let done = u64::from(frame) + 1;
        wait_until("the frame", || {
            let stats = transceiver.stats();
            stats.received + stats.torn == done && stats.sent == stats.received
        });
    }
    let expected = Stats { received: 5, sent: 5, lost_packets: 1, torn: 1, ..Stats::default() };
    assert_eq!(counts(&transceiver), expected);
    transceiver.close();
    running.join().expect("no panic").expect("no error");
}

/// Packets that are lost, doubled, or overtaken by the next one: whatever is handed out is whole, and all that is whole
/// is handed out.
#[test]
fn on_a_bad_link_only_whole_frames_are_handed_out() {
    const FRAMES: u16 = 3000;
    let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, |c| c.frame_packets(4));
    let mut chance = 1_u64;
    let mut one_in = |n: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33).is_multiple_of(n)
    };
    let mut way: Vec<(u16, usize, Vec<u8>)> = Vec::new();
    for frame in 0..FRAMES {
        for (at, packet) in fpga.next_frame(u32::from(frame) % PAGES).into_iter().enumerate() {
            if frame > 0 && one_in(20) {
                continue;
            }
            if one_in(20) {
                way.push((frame, at, packet.clone()));
            }
            way.push((frame, at, packet));
            let end = way.len() - 1;
            if frame > 0 && one_in(20) {
                way.swap(end - 1, end);
            }
        }
    }
    let mut landed = vec![[false; 4]; FRAMES.into()];
    let (mut whole, mut torn) = (0, 0);
    for (frame, at, packet) in way {
        fpga.send(&packet);
        landed[usize::from(frame)][at] = true;
        let got = unified.rx_poll().expect("open");
        let is_whole = landed[usize::from(frame)] == [true; 4];
        assert_eq!(
            got,
            (at == 3 && is_whole).then_some(u32::from(frame) % PAGES),
            "frame {frame}, packet {at}"
        );
        if at == 3 {
            (whole, torn) = (whole + u64::from(is_whole), torn + u64::from(!is_whole));
        }
        if let Some(slot) = got {
            assert_eq!(bytes_of(&unified, slot), content(frame, Shape::FOUR.frame_size));
        }
    }
    assert!(whole > 2000 && torn > 200, "{whole} and {torn}: too few to tell");
    let stats = counts(&transceiver);
    assert_eq!((stats.received, stats.torn), (whole, torn));
}

#[test]
fn the_default_finds_torn_frames_too() {
    let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, |c| c.immediate(ImmediateFormat::Auto));
    for frame in 0..5_u16 {
        fpga.frame_without(u32::from(frame) % PAGES, if frame == 3 { &[1, 2] } else { &[] });
        if frame != 3 {
            take(&mut unified, frame);
        }
    }
    assert_eq!(counts(&transceiver), Stats { received: 4, lost_packets: 2, torn: 1, ..Stats::default() });
}

#[test]
fn metadata_of_another_frame_are_counted() {
    let (transceiver, mut unified, mut fpga) = unified(Shape::FOUR, |c| c.metadata(true));
    fpga.frame(0);
    take(&mut unified, 0);
    // A WRITE without an immediate to the place of the metadata to come, and then an immediate without metadata.
    let metadata = FrameMetadata { psn: fpga.psn.add(9), ..FrameMetadata::default() };
    let page = fpga.page_size as u64;
    let at = page + FrameMetadata::offset(fpga.frame_size as u32);
    fpga.send(&fpga.packet(at, &metadata.encode(), None));
    fpga.psn = fpga.psn.next();
    let imm = fpga.layout.encode(1, fpga.psn);
    fpga.send(&fpga.packet(page, &[], Some(imm)));
    assert_eq!(wait_for("it", || unified.rx_poll().expect("open")), 1);
    let expected = Stats { received: 2, stale_metadata: 1, ..Stats::default() };
    assert_eq!(counts(&transceiver), expected);
}

#[test]
fn metadata_need_room() {
    let shape =
        |frame, page| soft(Ipv4Addr::LOCALHOST).frame_size(frame).page_size(page).metadata(true).build();
    for (frame, page) in [(128, 256), (1, 256), (129, 384)] {
        shape(frame, page).expect("room");
    }
    let error = shape(129, 383).expect_err("no room");
    let expected = ConfigError::NoRoomForMetadata { frame_size: 129, page_size: 383, needed: 384 };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("384 bytes, a page has 383"), "{error}");
    let error = soft(Ipv4Addr::LOCALHOST).frame_packets(0).build().expect_err("no packet");
    assert_eq!(error, ConfigError::NoFramePackets);
    // Without being asked for, they may be looked for in vain.
    let (_, unified, _) = unified(Shape { frame_size: 700, ..Shape::FOUR }, |c| c.frame_size(800));
    assert_eq!(unified.rx_metadata(0).expect_err("the page ends").len, 0);
}
