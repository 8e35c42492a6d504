//! The control plane over real UDP, with a board that keeps to the FPGA's rules, and a path that loses packets.

#![allow(clippy::unwrap_used)] // helpers of tests

mod board;
mod configure;
mod discovery;
mod losses;
mod relay;
mod start;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use roce_rendezvous::hsb::{Client, Timing};

/// Far more than anything takes, even on a machine with other work.
const CEILING: Duration = Duration::from_secs(20);

const PATIENT: Timing = Timing {
    timeout: CEILING,
    retry: Duration::from_millis(40),
    first_timeout: CEILING,
    first_retry: Duration::from_millis(40),
};

/// An address of this machine that no other test has.
fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, 32 | high & 0x1F, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn connect(peer: SocketAddrV4) -> Client {
    Client::connect(peer, PATIENT).await.unwrap()
}
