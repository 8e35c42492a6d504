//! What root may do to a machine while its RDMA device is in use: addresses come and go, a neighbour is silent, locked
//! memory is short, the link goes down.
//!
//! `ROCE_TEST_DEVICE=rxe0 ROCE_TEST_INTERFACE=veth0 cargo test -p roce-conformance --features verbs --test network -- --ignored`,
//! as root. It changes that interface with `ip`: give one that nobody needs.

use std::env;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{Gid, LocalEndpoint, PeerEndpoint, Qpn};
use roce_transport::{Config, ConfigBuilder, Error, MemoryLock, Mode, State, Transceiver};
use roce_verbs::{Context, GidTable, GidType, VerbsConfig, VerbsDevice};

/// For a machine that is very busy.
const CEILING: Duration = Duration::from_secs(60);
/// Benchmarking addresses of RFC 2544, which no network uses for anything else.
const NETWORK: [u8; 3] = [198, 18, 78];

fn var(name: &str) -> String {
    let value = env::var(name).ok().filter(|value| !value.is_empty());
    value.unwrap_or_else(|| panic!("{name} is not set; see the top of this file"))
}

fn host(last: u8) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, last)
}

/// The device and its interface, for one test at a time.
struct Port {
    device: String,
    interface: String,
    _alone: MutexGuard<'static, ()>,
}

impl Port {
    fn take() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Self { device: var("ROCE_TEST_DEVICE"), interface: var("ROCE_TEST_INTERFACE"), _alone: alone }
    }

    fn gids(&self) -> GidTable {
        Context::open(&self.device).and_then(|context| context.gid_table(1)).expect("a GID table")
    }

    fn index_of(&self, ip: Ipv4Addr) -> Option<u32> {
        self.gids().select(Some(ip)).map(|(entry, _)| entry.index)
    }

    /// Gives the interface an address, until the value is dropped, and waits for its GID.
    fn address(&self, ip: Ipv4Addr, prefix: u8) -> Address<'_> {
        let address = Address { port: self, ip, prefix };
        address.ip("add");
        wait_until("the address's GID", || self.index_of(ip).is_some());
        address
    }

    fn config(&self, ip: Ipv4Addr) -> ConfigBuilder {
        let small = Config::builder(&self.device).num_pages(8).page_size(4096).frame_size(64);
        small.local_ip(ip).memory_lock(MemoryLock::Off)
    }

    fn set_up(&self, ip: Ipv4Addr) -> (Arc<Transceiver>, LocalEndpoint) {
        let transceiver = Transceiver::new(self.config(ip).build().expect("valid"));
        let endpoint = transceiver.setup().unwrap_or_else(|e| panic!("set-up at {ip}: {e}"));
        (Arc::new(transceiver), endpoint)
    }
}

struct Address<'a> {
    port: &'a Port,
    ip: Ipv4Addr,
    prefix: u8,
}

impl Address<'_> {
    fn ip(&self, verb: &str) {
        ip(&["address", verb, &format!("{}/{}", self.ip, self.prefix), "dev", &self.port.interface]);
    }
}

impl Drop for Address<'_> {
    fn drop(&mut self) {
        self.ip("delete");
        wait_until("the GID to go", || self.port.index_of(self.ip).is_none());
    }
}

fn ip(args: &[&str]) {
    let done = Command::new("ip").args(args).status().expect("iproute2");
    assert!(done.success(), "ip {}: {done}", args.join(" "));
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + CEILING;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn peer(of: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: of.qpn, rkey: Some(of.rkey), ip: of.ip }
}

/// A running transceiver, and its monitor.
type Running = (Arc<Transceiver>, thread::JoinHandle<Result<(), Error>>);

/// Two that talk to each other.
fn pair(port: &Port, ip: Ipv4Addr) -> [Running; 2] {
    let ((a, at_a), (b, at_b)) = (port.set_up(ip), port.set_up(ip));
    a.connect(&peer(at_b)).expect("connected");
    b.connect(&peer(at_a)).expect("connected");
    [a, b].map(|end| {
        let running = Arc::clone(&end);
        let monitor = thread::spawn(move || running.blocking_monitor());
        wait_until("the threads", || end.state() == State::Running);
        (end, monitor)
    })
}

