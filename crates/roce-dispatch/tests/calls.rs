//! The caller and the dispatcher, each on a real transceiver, over real sockets on loopback.

mod common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::*;
use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_dispatch::caller::{CallCounts, CallError, Caller, Function};
use roce_dispatch::rpc::{HandlerError, Status};
use roce_dispatch::schema::{HandlerSchema, PayloadType, TypeDesc};
use roce_dispatch::{DispatchStats, FunctionTable, RingLoop, UnifiedLoop};
use roce_transport::{Config, FaultConfig, Mode, SpinPolicy, Transceiver, TxMode};

const SLOTS: u32 = 64;
const INCREMENT: Function<'_> = Function::new("rpc_increment");

/// A loopback address that no other test of this machine uses at the same time.
fn unused_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let n = byte(NEXT.fetch_add(1, Ordering::Relaxed));
    Ipv4Addr::new(127, 96 | (n & 3) << 3 | a & 7, b, c)
}

fn end(mode: Mode, tx_mode: TxMode, faults: FaultConfig) -> Transceiver {
    let config = Config::builder(format!("soft:{}", unused_addr()))
        .num_pages(SLOTS)
        .page_size(128)
        .mode(mode)
        .tx_mode(tx_mode)
        .faults(faults);
    Transceiver::new(config.build().expect("a valid configuration"))
}

fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

/// A service in threads of this process. Ends when dropped.
struct Service {
    transceiver: Arc<Transceiver>,
    stats: DispatchStats,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    fn start(transceiver: Transceiver, table: FunctionTable) -> Self {
        let transceiver = Arc::new(transceiver);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        if transceiver.config().mode() == Mode::Unified {
            let mut serving = UnifiedLoop::new(transceiver.take_unified().expect("once"), table)
                .expect("frames hold a header");
            let stats = serving.stats();
            let run = move || serving.run(&stopped, SpinPolicy::default()).expect("no failure");
            return Self { transceiver, stats, stop, threads: vec![thread::spawn(run)] };
        }
        let ends = transceiver.take_ends().expect("once");
        let mut serving = RingLoop::new(ends.rx, ends.tx, table).expect("rings of one shape");
        let stats = serving.stats();
        let monitored = Arc::clone(&transceiver);
        let threads = vec![
            thread::spawn(move || serving.run(&stopped, SpinPolicy::default())),
            thread::spawn(move || monitored.blocking_monitor().expect("no failure")),
        ];
        Self { transceiver, stats, stop, threads }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.transceiver.close();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "a thread of the service panicked");
        }
    }
}

/// A caller that writes its requests, and a service that answers in this way.
fn connected(mode: Mode, answers: TxMode, faults: FaultConfig) -> (Caller, Transceiver, Service) {
    let near = end(Mode::Unified, TxMode::WriteWithImm, faults);
    let far = end(mode, answers, faults);
    let ends = (near.setup().expect("set-up"), far.setup().expect("set-up"));
    near.connect(&peer_of(ends.1)).expect("connect");
    far.connect(&peer_of(ends.0)).expect("connect");
    let caller = Caller::new(near.take_unified().expect("once")).expect("frames hold a header");
    (caller, near, Service::start(far, table()))
}

fn table() -> FunctionTable {
    let int = TypeDesc::new(PayloadType::Int32, 1).expect("a descriptor");
    let schema = HandlerSchema::new(&[int], &[]).expect("a schema");
    let refusal = HandlerError::new(17).expect("positive");
    let mut table = FunctionTable::new();
    table.register("rpc_increment", increment).expect("an empty table");
    table.register("refuse", move |_, _| Err(refusal)).expect("names differ");
    table.register("panic", |_, result| Ok(usize::from(result[usize::MAX]))).expect("names differ");
    table.register("too_much", |_, result| Ok(result.len() + 1)).expect("names differ");
    table.register_with_schema("one_int", &schema, |_, _| Ok(0)).expect("names differ");
    table
}

/// Keeps `depth` calls in flight; each has arguments and results of its own. Returns how many were answered; the others
/// timed out.
fn call_many(caller: &Caller, calls: u32, depth: usize, timeout: Duration) -> u32 {
    let mut made = 0;
    let mut answered = 0;
    let mut pending = Vec::with_capacity(depth);
    let mut expected = std::collections::HashMap::new();
    loop {
        while made < calls && pending.len() < depth {
            let mut frame = caller.acquire(&INCREMENT).expect("a slot");
            frame.put(&made.to_le_bytes()).expect("room");
            assert_eq!(
                expected.insert(frame.request_id(), made.to_le_bytes().map(|b| b.wrapping_add(1))),
                None
            );
            pending.push(frame.dispatch(timeout).expect("open"));
            made += 1;
        }
        let Some((id, outcome)) = caller.wait_any(&mut pending) else { return answered };
        let expected = expected.remove(&id).expect("it was called");
        match outcome {
            Ok(answer) => {
                let mut results = [0; 4];
                assert_eq!(answer.len(), 4);
                answer.copy_to(0, &mut results).expect("4 bytes");
                assert_eq!(results, expected, "call {id} has another's answer");
                answered += 1;
            }
            Err(CallError::Timeout { request_id, .. }) => assert_eq!(request_id, id),
            Err(error) => panic!("call {id}: {error}"),
        }
    }
}

