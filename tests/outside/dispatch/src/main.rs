//! A request served from a ring, without a transport.

#![forbid(unsafe_code)]

use std::error::Error;

use roce_dispatch::rpc::{HEADER_LEN, Request, Response, function_id};
use roce_dispatch::{FunctionTable, RingLoop};
use roce_ring::{Geometry, MemoryOptions, Ring};

fn main() -> Result<(), Box<dyn Error>> {
    let ring = || {
        Ring::allocate(Geometry::new(4, 64, 64)?, MemoryOptions::default()).map_err(Box::<dyn Error>::from)
    };
    let (requests, rx) = ring()?.split().ok_or("a fresh ring has both ends")?;
    let (tx, responses) = ring()?.split().ok_or("a fresh ring has both ends")?;
    let mut table = FunctionTable::new();
    table.register("reverse", |args, result| {
        result.iter_mut().zip(args.iter().rev()).for_each(|(out, byte)| *out = *byte);
        Ok(args.len())
    })?;
    let mut dispatcher = RingLoop::new(rx, tx, table)?;

    let mut frame = [0; 64];
    let request =
        Request { function_id: function_id("reverse"), arg_len: 3, request_id: 9, ptp_timestamp: 0 };
    request.emit(&mut frame);
    frame[HEADER_LEN..HEADER_LEN + 3].copy_from_slice(&[1, 2, 3]);
    requests.slot(0).copy_from(0, &frame);
    requests.publish(0);
    assert_eq!(dispatcher.poll(), 1);

    responses.peek(0).ok_or("answered a moment ago")?.bytes().copy_to(0, &mut frame);
    let response = Response::parse(&frame)?;
    assert!(response.status.is_success());
    assert_eq!((response.request_id, response.payload(&frame)?), (9, &[3, 2, 1][..]));
    Ok(())
}