/// A message really goes from the address to itself.
fn assert_carries(port: &Port, ip: Ipv4Addr) {
    let [(a, to_a), (b, to_b)] = pair(port, ip);
    assert_eq!(a.endpoint().map(|end| end.ip), Some(ip));
    let ends = a.take_ends().expect("set up");
    ends.tx.publish(0);
    wait_until("a message", || b.stats().received == 1);
    a.close();
    b.close();
    for monitor in [to_a, to_b] {
        monitor.join().expect("no panic").expect("no error up to close");
    }
}

/// Entries are found behind places that removed addresses left empty, and in such places when they are filled again.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE and ROCE_TEST_INTERFACE"]
fn addresses_are_found_behind_holes_and_in_them() {
    let port = Port::take();
    let [first, second, third] = [1, 2, 3].map(|last| port.address(host(last), 32));
    assert_carries(&port, host(2));
    drop(first);
    drop(second);
    let table = port.gids();
    let is_third = |gid: Gid, kind| gid == Gid::from(host(3)) && kind == GidType::RoceV2;
    let position = table.entries().iter().position(|e| is_third(e.gid, e.kind)).expect("still there");
    let index = table.entries()[position].index;
    assert!(position < index as usize, "there is no hole before index {index}:\n{table}");
    assert_carries(&port, host(3));

    let gone = VerbsConfig { local_ip: Some(host(1)), ..VerbsConfig::new(&port.device) };
    let text = VerbsDevice::open(gone).map(|_| ()).expect_err("no such address any more").to_string();
    assert!(text.contains("198.18.78.1 on") && text.contains("::ffff:198.18.78.3"), "{text}");

    let fourth = port.address(host(4), 32);
    assert!(port.index_of(host(4)) < Some(index), "the hole is filled:\n{}", port.gids());
    assert_carries(&port, host(4));
    assert_carries(&port, host(3));
    drop((third, fourth));
}

/// The kernel asks for the neighbour at each of our tries; what the message says to do then helps.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE and ROCE_TEST_INTERFACE"]
fn a_silent_neighbour_is_named_and_can_be_given_by_hand() {
    let port = Port::take();
    let _address = port.address(host(1), 24);
    let (transceiver, own) = port.set_up(host(1));
    let nobody = PeerEndpoint { qpn: Qpn::from_low_bits(77), ip: host(2), ..peer(own) };
    let text = match transceiver.connect(&nobody) {
        Err(Error::Connect { source, .. }) => source.to_string(),
        other => panic!("{other:?}"),
    };
    for part in [
        "RTR",
        &format!("{} port 1", port.device),
        "6 tries",
        "os error 110",
        "no neighbour answered for 198.18.78.2",
        "ip neigh replace 198.18.78.2 lladdr MAC",
    ] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert_eq!(transceiver.state(), State::SetUp);
    let by_hand = ["198.18.78.2", "lladdr", "02:00:00:00:00:01", "dev", &port.interface, "nud", "permanent"];
    ip(&[&["neighbour", "replace"], &by_hand[..]].concat());
    transceiver.connect(&nobody).expect("the neighbour is known now");
    ip(&["neighbour", "delete", "198.18.78.2", "dev", &port.interface]);
}

/// Set in the process that has the limit.
const LIMITED: &str = "ROCE_CONFORMANCE_LIMITED";

