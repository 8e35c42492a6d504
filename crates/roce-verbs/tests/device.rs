//! Two queue pairs of one real port, by name: `ROCE_TEST_DEVICE=rxe0 cargo test -p roce-verbs -- --ignored`.
//!
//! `ROCE_TEST_PORT` (default 1) and `ROCE_TEST_IP` (default: the port's first) choose more closely. Without
//! `ROCE_TEST_DEVICE` these tests fail: they never pass for want of a device.

use std::cell::UnsafeCell;
use std::io::{Read, Seek};
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{
    Device, DmaRegion, Mtu, PeerEndpoint, PostError, QpAttr, Qpn, Received, RecvCompletion, RecvKind, RecvWr,
    RegionId, Rkey, SendWr, Sge, UcQp, UcRecv, UcSend, Verb,
};
use roce_verbs::{
    Context, LinkLayer, PortState, VerbsConfig, VerbsDevice, VerbsError, VerbsQp, VerbsRecv, VerbsSend,
    device_names,
};

/// How long anything may take before the test gives up.
const CEILING: Duration = Duration::from_secs(20);

/// Bytes of each region, and of each half of one.
const REGION: usize = 64 << 10;

#[repr(align(4096))]
struct Pages(UnsafeCell<[u8; REGION]>);

/// A region of pages, accessed byte by byte.
struct Region(Box<Pages>);

// SAFETY: the box keeps its pages in place until the value is dropped.
unsafe impl DmaRegion for Region {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.0.0.get()).expect("a box is not null").cast()
    }
    fn len(&self) -> usize {
        REGION
    }
}
// SAFETY: its bytes are accessed atomically.
unsafe impl Send for Region {}
// SAFETY: its bytes are accessed atomically, also when shared.
unsafe impl Sync for Region {}

impl Region {
    fn new(fill: u8) -> Arc<Self> {
        Arc::new(Self(Box::new(Pages(UnsafeCell::new([fill; REGION])))))
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < REGION);
        // SAFETY: inside the region, which lives as long as the reference; every access of ours is atomic.
        unsafe { AtomicU8::from_ptr(self.base().as_ptr().add(at)) }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            self.byte(at + i).store(*byte, Ordering::Relaxed);
        }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        (at..at + len).map(|i| self.byte(i).load(Ordering::Relaxed)).collect()
    }
}

fn config() -> VerbsConfig {
    let var = |name| std::env::var(name).ok();
    let device = var("ROCE_TEST_DEVICE").expect(
        "ROCE_TEST_DEVICE is not set: name an RDMA device to test on (`rdma link` lists them), such as \
         ROCE_TEST_DEVICE=rxe0",
    );
    VerbsConfig {
        port: var("ROCE_TEST_PORT").map_or(1, |port| port.parse().expect("ROCE_TEST_PORT is a number")),
        local_ip: var("ROCE_TEST_IP").map(|ip| ip.parse().expect("ROCE_TEST_IP is an IPv4 address")),
        ..VerbsConfig::new(device)
    }
}

fn open() -> VerbsDevice {
    VerbsDevice::open(config()).expect("the device of ROCE_TEST_DEVICE")
}

const DEPTH: u32 = 16;

fn attr(rx: &Arc<Region>, tx: &Arc<Region>) -> QpAttr {
    QpAttr {
        rx: Arc::<Region>::clone(rx),
        tx: Arc::<Region>::clone(tx),
        send_depth: DEPTH,
        recv_depth: DEPTH,
        mtu: None,
    }
}

/// A connected end.
struct End {
    send: VerbsSend,
    recv: VerbsRecv,
    rx: Arc<Region>,
    tx: Arc<Region>,
    rkey: Rkey,
    mtu: Mtu,
}

fn peer_of(qp: &VerbsQp) -> PeerEndpoint {
    PeerEndpoint { qpn: qp.qpn(), rkey: Some(qp.rkey()), ip: qp.local_ip() }
}

/// Two ends that know each other, with no receive posted.
fn pair(device: &VerbsDevice) -> (End, End) {
    let regions: [_; 4] = std::array::from_fn(|_| Region::new(0xEE));
    let [rx_a, tx_a, rx_b, tx_b] = regions;
    let a = device.create_qp(&attr(&rx_a, &tx_a)).expect("a queue pair");
    let b = device.create_qp(&attr(&rx_b, &tx_b)).expect("a second one");
    let (to_a, to_b) = (peer_of(&a), peer_of(&b));
    (connected(a, &to_b, rx_a, tx_a), connected(b, &to_a, rx_b, tx_b))
}

