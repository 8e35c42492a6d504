//! The board as a host meets it: discovered, started, configured, restarted in mid-run, and configured anew; and
//! what it makes of rubbish.

mod support;

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use hsb_emulator::{Config, Emulator, EmulatorError, Enumeration, Personality};
use roce_rendezvous::hsb::ecb::{Command, Flags, Pair, Request};
use roce_rendezvous::hsb::enumeration::{Announcement, Model, Reply};
use roce_rendezvous::hsb::regs::{self, Player, Vp};
use roce_rendezvous::hsb::{
    BlockingClient, BlockingDiscovery, DiscoveryConfig, FPGA_QPN, Mac, ResetOptions, Serial, StartOptions,
    Uuid,
};
use support::{
    Bridge, CEILING, Host, PATIENT, REQUEST, Running, device, increment, message, own_ip, wait_for,
};

with_both!(
    a_board_is_discovered_started_and_restarted_in_mid_run,
    two_boards_are_told_apart,
    rubbish_on_the_control_port,
    rubbish_on_the_enumeration_port,
);

/// Where the announcements of one test go.
fn port_of_ours() -> (UdpSocket, SocketAddrV4) {
    let socket = UdpSocket::bind((own_ip(), 0)).expect("a socket");
    socket.set_read_timeout(Some(CEILING)).expect("a ceiling");
    let SocketAddr::V4(address) = socket.local_addr().expect("its address") else { unreachable!() };
    (socket, address)
}

fn announced(personality: Personality, to: SocketAddrV4) -> Config {
    let enumeration = Enumeration {
        interval: Duration::from_millis(20),
        targets: Some(vec![to]),
        ..Enumeration::default()
    };
    Config {
        personality,
        enumeration: Some(enumeration),
        response_timeout: CEILING,
        reboot: Duration::from_millis(100),
        ..Config::default()
    }
}

fn messages(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|m| message(REQUEST, 0, m, &[m.to_le_bytes()[0]; 8])).collect()
}

fn a_board_is_discovered_started_and_restarted_in_mid_run(personality: Personality) {
    // A port that nobody else has, given back for the discovery to take.
    let (placeholder, target) = port_of_ours();
    drop(placeholder);
    let discovery = DiscoveryConfig { address: target, ..DiscoveryConfig::default() };
    let mut ears = BlockingDiscovery::open(&discovery).expect("listening");
    let emulator = Running::start(announced(personality, target));
    let board = ears.find(CEILING, |_| true).expect("it announces itself");
    assert_eq!((board.peer_ip, board.version()), (emulator.ip(), u32::from(personality.hsb_ip_version())));
    assert_eq!((board.uuid(), board.data_plane()), (Some(personality.uuid()), 0));
    drop(ears);

    let mut host = Host::connect(&emulator);
    host.client.start(&StartOptions::default()).expect("started");
    let peer = (emulator.qpn, emulator.ip());
    let bridge = |pages| Bridge::start(own_ip(), (pages, 384), peer, |request| vec![increment(request)]);
    // The very registers that a host finds for the board's first sensor.
    let place = board.place(0).expect("a sensor");
    let four = bridge(4);
    host.client.configure_roce(&four.config().at(place)).expect("configured");
    host.load(&messages(3), 1);
    host.enable(regs::ENABLE_LOOP);
    four.wait_for_messages(10);

    let options = ResetOptions { discovery, timeout: CEILING, ..ResetOptions::default() };
    let again = host.client.reset(&options).expect("it comes back");
    assert_eq!(again.serial(), board.serial());
    let qp = host.read(Vp::Qp.at(place.vp_address));
    let enabled = host.read(Player::Enable.address());
    match personality {
        Personality::Fpga => assert_eq!((qp, enabled), (0, 0)),
        Personality::Lenient => {
            assert_eq!((qp, enabled), (four.qpn.get(), regs::ENABLE_LOOP), "no such thing");
            host.enable(regs::ENABLE_OFF);
        }
    }

    // Another number of pages, from another address.
    let two = bridge(2);
    host.client.configure_roce(&two.config().at(place)).expect("configured anew");
    host.load(&messages(3), 1);
    assert_eq!(host.capture_pass().iter().filter(|sample| sample.valid).count(), 3);
    let pages: Vec<u32> = two.finish().iter().map(|arrival| arrival.0).collect();
    let expected = match personality {
        Personality::Fpga => [0, 1, 0],
        Personality::Lenient => [1, 0, 1],
    };
    assert_eq!(pages, expected);
    drop(four.finish());
    let summary = emulator.finish();
    assert_eq!(summary.control.resets, u64::from(personality == Personality::Fpga));
    assert_eq!((summary.timeouts.total(), summary.failures.total()), (0, 0), "{summary:?}");
    let counts = summary.enumeration.expect("it announces itself");
    assert!(counts.sent >= 2 && counts.send_errors == 0);
}

