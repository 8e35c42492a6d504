//! What the tests of this crate share.
#![allow(dead_code)] // each test binary uses its part

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_ring::{Consumer, Producer};
use roce_transport::{Config, ConfigBuilder, Error, Transceiver, TxMode};

/// A loopback address that no other test of this machine uses at the same time.
pub(crate) fn unused_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let n = u8::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).expect("a test takes few addresses");
    Ipv4Addr::new(127, 64 | (high & 0xF), low, n)
}

pub(crate) fn soft(addr: Ipv4Addr) -> ConfigBuilder {
    Config::builder(format!("soft:{addr}"))
}

pub(crate) fn peer_of(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

/// A requester that WRITEs and a responder that SENDs, connected with each other.
pub(crate) fn pair(
    shape: impl Fn(ConfigBuilder) -> ConfigBuilder,
    requester: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
    responder: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
) -> (Arc<Transceiver>, Arc<Transceiver>) {
    let a = requester(shape(soft(unused_addr())).tx_mode(TxMode::WriteWithImm)).build().expect("valid");
    let b = responder(shape(soft(unused_addr())).tx_mode(TxMode::Send)).build().expect("valid");
    let (a, b) = (Arc::new(Transceiver::new(a)), Arc::new(Transceiver::new(b)));
    let (end_a, end_b) = (a.setup().expect("set-up"), b.setup().expect("set-up"));
    a.connect(&peer_of(end_b)).expect("connect");
    b.connect(&peer_of(end_a)).expect("connect");
    (a, b)
}

pub(crate) fn monitor(transceiver: &Arc<Transceiver>) -> JoinHandle<Result<(), Error>> {
    let transceiver = Arc::clone(transceiver);
    thread::spawn(move || transceiver.blocking_monitor())
}

/// Waits until `done` gives something; the ceiling is for a machine that is very busy.
pub(crate) fn wait_for<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::yield_now();
    }
}

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    wait_for(what, || done().then_some(()));
}

/// Writes `value` into a free TX slot and publishes it.
pub(crate) fn publish(tx: &Producer, slot: u32, value: u64) {
    wait_until("a free TX slot", || tx.is_free(slot));
    tx.slot(slot).copy_from(0, &value.to_le_bytes());
    tx.publish(slot);
}

/// The value in a published RX slot, which is given back.
pub(crate) fn take(rx: &mut Consumer, slot: u32) -> Option<u64> {
    let slot = rx.peek(slot)?;
    let mut bytes = [0; 8];
    slot.bytes().copy_to(0, &mut bytes);
    slot.release().ok()?;
    Some(u64::from_le_bytes(bytes))
}
