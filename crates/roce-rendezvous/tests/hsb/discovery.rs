//! Boards that make themselves known on loopback, and everything else that comes to that port.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use roce_rendezvous::hsb::enumeration::{Announcement, Model, Reply};
use roce_rendezvous::hsb::{Board, BoardKind, Discovery, DiscoveryConfig, HsbError, Ignored, Serial, Uuid};

use super::board::announcement;
use super::{CEILING, own_ip};

/// One address per test, and any port.
fn listen(interface: Option<&str>) -> (Discovery, SocketAddrV4) {
    let address = SocketAddrV4::new(own_ip(), 12267);
    let config = DiscoveryConfig { address, interface: interface.map(str::to_owned) };
    (Discovery::open(&config).unwrap(), address)
}

fn socket() -> (UdpSocket, Ipv4Addr) {
    let ip = own_ip();
    (UdpSocket::bind((ip, 0)).unwrap(), ip)
}

#[tokio::test]
async fn a_board_is_described_by_what_it_says_and_by_how_it_came() {
    let (mut discovery, here) = listen(Some("lo"));
    let (board, ip) = socket();
    // What it says of its address need not be where it is reached.
    let said = announcement(0x2606, Ipv4Addr::new(10, 0, 0, 9));
    board.send_to(&said.encode(), here).unwrap();
    let heard = discovery.find(CEILING, |_| true).await.unwrap();
    assert_eq!((heard.peer_ip, heard.interface.as_str(), heard.local_ip), (ip, "lo", *here.ip()));
    assert_eq!((heard.announcement, heard.version(), heard.mac()), (said, 0x2606, said.mac));
    assert_eq!(heard.kind.map(|kind| (kind.name, kind.sensors)), Some(("hololink-lite", 3)));
    assert_eq!(heard.place(1).unwrap().vp_address, 0x1080);
    assert!(heard.start_options().null_sequence);
}

#[tokio::test]
async fn boards_and_their_data_planes_are_each_told_once() {
    let (mut discovery, here) = listen(None);
    let (socket, _) = socket();
    let plane = |serial, data_plane, seconds| {
        let serial = Serial([0, 0, 0, 0, 0, 0, serial]);
        Announcement { serial, data_plane, seconds, ..announcement(0x2606, *here.ip()) }
    };
    for said in [plane(2, 0, 0), plane(1, 1, 0), plane(1, 0, 0), plane(2, 0, 7)] {
        socket.send_to(&said.encode(), here).unwrap();
    }
    let boards = discovery.collect(Duration::from_millis(300)).await.unwrap();
    let seen = |board: &Board| (board.serial().0[6], board.data_plane(), board.announcement.seconds);
    assert_eq!(boards.iter().map(seen).collect::<Vec<_>>(), [(1, 0, 0), (1, 1, 0), (2, 0, 7)]);
}

#[tokio::test]
async fn a_legacy_board_is_known_by_its_number_and_an_unknown_one_needs_to_be_told() {
    let (mut discovery, here) = listen(None);
    let (socket, _) = socket();
    let of = |model| Announcement { model, ..announcement(0x2510, *here.ip()) };
    let legacy = of(Model::Legacy { board_id: 3, board_version: [7; 20] });
    socket.send_to(&legacy.encode(), here).unwrap();
    let mut heard = discovery.find(CEILING, |_| true).await.unwrap();
    assert_eq!(heard.kind.map(|kind| kind.name), Some("hololink-100G"));
    assert!(!heard.start_options().null_sequence);

    let unknown = of(Model::Uuid { compat_id: 0, uuid: Uuid::from_u128(5), packet_count: 0 });
    socket.send_to(&unknown.encode(), here).unwrap();
    heard = discovery.find(CEILING, |_| true).await.unwrap();
    let error = heard.place(0).unwrap_err();
    assert!(matches!(error, HsbError::UnknownBoard { .. }), "{error}");
    assert!(error.to_string().contains("00000000-0000-0000-0000-000000000005"), "{error}");
    heard.kind = Some(BoardKind::custom(4, 1, 2));
    assert_eq!(heard.place(3).unwrap().vp_address, 0x1180);
}

#[tokio::test]
async fn garbage_is_counted_by_kind_and_passed_over() {
    let (mut discovery, here) = listen(None);
    let (socket, ip) = socket();
    let said = announcement(0x2606, ip);
    let good = said.encode();
    let spoilt = |at: usize, value: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = value;
        bytes
    };
    let mut dhcp = spoilt(236, 0x63);
    dhcp[237..240].copy_from_slice(&[0x82, 0x53, 0x63]);
    let garbage = [
        vec![],
        good[..299].to_vec(),
        [good.as_slice(), &[0]].concat(),
        vec![0xFF; 1472],
        vec![1; 60_000],
        vec![0xFF; 300],
        Reply::to(&said, ip, ip).encode().to_vec(),
        spoilt(2, 16),
        dhcp,
        spoilt(238, b'X'),
        spoilt(243, 3),
    ];
    for datagram in &garbage {
        socket.send_to(datagram, here).unwrap();
    }
    socket.send_to(&good, here).unwrap();
    assert_eq!(discovery.find(CEILING, |_| true).await.unwrap().announcement, said);
    let expected = Ignored { length: 5, operation: 2, hardware: 1, tag: 1, vendor: 1, version: 1 };
    assert_eq!((discovery.ignored(), discovery.ignored().total()), (expected, 11));
}

#[tokio::test]
async fn nobody_is_an_error_that_tells_what_came_instead() {
    let (mut discovery, here) = listen(None);
    let (socket, ip) = socket();
    socket.send_to(&announcement(0x2606, ip).encode(), here).unwrap();
    socket.send_to(b"hello", here).unwrap();
    let time = Duration::from_millis(300);
    let error = discovery.find(time, |board| board.peer_ip.is_broadcast()).await.unwrap_err();
    assert!(
        matches!(error, HsbError::NoBoard { others: 1, ignored: Ignored { length: 1, .. }, .. }),
        "{error}"
    );
    for part in ["12267", "1 announcements of others", "firewall"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(discovery.collect(Duration::from_millis(50)).await.unwrap(), []);
}

#[tokio::test]
async fn several_hear_the_same_broadcast() {
    let [low, high, ..] = std::process::id().to_le_bytes();
    let port = 20_000 + u16::from_le_bytes([low, high]) % 12_000;
    let config = DiscoveryConfig {
        address: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port),
        interface: Some("lo".into()),
    };
    let mut all = [Discovery::open(&config).unwrap(), Discovery::open(&config).unwrap()];
    let (socket, ip) = socket();
    socket.set_broadcast(true).unwrap();
    socket.send_to(&announcement(0x2606, ip).encode(), (Ipv4Addr::new(127, 255, 255, 255), port)).unwrap();
    for discovery in &mut all {
        let heard = discovery.find(CEILING, |_| true).await.unwrap();
        assert_eq!((heard.peer_ip, heard.interface.as_str()), (ip, "lo"));
    }
}

#[tokio::test]
async fn what_cannot_be_listened_on_says_what_to_do() {
    let foreign = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 12267);
    let error = Discovery::open(&DiscoveryConfig { address: foreign, interface: None }).unwrap_err();
    assert!(matches!(error, HsbError::Discovery { call: "bind", .. }), "{error}");
    let address = SocketAddrV4::new(own_ip(), 12267);
    let interface = Some("no-such-if".to_owned());
    let error = Discovery::open(&DiscoveryConfig { address, interface }).unwrap_err();
    assert!(
        matches!(error, HsbError::Interface { .. }) && error.to_string().contains("no-such-if"),
        "{error}"
    );
}
