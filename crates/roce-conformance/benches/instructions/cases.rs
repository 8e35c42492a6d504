//! What is counted, and the loops that drive it.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr;
use std::sync::Arc;

use cudaq_realtime_cpu_roce_transport as capi;
use roce_conformance::{Links, Side, SoftLinks};
use roce_core::{Device, PeerEndpoint, Psn, QpAttr, Qpn, RecvWr, RegionId, Rkey, SendWr, Sge, UcQp, Verb};
use roce_dispatch::rpc::{HEADER_LEN, Request, function_id};
use roce_dispatch::{Arguments, DispatchError, FunctionTable, Results, UnifiedLoop};
use roce_ring::{Geometry, MemoryOptions, Ring};
use roce_soft::wire::icrc::Icrc;
use roce_soft::wire::{Bth, Flow, Header, Opcode, Operation, Position, Reth, UDP_PORT};
use roce_transport::{Config, ConfigBuilder, Mode, State, Transceiver, TxMode, Unified};

use crate::steps;
use crate::stub::{StubDevice, StubQp, Supply, Wire};

const PAGES: u32 = 8;
const FRAME: u32 = 64;

/// Something that is counted per message, or per round trip.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Drives so many messages.
    pub(crate) drive: fn(u32),
    /// The step that counts alone.
    pub(crate) collect: Option<&'static str>,
    /// The case whose count is taken off.
    pub(crate) less: Option<&'static str>,
    /// Instructions that it may take.
    pub(crate) budget: Option<f64>,
}

impl Case {
    const fn new(name: &'static str, drive: fn(u32)) -> Self {
        Self { name, drive, collect: None, less: None, budget: None }
    }

    /// Counts that step alone, with all that it calls.
    const fn step(name: &'static str, drive: fn(u32), step: &'static str) -> Self {
        Self { collect: Some(step), ..Self::new(name, drive) }
    }

    const fn less(self, other: &'static str) -> Self {
        Self { less: Some(other), ..self }
    }

    const fn budget(self, instructions: f64) -> Self {
        Self { budget: Some(instructions), ..self }
    }
}

/// A round trip is two polls and two publishes.
pub(crate) const CASES: &[Case] = &[
    Case::new("round trip from C, SEND", |trips| from_c(TxMode::Send, trips)).budget(300.0),
    Case::new("round trip from C, WRITE", |trips| from_c(TxMode::WriteWithImm, trips)).budget(300.0),
    Case::new("round trip, SEND", |trips| unified(TxMode::Send, trips)).budget(300.0),
    Case::new("round trip, WRITE", |trips| unified(TxMode::WriteWithImm, trips)).budget(300.0),
    Case::step("service without a dispatcher", answer_all, "answer_all"),
    Case::step("dispatcher", dispatch_all, "dispatch_all").less("service without a dispatcher"),
    Case::step("dispatcher, in place", dispatch_all_in_place, "dispatch_all")
        .less("service without a dispatcher")
        .budget(60.0),
    Case::new("ring hand-off", hand_off),
    Case::new("RX thread", |messages| monitor(Mode::RxOnly, messages)),
    Case::new("TX thread", |messages| monitor(Mode::TxOnly, messages)),
    Case::new("forward thread", |messages| monitor(Mode::Forward, messages)),
    Case::step("soft: build and seal 64 B", codec, "build"),
    Case::step("soft: verify and parse 64 B", codec, "check"),
    Case::step("soft: send 64 B", soft, "soft_send"),
    Case::step("soft: receive 64 B", soft, "soft_receive"),
];

fn config(mode: Mode, verb: TxMode) -> ConfigBuilder {
    Config::builder("stub").num_pages(PAGES).page_size(FRAME).mode(mode).tx_mode(verb)
}

fn from_c(verb: TxMode, trips: u32) {
    let (there, back) = (Wire::new(), Wire::new());
    let caller = end_for_c(verb, &there, &back);
    let service = end_for_c(verb, &back, &there);
    for n in 0..trips {
        let slot = n % PAGES;
        // SAFETY: the handles are live, and `got` is a place for a slot.
        unsafe {
            let mut got = u32::MAX;
            assert_eq!(black_box(capi::cpu_roce_tx_publish as steps::Publish)(caller, slot), 1);
            assert_eq!(black_box(capi::cpu_roce_rx_poll as steps::Poll)(service, &raw mut got), 1);
            assert_eq!(black_box(capi::cpu_roce_tx_publish as steps::Publish)(service, got), 1);
            assert_eq!(black_box(capi::cpu_roce_rx_poll as steps::Poll)(caller, &raw mut got), 1);
            assert_eq!(got, slot);
        }
    }
}

