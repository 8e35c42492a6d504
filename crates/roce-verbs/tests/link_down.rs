//! A link that goes down while a queue pair waits ends its polling with an error.
//!
//! `ROCE_TEST_DEVICE=rxe0 ROCE_TEST_INTERFACE=veth0 cargo test -p roce-verbs --test link_down -- --ignored` takes that
//! interface down and up again with `ip`, as root: give one that nobody needs.

use std::alloc::{self, Layout};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{Device, DmaRegion, PeerEndpoint, QpAttr, RecvCompletion, UcQp, UcRecv, UcSend};
use roce_verbs::{VerbsConfig, VerbsDevice, VerbsError};

const PAGE: Layout = match Layout::from_size_align(4096, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a page"),
};

struct Page(NonNull<u8>);

impl Page {
    fn region() -> Arc<dyn DmaRegion> {
        // SAFETY: the layout has a size, which is not zero.
        Arc::new(Self(NonNull::new(unsafe { alloc::alloc_zeroed(PAGE) }).expect("memory")))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, once.
        unsafe { alloc::dealloc(self.0.as_ptr(), PAGE) };
    }
}

// SAFETY: the page is allocated until the value is dropped.
unsafe impl DmaRegion for Page {
    fn base(&self) -> NonNull<u8> {
        self.0
    }
    fn len(&self) -> usize {
        PAGE.size()
    }
}
// SAFETY: nobody but the device accesses it.
unsafe impl Send for Page {}
// SAFETY: nobody but the device accesses it, shared or not.
unsafe impl Sync for Page {}

/// The interface comes back up even if the test fails.
struct Down(String);

impl Down {
    fn take(interface: String) -> Self {
        set(&interface, "down");
        Self(interface)
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        set(&self.0, "up");
    }
}

fn set(interface: &str, state: &str) {
    let done = Command::new("ip").args(["link", "set", interface, state]).status().expect("iproute2");
    assert!(done.success(), "ip link set {interface} {state}: {done}");
}

fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; see the top of this file"))
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE and ROCE_TEST_INTERFACE"]
fn a_link_that_goes_down_is_noticed_by_both_halves() {
    let (device, interface) = (var("ROCE_TEST_DEVICE"), var("ROCE_TEST_INTERFACE"));
    let port = VerbsDevice::open(VerbsConfig::new(&device)).expect("opened");
    let (rx, tx) = (Page::region(), Page::region());
    let qp =
        port.create_qp(&QpAttr { rx, tx, send_depth: 4, recv_depth: 4, mtu: None }).expect("a queue pair");
    let itself = PeerEndpoint { qpn: qp.qpn(), rkey: None, ip: qp.local_ip() };
    let (mut send, mut recv) = qp.connect(&itself).map_err(|e| e.error).expect("connected");

    let down = Down::take(interface);
    let start = Instant::now();
    let mut out = [RecvCompletion::EMPTY; 1];
    let error = loop {
        match recv.poll(&mut out) {
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(20), "nothing noticed"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.what, "port", "{error}");
    assert!(error.reason.contains("IBV_EVENT_PORT_ERR"), "{error}");
    let seen_by_sender = (0..1 << 20).find_map(|_| send.reap().err());
    assert_eq!(seen_by_sender, Some(error));

    let refused = VerbsDevice::open(VerbsConfig::new(&device)).expect_err("the port is down");
    assert!(matches!(refused, VerbsError::PortDown { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains(&format!("{device} port 1 is down")) && text.contains("ip link set"), "{text}");
    drop(down);
    while let Err(error) = VerbsDevice::open(VerbsConfig::new(&device)) {
        assert!(start.elapsed() < Duration::from_secs(40), "{error}");
        thread::sleep(Duration::from_millis(50));
    }
}