fn two_boards_are_told_apart(personality: Personality) {
    let (socket, target) = port_of_ours();
    let board = |uuid, serial| {
        let mut config = announced(personality, target);
        let enumeration = config.enumeration.as_mut().expect("announced");
        (enumeration.uuid, enumeration.serial) = (uuid, serial);
        Running::start(config)
    };
    let (uuid, serial) = (Uuid([7; 16]), Serial([9; 7]));
    let boards = [board(Some(uuid), Some(serial)), board(None, None)];
    let heard = boards.each_ref().map(|board| {
        wait_for("announcement", || {
            let mut bytes = [0; 512];
            let (len, from) = socket.recv_from(&mut bytes).expect("an announcement");
            let announcement = Announcement::parse(&bytes[..len]).expect("well-formed");
            assert_eq!((from.port(), SocketAddr::from((announcement.ip, 12268))), (12268, from));
            (announcement.ip == board.ip()).then_some(announcement)
        })
    });
    assert_eq!(heard[0].serial, serial);
    let [a, b, c, d] = boards[1].ip().octets();
    assert_eq!(
        (heard[1].serial, heard[1].mac),
        (Serial([0, 0, 0, a, b, c, d]), Mac([0x02, 0x48, a, b, c, d]))
    );
    assert_ne!(heard[0].mac, heard[1].mac);
    let uuids = heard.map(|announcement| match announcement.model {
        Model::Uuid { uuid, .. } => uuid,
        other => panic!("{other:?}"),
    });
    assert_eq!(uuids, [uuid, personality.uuid()]);
}

/// What is random here comes again with the same seed.
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.next() % limit).expect("small")
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

fn rubbish_on_the_control_port(personality: Personality) {
    let ip = own_ip();
    let config = Config { personality, control: SocketAddrV4::new(ip, 0), ..Config::default() };
    let emulator = Emulator::bind(config, device(ip)).expect("an emulator");
    let socket = UdpSocket::bind((ip, 0)).expect("a socket");
    socket.connect(emulator.control_address()).expect("its address");
    let mut random = Seeded(5);
    let total = || {
        let counts = emulator.control_counts();
        counts.executed + counts.refused + counts.garbage
    };
    for round in 0..600 {
        let len = random.below(if round % 50 == 0 { 60_000 } else { 100 });
        let mut bytes = random.bytes(len);
        // Most of them look like requests at first.
        if round % 4 != 0 && bytes.len() > 9 {
            bytes[0] = [0x04, 0x09, 0x14, 0x19, 0x20][random.below(5)];
            bytes[1] &= 7;
            // Registers that are there, but none that restarts the board.
            bytes[6..9].copy_from_slice(&[0, 0, 0x10]);
        }
        socket.send(&bytes).expect("sent");
        wait_for("the datagram counted", || (total() > round).then_some(()));
    }
    assert_eq!((total(), emulator.control_counts().socket_errors), (600, 0));
    let counts = emulator.control_counts();
    assert!(counts.executed > 0 && counts.refused > 0 && counts.garbage > 0, "{counts:?}");
    let mut client = BlockingClient::connect(emulator.control_address(), PATIENT).expect("a session");
    client.write(0x1004, 77).expect("still served");
    assert_eq!(client.read(0x1004).expect("still served"), 77);
}

fn rubbish_on_the_enumeration_port(personality: Personality) {
    let ip = own_ip();
    let (socket, target) = port_of_ours();
    let config = Config { control: SocketAddrV4::new(ip, 0), ..announced(personality, target) };
    let emulator = Emulator::bind(config, device(ip)).expect("an emulator");
    let hear = || {
        let mut bytes = [0; 512];
        let (len, from) = socket.recv_from(&mut bytes).expect("an announcement");
        (Announcement::parse(&bytes[..len]).expect("well-formed"), from)
    };
    let counts = || emulator.enumeration_counts().expect("it announces itself");
    let (announcement, board) = hear();
    let reply = Reply::to(&announcement, [10, 0, 0, 9].into(), *target.ip());
    let foreign = Reply { mac: Mac([9; 6]), ..reply }.encode();
    let mut random = Seeded(6);
    let mut sent = 0;
    for len in [0, 1, 33, 34, 299, 301, 1200, 60_000] {
        let mut bytes = random.bytes(len);
        bytes.iter_mut().take(1).for_each(|op| *op = 2);
        for datagram in [&bytes[..], &foreign[..len.min(300)], &announcement.encode()[..len.min(300)]] {
            socket.send_to(datagram, board).expect("sent");
            sent += 1;
            wait_for("the datagram counted", || (counts().ignored == sent).then_some(()));
        }
    }
    assert_eq!((counts().replies, hear().0.ip), (0, ip));
    socket.send_to(&reply.encode(), board).expect("sent");
    match personality {
        Personality::Fpga => {
            wait_for("the new address", || (hear().0.ip == reply.ip).then_some(()));
            assert_eq!(counts().replies, 1);
        }
        Personality::Lenient => {
            wait_for("the reply ignored", || (counts().ignored == sent + 1).then_some(()));
            assert_eq!(hear().0.ip, ip);
        }
    }
}

