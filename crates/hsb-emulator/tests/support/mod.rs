//! What the tests share: addresses, a host's bridge over soft RoCE, a running emulator.
#![allow(dead_code, unreachable_pub)] // each test program uses its part

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hsb_emulator::{Config, Emulator, Summary};
use roce_core::{
    Device, ImmediateLayout, PeerEndpoint, QpAttr, Qpn, RecvCompletion, RecvKind, RecvWr, RegionId, Rkey,
    SendWr, Sge, UcQp, UcRecv, UcSend, Verb,
};
use roce_rendezvous::hsb::ecb::{Command, Flags, Pair, Request};
use roce_rendezvous::hsb::regs::{self, CAPTURE_RAM, Capture, LoopStats, PLAYBACK_RAM, Player};
use roce_rendezvous::hsb::sample::{SAMPLE_WORDS, Sample};
use roce_rendezvous::hsb::{BlockingClient, FPGA_QPN, RoceConfig, Timing};
use roce_ring::{Geometry, MemoryOptions, Ring};
use roce_soft::{SoftConfig, SoftDevice, SoftQp};

/// Makes a test of each function, for either personality.
#[macro_export]
macro_rules! with_both {
    ($($test:ident),* $(,)?) => {
        mod fpga {
            $(#[test] fn $test() { super::$test(hsb_emulator::Personality::Fpga); })*
        }
        mod lenient {
            $(#[test] fn $test() { super::$test(hsb_emulator::Personality::Lenient); })*
        }
    };
}

/// Far more than anything takes, even on a machine with other work.
pub const CEILING: Duration = Duration::from_secs(20);

pub const PATIENT: Timing = Timing {
    timeout: CEILING,
    retry: Duration::from_millis(500),
    first_timeout: CEILING,
    first_retry: Duration::from_millis(500),
};

/// An address of this machine that no other test has.
pub fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let process = std::process::id();
    let host = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv4Addr::from_bits(127 << 24 | (64 | process >> 8 & 0x3F) << 16 | (process & 0xFF) << 8 | host)
}

/// A device whose first queue pair has the number that a host expects of an FPGA.
pub fn device(addr: Ipv4Addr) -> SoftDevice {
    let config = SoftConfig { addr, first_qpn: Some(FPGA_QPN), ..SoftConfig::default() };
    SoftDevice::open(config).expect("a soft device")
}

/// Waits for `condition`.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < CEILING, "no {what} within {CEILING:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Stops the thread that it watches when a test ends, also by a panic.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An emulator whose player runs.
pub struct Running {
    pub qpn: Qpn,
    pub control: SocketAddrV4,
    stop: Stop,
    thread: JoinHandle<Summary>,
}

impl Running {
    pub fn start(config: Config) -> Self {
        let ip = own_ip();
        let config = Config { control: SocketAddrV4::new(ip, 0), ..config };
        let mut emulator = Emulator::bind(config, device(ip)).expect("an emulator");
        let (qpn, control) = (emulator.qpn(), emulator.control_address());
        let stop = Stop(Arc::default());
        let flag = Arc::clone(&stop.0);
        let thread = thread::spawn(move || emulator.run(&flag));
        Self { qpn, control, stop, thread }
    }

    pub fn ip(&self) -> Ipv4Addr {
        *self.control.ip()
    }

    pub fn finish(self) -> Summary {
        drop(self.stop);
        self.thread.join().expect("the player")
    }
}

/// What a bridge got: the page and the message.
pub type Arrival = (u32, Vec<u8>);

/// A host: a ring that the FPGA writes, and SENDs that answer.
pub struct Bridge {
    pub ip: Ipv4Addr,
    pub qpn: Qpn,
    pub rkey: Rkey,
    pub pages: u32,
    pub page_size: u32,
    /// Where the ring begins that the FPGA knows.
    pub first_page: Arc<AtomicU32>,
    /// Messages answered so far.
    pub served: Arc<AtomicU32>,
    stop: Stop,
    thread: JoinHandle<Vec<Arrival>>,
}

const RECEIVES: u32 = 64;
const ANSWER_ROOM: u32 = 4096;

impl Bridge {
    /// Answers each message with what `service` makes of it.
    pub fn start(
        ip: Ipv4Addr,
        shape: (u32, u32),
        peer: (Qpn, Ipv4Addr),
        service: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
    ) -> Self {
        Self::start_with(ip, shape, peer, None, service)
    }

    /// Its answers carry an immediate.
    pub fn start_with(
        ip: Ipv4Addr,
        (pages, page_size): (u32, u32),
        peer: (Qpn, Ipv4Addr),
        imm: Option<u32>,
        service: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
    ) -> Self {
        let ring = |pages, size| {
            let geometry = Geometry::new(pages, size, size).expect("a shape");
            Ring::allocate(geometry, MemoryOptions::default()).expect("a ring")
        };
        let (rx, tx) = (ring(pages.next_power_of_two(), page_size), ring(1, ANSWER_ROOM));
        let attr =
            QpAttr { rx: rx.data(), tx: tx.data(), send_depth: RECEIVES, recv_depth: RECEIVES, mtu: None };
        let mut qp = device(ip).create_qp(&attr).expect("a queue pair");
        for id in 0..RECEIVES {
            qp.post_recv(RecvWr { id, offset: 0, len: page_size }).expect("room");
        }
        let (qpn, rkey) = (qp.qpn(), qp.rkey());
        let stop = Stop(Arc::default());
        let flag = Arc::clone(&stop.0);
        let first_page: Arc<AtomicU32> = Arc::default();
        let served: Arc<AtomicU32> = Arc::default();
        let counters = (Arc::clone(&first_page), Arc::clone(&served));
        let thread = thread::spawn(move || serve(qp, peer, (&rx, &tx), (imm, service), counters, &flag));
        Self { ip, qpn, rkey, pages, page_size, first_page, served, stop, thread }
    }

    /// As the FPGA must know it.
    pub fn config(&self) -> RoceConfig {
        RoceConfig {
            hif_address: regs::EMULATOR_HIF_ADDRESS,
            base: u64::from(self.first_page.load(Ordering::Relaxed) * self.page_size),
            ..RoceConfig::new(self.qpn, self.rkey, self.ip, self.page_size, self.page_size, self.pages)
        }
    }

    /// Waits until `count` messages have been answered.
    pub fn wait_for_messages(&self, count: u32) {
        wait_for("message", || (self.served.load(Ordering::Relaxed) >= count).then_some(()));
    }

    /// What it got, in order.
    pub fn finish(self) -> Vec<Arrival> {
        drop(self.stop);
        self.thread.join().expect("the bridge")
    }
}

fn serve(
    qp: SoftQp,
    (peer_qpn, peer_ip): (Qpn, Ipv4Addr),
    (rx, tx): (&Ring, &Ring),
    (imm, mut service): (Option<u32>, impl FnMut(&[u8]) -> Vec<Vec<u8>>),
    (first_page, served): (Arc<AtomicU32>, Arc<AtomicU32>),
    stop: &AtomicBool,
) -> Vec<Arrival> {
    let peer = PeerEndpoint { qpn: peer_qpn, rkey: None, ip: peer_ip };
    let (mut send, mut recv) = qp.connect(&peer).expect("connected");
    let mut arrivals = Vec::new();
    let mut completions = [RecvCompletion::EMPTY; 8];
    while !stop.load(Ordering::Relaxed) {
        let count = recv.poll(&mut completions).expect("a working queue pair");
        for completion in &completions[..count] {
            let received = completion.result.expect("a message");
            assert_eq!(received.kind, RecvKind::WriteWithImm);
            let page = ImmediateLayout::Hsb.page(received.imm.expect("an immediate"));
            let mut message = vec![0; received.len as usize];
            rx.slot(first_page.load(Ordering::Relaxed) + page).copy_to(0, &mut message);
            recv.post_recv(RecvWr { id: completion.id, offset: 0, len: 1 }).expect("room");
            for answer in service(&message) {
                answer_with(&mut send, tx, imm, &answer);
            }
            arrivals.push((page, message));
            served.fetch_add(1, Ordering::Relaxed);
        }
        thread::yield_now();
    }
    arrivals
}

fn answer_with(send: &mut impl UcSend, tx: &Ring, imm: Option<u32>, answer: &[u8]) {
    tx.slot(0).copy_from(0, answer);
    let len = u32::try_from(answer.len()).expect("short");
    let sge = Sge { region: RegionId::Tx, offset: 0, len };
    send.stage(&SendWr { sge, verb: Verb::Send { imm } }).expect("room");
    while send.flush().expect("a working link") > 0 {
        thread::yield_now();
    }
    send.reap().expect("a working queue pair");
}

pub const REQUEST: u32 = 0x4355_5152;
pub const RESPONSE: u32 = 0x4355_5153;

/// A request or response without a send time.
pub fn message(magic: u32, status: u32, id: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("short");
    let words = [magic, status, len, id, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).chain(payload.iter().copied()).collect()
}

pub fn id_of(message: &[u8]) -> u32 {
    word_of(message, 12)
}

pub fn word_of(message: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(message[offset..offset + 4].try_into().expect("a word"))
}

/// The response to a request: every payload byte plus one, send time repeated.
pub fn increment(request: &[u8]) -> Vec<u8> {
    let len = word_of(request, 8) as usize;
    let payload: Vec<u8> = request[24..24 + len].iter().map(|byte| byte.wrapping_add(1)).collect();
    let mut response = message(RESPONSE, 0, id_of(request), &payload);
    response[16..24].copy_from_slice(&request[16..24]);
    response
}

/// What a playback tool does.
pub struct Host {
    pub client: BlockingClient,
}

impl Host {
    pub fn connect(emulator: &Running) -> Self {
        Self { client: BlockingClient::connect(emulator.control, PATIENT).expect("a session") }
    }

    /// Restarts the board, and begins a new session with it.
    pub fn restart(&mut self) {
        let peer = self.client.peer();
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
        let flags = Flags::default();
        let pairs = vec![Pair::new(regs::RESET, regs::RESET_DEVICE)];
        let request = Request { command: Command::WriteDword, flags, sequence: 1, pairs };
        socket.send_to(&request.encode(), peer).expect("sent");
        wait_for("restart", || {
            self.client = BlockingClient::connect(peer, PATIENT).expect("a session");
            (self.read(Player::WindowSize.address()) == 0).then_some(())
        });
    }

    pub fn write(&mut self, pairs: &[(u32, u32)]) {
        let pairs: Vec<Pair> = pairs.iter().map(|&(address, data)| Pair::new(address, data)).collect();
        self.client.write_pairs(&pairs).expect("written");
    }

    pub fn read(&mut self, address: u32) -> u32 {
        self.client.read(address).expect("read")
    }

    /// Fills the playback memory with windows of `beats` beats, and tells the player.
    pub fn load(&mut self, messages: &[Vec<u8>], beats: u32) {
        let size = beats * regs::BEAT_SIZE;
        let mut pairs = Vec::new();
        for (window, message) in (0..).zip(messages) {
            let mut padded = message.clone();
            padded.resize(size as usize, 0);
            for (word, bytes) in (0..).zip(padded.chunks_exact(4)) {
                let (bank, column) = regs::playback_word(window, beats, word);
                let address = PLAYBACK_RAM.address(bank, column).expect("inside");
                pairs.push(Pair::new(address, word_of(bytes, 0)));
            }
        }
        self.client.write_pairs(&pairs).expect("written");
        for pair in pairs {
            assert_eq!(self.read(pair.address), pair.data);
        }
        let windows = u32::try_from(messages.len()).expect("few");
        self.write(&[
            (Player::Timer.address(), 0),
            (Player::WindowSize.address(), size),
            (Player::WindowNumber.address(), windows),
        ]);
    }

    pub fn enable(&mut self, value: u32) {
        self.client.write(Player::Enable.address(), value).expect("written");
    }

    /// Arms the capture, plays everything once and gives what was captured.
    pub fn capture_pass(&mut self) -> Vec<Sample> {
        self.begin_capture();
        self.end_capture()
    }

    /// Arms the capture and starts the player.
    pub fn begin_capture(&mut self) {
        self.enable(regs::ENABLE_OFF);
        self.write(&[
            (Capture::Control.address(), regs::CAPTURE_RESET),
            (Capture::Control.address(), regs::CAPTURE_ENABLE),
        ]);
        self.enable(regs::ENABLE_SINGLE);
    }

    /// Whether every window has its samples.
    pub fn capture_is_complete(&mut self) -> bool {
        self.read(Capture::Status.address()) & regs::CAPTURE_DONE != 0
    }

    /// Waits for the end of the capture and gives what is in it.
    pub fn end_capture(&mut self) -> Vec<Sample> {
        wait_for("complete capture", || self.capture_is_complete().then_some(()));
        let samples = self.samples();
        self.write(&[(Capture::Control.address(), regs::CAPTURE_OFF)]);
        samples
    }

    fn samples(&mut self) -> Vec<Sample> {
        let count = self.read(Capture::SampleAddr.address()) as usize;
        let mut samples = vec![[0; SAMPLE_WORDS]; count];
        for bank in 0..CAPTURE_RAM.banks {
            let address = CAPTURE_RAM.address(bank, 0).expect("inside");
            let column = self.client.read_block(address, count).expect("read");
            for (sample, word) in samples.iter_mut().zip(column) {
                sample[bank as usize] = word;
            }
        }
        samples.iter().map(Sample::from_words).collect()
    }

    /// Loops until `enough` returns, leaves the loop and gives its statistics, word by word.
    pub fn loop_until(&mut self, enough: impl FnOnce()) -> Vec<u32> {
        self.enable(regs::ENABLE_LOOP);
        enough();
        self.enable(regs::ENABLE_OFF);
        self.loop_statistics()
    }

    /// Orders a loop that ends by itself, since it cannot be played.
    pub fn refused_loop(&mut self) {
        self.enable(regs::ENABLE_LOOP);
        assert_eq!(self.loop_statistics()[2..], [0; 8]);
        self.enable(regs::ENABLE_OFF);
    }

    fn loop_statistics(&mut self) -> Vec<u32> {
        wait_for("loop statistics", || {
            (self.read(LoopStats::State.address()) == regs::LOOP_COMPLETE).then_some(())
        });
        self.client.read_block(LoopStats::BASE, 10).expect("read")
    }
}
