//! Frames as they are on the wire: a host that is no queue pair looks at every byte.

mod support;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

use hsb_emulator::{Config, Personality};
use roce_core::{FrameMetadata, ImmediateLayout, METADATA_LEN, Qpn, Rkey};
use roce_rendezvous::hsb::RoceConfig;
use roce_rendezvous::hsb::regs::{self, CAPTURE_RAM, Capture, Hif};
use roce_rendezvous::hsb::sample::VALID_WORD;
use support::{Bridge, CEILING, Host, REQUEST, Running, increment, message, own_ip, wait_for};

with_both!(
    a_frame_of_many_packets,
    a_frame_that_ends_early,
    packets_are_as_long_as_the_host_says,
    old_versions_have_another_ring_and_another_immediate,
    sequence_numbers_outlive_a_queue_pair,
    the_mask_holds_frames_back_and_nothing_else_changes,
    a_host_that_takes_metadata_gets_its_frames_all_the_same,
);

/// What begins a WRITE WITH IMMEDIATE: BTH, RETH, immediate.
const HEADERS: usize = 12 + 16 + 4;
const WRITE_ONLY: u8 = 0x2A;
const WRITE_ONLY_IMM: u8 = 0x2B;

/// A host's port without a queue pair behind it. Nothing is answered.
struct Wire {
    ip: Ipv4Addr,
    socket: UdpSocket,
}

/// A packet, taken apart. The key and the lengths have been looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packet {
    headers: Vec<u8>,
    qpn: u32,
    psn: u32,
    addr: u64,
    imm: Option<u32>,
    payload: Vec<u8>,
}

impl Wire {
    fn new() -> Self {
        let ip = own_ip();
        let socket = UdpSocket::bind((ip, 4791)).expect("nobody's port");
        socket.set_read_timeout(Some(CEILING)).expect("a ceiling");
        Self { ip, socket }
    }

    fn config(&self, frame_size: u32, page_size: u32, pages: u32) -> RoceConfig {
        let (qpn, rkey) = (Qpn::from_low_bits(0x123), Rkey::new(0xCAFE_BABE));
        RoceConfig { metadata: true, ..RoceConfig::new(qpn, rkey, self.ip, frame_size, page_size, pages) }
    }

    fn next(&self) -> Packet {
        let mut bytes = [0; 9000];
        let (len, _) = self.socket.recv_from(&mut bytes).expect("a packet");
        let bytes = &bytes[..len - 4]; // the ICRC, which the codec's own tests cover
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("a word"));
        let headers = match bytes[0] {
            WRITE_ONLY => HEADERS - 4,
            WRITE_ONLY_IMM => HEADERS,
            other => panic!("opcode {other:#x}"),
        };
        assert_eq!(word(8) >> 24, 0, "no request for an answer");
        assert_eq!((word(20), word(24) as usize), (0xCAFE_BABE, bytes.len() - headers), "key and DMA length");
        Packet {
            headers: bytes[..headers].to_vec(),
            qpn: word(4),
            psn: word(8) & 0xFF_FFFF,
            addr: u64::from(word(12)) << 32 | u64::from(word(16)),
            imm: (headers == HEADERS).then(|| word(28)),
            payload: bytes[headers..].to_vec(),
        }
    }

    /// The packets of a frame.
    fn frame(&self) -> Vec<Packet> {
        let mut packets = vec![self.next()];
        while packets.last().is_some_and(|packet| packet.imm.is_none()) {
            packets.push(self.next());
        }
        packets
    }
}

/// Sends frames that nobody answers, one after the other.
fn sender(personality: Personality) -> Config {
    let response_timeout = Duration::from_millis(1);
    Config { personality, page_size: 8192, response_timeout, ..Config::default() }
}

fn messages(count: u32, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|m| message(REQUEST, 0, m, &vec![0xA0 + m.to_le_bytes()[0]; len - 24])).collect()
}

