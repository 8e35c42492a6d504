//! The control plane over real UDP, with the host's own client; also over a path that loses packets.

mod support;

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use hsb_emulator::{Config, Emulator, EmulatorError, Personality};
use roce_rendezvous::hsb::ecb::{Pair, Status};
use roce_rendezvous::hsb::{BlockingClient, HsbError, Timing};
use roce_soft::SoftDevice;
use support::{CEILING, PATIENT, device, own_ip, wait_for};

with_both!(
    registers_and_blocks_hold_what_was_written,
    an_address_without_a_register_stops_a_block_and_the_session_goes_on,
    garbage_is_counted_and_dropped,
    a_lost_request_or_reply_is_made_good,
    the_first_read_survives_losses_too,
);

fn emulator(personality: Personality) -> Emulator<SoftDevice> {
    let ip = own_ip();
    let config = Config { personality, control: SocketAddrV4::new(ip, 0), ..Config::default() };
    Emulator::bind(config, device(ip)).expect("an emulator")
}

fn connect(peer: SocketAddrV4) -> BlockingClient {
    BlockingClient::connect(peer, PATIENT).expect("a session")
}

fn registers_and_blocks_hold_what_was_written(personality: Personality) {
    let emulator = emulator(personality);
    let mut client = connect(emulator.control_address());
    assert_eq!(client.version(), u32::from(personality.hsb_ip_version()));
    assert_eq!(client.peer(), emulator.control_address());
    client.write(0x1000, 0x1234).expect("written");
    assert_eq!(client.read(0x1000).expect("read"), 0x1234);
    assert_eq!(client.modify(0x1000, 0x34, 0x1).expect("modified"), 0x1201);

    let pairs: Vec<Pair> = (0..500).map(|n| Pair::new(0x5010_0000 + 4 * n, n ^ 0xA5A5)).collect();
    client.write_pairs(&pairs).expect("written");
    let words = client.read_block(0x5010_0000, 500).expect("read");
    assert!(pairs.iter().zip(&words).all(|(pair, &word)| pair.data == word));
    assert_eq!(emulator.control_counts().refused, 0);
}

fn an_address_without_a_register_stops_a_block_and_the_session_goes_on(personality: Personality) {
    let emulator = emulator(personality);
    let mut client = connect(emulator.control_address());
    let pairs = [Pair::new(0x1000, 1), Pair::new(0xDEAD_0000, 2), Pair::new(0x1004, 3)];
    let error = client.write_pairs(&pairs).expect_err("refused");
    assert!(
        matches!(error, HsbError::Refused { address: 0xDEAD_0000, status: Status::InvalidAddress, .. }),
        "{error}"
    );
    assert_eq!((client.read(0x1000).expect("read"), client.read(0x1004).expect("read")), (1, 0));
    assert_eq!(emulator.control_counts().refused, 0, "the client was in step all the time");
}

#[test]
fn two_controllers_disturb_each_other_and_learn_of_it() {
    let emulator = emulator(Personality::Fpga);
    let mut first = connect(emulator.control_address());
    let mut second = connect(emulator.control_address());
    second.write(0x1000, 7).expect("in step");
    second.write(0x1000, 8).expect("in step");
    let error = first.write(0x1000, 9).expect_err("out of sequence");
    assert!(matches!(error, HsbError::OtherController { .. }), "{error}");
    assert!(error.to_string().contains("another controller"), "{error}");
    assert_eq!(first.read(0x1000).expect("in step again"), 8, "the refused write was not carried out");
}

fn garbage_is_counted_and_dropped(personality: Personality) {
    let emulator = emulator(personality);
    let socket = UdpSocket::bind((*emulator.control_address().ip(), 0)).expect("a socket");
    for len in 0..10 {
        socket.send_to(&vec![0x14; len], emulator.control_address()).expect("sent");
    }
    wait_for("ten datagrams counted", || (emulator.control_counts().garbage == 10).then_some(()));
    socket.send_to(&[0x55; 14], emulator.control_address()).expect("sent");
    let echo = match personality {
        Personality::Fpga => 0x55,
        Personality::Lenient => 0xD5,
    };
    socket.set_read_timeout(Some(CEILING)).expect("a ceiling");
    let mut reply = [0; 64];
    let (len, _) = socket.recv_from(&mut reply).expect("an answer");
    assert_eq!((len, reply[0], reply[4]), (18, echo, Status::InvalidCommand.code()));
    connect(emulator.control_address()).read(0x80).expect("still served");
}