#[test]
fn every_call_is_answered_at_any_depth_in_any_shape() {
    for mode in [Mode::Threads, Mode::Unified] {
        for answers in [TxMode::Send, TxMode::WriteWithImm] {
            let (caller, _near, service) = connected(mode, answers, FaultConfig::default());
            for depth in [1, 4, SLOTS as usize] {
                assert_eq!(call_many(&caller, 1000, depth, CEILING), 1000, "{mode:?} {answers:?} {depth}");
            }
            let expected = CallCounts { calls: 3000, answers: 3000, ..CallCounts::default() };
            assert_eq!(caller.stats().snapshot(), expected);
            assert_eq!(service.stats.snapshot().responses, 3000);
        }
    }
}

/// Lost, doubled, late and damaged packets both ways. A wait for a lost call costs its timeout, and no other call.
#[test]
fn a_lossy_wire_costs_the_calls_that_were_lost() {
    let faults = "drop=0.02,dup=0.02,delay=0.01:200us,corrupt=0.005,seed=11".parse().expect("faults");
    for (mode, answers) in [(Mode::Threads, TxMode::WriteWithImm), (Mode::Unified, TxMode::Send)] {
        let (caller, _near, _service) = connected(mode, answers, faults);
        let answered = call_many(&caller, 2000, 16, Duration::from_millis(200));
        let counts = caller.stats().snapshot();
        assert!(answered > 1000 && counts.timeouts > 10, "{counts:?}");
        assert_eq!((counts.answers, counts.timeouts), (answered.into(), 2000 - u64::from(answered)));
        assert_eq!((counts.errors, counts.malformed, caller.in_use()), (0, 0, 0));
    }
}

#[test]
fn what_goes_wrong_is_told_at_once() {
    for mode in [Mode::Threads, Mode::Unified] {
        let (caller, _near, service) = connected(mode, TxMode::WriteWithImm, FaultConfig::default());
        for (name, status) in [
            ("nobody", Status::UNKNOWN_FUNCTION),
            ("refuse", Status::from_code(17)),
            ("one_int", Status::BAD_LENGTH),
            ("too_much", Status::RESULT_TOO_LARGE),
            ("panic", Status::HANDLER_PANICKED),
        ] {
            let mut frame = caller.acquire(&Function::new(name)).expect("a slot");
            frame.put(&[1_u8; 3]).expect("room");
            let before = Instant::now();
            let error = frame.dispatch(4 * CEILING).expect("open").wait().expect_err(name);
            assert!(matches!(error, CallError::Remote { status: s, .. } if s == status), "{name}: {error}");
            assert!(before.elapsed() < CEILING, "{name} hung");
        }
        // The service is none the worse.
        assert_eq!(call_many(&caller, 100, 4, CEILING), 100);
        assert_eq!(service.stats.snapshot().panics, 1);
    }
}

#[test]
fn a_service_that_is_gone_costs_a_timeout_and_a_new_one_is_found() {
    let (mut caller, near, service) = connected(Mode::Unified, TxMode::Send, FaultConfig::default());
    assert_eq!(call_many(&caller, 10, 1, CEILING), 10);
    drop(service);
    let call = caller.acquire(&INCREMENT).expect("a slot").dispatch(Duration::from_millis(50)).expect("open");
    assert!(matches!(call.wait(), Err(CallError::Timeout { .. })));

    let (near_again, far) = (
        end(Mode::Unified, TxMode::WriteWithImm, FaultConfig::default()),
        end(Mode::Threads, TxMode::Send, FaultConfig::default()),
    );
    let ends = (near_again.setup().expect("set-up"), far.setup().expect("set-up"));
    near_again.connect(&peer_of(ends.1)).expect("connect");
    far.connect(&peer_of(ends.0)).expect("connect");
    let _service = Service::start(far, table());
    drop(caller.reconnect(near_again.take_unified().expect("once")).expect("frames hold a header"));
    near.close();
    assert_eq!(call_many(&caller, 100, 8, CEILING), 100);
}

#[test]
fn threads_share_a_caller() {
    let (caller, _near, _service) = connected(Mode::Threads, TxMode::WriteWithImm, FaultConfig::default());
    let handle = caller.into_handle().expect("a thread");
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let handle = handle.clone();
            scope.spawn(move || {
                for n in 0..100 {
                    let mut results = [0; 2];
                    let len = handle.call(&INCREMENT, &[thread, n], &mut results, CEILING).expect("answered");
                    assert_eq!((len, results), (2, [thread + 1, n + 1]));
                }
            });
        }
    });
    assert_eq!(handle.stats().snapshot().answers, 400);
}