fn end_for_c(verb: TxMode, out: &Arc<Wire>, back: &Arc<Wire>) -> capi::Handle {
    let device = StubDevice::new(out, back);
    let handle = capi::create_on(config(Mode::Unified, verb), move |_: &Config| Ok(device.clone()));
    assert_ne!(handle, ptr::null_mut());
    // SAFETY: the handle is live, the address a string literal.
    unsafe {
        assert_eq!(capi::cpu_roce_setup(handle), 1);
        assert_eq!(capi::cpu_roce_connect(handle, 1, c"127.0.0.1".as_ptr(), 1), 1);
    }
    handle
}

fn unified(verb: TxMode, trips: u32) {
    let (there, back) = (Wire::new(), Wire::new());
    let (_caller, mut caller) = end(verb, &there, &back);
    let (_service, mut service) = end(verb, &back, &there);
    for n in 0..trips {
        let slot = n % PAGES;
        steps::publish(&mut caller, slot);
        let got = steps::poll(&mut service).expect("a request");
        steps::publish(&mut service, got);
        assert_eq!(steps::poll(&mut caller), Some(slot));
    }
}

fn end(verb: TxMode, out: &Arc<Wire>, back: &Arc<Wire>) -> (Transceiver<StubDevice>, Unified<StubQp>) {
    let device = StubDevice::new(out, back);
    let config = config(Mode::Unified, verb).build().expect("valid");
    let transceiver = Transceiver::with_device(config, move |_| Ok(device.clone()));
    transceiver.setup().expect("a stub sets up");
    transceiver.connect(&peer()).expect("a stub connects");
    let unified = transceiver.take_unified().expect("once");
    (transceiver, unified)
}

fn peer() -> PeerEndpoint {
    PeerEndpoint { qpn: Qpn::from_low_bits(1), ip: Ipv4Addr::LOCALHOST, rkey: Some(Rkey::new(1)) }
}

fn answer_all(requests: u32) {
    serve(requests, |service| service, steps::answer_all);
}

fn dispatch_all(requests: u32) {
    let increment = |arguments: &[u8], results: &mut [u8]| {
        let number = u64::from_le_bytes(arguments.try_into().expect("8 bytes"));
        results[..8].copy_from_slice(&(number + 1).to_le_bytes());
        Ok(8)
    };
    dispatch(requests, |table| table.register("increment", increment));
}

fn dispatch_all_in_place(requests: u32) {
    let increment = |arguments: Arguments<'_>, results: &mut Results<'_>| {
        results.put_word(arguments.word(0) + 1);
        Ok(())
    };
    dispatch(requests, |table| table.register_in_place("increment", None, increment));
}

/// Of a function of 8 bytes to 8 bytes.
fn dispatch(requests: u32, register: impl Fn(&mut FunctionTable) -> Result<(), DispatchError>) {
    let mut table = FunctionTable::new();
    register(&mut table).expect("the only one");
    let dispatcher = |service| UnifiedLoop::new(service, table).expect("a frame holds a header");
    serve(requests, dispatcher, steps::dispatch_all);
}

/// Requests that stand in each slot of the service, WRITTEN one by one and answered by SENDs.
fn serve<S>(
    requests: u32,
    make_service: impl FnOnce(Unified<StubQp>) -> S,
    mut answer_all: impl FnMut(&mut S) -> usize,
) {
    let (there, back) = (Wire::new(), Wire::new());
    let (_caller, mut caller) = end(TxMode::WriteWithImm, &there, &back);
    let (transceiver, service) = end(TxMode::Send, &back, &there);
    let mut service = make_service(service);
    let (rx, tx) = transceiver.rx_ring().zip(transceiver.tx_ring()).expect("set up");
    (0..PAGES).for_each(|slot| rx.slot(slot).copy_from(0, &request()));
    for n in 0..requests {
        steps::publish(&mut caller, n % PAGES);
        assert_eq!(answer_all(&mut service), 1);
        assert_eq!(steps::poll(&mut caller), Some(n % PAGES));
    }
    black_box(tx);
}

