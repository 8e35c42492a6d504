//! Many transceivers on one thread: over real sockets on loopback, those of each side on one address.

#[path = "../common/mod.rs"]
mod common;
mod tampered;

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use common::{peer_of, publish, soft, take, unused_addr, wait_for, wait_until};
use roce_ring::Consumer;
use roce_soft::{SoftConfig, SoftDevice};
use roce_transport::{
    ConfigBuilder, Error, FaultConfig, Mode, Monitor, OverrunPolicy, PollerOptions, RingEnds, SharedPoller,
    State, Transceiver, TxMode, Unified,
};
use tampered::{Tamper, Tampered};

const PAGES: u32 = 64;

type Service = Transceiver<Tampered<SoftDevice>>;

/// Where the two sides of all links of a test are.
struct Site {
    callers: Ipv4Addr,
    services: Ipv4Addr,
}

impl Site {
    fn new() -> Self {
        Self { callers: unused_addr(), services: unused_addr() }
    }

    fn link(&self, mode: Mode) -> Link {
        self.link_with(|caller| caller, |service| service.mode(mode))
    }

    fn link_with(
        &self,
        caller: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
        service: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
    ) -> Link {
        let small = |addr| soft(addr).num_pages(PAGES).page_size(64).frame_size(16);
        let caller = caller(small(self.callers).mode(Mode::Unified).tx_mode(TxMode::WriteWithImm));
        let caller = Transceiver::new(caller.build().expect("valid"));
        let service = service(small(self.services)).build().expect("valid");
        let tamper = Arc::new(Tamper::default());
        let (opened, addr) = (Arc::clone(&tamper), self.services);
        let service = Transceiver::with_device(service, move |_| {
            let link = SoftDevice::open(SoftConfig { addr, ..SoftConfig::default() })?;
            Ok(Tampered { link, tamper: Arc::clone(&opened) })
        });
        let (at_caller, at_service) = (caller.setup().expect("set-up"), service.setup().expect("set-up"));
        caller.connect(&peer_of(at_service)).expect("connect");
        service.connect(&peer_of(at_caller)).expect("connect");
        let end = caller.take_unified().expect("connected");
        let ends = service.take_ends().expect("set up");
        Link { service, ends, tamper, end, sent: 0, _caller: caller }
    }

    fn link_many(&self, count: usize, mode: Mode) -> Vec<Link> {
        (0..count).map(|_| self.link(mode)).collect()
    }

    /// Links of all modes that answer.
    fn links(&self, count: usize) -> Vec<Link> {
        (0..count).map(|n| self.link(if n % 2 == 0 { Mode::Threads } else { Mode::Forward })).collect()
    }
}

/// A service under test, and its caller, whom the test's thread polls.
struct Link {
    service: Service,
    ends: RingEnds,
    tamper: Arc<Tamper>,
    end: Unified,
    sent: u32,
    _caller: Transceiver,
}

impl Link {
    /// Sends the next message and gives its slot and its number.
    fn ask(&mut self) -> (u32, u64) {
        let (slot, number) = (self.sent % PAGES, u64::from(self.sent) << 20 | 7);
        self.sent += 1;
        self.end.tx_slot(slot).copy_from(0, &number.to_le_bytes());
        self.end.tx_publish(slot).expect("sent");
        (slot, number)
    }

    /// What came back, in its slot.
    fn answer(&mut self) -> Option<(u32, u64)> {
        let slot = self.end.rx_poll().expect("open")?;
        Some((slot, u64::from_le_bytes(self.end.rx_slot(slot).read(0))))
    }

    /// There and back. With rings in between, the test's thread passes the message on.
    fn round_trip(&mut self) {
        let (slot, number) = self.ask();
        if self.service.config().mode() == Mode::Threads {
            assert_eq!(wait_for("a request", || take(&mut self.ends.rx, slot)), number);
            publish(&self.ends.tx, slot, number + 1);
            assert_eq!(wait_for("an answer", || self.answer()).1, number + 1);
        } else {
            assert_eq!(wait_for("an echo", || self.answer()), (slot, number));
        }
    }

    fn is_clean(&self) -> bool {
        let stats = self.service.stats();
        (stats.sent, stats.received) == (self.sent.into(), self.sent.into())
            && (stats.lost, stats.overruns, stats.dropped, stats.completion_errors) == (0, 0, 0, 0)
    }
}

fn start() -> SharedPoller {
    SharedPoller::start(PollerOptions::default()).expect("a thread")
}

