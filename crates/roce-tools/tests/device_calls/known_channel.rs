//! The wire of older programs: 12 bytes of rendezvous, one call at a time, request and answer paired by their slots.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use roce_core::{LocalEndpoint, PeerEndpoint, Qpn, Rkey};
use roce_dispatch::rpc::function_id;
use roce_rendezvous::socket::Form;
use roce_tools::call::{Session, SessionConfig};
use roce_transport::{Config, ImmediateFormat, Mode, Transceiver, TxMode, Unified};

use crate::harness::address;
use crate::support::{CEILING, Service, Tally, call, call_many, transceiver};

const HEADER: usize = 24;
const REQUEST: u32 = 0x4355_5152;
const RESPONSE: u32 = 0x4355_5153;

fn word(frame: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(frame[at..at + 4].try_into().expect("4 bytes"))
}

fn to_bytes(end: LocalEndpoint) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&end.qpn.get().to_be_bytes());
    bytes[4..8].copy_from_slice(&end.rkey.get().to_be_bytes());
    bytes[8..].copy_from_slice(&end.ip.octets());
    bytes
}

fn from_bytes(bytes: [u8; 12]) -> PeerEndpoint {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    PeerEndpoint {
        qpn: Qpn::new(word(0)).expect("24 bits"),
        rkey: Some(Rkey::new(word(4))),
        ip: Ipv4Addr::from(word(8)),
    }
}

/// Receives in strict order, whatever an immediate says.
fn old_transceiver(slots: u32, mode: Mode, verb: TxMode) -> Transceiver {
    let config = Config::builder(format!("soft:{}", address()))
        .num_pages(slots)
        .page_size(256)
        .mode(mode)
        .tx_mode(verb)
        .immediate(ImmediateFormat::Ignore);
    Transceiver::new(config.build().expect("a valid configuration"))
}

/// A caller as the older ones are.
struct OldCaller {
    _transceiver: Transceiver,
    link: Unified,
    slot: u32,
    request_id: u32,
}

impl OldCaller {
    fn connect(service: &Service, slots: u32) -> Self {
        let transceiver = old_transceiver(slots, Mode::Unified, TxMode::WriteWithImm);
        let ours = transceiver.setup().expect("set-up");
        let mut stream = TcpStream::connect(service.addr).expect("it listens");
        stream.write_all(&to_bytes(ours)).expect("it reads");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("12 bytes");
        drop(stream);
        transceiver.connect(&from_bytes(answer)).expect("connect");
        let link = transceiver.take_unified().expect("once");
        Self { _transceiver: transceiver, link, slot: 0, request_id: 1 }
    }

