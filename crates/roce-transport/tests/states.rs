//! Every call in every state.

mod common;

use std::sync::Arc;
use std::thread;

use common::{monitor, pair, peer_of, soft, unused_addr, wait_until};
use roce_core::PeerEndpoint;
use roce_transport::{Config, ConfigError, Error, ImmediateFormat, Mode, State, Transceiver, TxMode};

fn config(mode: Mode) -> Config {
    soft(unused_addr()).mode(mode).build().expect("valid")
}

/// A connected pair of one mode; the second is only there to be the peer.
fn connected(mode: Mode) -> (Arc<Transceiver>, Arc<Transceiver>) {
    pair(|b| b, |b| b.mode(mode), |b| b)
}

#[test]
fn a_created_transceiver_has_nothing_open() {
    let t = Transceiver::new(config(Mode::Threads));
    assert_eq!(t.state(), State::Created);
    assert!(t.endpoint().is_none() && t.rx_ring().is_none() && t.take_ends().is_none());
    assert!(t.take_unified().is_none());
    assert!(matches!(t.blocking_monitor(), Err(Error::State { state: State::Created, .. })));
    let peer = PeerEndpoint { qpn: 1.try_into().expect("24 bits"), rkey: None, ip: [127, 0, 0, 9].into() };
    assert!(matches!(t.connect(&peer), Err(Error::State { state: State::Created, .. })));
    assert!(matches!(t.start(), Err(Error::NoPeer)));
}

#[test]
fn setup_twice_gives_the_same_end() {
    let t = Transceiver::new(config(Mode::Threads));
    let first = t.setup().expect("set-up");
    assert_eq!(t.setup().expect("again"), first);
    assert_eq!(t.endpoint(), Some(first));
    assert_eq!(t.state(), State::SetUp);
    assert!(t.take_ends().is_some());
    assert!(t.take_ends().is_none(), "the ends exist once");
    assert!(matches!(t.blocking_monitor(), Err(Error::State { state: State::SetUp, .. })));
}

#[test]
fn rings_are_as_the_flag_protocol_has_them() {
    let t = Transceiver::new(config(Mode::Threads));
    t.setup().expect("set-up");
    for ring in [t.rx_ring().expect("set up"), t.tx_ring().expect("set up")] {
        assert_eq!(ring.data_addr() as usize % 4096, 0);
        assert_eq!(ring.flag_addr() as usize % 64, 0);
    }
}

#[test]
fn connect_twice_keeps_the_first_peer() {
    let (a, _b) = connected(Mode::Threads);
    let other = PeerEndpoint { qpn: 1.try_into().expect("24 bits"), rkey: None, ip: [127, 0, 0, 9].into() };
    a.connect(&other).expect("nothing to do");
    assert_eq!(a.state(), State::Connected);
}

#[test]
fn a_write_needs_a_key_and_keeps_the_set_up() {
    let a = Transceiver::new(soft(unused_addr()).tx_mode(TxMode::WriteWithImm).build().expect("valid"));
    let b = Transceiver::new(config(Mode::Threads));
    let (end_a, end_b) = (a.setup().expect("set-up"), b.setup().expect("set-up"));
    for rkey in [None, Some(roce_core::Rkey::new(0))] {
        assert!(matches!(a.connect(&PeerEndpoint { rkey, ..peer_of(end_b) }), Err(Error::NoRkey)));
    }
    assert_eq!((a.state(), a.endpoint()), (State::SetUp, Some(end_a)));
    a.connect(&peer_of(end_b)).expect("with the key");
}

#[test]
fn start_is_setup_and_connect() {
    let b = Transceiver::new(config(Mode::Threads));
    let peer = peer_of(b.setup().expect("set-up"));
    let a = Transceiver::new(soft(unused_addr()).peer(peer).build().expect("valid"));
    let end = a.start().expect("start");
    assert_eq!(a.state(), State::Connected);
    assert_eq!(a.start().expect("again"), end);
}

#[test]
fn a_running_monitor_refuses_a_second_and_ends_with_close() {
    for mode in [Mode::Threads, Mode::RxOnly, Mode::TxOnly, Mode::Forward] {
        let (a, _b) = connected(mode);
        let running = monitor(&a);
        wait_until("the monitor", || a.state() == State::Running);
        assert!(matches!(a.blocking_monitor(), Err(Error::State { state: State::Running, .. })), "{mode:?}");
        a.close();
        running.join().expect("no panic").expect("closed, not failed");
        assert_eq!(a.state(), State::Closed, "{mode:?}");
    }
}

#[test]
fn close_from_many_threads_at_once() {
    let (a, _b) = connected(Mode::Threads);
    let running = monitor(&a);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| a.close());
        }
    });
    // The monitor may not have begun before the close; both ends of that race are fine.
    assert!(matches!(running.join().expect("no panic"), Ok(()) | Err(Error::Closed)));
    assert_eq!(a.state(), State::Closed);
}