#[test]
fn a_board_that_restarts_hears_nothing_and_counts_from_0() {
    let ip = own_ip();
    let (socket, target) = port_of_ours();
    let config = Config { control: SocketAddrV4::new(ip, 0), ..announced(Personality::Fpga, target) };
    let emulator = Emulator::bind(config, device(ip)).expect("an emulator");
    let round = || {
        let mut bytes = [0; 512];
        let (len, _) = socket.recv_from(&mut bytes).expect("an announcement");
        Announcement::parse(&bytes[..len]).expect("well-formed").fpga.expect("an FPGA's").sequence
    };
    let mut last = 0;
    wait_for("second announcement", || {
        last = round();
        (last > 0).then_some(())
    });

    let control = UdpSocket::bind((ip, 0)).expect("a socket");
    control.connect(emulator.control_address()).expect("its address");
    control.set_read_timeout(Some(CEILING)).expect("a ceiling");
    let request = |command, sequence, address, data| {
        let flags = Flags { ack: true, check_sequence: sequence == 1 };
        let bytes = Request { command, flags, sequence, pairs: vec![Pair::new(address, data)] }.encode();
        control.send(&bytes).expect("sent");
    };
    request(Command::WriteBlock, 1, regs::RESET, regs::RESET_DEVICE);
    request(Command::ReadDword, 2, regs::VERSION, 0);
    wait_for("lost request", || (emulator.control_counts().lost == 1).then_some(()));
    wait_for("announcement after the restart", || {
        let now = round();
        let restarted = now < last;
        last = now;
        restarted.then_some(())
    });
    request(Command::ReadDword, 1, regs::VERSION, 0);
    let mut answer = [0; 64];
    let len = control.recv(&mut answer).expect("an answer");
    let expected = [0x94, 3, 0, 1, 0, 0, 0, 0, 0, 0x80, 0, 0, 0x26, 6, 0, 1, 0, 0];
    assert_eq!(answer[..len], expected, "to the last request, and none to those before");
    assert_eq!((emulator.control_counts().resets, emulator.control_counts().lost), (1, 1));
}

/// A SEND with an immediate is none to an FPGA.
#[test]
fn what_an_fpga_does_not_take() {
    let config = Config { response_timeout: Duration::from_secs(1), ..Config::default() };
    let emulator = Running::start(config);
    let mut host = Host::connect(&emulator);
    let peer = (emulator.qpn, emulator.ip());
    let bridge = Bridge::start_with(own_ip(), (4, 384), peer, Some(1), |request| vec![increment(request)]);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(1), 1);
    assert!(host.capture_pass().iter().all(|sample| !sample.valid));
    let summary = emulator.finish();
    assert_eq!((summary.timeouts.total(), summary.ignored, summary.late), (1, 1, 0));
}

#[test]
fn hosts_at_other_addresses_send_to_the_same_number() {
    let emulator = Running::start(Config { response_timeout: CEILING, ..Config::default() });
    assert_eq!(emulator.qpn, FPGA_QPN);
    let mut host = Host::connect(&emulator);
    host.load(&messages(2), 1);
    for _ in 0..3 {
        let peer = (FPGA_QPN, emulator.ip());
        let bridge = Bridge::start(own_ip(), (4, 384), peer, |request| vec![increment(request)]);
        host.client.configure_roce(&bridge.config()).expect("configured");
        assert_eq!(host.capture_pass().iter().filter(|sample| sample.valid).count(), 2);
        drop(bridge.finish());
    }
    assert!(emulator.finish().is_success());
}

#[test]
fn a_port_that_another_board_announces_from_is_told() {
    let (_socket, target) = port_of_ours();
    let ip = own_ip();
    let config = || Config { control: SocketAddrV4::new(ip, 0), ..announced(Personality::Fpga, target) };
    let _emulator = Emulator::bind(config(), device(ip)).expect("an emulator");
    let error = Emulator::bind(config(), device(ip)).expect_err("taken");
    assert!(matches!(error, EmulatorError::Enumeration { call: "bind", .. }), "{error}");
}