    /// The answer must be in the slot of the request.
    fn call(&mut self, function: &str, args: &[u8]) -> Vec<u8> {
        let (slot, id) = (self.slot, self.request_id);
        let mut frame = [0; 256];
        let len = u32::try_from(args.len()).expect("short");
        for (at, value) in [(0, REQUEST), (4, function_id(function)), (8, len), (12, id)] {
            frame[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        frame[HEADER..HEADER + args.len()].copy_from_slice(args);
        self.link.tx_slot(slot).copy_from(0, &frame);
        self.link.tx_publish(slot).expect("open");

        let deadline = Instant::now() + CEILING;
        let arrived = loop {
            if let Some(arrived) = self.link.rx_poll().expect("open") {
                break arrived;
            }
            assert!(Instant::now() < deadline, "no answer in slot {slot}");
            thread::yield_now();
        };
        assert_eq!(arrived, slot);
        self.link.rx_slot(slot).copy_to(0, &mut frame);
        assert_eq!((word(&frame, 0), word(&frame, 4), word(&frame, 12)), (RESPONSE, 0, id));
        self.slot = (slot + 1) % self.link.geometry().num_pages();
        self.request_id += 1;
        frame[HEADER..HEADER + word(&frame, 8) as usize].to_vec()
    }
}

fn serves_an_old_caller(options: &str, slots: u32) {
    let service = Service::start(&format!("--slots 8 {options}"));
    // One after the other, as a program that is started anew.
    for _ in 0..2 {
        let mut caller = OldCaller::connect(&service, slots);
        for n in 0..300_u32 {
            let results = caller.call("rpc_increment", &n.to_le_bytes());
            assert_eq!(results, n.to_le_bytes().map(|b| b.wrapping_add(1)));
        }
        assert_eq!(caller.call("echo", &[5; 232]), [5; 232]);
    }
}

#[test]
fn an_old_caller_is_served_in_ring_shape() {
    serves_an_old_caller("--dispatch ring", 8);
}

#[test]
fn an_old_caller_is_served_in_unified_shape() {
    serves_an_old_caller("--dispatch unified", 8);
}

#[test]
fn an_old_caller_is_served_by_sends_in_ring_shape() {
    serves_an_old_caller("--dispatch ring --tx-mode send", 8);
}

#[test]
fn an_old_caller_is_served_by_sends_in_unified_shape() {
    serves_an_old_caller("--dispatch unified --tx-mode send", 8);
}

/// The older service would wait for the third slot for ever.
#[test]
fn an_old_caller_with_fewer_slots_is_served() {
    serves_an_old_caller("--dispatch ring", 2);
    serves_an_old_caller("--dispatch unified", 2);
}

/// A service as the older ones are: a cursor over the slots, each answered in its own, one caller.
struct OldService {
    addr: std::net::SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl OldService {
    fn start(slots: u32, verb: TxMode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let transceiver = Arc::new(old_transceiver(slots, Mode::Threads, verb));
            let ours = transceiver.setup().expect("set-up");
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut offer = [0; 12];
            stream.read_exact(&mut offer).expect("12 bytes");
            transceiver.connect(&from_bytes(offer)).expect("connect");
            stream.write_all(&to_bytes(ours)).expect("it reads");
            drop(stream);
            let monitor = thread::spawn({
                let transceiver = Arc::clone(&transceiver);
                move || transceiver.blocking_monitor().expect("no failure")
            });
            serve_by_slot(&transceiver, &stopped);
            transceiver.close();
            monitor.join().expect("no panic");
        });
        Self { addr, stop, thread: Some(thread) }
    }
}

fn serve_by_slot(transceiver: &Transceiver, stop: &AtomicBool) {
    let ends = transceiver.take_ends().expect("once");
    let slots = transceiver.config().geometry().num_pages();
    let mut slot = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(message) = ends.rx.peek(slot) else {
            thread::yield_now();
            continue;
        };
        let mut frame = [0; 256];
        message.bytes().copy_to(0, &mut frame);
        message.release().expect("nobody overwrites it");
        assert_eq!((word(&frame, 0), word(&frame, 4)), (REQUEST, function_id("rpc_increment")));
        frame[..4].copy_from_slice(&RESPONSE.to_le_bytes());
        frame[4..8].fill(0);
        let len = word(&frame, 8) as usize;
        for byte in &mut frame[HEADER..HEADER + len] {
            *byte = byte.wrapping_add(1);
        }
        while !ends.tx.is_free(slot) {
            thread::yield_now();
        }
        ends.tx.slot(slot).copy_from(0, &frame);
        ends.tx.publish(slot);
        slot = (slot + 1) % slots;
    }
}

impl Drop for OldService {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("once").join();
        assert!(ended.is_ok() || thread::panicking(), "the old service failed");
    }
}

fn calls_an_old_service(verb: TxMode) {
    let service = OldService::start(64, verb);
    let config = SessionConfig {
        service: service.addr,
        form: Form::Plain,
        timeout: CEILING,
        transceiver: transceiver().build().expect("a valid configuration"),
    };
    let session = Session::connect(config).expect("it takes a caller");
    for depth in [1, 4, 64] {
        let tally = call_many(session.caller(), 1000, depth, CEILING);
        assert_eq!(tally, Tally { answered: 1000, timeouts: 0 }, "{depth}");
    }
    assert_eq!(call(session.caller(), "rpc_increment", &[1]).expect("answered"), [2]);
}

#[test]
fn an_old_service_that_writes_is_called() {
    calls_an_old_service(TxMode::WriteWithImm);
}

#[test]
fn an_old_service_that_sends_is_called() {
    calls_an_old_service(TxMode::Send);
}
