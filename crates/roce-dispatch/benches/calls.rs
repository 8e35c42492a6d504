//! Calls per second over the userspace link, by how many are in flight. Both ends are threads of this process; each call
//! is an increment of 8 bytes. The last line tells what 16 in flight gain over 1.

use std::cell::RefCell;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_dispatch::caller::{Caller, Function};
use roce_dispatch::{FunctionTable, UnifiedLoop};
use roce_transport::{Config, Mode, SpinPolicy, Transceiver, TxMode};

const INCREMENT: Function<'_> = Function::new("rpc_increment");
const DEPTHS: [usize; 4] = [1, 4, 16, 64];
/// Answers to calls that came together leave together.
const ANSWERS_PER_FLUSH: u32 = 16;
/// Calls per sample's iteration.
const CALLS: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// On an address that no other process uses.
fn end(side: u8) -> Transceiver {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 16 | side << 3 | a & 7, b, c);
    let config = Config::builder(format!("soft:{ip}"))
        .num_pages(64)
        .page_size(256)
        .mode(Mode::Unified)
        .tx_mode(TxMode::WriteWithImm);
    Transceiver::new(config.build().expect("a valid configuration"))
}

fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

fn table() -> FunctionTable {
    let mut table = FunctionTable::new();
    let increment = |args: &[u8], result: &mut [u8]| {
        for (out, byte) in result.iter_mut().zip(args) {
            *out = byte.wrapping_add(1);
        }
        Ok(args.len())
    };
    table.register("rpc_increment", increment).expect("an empty table");
    table
}

fn call(caller: &Caller, depth: usize) {
    let mut pending = Vec::with_capacity(depth);
    let mut made = 0;
    loop {
        while made < CALLS && pending.len() < depth {
            let mut frame = caller.acquire(&INCREMENT).expect("a slot");
            frame.put(&[1_u8; 8]).expect("room");
            pending.push(frame.stage(TIMEOUT).expect("open"));
            made += 1;
        }
        let Some((_, answer)) = caller.wait_any(&mut pending) else { return };
        let mut results = [0; 8];
        answer.expect("answered").copy_to(0, &mut results).expect("8 bytes");
        assert_eq!(black_box(results), [2; 8]);
    }
}

fn main() {
    let (near, far) = (end(0), end(1));
    let ends = (near.setup().expect("set-up"), far.setup().expect("set-up"));
    near.connect(&peer_of(ends.1)).expect("connect");
    far.connect(&peer_of(ends.0)).expect("connect");
    let caller = Caller::new(near.take_unified().expect("once")).expect("frames hold a header");
    let link = far.take_unified().expect("once");
    let mut service =
        UnifiedLoop::new(link, table()).expect("frames hold a header").answers_per_flush(ANSWERS_PER_FLUSH);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let serving = thread::spawn(move || service.run(&stopped, SpinPolicy::default()));

    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("calls");
    group.throughput(Throughput::Elements(CALLS.into()));
    // By depth: the time, and how many calls it was for.
    let spent = RefCell::new([(Duration::ZERO, 0_u64); DEPTHS.len()]);
    for (at, depth) in DEPTHS.into_iter().enumerate() {
        group.bench_function(BenchmarkId::new("in_flight", depth), |bencher| {
            bencher.iter_custom(|times| {
                let start = Instant::now();
                (0..times).for_each(|_| call(&caller, depth));
                let took = start.elapsed();
                let (time, calls) = &mut spent.borrow_mut()[at];
                *time += took;
                *calls += times * u64::from(CALLS);
                took
            });
        });
    }
    group.finish();
    criterion.final_summary();
    stop.store(true, Ordering::Relaxed);
    serving.join().expect("no panic").expect("the link does not fail");

    let rate = |depth| {
        let at = DEPTHS.iter().position(|d| *d == depth).expect("one of them");
        let (time, calls) = spent.borrow()[at];
        calls as f64 / time.as_secs_f64()
    };
    // A filter on the command line leaves some out.
    if rate(1).is_finite() && rate(16).is_finite() {
        println!("calls per second: {:.0} with 1 in flight, {:.0} with 16", rate(1), rate(16));
        println!("16 in flight give {:.2} times the calls of 1", rate(16) / rate(1));
    }
}
