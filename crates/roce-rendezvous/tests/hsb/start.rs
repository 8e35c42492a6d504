//! What starts a board, and a board that restarts.

use std::net::SocketAddrV4;
use std::time::Duration;

use roce_rendezvous::hsb::{DiscoveryConfig, HsbError, ResetOptions, StartOptions};

use super::board::{FakeBoard, Manners};
use super::{CEILING, connect, own_ip};

const PTP: [(u32, u32); 5] = [(0x110, 2), (0x114, 2), (0x118, 3), (0x10C, 0x33), (0x104, 3)];
const EVENTS: [(u32, u32); 13] = [
    (0x224, 0),
    (0x204, 0),
    (0x208, 0),
    (0x20C, 0xFFFF_FFFF),
    (0x20C, 0),
    (0x228, 0x3937),
    (0x22C, 0),
    (0x210, 0xFFFF_FFFF),
    (0x214, 0xFFFF),
    (0x218, 0xFFFF_FFFF),
    (0x21C, 5000),
    (0x220, 8432),
    (0x2080, 0),
];

#[tokio::test]
async fn a_board_is_started_in_order() {
    let options = StartOptions { event_port: 5000, ..StartOptions::default() };
    let bare = StartOptions { ptp: false, null_sequence: false, ..options };
    for (version, options, expected) in [
        (0x2606, &options, [PTP.as_slice(), &EVENTS].concat()),
        (0x2503, &bare, EVENTS[..12].to_vec()),
        (0x2502, &options, PTP.to_vec()),
    ] {
        let board = FakeBoard::start(Manners { version, ..Manners::default() });
        let mut client = connect(board.address).await;
        client.start(options).await.unwrap();
        assert_eq!(board.take_writes(), expected, "{version:#x}");
    }
}

fn at_own_address() -> DiscoveryConfig {
    DiscoveryConfig { address: SocketAddrV4::new(own_ip(), 12267), interface: None }
}

#[tokio::test]
async fn a_reset_waits_for_the_board_and_starts_it() {
    let discovery = at_own_address();
    let board = FakeBoard::start(Manners { announce_to: Some(discovery.address), ..Manners::default() });
    let mut client = connect(board.address).await;
    client.write(0x1000, 7).await.unwrap();
    board.take_done();
    let options = ResetOptions { discovery, timeout: CEILING, ..ResetOptions::default() };
    let heard = client.reset(&options).await.unwrap();
    assert_eq!((heard.peer_ip, board.restarts()), (*board.address.ip(), 1));
    let mut expected = vec![(0x8, 0), (0x8, 3), (0x4, 8)];
    expected.extend(PTP);
    expected.extend(EVENTS);
    expected[18] = (0x21C, 0);
    assert_eq!(board.take_writes(), expected);
    assert_eq!(client.read(0x1000).await.unwrap(), 0, "what was written before is gone");

    let again = ResetOptions { board: Some(heard), ..options };
    client.reset(&again).await.unwrap();
    assert_eq!(board.restarts(), 2);
}

#[tokio::test]
async fn a_board_that_does_not_come_back_is_an_error() {
    let board = FakeBoard::start(Manners::default());
    let mut client = connect(board.address).await;
    let timeout = Duration::from_millis(100);
    let options = ResetOptions { discovery: at_own_address(), timeout, ..ResetOptions::default() };
    let error = client.reset(&options).await.unwrap_err();
    assert!(matches!(error, HsbError::NoBoard { .. }), "{error}");
}

#[tokio::test]
async fn a_board_that_another_has_restarted_says_so() {
    let discovery = at_own_address();
    let board = FakeBoard::start(Manners { announce_to: Some(discovery.address), ..Manners::default() });
    let mut ours = connect(board.address).await;
    let mut theirs = connect(board.address).await;
    theirs.write(0x4, 8).await.unwrap_or_else(|error| {
        assert!(matches!(error, HsbError::Restarted { .. }), "{error}");
    });
    let error = ours.write(0x1000, 1).await.unwrap_err();
    assert!(
        matches!(error, HsbError::Restarted { .. }) && error.to_string().contains("restarted"),
        "{error}"
    );
    assert_eq!(board.register(0x1000), None);
    ours.write(0x1000, 1).await.unwrap();
}
