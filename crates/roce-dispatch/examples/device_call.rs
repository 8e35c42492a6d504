//! Both ends of a device call in one process: a service that adds up numbers, and a caller that lets it.
//!
//! `cargo run -p roce-dispatch --example device_call`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_dispatch::caller::{Caller, Function};
use roce_dispatch::schema::{HandlerSchema, PayloadType, TypeDesc};
use roce_dispatch::{FunctionTable, UnifiedLoop};
use roce_transport::{Config, Mode, SpinPolicy, Transceiver, TxMode};

/// The id is worked out by the compiler.
const DOT: Function<'_> = Function::new("dot");
const TIMEOUT: Duration = Duration::from_secs(1);

fn end(device: &str) -> Result<Transceiver, Box<dyn Error>> {
    let config = Config::builder(device)
        .num_pages(8)
        .page_size(256)
        .mode(Mode::Unified)
        .tx_mode(TxMode::WriteWithImm)
        .build()?;
    Ok(Transceiver::new(config))
}

fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

/// Two vectors of three, and their product.
fn schema() -> Result<HandlerSchema, Box<dyn Error>> {
    let vector = TypeDesc::new(PayloadType::ArrayFloat64, 3)?;
    Ok(HandlerSchema::new(&[vector, vector], &[TypeDesc::new(PayloadType::Float64, 1)?])?)
}

fn table(schema: &HandlerSchema) -> Result<FunctionTable, Box<dyn Error>> {
    let mut table = FunctionTable::new();
    table.register_with_schema("dot", schema, |args, result| {
        let (numbers, _) = args.as_chunks::<8>();
        let (a, b) = numbers.split_at(3);
        let dot: f64 = a.iter().zip(b).map(|(x, y)| f64::from_le_bytes(*x) * f64::from_le_bytes(*y)).sum();
        result[..8].copy_from_slice(&dot.to_le_bytes());
        Ok(8)
    })?;
    Ok(table)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (near, far) = (end("soft:127.0.0.1")?, end("soft:127.0.0.2")?);
    // Between two machines a rendezvous swaps these; see roce-rendezvous.
    let (ours, theirs) = (near.setup()?, far.setup()?);
    near.connect(&peer_of(theirs))?;
    far.connect(&peer_of(ours))?;

    let schema = schema()?;
    let mut service = UnifiedLoop::new(far.take_unified().ok_or("taken")?, table(&schema)?)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| service.run(&stop, SpinPolicy::default()));
        let done = call(&Caller::new(near.take_unified().ok_or("taken")?)?, &schema);
        stop.store(true, Ordering::Relaxed);
        done
    })
}

fn call(caller: &Caller, schema: &HandlerSchema) -> Result<(), Box<dyn Error>> {
    let dot = DOT.with_schema(schema);

    // One call.
    let mut frame = caller.acquire(&dot)?;
    frame.put(&[1.0, 2.0, 3.0])?.put(&[4.0, 5.0, 6.0])?;
    let mut answer = frame.dispatch(TIMEOUT)?.wait()?;
    println!("1*4 + 2*5 + 3*6 = {}", answer.take::<f64>()?);
    drop(answer);

    // As many as there are slots, all in flight, and the answers as they come.
    let mut pending = Vec::new();
    for n in 0..8 {
        let mut frame = caller.acquire(&dot)?;
        frame.put(&[f64::from(n); 3])?.put(&[1.0; 3])?;
        pending.push(frame.dispatch(TIMEOUT)?);
    }
    while let Some((request_id, outcome)) = caller.wait_any(&mut pending) {
        println!("call {request_id}: {}", outcome?.take::<f64>()?);
    }

    // What goes wrong is told at once.
    let nobody = caller.acquire(&Function::new("nobody"))?.dispatch(TIMEOUT)?;
    println!("{}", nobody.wait().map(|_| "answered".to_owned()).unwrap_or_else(|error| error.to_string()));
    println!("{:?}", caller.stats().snapshot());
    Ok(())
}
