//! Set-up that fails half-way, and set-up again and again.

use std::net::Ipv4Addr;

use roce_core::{Mtu, PeerEndpoint};
use roce_transport::{Config, ConfigBuilder, Error, MemoryLock, State, Transceiver, TxMode};

use super::{Station, converse, join, peer_of, stations};
use crate::alone::{Holdings, alone, resident_bytes};
use crate::links::{Links, Side};
use crate::wait::wait_until;

fn small(config: ConfigBuilder) -> ConfigBuilder {
    config.num_pages(8).page_size(128).frame_size(72)
}

/// Configurations that are valid, and that no device can serve.
fn hopeless<L: Links>(links: &L) -> Vec<(&'static str, Config)> {
    let largest = Station::set_up(links.config(Side::A)).path_mtu().expect("set up");
    let too_large = Mtu::ALL.into_iter().find(|&mtu| mtu > largest);
    let nobodys = Ipv4Addr::new(192, 0, 2, 1);
    let mut all = vec![
        ("no such device", small(Config::builder("no_such_device_0"))),
        ("an address that nobody has", small(links.config(Side::A).local_ip(nobodys))),
        // The device opens, the regions are registered, and no queue is that deep.
        (
            "too many pages",
            links.config(Side::A).num_pages(1 << 21).page_size(1).memory_lock(MemoryLock::Off),
        ),
    ];
    all.extend(too_large.map(|mtu| ("a path MTU too large", small(links.config(Side::A).mtu(mtu)))));
    all.into_iter().map(|(what, config)| (what, config.build().expect("valid"))).collect()
}

pub(crate) fn a_failed_setup_leaves_nothing<L: Links>(links: &L) {
    alone("setups::a_failed_setup_leaves_nothing", || {
        let before = Holdings::now();
        for (what, config) in hopeless(links) {
            let transceiver = Transceiver::new(config);
            for _ in 0..3 {
                let error = transceiver.setup().expect_err(what);
                assert!(!matches!(error, Error::Closed | Error::State { .. }), "{what}: {error}");
                assert_eq!(transceiver.state(), State::Created, "{what}");
                assert!(transceiver.endpoint().is_none() && transceiver.rx_ring().is_none(), "{what}");
                before.assert_again(what);
            }
            // The link is as good as before, while the failed one still exists.
            converse(links, 10, small, small);
            before.assert_again(what);
        }
    });
}

pub(crate) fn a_refused_connect_can_be_tried_again<L: Links>(links: &L) {
    let write = |config| small(config).tx_mode(TxMode::WriteWithImm);
    let mut a = Station::set_up(write(links.config(Side::A)));
    let mut b = Station::set_up(write(links.config(Side::B)));
    let (at_a, good) = (a.endpoint(), peer_of(b.endpoint().expect("set up")));
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::BROADCAST] {
        assert!(matches!(a.connect(&PeerEndpoint { ip, ..good }), Err(Error::Connect { .. })), "{ip}");
        assert_eq!((a.state(), a.endpoint()), (State::SetUp, at_a));
    }
    assert!(matches!(a.connect(&PeerEndpoint { rkey: None, ..good }), Err(Error::NoRkey)));
    assert_eq!(a.state(), State::SetUp);
    join(&mut a, &mut b);
    super::round_trips(&a, &b, 50);
    a.close_well();
    b.close_well();
}

pub(crate) fn fifty_cycles_leave_nothing<L: Links>(links: &L) {
    /// Rings of 4 MiB in all: what one cycle leaks shows, what an allocator keeps does not.
    const PAGES: u32 = 256;
    const SLACK: usize = 24 << 20;
    let large = |config: ConfigBuilder| {
        config.num_pages(PAGES).page_size(4096).frame_size(512).memory_lock(MemoryLock::Off)
    };
    let cycles = |count| {
        for _ in 0..count {
            let (a, b) = stations(links, large, large);
            let ends = a.take_ends().expect("set up");
            super::publish(&ends, 0, 1);
            wait_until("a message", || b.stats().received == 1);
            a.close_well();
            b.close_well();
        }
    };
    alone("setups::fifty_cycles_leave_nothing", || {
        let before = Holdings::now();
        cycles(10);
        before.assert_again("ten cycles");
        let resident = resident_bytes();
        cycles(50);
        before.assert_again("fifty cycles");
        let now = resident_bytes();
        assert!(now < resident + SLACK, "{resident} bytes resident before, {now} after 50 cycles");
    });
}