/// Configures, loads, and plays once.
fn play(emulator: &Running, config: &RoceConfig, messages: &[Vec<u8>], beats: u32) -> Host {
    let mut host = Host::connect(emulator);
    host.client.configure_roce(config).expect("configured");
    host.load(messages, beats);
    host.enable(regs::ENABLE_SINGLE);
    host
}

fn metadata_of(packet: &Packet) -> FrameMetadata {
    FrameMetadata::decode(&packet.payload[packet.payload.len() - METADATA_LEN..]).expect("a block")
}

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn a_frame_of_many_packets(personality: Personality) {
    let emulator = Running::start(sender(personality));
    let wire = Wire::new();
    let sent = messages(2, 4096);
    let mut host = play(&emulator, &wire.config(4096, 0x1080, 4), &sent, 64);
    let first_page = u64::from(personality == Personality::Lenient);
    for (k, message) in (0..2_u32).zip(&sent) {
        let (page, psn) = (first_page + u64::from(k), 4 * k);
        let packets = wire.frame();
        let shape: Vec<_> =
            packets.iter().map(|p| (p.psn, p.addr - page * 0x1080, p.payload.len())).collect();
        let expected =
            [(psn, 0, 1408), (psn + 1, 1408, 1408), (psn + 2, 2816, 1280), (psn + 3, 4096, METADATA_LEN)];
        assert_eq!(shape, expected);
        let data: Vec<u8> = packets[..3].iter().flat_map(|packet| packet.payload.clone()).collect();
        assert_eq!((&data[..16], &data[24..]), (&message[..16], &message[24..]));
        let imm = packets[3].imm.expect("the last one has it");
        assert_eq!((imm & 0xFFF, imm >> 12), (u32::try_from(page).expect("small"), psn + 3));
        let metadata = metadata_of(&packets[3]);
        assert_eq!((metadata.flags, metadata.psn.get(), metadata.crc), (0, psn + 3, 0));
        assert_eq!((metadata.bytes_written, u32::from(metadata.frame_number)), (4096, k));
        let stamp = u64::from_le_bytes(data[16..24].try_into().expect("a time"));
        let first_data = metadata.first_data.seconds << 32 | u64::from(metadata.first_data.nanoseconds);
        assert_eq!(first_data, stamp);
        assert!(metadata.created >= metadata.first_data && packets[3].payload[48..].iter().all(|&b| b == 0));
    }
    if personality == Personality::Fpga {
        wait_for("the PSN in its register", || (host.read(0x103C) == 8).then_some(()));
    }
    assert_eq!(emulator.finish().packets, 8);
}

/// The metadata packet that was caught of the emulator, but for the reserved byte of the BTH, which a queue pair
/// leaves at 0; and a frame of an FPGA without metadata.
#[test]
fn the_bytes_of_both() {
    let emulator = Running::start(sender(Personality::Lenient));
    let wire = Wire::new();
    play(&emulator, &wire.config(4096, 0x1080, 4), &messages(1, 4096), 64);
    let caught = "2b00ffff 00000123 00000003 0000000000002080 cafebabe 00000080 00003001";
    assert_eq!(wire.frame()[3].headers, hex(caught));

    let emulator = Running::start(sender(Personality::Fpga));
    let wire = Wire::new();
    let config = RoceConfig { metadata: false, ..wire.config(32, 128, 7) };
    play(&emulator, &config, &messages(17, 64), 1);
    let packet = (0..17).map(|_| wire.next()).collect::<Vec<_>>().pop().expect("seventeen");
    let constructed = "2b00ffff 00000123 00000010 0000000000000100 cafebabe 00000020 00010002";
    assert_eq!((packet.headers, packet.payload.len()), (hex(constructed), 32));
}

fn a_frame_that_ends_early(personality: Personality) {
    let emulator = Running::start(sender(personality));
    let wire = Wire::new();
    play(&emulator, &wire.config(200, 384, 4), &messages(2, 64), 1);
    let last = wire.frame().pop().expect("packets");
    let metadata = metadata_of(&last);
    assert_eq!(metadata.bytes_written, 64);
    match personality {
        // Behind the frame that was to be.
        Personality::Fpga => {
            assert_eq!((last.addr, last.payload.len(), metadata.ended_early()), (256, 128, true));
        }
        // Right behind the data, in the same packet.
        Personality::Lenient => {
            assert_eq!((last.addr, last.payload.len(), metadata.ended_early()), (384, 256, false));
            assert!(last.payload[64..128].iter().all(|&byte| byte == 0));
        }
    }
}

