//! Instructions of this library per round trip: two unified ends in one thread, one publish and one poll each.
//!
//! `cargo bench -p roce-capi --bench round_trip` runs itself under callgrind, with two numbers of round trips, and
//! prints the difference for one. What the stub queue pair and the driving loop take is left out; all else counts,
//! the C entries and what they call in libc included. It fails above the budget.

#[path = "round_trip/stub.rs"]
mod stub;

use std::env;
use std::fs;
use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};
use std::ptr;
use std::sync::Arc;

use cudaq_realtime_cpu_roce_transport as capi;
use roce_transport::{Config, Mode, TxMode};
use stub::{StubDevice, Wire};

/// Instructions that a round trip may cost.
const BUDGET: f64 = 300.0;

/// What the process that is measured is told in its environment.
const TRIPS: &str = "ROUND_TRIPS";
const VERB: &str = "ROUND_TRIP_VERB";

fn main() -> ExitCode {
    if let Ok(trips) = env::var(TRIPS) {
        let verb = if env::var(VERB).is_ok_and(|verb| verb == "write") {
            TxMode::WriteWithImm
        } else {
            TxMode::Send
        };
        drive(verb, trips.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let costs = ["send", "write"].map(|verb| {
        let per_trip = instructions_per_trip(verb);
        println!("{verb}: {per_trip:.1} instructions per round trip, of {BUDGET}");
        per_trip
    });
    if costs.iter().all(|&cost| cost > 0.0 && cost <= BUDGET) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn instructions_per_trip(verb: &str) -> f64 {
    let (few, many) = (1_000, 11_000);
    (instructions(verb, many) - instructions(verb, few)) as f64 / f64::from(many - few)
}

/// Of a whole run, in functions that count.
fn instructions(verb: &str, trips: u32) -> i64 {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let profile = dir.path().join("callgrind.out");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(env::current_exe().expect("our own path"))
        .envs([(TRIPS, trips.to_string().as_str()), (VERB, verb)])
        .stderr(Stdio::null())
        .status()
        .expect("valgrind; install it");
    assert!(status.success(), "the measured run ended with {status}");
    count(&fs::read_to_string(profile).expect("callgrind's profile"))
}

/// Sums the lines `position instructions` below the functions that count. The line after `calls=` repeats what the
/// called function is charged with.
fn count(profile: &str) -> i64 {
    let (mut counts, mut is_call, mut sum) = (false, false, 0);
    for line in profile.lines() {
        if let Some(function) = line.strip_prefix("fn=") {
            counts = !is_ours(function);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let cost = line.split_whitespace().nth(1).and_then(|n| n.parse::<i64>().ok());
            if counts && !is_call {
                sum += cost.expect("a cost");
            }
            is_call = false;
        }
    }
    sum
}

/// Whether a function is of this benchmark, and not of the library made for one of its types.
fn is_ours(function: &str) -> bool {
    function.trim_start_matches('<').starts_with("round_trip::")
}

#[inline(never)]
fn drive(verb: TxMode, trips: u32) {
    let (there, back) = (Wire::new(), Wire::new());
    let caller = end(verb, &there, &back);
    let service = end(verb, &back, &there);
    for n in 0..trips {
        let slot = n % 8;
        // SAFETY: the handles are live, and `got` is a place for a slot.
        unsafe {
            let mut got = u32::MAX;
            assert_eq!(black_box(capi::cpu_roce_tx_publish as Publish)(caller, slot), 1);
            assert_eq!(black_box(capi::cpu_roce_rx_poll as Poll)(service, &raw mut got), 1);
            assert_eq!(black_box(capi::cpu_roce_tx_publish as Publish)(service, got), 1);
            assert_eq!(black_box(capi::cpu_roce_rx_poll as Poll)(caller, &raw mut got), 1);
            assert_eq!(got, slot);
        }
    }
}

type Publish = unsafe extern "C" fn(capi::Handle, u32) -> i32;
type Poll = unsafe extern "C" fn(capi::Handle, *mut u32) -> i32;

fn end(verb: TxMode, out: &Arc<Wire>, back: &Arc<Wire>) -> capi::Handle {
    let config = Config::builder("stub").num_pages(8).page_size(64).mode(Mode::Unified).tx_mode(verb);
    let (out, back) = (Arc::clone(out), Arc::clone(back));
    let open = move |_: &Config| Ok(StubDevice { out: Arc::clone(&out), back: Arc::clone(&back) });
    let handle = capi::create_on(config, open);
    assert_ne!(handle, ptr::null_mut());
    // SAFETY: the handle is live, the address a string literal.
    unsafe {
        assert_eq!(capi::cpu_roce_setup(handle), 1);
        assert_eq!(capi::cpu_roce_connect(handle, 1, c"127.0.0.1".as_ptr(), 1), 1);
    }
    handle
}