fn connected(qp: VerbsQp, peer: &PeerEndpoint, rx: Arc<Region>, tx: Arc<Region>) -> End {
    let (rkey, mtu) = (qp.rkey(), qp.path_mtu());
    let (send, recv) = qp.connect(peer).map_err(|e| e.error).expect("connected");
    End { send, recv, rx, tx, rkey, mtu }
}

impl End {
    fn post(&mut self, wr: &SendWr) {
        self.send.stage(wr).expect("room");
        assert_eq!(self.send.flush().expect("posted"), 0);
    }

    /// The next completion of a receive.
    fn next(&mut self) -> RecvCompletion {
        self.next_within(CEILING).expect("a completion in time")
    }

    fn next_within(&mut self, ceiling: Duration) -> Option<RecvCompletion> {
        let mut out = [RecvCompletion::EMPTY; 4];
        let start = Instant::now();
        while start.elapsed() < ceiling {
            match self.recv.poll(&mut out[..1]).expect("a good completion queue") {
                0 => thread::yield_now(),
                _ => return Some(out[0]),
            }
        }
        None
    }
}

/// What is logged on this thread meanwhile.
fn logged(what: impl FnOnce()) -> String {
    let file = Arc::new(tempfile::tempfile().expect("a file"));
    let subscriber = tracing_subscriber::fmt().with_writer(Arc::clone(&file)).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, what);
    let mut text = String::new();
    (&*file).rewind().and_then(|()| (&*file).read_to_string(&mut text)).expect("read back");
    text
}

fn wr(region: RegionId, offset: u64, len: usize, verb: Verb) -> SendWr {
    SendWr { sge: Sge { region, offset, len: u32::try_from(len).expect("short") }, verb }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + 1).to_le_bytes()[0]).collect()
}