#[test]
fn a_closed_transceiver_refuses_everything() {
    let (a, b) = connected(Mode::Threads);
    let peer = peer_of(b.endpoint().expect("set up"));
    a.close();
    a.close();
    assert!(matches!(a.setup(), Err(Error::Closed)));
    assert!(matches!(a.connect(&peer), Err(Error::Closed)));
    assert!(matches!(a.blocking_monitor(), Err(Error::Closed)));
    assert!(a.rx_ring().is_none() && a.tx_ring().is_none() && a.endpoint().is_none());
    assert!(a.take_ends().is_none());
}

#[test]
fn close_before_anything_is_open() {
    let t = Transceiver::new(config(Mode::Threads));
    t.close();
    assert_eq!(t.state(), State::Closed);
    assert!(matches!(t.setup(), Err(Error::Closed)));
}

#[test]
fn unified_is_handed_out_once_and_refuses_after_close() {
    let (a, _b) = connected(Mode::Unified);
    assert!(matches!(a.blocking_monitor(), Err(Error::State { .. })), "unified has no threads to monitor");
    let mut unified = a.take_unified().expect("connected");
    assert!(a.take_unified().is_none());
    assert_eq!(a.state(), State::Running);
    assert_eq!(unified.rx_poll().expect("open"), None);
    assert!(matches!(unified.tx_publish(64), Err(Error::Slot { slot: 64, num_pages: 64 })));
    assert!(unified.is_open(), "a bad argument is no failure");
    a.close();
    assert!(matches!(unified.rx_poll(), Err(Error::Closed)));
    assert!(matches!(unified.tx_publish(0), Err(Error::Closed)));
}

#[test]
fn only_unified_mode_hands_out_a_unified_end() {
    let (a, _b) = connected(Mode::Threads);
    assert!(a.take_unified().is_none());
    assert_eq!(a.state(), State::Connected);
    let before = Transceiver::new(config(Mode::Unified));
    before.setup().expect("set-up");
    assert!(before.take_unified().is_none(), "not before connect");
}

#[test]
fn an_address_is_free_again_after_close() {
    let addr = unused_addr();
    for _ in 0..50 {
        let t = Transceiver::new(soft(addr).build().expect("valid"));
        t.setup().expect("the address of the one before is free");
    }
}

#[test]
fn bad_configurations_are_named() {
    let build = |f: fn(roce_transport::ConfigBuilder) -> roce_transport::ConfigBuilder| {
        f(Config::builder("soft")).build().expect_err("invalid")
    };
    assert!(matches!(build(|b| b.num_pages(48)), ConfigError::Geometry(_)));
    assert!(matches!(build(|b| b.num_pages(0)), ConfigError::Geometry(_)));
    assert!(matches!(build(|b| b.frame_size(0)), ConfigError::Geometry(_)));
    assert!(matches!(build(|b| b.frame_size(385)), ConfigError::Geometry(_)));
    assert!(matches!(build(|b| b.port(0)), ConfigError::Port));
    assert!(matches!(build(|b| b.rt_priority(100)), ConfigError::RtPriority(100)));
    assert!(matches!(
        build(|b| b.num_pages(512).immediate(ImmediateFormat::Hsb2510)),
        ConfigError::ImmediateTooNarrow { bits: 8, .. }
    ));
    assert!(matches!(Config::builder("").build(), Err(ConfigError::NoDevice)));
}

#[test]
fn a_device_that_cannot_be_opened_says_why_and_can_be_tried_again() {
    let setup = |device: &str| Transceiver::new(Config::builder(device).build().expect("valid")).setup();
    let message = |device| setup(device).expect_err("not there").to_string();
    assert!(message("mlx5_77").contains("soft:ADDR"), "{}", message("mlx5_77"));
    assert!(message("soft:nowhere").contains("nowhere"));
    assert!(message("soft:192.0.2.1").contains("192.0.2.1"));

    let addr = unused_addr();
    let two = Transceiver::new(soft(addr).local_ip([127, 0, 0, 3].into()).build().expect("valid"));
    assert!(two.setup().expect_err("two addresses").to_string().contains("127.0.0.3"));
    assert_eq!(two.state(), State::Created);
}

#[test]
fn a_failing_thread_ends_the_monitor_with_its_error() {
    let (a, _b) = pair(|b| b, |b| b.rx_cpu(100_000), |b| b);
    assert!(matches!(monitor(&a).join().expect("no panic"), Err(Error::Cpu { cpu: 100_000, .. })));
    assert_eq!(a.state(), State::Failed);
    assert!(matches!(a.error(), Some(Error::Cpu { .. })));
    assert!(matches!(a.blocking_monitor(), Err(Error::State { state: State::Failed, .. })));
    a.close();
    assert_eq!(a.state(), State::Closed);
}