/// Root has no limit, so this test starts itself again as nobody.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE and ROCE_TEST_INTERFACE"]
fn too_little_locked_memory_is_named() {
    const NAME: &str = "too_little_locked_memory_is_named";
    const NOBODY: u32 = 65534;
    if env::var_os(LIMITED).is_some() {
        return set_up_beyond_the_limit();
    }
    let _port = Port::take();
    let limited = Command::new("sh")
        .args(["-c", "ulimit -l 16 && exec \"$0\" --exact \"$1\" --include-ignored --nocapture"])
        .arg(env::current_exe().expect("a path"))
        .arg(NAME)
        .env(LIMITED, "1")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("a shell, as another user");
    let said = [limited.stdout, limited.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(limited.status.success() && said[0].contains("1 passed"), "{said:?}");
}

fn set_up_beyond_the_limit() {
    let device = var("ROCE_TEST_DEVICE");
    let config = Config::builder(&device).num_pages(8).page_size(4096).memory_lock(MemoryLock::Off);
    let transceiver = Transceiver::new(config.build().expect("valid"));
    for _ in 0..3 {
        let text = transceiver.setup().expect_err("32 KiB and no more than 16").to_string();
        let parts =
            ["ibv_reg_mr_iova", "RX", "32768 bytes", &device, "os error 12", "RLIMIT_MEMLOCK is 16384"];
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
        assert_eq!(transceiver.state(), State::Created);
    }
}

/// The device tells that its table of GIDs has changed; that ends nothing, and shows.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE and ROCE_TEST_INTERFACE"]
fn an_event_that_ends_nothing_is_counted() {
    const GID_CHANGE: u64 = 18;
    let port = Port::take();
    let _own = port.address(host(1), 32);
    let transceiver = Transceiver::new(port.config(host(1)).mode(Mode::Unified).build().expect("valid"));
    let itself = peer(transceiver.setup().expect("set up"));
    transceiver.connect(&itself).expect("connected");
    let mut unified = transceiver.take_unified().expect("connected");
    let _another = port.address(host(2), 32);
    let count = |name| transceiver.stats().wire.iter().find(|(known, _)| *known == name).expect("kept").1;
    wait_until("the event", || {
        (0..1 << 15).for_each(|_| assert_eq!(unified.rx_poll().expect("open"), None));
        count("device_events") > 0
    });
    assert_eq!(count("device_last_event"), GID_CHANGE);
    assert!(unified.is_open());
}

/// The interface comes up again even where a test fails.
struct Down<'a>(&'a str);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        ip(&["link", "set", self.0, "up"]);
    }
}

/// The event of the port ends the monitor, or the unified loop, though nothing was sent or received.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE and ROCE_TEST_INTERFACE"]
fn a_link_that_goes_down_ends_every_mode_with_an_error_that_says_so() {
    let port = Port::take();
    let own = VerbsDevice::open(VerbsConfig::new(&port.device)).map(|_| port.gids()).expect("opened");
    let (_, ip_addr) = own.select(None).expect("an address");
    let modes = [Mode::Threads, Mode::RxOnly, Mode::TxOnly, Mode::Forward];
    let running = modes.map(|mode| {
        let config = port.config(ip_addr).mode(mode).build().expect("valid");
        let transceiver = Arc::new(Transceiver::new(config));
        let itself = peer(transceiver.setup().expect("set up"));
        transceiver.connect(&itself).expect("connected");
        let same = Arc::clone(&transceiver);
        (mode, transceiver, thread::spawn(move || same.blocking_monitor()))
    });
    let unified = Transceiver::new(port.config(ip_addr).mode(Mode::Unified).build().expect("valid"));
    let itself = peer(unified.setup().expect("set up"));
    unified.connect(&itself).expect("connected");
    let mut unified = unified.take_unified().expect("connected");
    for (mode, transceiver, _) in &running {
        wait_until(&format!("the threads of {mode:?}"), || transceiver.state() == State::Running);
    }

    ip(&["link", "set", &port.interface, "down"]);
    let down = Down(&port.interface);
    let assert_says = |mode, error: &Error| {
        let Error::Completion { device, source, .. } = error else { panic!("{mode:?}: {error}") };
        assert!(source.what == "port" && source.reason.contains("IBV_EVENT_PORT_ERR"), "{mode:?}: {error}");
        assert_eq!(*device, port.device);
    };
    for (mode, transceiver, monitor) in running {
        wait_until(&format!("{mode:?} to end"), || monitor.is_finished());
        assert_says(mode, &monitor.join().expect("no panic").expect_err("the link is down"));
        assert_eq!(transceiver.state(), State::Failed);
    }
    let mut ended = None;
    wait_until("the unified loop to end", || {
        ended = (0..1 << 15).find_map(|_| unified.rx_poll().err());
        ended.is_some()
    });
    assert_says(Mode::Unified, &ended.expect("ended"));
    drop((unified, down));
    wait_until("the link", || VerbsDevice::open(VerbsConfig::new(&port.device)).is_ok());
}