#[test]
fn a_taken_port_and_a_foreign_address_say_what_to_do() {
    let emulator = emulator(Personality::Fpga);
    let config = |control| Config { control, ..Config::default() };
    let error = Emulator::bind(config(emulator.control_address()), device(own_ip())).expect_err("taken");
    assert!(matches!(error, EmulatorError::PortInUse(address) if address == emulator.control_address()));
    assert!(error.to_string().contains("another control port"), "{error}");
    let foreign = SocketAddrV4::new([192, 0, 2, 1].into(), 8193);
    let error = Emulator::bind(config(foreign), device(own_ip())).expect_err("not here");
    assert!(matches!(error, EmulatorError::NoSuchAddress(_)), "{error}");
    let small = Config { page_size: 23, ..config(SocketAddrV4::new(own_ip(), 0)) };
    assert!(matches!(Emulator::bind(small, device(own_ip())), Err(EmulatorError::PageSize(23))));
}

/// Which way a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

/// A path between one client and the FPGA that loses one datagram when told to.
struct Relay {
    address: SocketAddrV4,
    lose: [Arc<AtomicBool>; 2],
    lost: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Relay {
    fn start(to: SocketAddrV4) -> Self {
        let near = UdpSocket::bind((own_ip(), 0)).expect("a socket");
        let far = UdpSocket::bind((own_ip(), 0)).expect("a socket");
        let SocketAddr::V4(address) = near.local_addr().expect("its address") else { unreachable!() };
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a tick");
        }
        let lose: [Arc<AtomicBool>; 2] = [Arc::default(), Arc::default()];
        let (lost, stop): (Arc<AtomicU32>, Arc<AtomicBool>) = (Arc::default(), Arc::default());
        let (flags, losses, stopped) = (lose.clone(), Arc::clone(&lost), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut client = None;
            let mut buffer = [0; 8192];
            let passes = |way: Way| {
                let drop = flags[way as usize].swap(false, Ordering::Relaxed);
                losses.fetch_add(u32::from(drop), Ordering::Relaxed);
                !drop
            };
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((len, from)) = near.recv_from(&mut buffer) {
                    client = Some(from);
                    if passes(Way::Request) {
                        far.send_to(&buffer[..len], to).expect("forwarded");
                    }
                }
                if let Ok((len, _)) = far.recv_from(&mut buffer)
                    && let Some(client) = client
                    && passes(Way::Reply)
                {
                    near.send_to(&buffer[..len], client).expect("forwarded");
                }
            }
        });
        Self { address, lose, lost, stop, thread: Some(thread) }
    }

    fn lose_next(&self, way: Way) {
        self.lose[way as usize].store(true, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

fn a_lost_request_or_reply_is_made_good(personality: Personality) {
    let emulator = emulator(personality);
    let relay = Relay::start(emulator.control_address());
    let timing = Timing { retry: Duration::from_millis(100), ..PATIENT };
    let mut client = BlockingClient::connect(relay.address, timing).expect("a session");
    let block = [Pair::new(0x1008, 3), Pair::new(0x100C, 4)];
    for (round, way) in (1..).zip([Way::Request, Way::Reply]) {
        relay.lose_next(way);
        client.write(0x1004, round).expect("written");
        relay.lose_next(way);
        assert_eq!(client.read(0x1004).expect("read"), round);
        relay.lose_next(way);
        client.write_pairs(&block).expect("written");
        relay.lose_next(way);
        assert_eq!(client.read_block(0x1008, 2).expect("read"), [3, 4]);
        // In step: this one asks for the sequence check.
        client.read(0x80).expect("read");
        assert_eq!(relay.lost.load(Ordering::Relaxed), 4 * round, "each loss took place");
    }
    // A write whose answer was lost is asked for again with its old number, so that it is carried out once.
    let refused = match personality {
        Personality::Fpga => 2,
        Personality::Lenient => 0,
    };
    assert_eq!(emulator.control_counts().refused, refused);
}

fn the_first_read_survives_losses_too(personality: Personality) {
    let emulator = emulator(personality);
    let relay = Relay::start(emulator.control_address());
    relay.lose_next(Way::Request);
    relay.lose_next(Way::Reply);
    let timing = Timing { first_retry: Duration::from_millis(100), ..PATIENT };
    let mut client = BlockingClient::connect(relay.address, timing).expect("a session");
    assert_eq!(relay.lost.load(Ordering::Relaxed), 2);
    client.write(0x1000, 5).expect("in step");
    assert_eq!(client.read(0x1000).expect("in step"), 5);
}
