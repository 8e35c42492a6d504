//! Device calls between processes: `roce-service`, called by this one and by `roce-call`, over real sockets.

#[path = "../programs/harness.rs"]
#[allow(dead_code)] // made for more programs than these
mod harness;

mod command_line;
mod deaths;
mod known_channel;
mod many;
mod support;
mod trouble;