/// 0 B to several packets, on both sides of the inline limit and of a packet's size.
fn sizes(mtu: Mtu) -> Vec<usize> {
    let mtu = mtu.bytes() as usize;
    vec![0, 1, 64, 255, 256, 257, mtu - 1, mtu, mtu + 1, 3 * mtu + 5]
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn the_port_says_what_it_is() {
    let config = config();
    assert!(device_names().expect("listed").contains(&config.device));
    let context = Context::open(&config.device).expect("opened");
    let port = context.port(config.port).expect("a port");
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert!(port.active_mtu <= port.max_mtu && port.gid_table_len > 0 && port.max_message > 4096, "{port:?}");
    let table = context.gid_table(config.port).expect("a GID table");
    let (_, ip) = table.select(None).expect("an IPv4 address");
    let device = VerbsDevice::open(config).expect("opened");
    let qp = device.create_qp(&attr(&Region::new(0), &Region::new(0))).expect("a queue pair");
    assert_eq!(qp.path_mtu(), port.active_mtu);
    if std::env::var_os("ROCE_TEST_IP").is_none() {
        assert_eq!(qp.local_ip(), ip);
    }
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn what_is_not_there_is_named() {
    let config = config();
    let refused = |config| VerbsDevice::open(config).expect_err("refused");
    match refused(VerbsConfig { device: "no-such-device".to_owned(), ..config.clone() }) {
        VerbsError::NoSuchDevice { known, .. } => assert!(known.contains(&config.device)),
        other => panic!("{other}"),
    }
    match refused(VerbsConfig { port: 200, ..config.clone() }) {
        VerbsError::NoSuchPort { ports, .. } => assert!(ports >= 1),
        other => panic!("{other}"),
    }
    let nobody = Ipv4Addr::new(203, 0, 113, 7);
    let error = refused(VerbsConfig { local_ip: Some(nobody), ..config });
    assert!(matches!(error, VerbsError::NoGid { wanted: Some(ip), .. } if ip == nobody), "{error}");
    let text = error.to_string();
    assert!(text.contains("203.0.113.7") && text.contains("RoCE v2"), "{text}");
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_path_mtu_beyond_the_link_is_refused() {
    let device = open();
    let active = {
        let config = config();
        Context::open(&config.device).and_then(|c| c.port(config.port)).expect("a port").active_mtu
    };
    for mtu in Mtu::ALL {
        let attr = QpAttr { mtu: Some(mtu), ..attr(&Region::new(0), &Region::new(0)) };
        match device.create_qp(&attr) {
            Ok(qp) => assert!(qp.path_mtu() == mtu && mtu <= active),
            Err(VerbsError::PathMtu { asked, .. }) => assert!(asked == mtu && mtu > active),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn sends_land_in_the_receive_posted_first() {
    let (mut a, mut b) = pair(&open());
    for (i, len) in sizes(a.mtu).into_iter().enumerate() {
        for imm in [None, Some(0xABC0_1234)] {
            b.rx.write(0, &vec![0xEE; REGION]);
            let bytes = pattern(len, i);
            a.tx.write(100, &bytes);
            let id = u32::try_from(i).expect("small");
            b.recv.post_recv(RecvWr { id, offset: 4096, len: 32 << 10 }).expect("room");
            a.post(&wr(RegionId::Tx, 100, len, Verb::Send { imm }));
            let received = Received::new(RecvKind::Send, u32::try_from(len).expect("short"), imm);
            assert_eq!(b.next(), RecvCompletion { id, result: Ok(received) }, "{len} bytes");
            assert_eq!(b.rx.read(4096, len), bytes, "{len} bytes");
            assert_eq!((b.rx.read(4095, 1), b.rx.read(4096 + len, 1)), (vec![0xEE], vec![0xEE]));
            a.send.reap().expect("sent");
        }
    }
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn writes_land_where_they_are_addressed() {
    let (mut a, mut b) = pair(&open());
    for (i, len) in sizes(a.mtu).into_iter().enumerate() {
        b.rx.write(0, &vec![0xEE; REGION]);
        let bytes = pattern(len, i);
        a.tx.write(7, &bytes);
        let id = u32::try_from(i).expect("small");
        let imm = Some(0x8000_0000 | id);
        b.recv.post_recv(RecvWr { id, offset: 0, len: 4096 }).expect("room");
        a.post(&wr(RegionId::Tx, 7, len, Verb::Write { addr: 12345, rkey: b.rkey, imm }));
        let received = Received::new(RecvKind::WriteWithImm, u32::try_from(len).expect("short"), imm);
        assert_eq!(b.next(), RecvCompletion { id, result: Ok(received) }, "{len} bytes");
        assert_eq!(b.rx.read(12345, len), bytes, "{len} bytes");
        assert_eq!((b.rx.read(12344, 1), b.rx.read(12345 + len, 1)), (vec![0xEE], vec![0xEE]));
        a.send.reap().expect("sent");
    }
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_plain_write_completes_nothing_at_the_peer() {
    let (mut a, mut b) = pair(&open());
    b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).expect("room");
    let bytes = pattern(300, 1);
    a.tx.write(0, &bytes);
    a.post(&wr(RegionId::Tx, 0, 300, Verb::Write { addr: 512, rkey: b.rkey, imm: None }));
    a.post(&wr(RegionId::Tx, 0, 8, Verb::Write { addr: 0, rkey: b.rkey, imm: Some(5) }));
    assert_eq!(b.next().result.map(|r| r.imm), Ok(Some(5)), "the one behind it");
    assert_eq!(b.rx.read(512, 300), bytes);
}

/// The forward mode's case: entries on the RX region name offsets, not addresses.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn the_rx_region_can_be_sent_from() {
    let (mut a, mut b) = pair(&open());
    for len in [64, 257, 2 * a.mtu.bytes() as usize + 1] {
        let bytes = pattern(len, 3);
        a.rx.write(8192, &bytes);
        b.recv.post_recv(RecvWr { id: 1, offset: 16384, len: 32 << 10 }).expect("room");
        a.post(&wr(RegionId::Rx, 8192, len, Verb::Send { imm: None }));
        assert!(b.next().result.is_ok());
        assert_eq!(b.rx.read(16384, len), bytes, "{len} bytes");
    }
}

/// Inline, at the limit, beyond it, and as long as a share of the region; from both regions, at odd places too.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn messages_may_change_once_staged() {
    let (mut a, mut b) = pair(&open());
    for (i, len) in [24, 256, 257, 1000, REGION / DEPTH as usize].into_iter().enumerate() {
        for (region, at) in [(RegionId::Tx, 64), (RegionId::Tx, 67), (RegionId::Rx, 128)] {
            b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 8192 }).expect("room");
            let memory = Arc::clone(if region == RegionId::Tx { &a.tx } else { &a.rx });
            let bytes = pattern(len, i);
            memory.write(at, &bytes);
            a.send.stage(&wr(region, at as u64, len, Verb::Send { imm: None })).expect("room");
            memory.write(at, &vec![0; len]);
            assert_eq!(a.send.flush().expect("posted"), 0);
            assert!(b.next().result.is_ok());
            assert_eq!(b.rx.read(0, len), bytes, "{len} bytes from {region:?} at {at}");
            a.send.reap().expect("sent");
        }
    }
}

/// One slot for many messages, several times round the queue, each overwritten as soon as it is staged.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_full_batch_from_one_slot_keeps_every_message() {
    let (mut a, mut b) = pair(&open());
    // Half a round first: the batches then go round the end of the queue.
    for _ in 0..DEPTH / 2 {
        a.post(&wr(RegionId::Tx, 0, 0, Verb::Write { addr: 0, rkey: b.rkey, imm: None }));
    }
    for round in 0..3 {
        for id in 0..DEPTH {
            b.recv.post_recv(RecvWr { id, offset: u64::from(id) * 1024, len: 1024 }).expect("room");
            a.tx.write(0, &pattern(1000, (round * DEPTH + id) as usize));
            stage_when_there_is_room(&mut a, &wr(RegionId::Tx, 0, 1000, Verb::Send { imm: Some(id) }));
        }
        a.tx.write(0, &[0; 1000]);
        assert_eq!(a.send.flush().expect("posted"), 0);
        for id in 0..DEPTH {
            assert_eq!(b.next().result.map(|r| r.imm), Ok(Some(id)));
            let bytes = b.rx.read(id as usize * 1024, 1000);
            assert_eq!(bytes, pattern(1000, (round * DEPTH + id) as usize), "round {round}, message {id}");
        }
    }
}

/// Longer than its share of the region: the device fetches it from where it is.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_message_of_the_whole_region_is_sent_in_place() {
    let (mut a, mut b) = pair(&open());
    let bytes = pattern(REGION, 5);
    a.tx.write(0, &bytes);
    b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).expect("room");
    a.post(&wr(RegionId::Tx, 0, REGION, Verb::Write { addr: 0, rkey: b.rkey, imm: Some(1) }));
    assert_eq!(b.next().result.map(|r| r.imm), Ok(Some(1)));
    assert_eq!(b.rx.read(0, REGION), bytes);
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn nothing_is_posted_inline_where_nobody_wants_it() {
    let device = VerbsDevice::open(VerbsConfig { max_inline: Some(0), ..config() }).expect("opened");
    let (mut a, mut b) = pair(&device);
    b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).expect("room");
    a.tx.write(0, &pattern(24, 9));
    a.post(&wr(RegionId::Tx, 0, 24, Verb::Send { imm: None }));
    assert!(b.next().result.is_ok());
    assert_eq!(b.rx.read(0, 24), pattern(24, 9));
}