/// Under a poller that has just been started.
fn served(links: &[Link]) -> (SharedPoller, Vec<Monitor>) {
    let poller = start();
    let monitors = links.iter().map(|link| poller.add(&link.service).expect("connected")).collect();
    (poller, monitors)
}

fn round_trips<'a>(links: impl IntoIterator<Item = &'a mut Link>, count: u32) {
    let mut links: Vec<_> = links.into_iter().collect();
    for _ in 0..count {
        links.iter_mut().for_each(|link| link.round_trip());
    }
}

/// All but the one at `left_out` go on as if nothing had happened.
fn the_others_go_on(links: &mut [Link], left_out: usize) {
    let others = links.iter_mut().enumerate().filter(|(n, _)| *n != left_out).map(|(_, link)| link);
    let mut others: Vec<_> = others.collect();
    round_trips(others.iter_mut().map(|link| &mut **link), 3 * PAGES);
    assert!(others.iter().all(|link| link.is_clean() && link.service.state() == State::Running));
}

#[test]
fn many_pass_their_messages_and_end_well() {
    let mut links = Site::new().links(24);
    let (_poller, monitors) = served(&links);
    round_trips(&mut links, 2 * PAGES + 3);
    for (link, monitor) in links.iter().zip(monitors) {
        assert!(link.is_clean(), "{:?}", link.service.stats());
        assert!(!monitor.has_ended());
        link.service.close();
        monitor.wait().expect("closed, not failed");
        assert_eq!((link.service.state(), monitor.has_ended()), (State::Closed, true));
    }
}

#[test]
fn bursts_on_all_at_once_arrive_in_order() {
    let mut links: Vec<_> = Site::new().link_many(6, Mode::Forward);
    let (_poller, _monitors) = served(&links);
    for _ in 0..20 {
        let asked: Vec<Vec<_>> =
            links.iter_mut().map(|link| (0..PAGES / 2).map(|_| link.ask()).collect()).collect();
        for (link, asked) in links.iter_mut().zip(asked) {
            for message in asked {
                assert_eq!(wait_for("an echo", || link.answer()), message);
            }
        }
    }
    assert!(links.iter().all(Link::is_clean));
}

#[test]
fn losses_of_one_are_counted_there_alone() {
    let faults: FaultConfig = "drop=0.3,seed=11".parse().expect("valid");
    let site = Site::new();
    let mut links = site.links(5);
    links.push(site.link_with(|caller| caller.faults(faults), |service| service.mode(Mode::Forward)));
    let lossy = links.len() - 1;
    let (_poller, _monitors) = served(&links);
    for _ in 0..300 {
        links[lossy].ask();
        round_trips(&mut links[..lossy], 1);
    }
    // The losses up to a message that arrives are counted with it.
    let link = &mut links[lossy];
    while link.answer().is_some() {}
    let (_, last) = wait_for("one that arrives", || {
        link.ask();
        link.answer()
    });
    let numbered = |stats: &roce_transport::Stats| stats.received + stats.lost;
    wait_until("its count", || numbered(&link.service.stats()) > last >> 20);
    let stats = link.service.stats();
    assert!(stats.lost > 30 && stats.received > 30 && numbered(&stats) <= link.sent.into(), "{stats:?}");
    the_others_go_on(&mut links, lossy);
}

#[test]
fn one_that_fails_tells_its_owner_and_nobody_else() {
    for failing in [2, 3] {
        let mut links = Site::new().links(6);
        let (_poller, monitors) = served(&links);
        links[failing].tamper.fails.store(true, Ordering::Relaxed);
        let error = monitors[failing].wait().expect_err("it failed");
        assert!(matches!(&error, Error::Completion { source, .. } if source.reason == "demanded"), "{error}");
        let service = &links[failing].service;
        assert_eq!(service.state(), State::Failed);
        assert_eq!(service.error().map(|e| e.to_string()), Some(error.to_string()));
        assert_eq!(service.stats().completion_errors, 1);
        the_others_go_on(&mut links, failing);
    }
}

#[test]
fn a_panic_of_one_is_its_error() {
    let mut links = Site::new().links(4);
    let (poller, monitors) = served(&links);
    links[1].tamper.panics.store(true, Ordering::Relaxed);
    let error = monitors[1].wait().expect_err("it panicked");
    assert!(
        matches!(&error, Error::Panic { message, .. } if message.contains("as the test demands")),
        "{error}"
    );
    the_others_go_on(&mut links, 1);
    let mut late = Site::new().link(Mode::Forward);
    poller.add(&late.service).expect("the poller lives");
    late.round_trip();
}