fn request() -> [u8; FRAME as usize] {
    let mut frame = [0; FRAME as usize];
    Request { function_id: function_id("increment"), arg_len: 8, request_id: 1, ptp_timestamp: 2 }
        .emit(&mut frame);
    frame[HEADER_LEN] = 7;
    frame
}

fn hand_off(messages: u32) {
    let geometry = Geometry::new(PAGES, FRAME, FRAME).expect("a shape that can be");
    let ring = Ring::allocate(geometry, MemoryOptions::default()).expect("memory");
    let (producer, mut consumer) = ring.split().expect("the first split");
    for n in 0..messages {
        assert_eq!(steps::hand_off(&producer, &mut consumer, n % PAGES), Some(n % PAGES));
    }
}

/// A thread of the transceiver's own, which the queue pair itself keeps supplied until it fails.
fn monitor(mode: Mode, messages: u32) {
    let supply = Supply::of(messages);
    let device = supply.clone();
    let config = config(mode, TxMode::WriteWithImm).build().expect("valid");
    let transceiver = Transceiver::with_device(config, move |_| Ok(device.clone()));
    transceiver.setup().expect("a stub sets up");
    supply.play(transceiver.take_ends().expect("once"));
    transceiver.connect(&peer()).expect("a stub connects");
    transceiver.blocking_monitor().expect_err("the supply runs out");
    assert_eq!(transceiver.state(), State::Failed);
    let stats = transceiver.stats();
    let done = if mode == Mode::TxOnly { stats.sent } else { stats.received };
    assert_eq!(done, u64::from(messages));
}

fn codec(packets: u32) {
    let ends = [1, 2].map(|last| SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), UDP_PORT));
    let [mut sealer, mut checker] = [(); 2].map(|()| Icrc::new(Flow { src: ends[0], dst: ends[1] }));
    let opcode = Opcode::new(Operation::Write, Position::Only, true);
    let mut header = Header {
        bth: Bth::new(opcode, Qpn::from_low_bits(0x123), Psn::new(0), FRAME as usize),
        reth: Some(Reth { addr: 0, rkey: Rkey::new(0xCAFE_BABE), len: FRAME }),
        imm: Some(0),
    };
    let payload = [0x5A; FRAME as usize];
    let mut packet = vec![0; header.packet_len(payload.len())];
    for n in 0..packets {
        header.bth.psn = Psn::new(n);
        steps::build(&header, &mut sealer, &payload, black_box(&mut packet));
        let parsed = steps::check(&mut checker, &packet).expect("a good packet");
        assert_eq!((parsed.header, parsed.payload), (header, payload.as_slice()));
    }
}

/// WRITEs over loopback, from one queue pair to another on one thread.
fn soft(messages: u32) {
    let links = SoftLinks::new();
    let geometry = Geometry::new(PAGES, FRAME, FRAME).expect("a shape that can be");
    let region = || Ring::allocate(geometry, MemoryOptions::default()).expect("memory").data();
    let attr = || QpAttr { rx: region(), tx: region(), send_depth: PAGES, recv_depth: PAGES, mtu: None };
    let [a, mut b] = [Side::A, Side::B].map(|side| links.device(side).create_qp(&attr()).expect("a socket"));
    let of =
        |qp: &roce_soft::SoftQp| PeerEndpoint { qpn: qp.qpn(), ip: qp.local_ip(), rkey: Some(qp.rkey()) };
    let receive = |slot: u32| RecvWr { id: slot, offset: u64::from(slot * FRAME), len: FRAME };
    (0..PAGES).for_each(|slot| b.post_recv(receive(slot)).expect("room for a receive"));
    let (to_a, to_b) = (of(&a), of(&b));
    let (mut send, _recv) = a.connect(&to_b).expect("a soft queue pair connects");
    let (_send, mut recv) = b.connect(&to_a).expect("a soft queue pair connects");
    let rkey = to_b.rkey.expect("given above");
    for n in 0..messages {
        let slot = n % PAGES;
        let offset = u64::from(slot * FRAME);
        let sge = Sge { region: RegionId::Tx, offset, len: FRAME };
        let wr = SendWr { sge, verb: Verb::Write { addr: offset, rkey, imm: Some(slot) } };
        steps::soft_send(&mut send, black_box(&wr));
        while steps::soft_receive(&mut recv, receive(slot)).is_none() {}
    }
}
