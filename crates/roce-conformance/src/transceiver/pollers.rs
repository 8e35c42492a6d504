//! Many transceivers on the thread of a shared poller.

use std::thread;

use roce_transport::{ConfigBuilder, Mode, PollerOptions, SharedPoller, State, TxMode};

use super::{Station, peer_of, round_trips};
use crate::links::{Links, Side};

const PAGES: u32 = 16;

/// One poller on each side.
struct Pollers([SharedPoller; 2]);

impl Pollers {
    fn start() -> Self {
        let start = || SharedPoller::start(PollerOptions::default()).expect("a thread");
        Self([start(), start()])
    }

    /// Two that are connected with each other and served: one that asks, and one that answers or sends back.
    fn pair<L: Links>(&self, links: &L, answering: Mode) -> [Station; 2] {
        let shape = |config: ConfigBuilder| config.num_pages(PAGES).page_size(128).frame_size(72);
        let asking = shape(links.config(Side::A)).tx_mode(TxMode::WriteWithImm);
        let pair = [asking, shape(links.config(Side::B)).mode(answering)].map(Station::set_up);
        let ends = pair.each_ref().map(|station| station.endpoint().expect("set up"));
        for ((station, peer), poller) in pair.iter().zip([ends[1], ends[0]]).zip(&self.0) {
            station.connect(&peer_of(peer)).unwrap_or_else(|e| panic!("connect: {e}"));
            poller.add(station).expect("connected");
        }
        pair
    }
}

fn assert_clean(pair: &[Station; 2], count: u64) {
    for station in pair {
        let stats = station.stats();
        assert_eq!((stats.sent, stats.received), (count, count));
        let bad = (stats.lost, stats.overruns, stats.dropped, stats.completion_errors);
        assert_eq!(bad, (0, 0, 0, 0), "lost, overruns, dropped, completion errors");
        assert_eq!(station.state(), State::Running);
    }
}

pub(crate) fn one_thread_serves_many<L: Links>(links: &L) {
    const COUNT: u64 = 300;
    let pollers = Pollers::start();
    let modes = [Mode::Threads, Mode::Forward].into_iter().cycle().take(8);
    let pairs: Vec<_> = modes.map(|mode| pollers.pair(links, mode)).collect();
    thread::scope(|scope| {
        for [a, b] in &pairs {
            scope.spawn(|| round_trips(a, b, COUNT));
        }
    });
    pairs.iter().for_each(|pair| assert_clean(pair, COUNT));
    pairs.into_iter().flatten().for_each(Station::close_well);
}

pub(crate) fn members_come_and_go<L: Links>(links: &L) {
    const COUNT: u64 = 500;
    let pollers = Pollers::start();
    let steady = [pollers.pair(links, Mode::Threads), pollers.pair(links, Mode::Forward)];
    thread::scope(|scope| {
        for [a, b] in &steady {
            scope.spawn(|| round_trips(a, b, COUNT));
        }
        for mode in [Mode::Forward, Mode::Threads].into_iter().cycle().take(20) {
            let guests = pollers.pair(links, mode);
            round_trips(&guests[0], &guests[1], 5);
            assert_clean(&guests, 5);
            for guest in &guests {
                guest.close();
                assert_eq!(guest.state(), State::Closed);
            }
        }
    });
    steady.iter().for_each(|pair| assert_clean(pair, COUNT));
}