#[test]
fn one_without_room_to_send_holds_up_nobody() {
    for mode in [Mode::Forward, Mode::Threads] {
        let site = Site::new();
        let mut links = site.links(4);
        links.push(site.link(mode));
        let stuck = links.len() - 1;
        let (_poller, _monitors) = served(&links);
        links[stuck].tamper.is_full.store(true, Ordering::Relaxed);
        let (slot, number) = links[stuck].ask();
        if mode == Mode::Threads {
            publish(&links[stuck].ends.tx, slot, number);
        }
        wait_until("the stall", || links[stuck].service.stats().tx_stalls > 0);
        the_others_go_on(&mut links, stuck);
        links[stuck].tamper.is_full.store(false, Ordering::Relaxed);
        assert_eq!(wait_for("it, late", || links[stuck].answer()).1, number);
    }
}

#[test]
fn one_that_waits_for_its_consumer_holds_up_nobody() {
    let site = Site::new();
    let mut links = site.links(4);
    // First in the round: another has to ask the socket for all while it waits.
    links.insert(0, site.link(Mode::Threads));
    let (_poller, _monitors) = served(&links);
    for _ in 0..=PAGES {
        links[0].ask();
    }
    wait_until("the overrun", || links[0].service.stats().overruns == 1);
    the_others_go_on(&mut links, 0);
    let link = &mut links[0];
    assert_eq!(link.service.state(), State::Running);
    // Each slot was published once; the first stands for its newer message.
    let release_all = |rx: &mut Consumer| (0..PAGES).filter_map(|slot| take(rx, slot)).count();
    let mut taken = 0;
    wait_until("all messages", || {
        taken += release_all(&mut link.ends.rx);
        taken == PAGES as usize
    });
    let (slot, number) = link.ask();
    assert_eq!(wait_for("one more", || take(&mut link.ends.rx, slot)), number);
}

#[test]
fn an_overrun_ends_one_that_was_told_to() {
    let site = Site::new();
    let mut links = site.links(3);
    links.push(
        site.link_with(|caller| caller, |service| service.mode(Mode::RxOnly).overrun(OverrunPolicy::Fail)),
    );
    let (_poller, monitors) = served(&links);
    for _ in 0..=PAGES {
        links[3].ask();
    }
    assert!(matches!(monitors[3].wait(), Err(Error::Overrun { slot: 0 })));
    the_others_go_on(&mut links, 3);
}

#[test]
fn they_come_and_go_while_the_others_run() {
    let site = Site::new();
    let mut links = site.links(4);
    let (poller, _monitors) = served(&links);
    for n in 0..40 {
        let mut guest = site.link(if n % 2 == 0 { Mode::Forward } else { Mode::Threads });
        let monitor = poller.add(&guest.service).expect("connected");
        round_trips(&mut links, 1);
        guest.round_trip();
        if n % 3 == 0 {
            guest.ask(); // closed with a message under way
        }
        guest.service.close();
        monitor.wait().expect("closed, not failed");
    }
    the_others_go_on(&mut links, 4);
}

/// Whoever is first: with the close, nothing is left of it.
#[test]
fn one_that_is_closed_while_it_joins_leaves_nothing_behind() {
    let poller = start();
    let (near, far) = (unused_addr(), unused_addr());
    let peer = Transceiver::new(soft(far).build().expect("valid"));
    let at_peer = peer_of(peer.setup().expect("set-up"));
    for _ in 0..1000 {
        let link = Transceiver::new(soft(near).num_pages(2).build().expect("valid"));
        link.setup().expect("set-up");
        link.connect(&at_peer).expect("connect");
        let start = Barrier::new(2);
        let joined = thread::scope(|scope| {
            let joining = scope.spawn(|| {
                start.wait();
                poller.add(&link)
            });
            // Who asks for the state makes both wait for each other at every step.
            scope.spawn(|| while link.state() != State::Closed {});
            start.wait();
            link.close();
            assert!(UdpSocket::bind((near, 4791)).is_ok(), "the socket is still open");
            joining.join().expect("no panic")
        });
        match joined {
            Ok(monitor) => monitor.wait().expect("closed, not failed"),
            Err(refused) => assert!(matches!(refused, Error::Closed), "{refused}"),
        }
        assert_eq!(link.state(), State::Closed);
    }
}