fn packets_are_as_long_as_the_host_says(personality: Personality) {
    let emulator = Running::start(sender(personality));
    let wire = Wire::new();
    let config = RoceConfig { mtu: 512, metadata: false, ..wire.config(1000, 1024, 4) };
    let mut host = play(&emulator, &config, &messages(1, 1024), 16);
    let lengths = |packets: Vec<Packet>| packets.iter().map(|p| p.payload.len()).collect::<Vec<_>>();
    assert_eq!(lengths(wire.frame()), [384, 384, 232]);
    // More than the link carries; and 200 packets of one frame are more than wait on it at once.
    for (units, expected) in [(255, vec![1000]), (1, [[128; 7].as_slice(), &[104]].concat())] {
        host.enable(regs::ENABLE_OFF);
        host.write(&[(Hif::PacketSize.at(regs::HIF_ADDRESS), units)]);
        host.enable(regs::ENABLE_SINGLE);
        assert_eq!(lengths(wire.frame()), expected);
    }
    assert!(emulator.finish().send_errors.is_empty());
}

/// More packets than wait on the link at once.
#[test]
fn a_frame_of_two_hundred_packets() {
    let config = Config { page_size: 32768, ..sender(Personality::Fpga) };
    let emulator = Running::start(config);
    let wire = Wire::new();
    let config = RoceConfig { mtu: 203, ..wire.config(25_600, 25_728, 2) };
    play(&emulator, &config, &messages(1, 25_600), 400);
    let packets = wire.frame();
    assert_eq!((packets.len(), packets[200].psn, packets[200].addr), (201, 200, 25_600));
    assert!((0..).zip(&packets[..200]).all(|(index, packet)| packet.addr == index * 128));
}

fn old_versions_have_another_ring_and_another_immediate(personality: Personality) {
    let emulator = Running::start(Config { hsb_ip_version: Some(0x2510), ..sender(personality) });
    let wire = Wire::new();
    let config = RoceConfig { base: 0x8000, ..wire.config(64, 256, 3) };
    let host = play(&emulator, &config, &messages(4, 64), 1);
    assert_eq!(host.client.version(), 0x2510);
    let first = u32::from(personality == Personality::Lenient);
    for page in (first..first + 4).map(|page| page % 3) {
        let packets = wire.frame();
        assert_eq!(packets[0].addr, 0x8000 + u64::from(page) * 256);
        let last = packets.last().expect("packets");
        let imm = last.imm.expect("the last one has it");
        assert_eq!((ImmediateLayout::Hsb2510.page(imm), imm >> 8), (page, last.psn));
    }
}

/// What a virtual port counts belongs to no queue pair; only a restart of the device ends it.
fn sequence_numbers_outlive_a_queue_pair(personality: Personality) {
    let emulator = Running::start(Config { reboot: Duration::ZERO, ..sender(personality) });
    let wire = Wire::new();
    let mut host = Host::connect(&emulator);
    host.load(&messages(3, 64), 1);
    let round = |host: &mut Host, qpn| {
        let config = wire.config(64, 256, 4).authenticate(Qpn::from_low_bits(qpn), Rkey::new(0xCAFE_BABE));
        host.enable(regs::ENABLE_OFF);
        host.client.configure_roce(&config).expect("configured");
        host.enable(regs::ENABLE_SINGLE);
        let packets: Vec<Packet> = (0..3).flat_map(|_| wire.frame()).collect();
        assert!(packets.iter().all(|packet| packet.qpn == qpn));
        packets.iter().filter_map(|p| p.imm.map(|imm| (p.psn, imm >> 12, imm & 0xFFF))).collect::<Vec<_>>()
    };
    let frames = match personality {
        Personality::Fpga => [
            [(1, 1, 0), (3, 3, 1), (5, 5, 2)],
            [(7, 7, 3), (9, 9, 0), (11, 11, 1)],
            [(13, 13, 2), (15, 15, 3), (17, 17, 0)],
        ],
        Personality::Lenient => [
            [(0, 0, 1), (1, 1, 2), (2, 2, 3)],
            [(3, 3, 1), (4, 4, 2), (5, 5, 3)],
            [(6, 6, 1), (7, 7, 2), (8, 8, 3)],
        ],
    };
    for (qpn, expected) in [0x123, 0x123, 0x124].into_iter().zip(frames) {
        assert_eq!(round(&mut host, qpn), expected, "to {qpn:#x}");
    }
    if personality == Personality::Fpga {
        // No answer comes; the session then finds the numbers of its requests begun anew.
        host.restart();
        host.load(&messages(3, 64), 1);
        assert_eq!(round(&mut host, 0x124), frames[0]);
    }
}