/// Far beyond what any device does: the limit falls to what it can, and one line says so.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn an_inline_limit_beyond_the_device_falls_back() {
    let log = logged(|| {
        let device = VerbsDevice::open(VerbsConfig { max_inline: Some(60_000), ..config() }).expect("opened");
        for _ in 0..2 {
            let (mut a, mut b) = pair(&device);
            b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 4096 }).expect("room");
            a.tx.write(0, &pattern(2000, 9));
            a.post(&wr(RegionId::Tx, 0, 2000, Verb::Send { imm: None }));
            assert!(b.next().result.is_ok());
            assert_eq!(b.rx.read(0, 2000), pattern(2000, 9));
        }
    });
    assert_eq!(log.matches("asked=60000 given=").count(), 1, "{log}");
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn batches_in_order_and_many_times_the_depth() {
    let (mut a, mut b) = pair(&open());
    let total = 40 * DEPTH;
    for id in 0..DEPTH {
        b.recv.post_recv(RecvWr { id, offset: u64::from(id) * 1024, len: 1024 }).expect("room");
    }
    assert!(matches!(b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 1 }), Err(PostError::QueueFull)));
    let (mut sent, mut received) = (0, 0);
    let start = Instant::now();
    while received < total {
        assert!(start.elapsed() < CEILING, "{sent} sent, {received} received");
        // UC has no credits: at most as many as there are receives.
        while sent < total && sent - received < DEPTH {
            a.tx.write(sent as usize % 16 * 1024, &sent.to_le_bytes());
            match a.send.stage(&wr(
                RegionId::Tx,
                u64::from(sent % 16) * 1024,
                600,
                Verb::Send { imm: Some(sent) },
            )) {
                Ok(()) => sent += 1,
                Err(PostError::QueueFull) => break,
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(a.send.flush().expect("posted"), 0);
        a.send.reap().expect("sent");
        let Some(completion) = b.next_within(Duration::from_millis(1)) else { continue };
        assert_eq!(completion.id, received % DEPTH, "receives complete in their order");
        assert_eq!(completion.result.map(|r| r.imm), Ok(Some(received)));
        let at = completion.id as usize * 1024;
        assert_eq!(b.rx.read(at, 4), received.to_le_bytes());
        b.recv.post_recv(RecvWr { id: completion.id, offset: at as u64, len: 1024 }).expect("room");
        received += 1;
    }
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_full_send_queue_is_said_and_empties() {
    let (mut a, b) = pair(&open());
    let write = wr(RegionId::Tx, 0, 64, Verb::Write { addr: 0, rkey: b.rkey, imm: None });
    for _ in 0..DEPTH {
        a.send.stage(&write).expect("room");
    }
    assert!(matches!(a.send.stage(&write), Err(PostError::QueueFull)));
    assert_eq!(a.send.flush().expect("posted"), 0);
    stage_when_there_is_room(&mut a, &write);
}

/// Takes completions until there is.
fn stage_when_there_is_room(end: &mut End, wr: &SendWr) {
    let start = Instant::now();
    while let Err(error) = end.send.stage(wr) {
        assert!(matches!(error, PostError::QueueFull), "{error}");
        assert!(start.elapsed() < CEILING, "still full");
        end.send.reap().expect("sent");
        thread::yield_now();
    }
}

/// UC drops what finds no receive, and goes on.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn without_a_receive_the_message_is_lost_and_the_next_arrives() {
    let (mut a, mut b) = pair(&open());
    let write = |imm| wr(RegionId::Tx, 0, 64, Verb::Write { addr: 0, rkey: b.rkey, imm: Some(imm) });
    let (lost, kept) = (write(1), write(2));
    a.post(&lost);
    wait_for_completions(&mut a, &wr(RegionId::Tx, 0, 1, Verb::Write { addr: 64, rkey: b.rkey, imm: None }));
    b.recv.post_recv(RecvWr { id: 9, offset: 0, len: 64 }).expect("room");
    a.post(&kept);
    let completion = b.next();
    assert_eq!((completion.id, completion.result.map(|r| r.imm)), (9, Ok(Some(2))));
}

/// Fills the queue with `filler` until all before it have completed.
fn wait_for_completions(end: &mut End, filler: &SendWr) {
    for _ in 0..2 * DEPTH {
        stage_when_there_is_room(end, filler);
        end.send.flush().expect("posted");
    }
}

/// What comes of a message that cannot land, with a good WRITE of immediate 2 behind it: a device completes a
/// receive with an error, or drops the bad one without a word and goes on.
fn after_a_bad_message(a: &mut End, b: &mut End, bad: &SendWr) {
    for id in 0..2 {
        b.recv.post_recv(RecvWr { id, offset: 0, len: 64 }).expect("room");
    }
    let good = Verb::Write { addr: 0, rkey: b.rkey, imm: Some(2) };
    a.post(bad);
    a.post(&wr(RegionId::Tx, 0, 0, good));
    match b.next().result {
        Ok(received) => assert_eq!(received.imm, Some(2), "the bad one arrived: {received:?}"),
        Err(error) => assert!(error.reason.starts_with("IBV_WC_"), "{error}"),
    }
    assert!(b.rx.read(0, REGION).iter().all(|&byte| byte == 0xEE), "memory was written");
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_write_under_a_wrong_key_changes_nothing() {
    let (mut a, mut b) = pair(&open());
    let rkey = Rkey::new(b.rkey.get() ^ 0x5A5A_5A00);
    after_a_bad_message(
        &mut a,
        &mut b,
        &wr(RegionId::Tx, 0, 64, Verb::Write { addr: 0, rkey, imm: Some(1) }),
    );
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_write_out_of_bounds_changes_nothing() {
    let (mut a, mut b) = pair(&open());
    let verb = Verb::Write { addr: REGION as u64 - 32, rkey: b.rkey, imm: Some(1) };
    after_a_bad_message(&mut a, &mut b, &wr(RegionId::Tx, 0, 64, verb));
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_message_longer_than_its_receive_changes_nothing() {
    let (mut a, mut b) = pair(&open());
    let bad = wr(RegionId::Tx, 0, 8192, Verb::Send { imm: Some(1) });
    // The first packets may fit, so only what lies behind the receive must be as it was.
    b.recv.post_recv(RecvWr { id: 7, offset: 0, len: 64 }).expect("room");
    a.post(&bad);
    a.post(&wr(RegionId::Tx, 0, 0, Verb::Write { addr: 0, rkey: b.rkey, imm: Some(2) }));
    let start = Instant::now();
    let seen = b.next_within(Duration::from_secs(1));
    if let Some(Ok(received)) = seen.map(|c| c.result) {
        assert_eq!(received.imm, Some(2), "{received:?}");
    }
    assert!(start.elapsed() < CEILING);
    assert!(b.rx.read(64, REGION - 64).iter().all(|&byte| byte == 0xEE), "written behind the receive");
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn what_lies_outside_our_regions_is_refused_before_it_is_posted() {
    let (mut a, mut b) = pair(&open());
    let outside = wr(RegionId::Tx, REGION as u64 - 10, 11, Verb::Send { imm: None });
    assert!(matches!(a.send.stage(&outside), Err(PostError::OutOfRange { .. })));
    let outside = RecvWr { id: 0, offset: REGION as u64, len: 1 };
    assert!(matches!(b.recv.post_recv(outside), Err(PostError::OutOfRange { .. })));
}

/// UC has no acknowledgement: a sender does not notice that nobody is there.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn sending_to_a_peer_that_is_gone_goes_well() {
    let (mut a, b) = pair(&open());
    let write = wr(RegionId::Tx, 0, 64, Verb::Write { addr: 0, rkey: b.rkey, imm: Some(1) });
    drop(b);
    wait_for_completions(&mut a, &write);
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_refused_connect_gives_the_queue_pair_back() {
    let device = open();
    let (rx, tx) = (Region::new(0xEE), Region::new(0x11));
    let mut a = device.create_qp(&attr(&rx, &tx)).expect("a queue pair");
    a.post_recv(RecvWr { id: 3, offset: 128, len: 64 }).expect("INIT takes receives");
    let nobody = PeerEndpoint { qpn: Qpn::from_low_bits(5), rkey: None, ip: Ipv4Addr::UNSPECIFIED };
    let refused = a.connect(&nobody).expect_err("0.0.0.0 is no peer");
    assert!(matches!(refused.error, VerbsError::Peer { .. }), "{}", refused.error);
    // With itself: one queue pair may be both ends.
    let a = refused.qp;
    let itself = peer_of(&a);
    let mut a = connected(a, &itself, rx, tx);
    a.post(&wr(RegionId::Tx, 0, 64, Verb::Send { imm: None }));
    let completion = a.next();
    assert_eq!((completion.id, completion.result.map(|r| r.len)), (3, Ok(64)));
    assert_eq!(a.rx.read(128, 64), [0x11; 64]);
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_peer_that_nothing_leads_to_is_named() {
    let qp = open().create_qp(&attr(&Region::new(0), &Region::new(0))).expect("a queue pair");
    let nobody = PeerEndpoint { qpn: Qpn::from_low_bits(5), rkey: None, ip: Ipv4Addr::new(203, 0, 113, 7) };
    let error = qp.connect(&nobody).expect_err("TEST-NET-3 is nowhere").error;
    assert!(matches!(error, VerbsError::ReadyToReceive(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("203.0.113.7") && text.contains("RTR"), "{text}");
    println!("{text}");
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn counters_count() {
    let device = open();
    let (rx, tx) = (Region::new(0xEE), Region::new(0x11));
    let mut qp = device.create_qp(&attr(&rx, &tx)).expect("a queue pair");
    qp.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).expect("room");
    let stats = qp.wire_stats();
    let value = |name: &str| stats.snapshot().into_iter().find(|(known, _)| *known == name).map(|(_, v)| v);
    let itself = peer_of(&qp);
    let mut end = connected(qp, &itself, rx, tx);
    end.post(&wr(RegionId::Tx, 0, 64, Verb::Send { imm: None }));
    end.next();
    assert_eq!([value("tx_posted"), value("rx_posted"), value("rx_completed")], [Some(1); 3]);
    let names: Vec<_> = stats.snapshot().into_iter().map(|(name, _)| name).collect();
    assert!(names.len() > 5, "the port's own counters are missing: {names:?}");
    drop(end);
    assert_eq!(value("tx_posted"), Some(1), "readable when the queue pair is gone");
}

/// Each object is destroyed before what it was made in: libibverbs refuses, and we log, any other order.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn a_hundred_times_open_and_close_leaves_nothing() {
    let open_files = || std::fs::read_dir("/proc/self/fd").expect("listed").count();
    let region = Region::new(0);
    let mut first = None;
    let log = logged(|| {
        for round in 0..100 {
            let (mut a, mut b) = pair(&open());
            b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).expect("room");
            a.post(&wr(RegionId::Tx, 0, 8, Verb::Send { imm: Some(round) }));
            assert_eq!(b.next().result.map(|r| r.imm), Ok(Some(round)));
            let unconnected = open().create_qp(&attr(&region, &region)).expect("a queue pair");
            drop((unconnected, a, b));
            first = first.or_else(|| Some(open_files()));
        }
    });
    assert_eq!(log, "", "a tear-down was refused");
    assert_eq!(Arc::strong_count(&region), 1, "every registration gave the region back");
    // Other tests of this program may have some open at the same time; 100 rounds would leave hundreds.
    assert!(open_files() < first.expect("a round") + 50, "files are left open");
}

/// The last bytes of a region, as a region of their own.
struct Tail(Arc<Region>);

// SAFETY: the region keeps the bytes in place until it is dropped.
unsafe impl DmaRegion for Tail {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: the region has more than 64 bytes.
        unsafe { self.0.base().add(64) }
    }
    fn len(&self) -> usize {
        REGION - 64
    }
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn an_rx_region_off_the_page_boundary_is_refused_in_words() {
    let region = Region::new(0);
    let attr = QpAttr { rx: Arc::new(Tail(Arc::clone(&region))), ..attr(&region, &region) };
    let error = open().create_qp(&attr).expect_err("the address 0 has another place in its page");
    assert!(matches!(error, VerbsError::RegisterMr { region: "RX", .. }), "{error}");
    assert!(error.to_string().contains("boundary of a page"), "{error}");
}

/// What was made before the refusal is given back, the regions' registrations first of all.
#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn queues_deeper_than_the_device_has_are_refused_and_leave_nothing() {
    let device = open();
    let (rx, tx) = (Region::new(0), Region::new(0));
    for recv_depth in [1, 1 << 28] {
        let send_depth = if recv_depth == 1 { 1 << 28 } else { 1 };
        let attr = QpAttr { send_depth, recv_depth, ..attr(&rx, &tx) };
        match device.create_qp(&attr) {
            Err(VerbsError::CreateCq { max, .. } | VerbsError::CreateQp { max, .. }) => {
                assert!(max.is_some_and(|max| (1..1 << 28).contains(&max)), "{max:?}");
            }
            other => panic!("{other:?}"),
        }
        drop(attr);
        assert_eq!((Arc::strong_count(&rx), Arc::strong_count(&tx)), (1, 1));
    }
    device.create_qp(&attr(&rx, &tx)).expect("the device is as good as before");
}

#[test]
#[ignore = "needs ROCE_TEST_DEVICE"]
fn the_halves_work_on_two_threads_and_either_may_go_first() {
    let device = open();
    for sender_first in [true, false] {
        let (a, mut b) = pair(&device);
        for id in 0..DEPTH {
            b.recv.post_recv(RecvWr { id, offset: u64::from(id) * 64, len: 64 }).expect("room");
        }
        let End { mut send, recv, .. } = a;
        if !sender_first {
            drop(recv);
        }
        let sender = thread::spawn(move || {
            for imm in 0..DEPTH {
                send.stage(&wr(RegionId::Tx, 0, 64, Verb::Send { imm: Some(imm) })).expect("room");
                send.flush().expect("posted");
            }
            send
        });
        for imm in 0..DEPTH {
            assert_eq!(b.next().result.map(|r| r.imm), Ok(Some(imm)));
        }
        drop(sender.join().expect("no panic"));
    }
}