/// One that its own thread polls, and those of another poller.
#[test]
fn the_socket_may_have_others_on_it() {
    let site = Site::new();
    let mut links = site.links(4);
    let mut elsewhere = site.links(4);
    let (_poller, _monitors) = served(&links);
    let (_another, _monitors_there) = served(&elsewhere);
    let mut outside = site.link_with(|caller| caller, |service| service.mode(Mode::Unified));
    let mut own = outside.service.take_unified().expect("connected");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                match own.rx_poll().expect("open") {
                    Some(slot) => {
                        let number = own.rx_slot(slot).read::<8>(0);
                        own.tx_slot(slot).copy_from(0, &number);
                        own.tx_publish(slot).expect("open");
                    }
                    None => thread::yield_now(),
                }
            }
        });
        for _ in 0..2 * PAGES {
            outside.round_trip();
            round_trips(links.iter_mut().chain(&mut elsewhere), 1);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(outside.is_clean() && links.iter().chain(&elsewhere).all(Link::is_clean));
}

#[test]
fn one_way_modes_are_served_too() {
    let site = Site::new();
    let one_way = |mode| site.link_with(|caller| caller, |service| service.mode(mode));
    let (mut rx_only, mut tx_only) = (one_way(Mode::RxOnly), one_way(Mode::TxOnly));
    let poller = start();
    poller.add(&rx_only.service).expect("connected");
    poller.add(&tx_only.service).expect("connected");
    for slot in 0..2 * PAGES {
        let (slot, number) = (slot % PAGES, u64::from(slot));
        let (asked, request) = rx_only.ask();
        assert_eq!(wait_for("a request", || take(&mut rx_only.ends.rx, asked)), request);
        publish(&tx_only.ends.tx, slot, number);
        assert_eq!(wait_for("a message", || tx_only.answer()), (slot, number));
    }
}

#[test]
fn what_is_published_before_close_still_leaves() {
    let site = Site::new();
    let poller = start();
    for _ in 0..20 {
        let mut link = site.link(Mode::Threads);
        poller.add(&link.service).expect("connected");
        for slot in [1, 2, 3, 5, 6] {
            publish(&link.ends.tx, slot, slot.into());
        }
        link.service.close();
        for number in [1, 2, 3, 5, 6] {
            assert_eq!(wait_for("each of them", || link.answer()).1, number);
        }
    }
}

#[test]
fn only_who_is_connected_and_idle_may_join() {
    let poller = start();
    let link = Site::new().link(Mode::Forward);
    poller.add(&link.service).expect("connected");
    assert!(matches!(poller.add(&link.service), Err(Error::State { state: State::Running, .. })));
    assert!(matches!(link.service.blocking_monitor(), Err(Error::State { state: State::Running, .. })));
    link.service.close();
    assert!(matches!(poller.add(&link.service), Err(Error::Closed)));

    let early = Transceiver::new(soft(unused_addr()).build().expect("valid"));
    let refused = poller.add(&early).expect_err("not connected");
    assert!(matches!(refused, Error::State { call: "SharedPoller::add", state: State::Created }));
    let unified = Site::new().link_with(|caller| caller, |service| service.mode(Mode::Unified));
    assert!(matches!(poller.add(&unified.service), Err(Error::State { state: State::Connected, .. })));
    assert!(unified.service.take_unified().is_some(), "as good as before");
}

#[test]
fn who_is_left_when_the_poller_goes_is_told() {
    let mut links = Site::new().links(4);
    let (poller, monitors) = served(&links);
    round_trips(&mut links, 1);
    links[0].service.close();
    drop(poller);
    monitors[0].wait().expect("it was closed before");
    for (link, monitor) in links.iter().zip(monitors).skip(1) {
        assert!(matches!(monitor.wait(), Err(Error::PollerGone)));
        assert_eq!(link.service.state(), State::Failed);
        link.service.close();
        assert_eq!(link.service.state(), State::Closed);
    }
}

#[test]
fn a_thread_that_cannot_be_as_it_should_is_refused() {
    let options = PollerOptions { cpu: Some(100_000), ..PollerOptions::default() };
    assert!(matches!(SharedPoller::start(options), Err(Error::Cpu { cpu: 100_000, .. })));
}

#[test]
fn a_round_asks_the_socket_once_for_all_on_it() {
    let links = Site::new().link_many(8, Mode::RxOnly);
    let (_poller, _monitors) = served(&links);
    let looks = |link: &Link| link.tamper.looks.load(Ordering::Relaxed);
    wait_until("many rounds of all", || links.iter().all(|link| looks(link) > 1000));
    // The first was there in each round, and who is idle looks at what has landed once in each.
    links.iter().rev().for_each(|link| link.service.close());
    let polls: u64 = links.iter().map(|link| link.tamper.polls.load(Ordering::Relaxed)).sum();
    assert_eq!(polls, looks(&links[0]));
}