fn the_mask_holds_frames_back_and_nothing_else_changes(personality: Personality) {
    let emulator = Running::start(Config { personality, response_timeout: CEILING, ..Config::default() });
    let peer = (emulator.qpn, emulator.ip());
    let bridge = Bridge::start(own_ip(), (4, 384), peer, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(3, 64), 1);
    host.write(&[
        (Capture::Control.address(), regs::CAPTURE_RESET),
        (Capture::Control.address(), regs::CAPTURE_ENABLE),
    ]);
    host.enable(regs::ENABLE_LOOP);
    bridge.wait_for_messages(4);
    let mask = Hif::VpMask.at(regs::EMULATOR_HIF_ADDRESS);
    host.write(&[(mask, 0)]);
    if personality == Personality::Fpga {
        // Windows that do not leave have no answers to capture.
        let mut valid = |sample| host.read(CAPTURE_RAM.address(VALID_WORD, sample).expect("inside")) & 1 != 0;
        wait_for("standstill", || (0..3).all(|sample| !valid(sample)).then_some(()));
        let before = bridge.served.load(Ordering::Relaxed);
        assert_eq!(host.read(Hif::VpMask.at(regs::HIF_ADDRESS)), 0, "the same register");
        assert_eq!(bridge.served.load(Ordering::Relaxed), before);
        host.write(&[(mask, 1)]);
    }
    let before = bridge.served.load(Ordering::Relaxed);
    bridge.wait_for_messages(before + 5);
    host.enable(regs::ENABLE_OFF);
    let summary = emulator.finish();
    assert_eq!(summary.masked > 0, personality == Personality::Fpga);
    assert!(summary.is_success(), "{summary:?}");
    let pages: Vec<u32> = bridge.finish().iter().map(|arrival| arrival.0).collect();
    assert!(pages.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 4), "{pages:?}");
}

/// A queue pair as a host: metadata land behind the frame, and the immediate completes it.
fn a_host_that_takes_metadata_gets_its_frames_all_the_same(personality: Personality) {
    let emulator = Running::start(Config { personality, response_timeout: CEILING, ..Config::default() });
    let peer = (emulator.qpn, emulator.ip());
    let bridge = Bridge::start(own_ip(), (4, 384), peer, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    let config = RoceConfig { frame_size: 128, metadata: true, ..bridge.config() };
    host.client.configure_roce(&config).expect("configured");
    host.load(&messages(3, 128), 2);
    assert_eq!(host.capture_pass().iter().filter(|sample| sample.valid).count(), 6);
    let summary = emulator.finish();
    assert!(summary.is_success(), "{summary:?}");
    let arrivals = bridge.finish();
    let (packets, len) = match personality {
        // The completion is the metadata's, whose bytes lie behind what the bridge looks at.
        Personality::Fpga => (6, METADATA_LEN),
        Personality::Lenient => (3, 256),
    };
    assert_eq!((summary.packets, arrivals[2].1.len()), (packets, len));
    if personality == Personality::Lenient {
        assert_eq!(FrameMetadata::decode(&arrivals[2].1[128..]).expect("a block").frame_number, 2);
    }
}
