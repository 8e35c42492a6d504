//! Measurements: each case beside the raw limit of what it stands on, in one run, in turns.
//!
//! - [`plan`]: what is measured, and for how long.
//! - [`run`]: runs a plan; case and limit alternate, so that whatever disturbs the machine meets both.
//! - [`record`]: the result of one point, a line of JSON.
//! - [`machine`]: what it was measured on.
//! - [`report`]: tables, CSV, plots and HTML of results.
//!
//! | case | what is timed | its limit |
//! | --- | --- | --- |
//! | rtt | a caller WRITEs a request, a service dispatches it and SENDs the answer | a UDP ping-pong with packets of the same lengths; a UC ping-pong straight on libibverbs |
//! | jitter | the same at a fixed rate, from the moment that each request was due | the same ping-pongs at the same rate |
//! | throughput | the same with many requests under way | sendmmsg and recvmmsg in a loop; UC posts in a loop |
//! | handoff | a message through a ring to another thread, and one back | two threads, two flags |
//! | dispatch | a request out of a ring, through the dispatcher, the answer into a ring | the same copies and flags, the function called straight |
//! | codec | a packet built with its ICRC, parsed and checked | the same copies and two CRCs over as many bytes |
//! | scale | round trips to many transceivers in turn, which one shared poller serves | the same to one, with a thread of its own |

mod codec;
mod dispatch;
mod handoff;
mod limit;
pub mod machine;
mod meter;
pub mod place;
pub mod plan;
mod progress;
pub mod record;
pub mod report;
pub mod run;
mod scale;
mod stream;
mod trial;
mod wire;
