//! One caller, several threads: each calls through a clone of one handle.
//!
//! `cargo run -p roce-dispatch --example shared_caller`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_dispatch::caller::{Caller, CallerHandle, Function};
use roce_dispatch::{FunctionTable, UnifiedLoop};
use roce_transport::{Config, Mode, SpinPolicy, Transceiver, TxMode};

const REVERSE: Function<'_> = Function::new("reverse");

fn end(device: &str) -> Result<Transceiver, Box<dyn Error>> {
    let config = Config::builder(device).mode(Mode::Unified).tx_mode(TxMode::WriteWithImm).build()?;
    Ok(Transceiver::new(config))
}

fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (near, far) = (end("soft:127.0.0.3")?, end("soft:127.0.0.4")?);
    let (ours, theirs) = (near.setup()?, far.setup()?);
    near.connect(&peer_of(theirs))?;
    far.connect(&peer_of(ours))?;

    let mut table = FunctionTable::new();
    table.register("reverse", |args, result| {
        result[..args.len()].copy_from_slice(args);
        result[..args.len()].reverse();
        Ok(args.len())
    })?;
    let mut service = UnifiedLoop::new(far.take_unified().ok_or("taken")?, table)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| service.run(&stop, SpinPolicy::default()));
        let handle = Caller::new(near.take_unified().ok_or("taken")?)?.into_handle()?;
        let callers: Vec<_> = ["one", "two", "three", "four"]
            .map(|word| {
                let handle = handle.clone();
                scope.spawn(move || call(&handle, word))
            })
            .into();
        for caller in callers {
            println!("{}", caller.join().map_err(|_| "a caller panicked")?);
        }
        stop.store(true, Ordering::Relaxed);
        println!("{:?}", handle.stats().snapshot());
        Ok(())
    })
}

fn call(handle: &CallerHandle, word: &str) -> String {
    let mut results = [0; 64];
    match handle.call(&REVERSE, word.as_bytes(), &mut results, Duration::from_secs(1)) {
        Ok(len) => format!("{word} backwards is {}", String::from_utf8_lossy(&results[..len])),
        Err(error) => format!("{word}: {error}"),
    }
}
