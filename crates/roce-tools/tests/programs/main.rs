//! The programs as processes, over real sockets.

mod faulty_bridge;
mod harness;
mod hsb;
mod refusals;
mod runs;
mod soak;
mod strange_requests;
