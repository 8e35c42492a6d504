//! A transceiver meets an FPGA or another program: the rendezvous is the only difference.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hsb_emulator::{Config as FpgaConfig, Emulator, Enumeration, Personality};
use roce_core::FrameMetadata;
use roce_rendezvous::hsb::ecb::Pair;
use roce_rendezvous::hsb::regs::{self, Capture, PLAYBACK_RAM, Player};
use roce_rendezvous::hsb::{
    Client as Registers, Discovery, DiscoveryConfig, FPGA_QPN, HsbRendezvous, ResetOptions, RoceConfig,
    Timing,
};
use roce_rendezvous::socket::{Client, Form, Server, Timeouts};
use roce_rendezvous::{Geometry, Offer, Peer, Rendezvous, TxMode};
use roce_soft::{SoftConfig, SoftDevice};
use roce_transport::{
    Config, ConfigBuilder, Error, ImmediateFormat, Mode, State, Stats, Transceiver, frame_metadata,
};

const CEILING: Duration = Duration::from_secs(60);

/// An address of this machine that no other test has.
fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, 32 | high & 0x1F, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + CEILING;
    while !done() {
        assert!(Instant::now() < until, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn transceiver(ip: Ipv4Addr, shape: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Transceiver {
    Transceiver::new(shape(Config::builder(format!("soft:{ip}"))).build().unwrap())
}

/// Connects a transceiver to whatever peer the rendezvous finds.
async fn meet<R: Rendezvous>(transceiver: &Transceiver, rendezvous: &mut R) -> Peer {
    let geometry = transceiver.config().geometry();
    let offer = Offer::from(transceiver.setup().unwrap()).with_geometry(Geometry {
        slots: geometry.num_pages(),
        slot_size: geometry.page_size(),
        frame_size: geometry.frame_size(),
        mtu: transceiver.path_mtu().unwrap(),
        tx_mode: TxMode::Send,
    });
    let connect = async |peer: Peer| transceiver.connect(&peer.endpoint);
    rendezvous.exchange::<_, _, Error>(&offer, connect).await.unwrap()
}

#[tokio::test]
async fn with_another_program() {
    let [ours, theirs] = [(); 2].map(|()| transceiver(own_ip(), |c| c));
    let timeouts = Timeouts { peer: Some(CEILING), message: CEILING, connect: CEILING };
    let mut server = Server::bind(SocketAddr::new(own_ip().into(), 0)).await.unwrap().with_timeouts(timeouts);
    let mut client = Client::new(server.local_addr(), Form::Json).with_timeouts(timeouts);
    let (peer, caller) = tokio::join!(meet(&ours, &mut client), meet(&theirs, &mut server));
    assert_eq!([ours.state(), theirs.state()], [State::Connected; 2]);
    assert_eq!(peer.endpoint.qpn, theirs.setup().unwrap().qpn);
    assert_eq!(caller.endpoint.qpn, ours.setup().unwrap().qpn);
}

/// Beats of a window, which is a frame of two packets.
const BEATS: u32 = 10;
const FRAME_SIZE: u32 = BEATS * regs::BEAT_SIZE;
/// Packets of 512 bytes.
const MTU: u32 = 512 + 100;
/// The frame, and its metadata.
const PAGE_SIZE: u32 = FRAME_SIZE + 128;
const WINDOWS: u32 = 32;
const PASSES: u32 = 16;

/// A software FPGA whose player runs. Ends when dropped.
struct Fpga {
    control: SocketAddrV4,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<hsb_emulator::Summary>>,
}

impl Fpga {
    /// Announces itself to `host`.
    fn start(personality: Personality, host: SocketAddrV4) -> Self {
        let ip = own_ip();
        let soft = SoftConfig { addr: ip, first_qpn: Some(FPGA_QPN), ..SoftConfig::default() };
        let enumeration = Enumeration {
            interval: Duration::from_millis(20),
            targets: Some(vec![host]),
            ..Enumeration::default()
        };
        let config = FpgaConfig {
            personality,
            control: SocketAddrV4::new(ip, 0),
            forward: true,
            page_size: PAGE_SIZE,
            response_timeout: CEILING,
            enumeration: Some(enumeration),
            reboot: Duration::from_millis(50),
            ..FpgaConfig::default()
        };
        let mut fpga = Emulator::bind(config, SoftDevice::open(soft).unwrap()).unwrap();
        let control = fpga.control_address();
        let stop: Arc<AtomicBool> = Arc::default();
        let flag = Arc::clone(&stop);
        Self { control, stop, thread: Some(thread::spawn(move || fpga.run(&flag))) }
    }

    fn finish(mut self) -> hsb_emulator::Summary {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Fpga {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Requests whose bytes after the header differ from window to window.
fn windows() -> Vec<Pair> {
    let word = |window: u32, word: u32, data: u32| {
        let (bank, column) = regs::playback_word(window, BEATS, word);
        Pair::new(PLAYBACK_RAM.address(bank, column).unwrap(), data)
    };
    let magic = 0x4355_5152;
    let body = |w: u32| (6..BEATS * 16).map(move |at| (at, w << 16 | at));
    let header = |w: u32| [(0, magic), (2, FRAME_SIZE - 24), (3, w)];
    (0..WINDOWS)
        .flat_map(|w| header(w).into_iter().chain(body(w)).map(move |(at, data)| word(w, at, data)))
        .collect()
}

async fn load(registers: &mut Registers) {
    registers.write_pairs(&windows()).await.unwrap();
    let orders = [
        (Player::Timer.address(), 0),
        (Player::WindowSize.address(), FRAME_SIZE),
        (Player::WindowNumber.address(), WINDOWS),
    ];
    registers.write_pairs(&orders.map(|(address, data)| Pair::new(address, data))).await.unwrap();
}

/// Plays all windows once and waits until each has its answer.
async fn play(registers: &mut Registers) {
    for order in [regs::CAPTURE_RESET, regs::CAPTURE_ENABLE] {
        registers.write(Capture::Control.address(), order).await.unwrap();
    }
    registers.write(Player::Enable.address(), regs::ENABLE_SINGLE).await.unwrap();
    let until = Instant::now() + CEILING;
    while registers.read(Capture::Status.address()).await.unwrap() & regs::CAPTURE_DONE == 0 {
        assert!(Instant::now() < until, "no complete capture within {CEILING:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    registers.write(Player::Enable.address(), regs::ENABLE_OFF).await.unwrap();
}

/// What a host's loop saw of each frame: its page, and the metadata.
type Seen = Vec<(u32, FrameMetadata)>;

/// A host whose ring the FPGA streams into. It sends every frame back.
struct Host {
    transceiver: Arc<Transceiver>,
    threads: Vec<JoinHandle<Seen>>,
}

impl Host {
    async fn start(ip: Ipv4Addr, mode: Mode, pages: u32, rendezvous: &mut HsbRendezvous) -> Self {
        let ours = transceiver(ip, |c| {
            let c = c.num_pages(pages).page_size(PAGE_SIZE).frame_size(FRAME_SIZE).mode(mode);
            c.immediate(ImmediateFormat::Hsb).metadata(true)
        });
        let transceiver = Arc::new(ours);
        let peer = meet(&transceiver, rendezvous).await;
        assert_eq!((peer.endpoint.qpn, transceiver.state()), (FPGA_QPN, State::Connected));
        let bodies: Vec<fn(&Transceiver) -> Seen> = match mode {
            Mode::Unified => vec![echo_unified],
            Mode::Forward => vec![run_threads],
            _ => vec![run_threads, echo_rings],
        };
        let spawn = |body: fn(&Transceiver) -> Seen| {
            let transceiver = Arc::clone(&transceiver);
            thread::spawn(move || body(&transceiver))
        };
        Self { threads: bodies.into_iter().map(spawn).collect(), transceiver: Arc::clone(&transceiver) }
    }

    fn stats(&self) -> Stats {
        Stats { wire: Vec::new(), ..self.transceiver.stats() }
    }

    /// The answers have been seen; the sending thread may not have counted the last one yet.
    async fn has_echoed(&self, messages: u64) {
        wait_until("the last answer counted", || self.stats().sent == messages).await;
        assert_eq!(self.stats(), Stats { received: messages, sent: messages, ..Stats::default() });
    }

    fn finish(self) -> Seen {
        self.transceiver.close();
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

fn run_threads(transceiver: &Transceiver) -> Seen {
    transceiver.blocking_monitor().unwrap();
    Seen::new()
}

fn echo_unified(transceiver: &Transceiver) -> Seen {
    let mut unified = transceiver.take_unified().unwrap();
    let (mut seen, mut frame) = (Seen::new(), vec![0; FRAME_SIZE as usize]);
    loop {
        match unified.rx_poll() {
            Ok(Some(slot)) => {
                seen.push((slot, unified.rx_metadata(slot).unwrap()));
                unified.rx_slot(slot).copy_to(0, &mut frame);
                unified.tx_slot(slot).copy_from(0, &frame);
                unified.tx_publish(slot).unwrap();
            }
            Ok(None) => thread::yield_now(),
            Err(Error::Closed) => return seen,
            Err(e) => panic!("{e}"),
        }
    }
}

fn echo_rings(transceiver: &Transceiver) -> Seen {
    let mut ends = transceiver.take_ends().unwrap();
    let geometry = transceiver.config().geometry();
    let (mut seen, mut frame) = (Seen::new(), vec![0; FRAME_SIZE as usize]);
    while transceiver.state() != State::Closed {
        let Some(slot) = ends.rx.next_published().filter(|&slot| ends.tx.is_free(slot)) else {
            thread::yield_now();
            continue;
        };
        let request = ends.rx.peek(slot).unwrap();
        seen.push((slot, frame_metadata(request.bytes(), geometry).unwrap()));
        request.bytes().copy_to(0, &mut frame);
        ends.tx.slot(slot).copy_from(0, &frame);
        ends.rx.claim(slot);
        ends.tx.publish(slot);
    }
    seen
}

/// The pages and frame numbers follow on each other, from these on.
fn assert_in_order(seen: &[(u32, FrameMetadata)], pages: u32, mut page: u32, mut frame_number: u16) {
    for (slot, metadata) in seen {
        assert_eq!((*slot, metadata.frame_number), (page, frame_number));
        assert_eq!((metadata.bytes_written, metadata.flags), (FRAME_SIZE.into(), 0));
        (page, frame_number) = ((page + 1) % pages, frame_number.wrapping_add(1));
    }
}

async fn life_with_an_fpga(personality: Personality, mode: Mode) {
    let heard_at =
        DiscoveryConfig { address: SocketAddrV4::new(own_ip(), 12267), ..DiscoveryConfig::default() };
    let fpga = Fpga::start(personality, heard_at.address);
    let mut discovery = Discovery::open(&heard_at).unwrap();
    let board = discovery.find(CEILING, |board| board.peer_ip == *fpga.control.ip()).await.unwrap();
    drop(discovery);
    let timing = Timing { timeout: CEILING, first_timeout: CEILING, ..Timing::default() };
    let control = SocketAddrV4::new(board.peer_ip, fpga.control.port());
    let mut registers = Registers::connect(control, timing).await.unwrap();
    registers.start(&board.start_options()).await.unwrap();
    load(&mut registers).await;
    let ip = own_ip();
    let template = RoceConfig {
        metadata: true,
        mtu: MTU,
        ..RoceConfig::new(FPGA_QPN, roce_core::Rkey::new(0), ip, FRAME_SIZE, PAGE_SIZE, 1)
    };
    let mut rendezvous = HsbRendezvous::new(registers, template);

    let host = Host::start(ip, mode, 8, &mut rendezvous).await;
    for _ in 0..PASSES {
        play(rendezvous.client()).await;
    }
    rendezvous.unconfigure().await.unwrap();
    assert_eq!(rendezvous.client().read(0x1000).await.unwrap(), 0);
    let messages = u64::from(PASSES * WINDOWS);
    host.has_echoed(messages).await;
    // An FPGA has a packet for the metadata, the emulator puts them behind the last data.
    let packets = if personality == Personality::Fpga { 3 } else { 2 };
    let wire = host.transceiver.stats().wire;
    assert_eq!(
        wire.iter().find(|(name, _)| *name == "rx_packets"),
        Some(&("rx_packets", packets * messages))
    );
    // An FPGA begins with page 0, the emulator with page 1.
    let first = u32::from(personality == Personality::Lenient);
    let seen = host.finish();
    assert_eq!(seen.len(), if mode == Mode::Forward { 0 } else { 512 });
    assert_in_order(&seen, 8, first, 0);

    // Another number of pages. The board restarts while it streams.
    let host = Host::start(ip, mode, 16, &mut rendezvous).await;
    play(rendezvous.client()).await;
    let one_pass = u64::from(WINDOWS);
    host.has_echoed(one_pass).await;
    rendezvous.client().write(Player::Enable.address(), regs::ENABLE_LOOP).await.unwrap();
    wait_until("frames before the restart", || host.stats().received > one_pass + 40).await;
    let options =
        ResetOptions { discovery: heard_at, board: Some(board), timeout: CEILING, ..ResetOptions::default() };
    rendezvous.client().reset(&options).await.unwrap();
    if personality == Personality::Lenient {
        assert_eq!(rendezvous.client().read(Player::Enable.address()).await.unwrap(), regs::ENABLE_LOOP);
        rendezvous.client().write(Player::Enable.address(), regs::ENABLE_OFF).await.unwrap();
    } else {
        assert_eq!(rendezvous.client().read(0x1000).await.unwrap(), 0, "it has forgotten all");
    }
    wait_until("answers to all", || host.stats().received == host.stats().sent).await;
    let stats = host.stats();
    assert_eq!((stats.lost_packets, stats.torn, stats.stale_metadata), (0, 0, 0));
    let before = usize::try_from(stats.received).unwrap();
    let seen = host.finish();
    assert_in_order(&seen[..before.min(seen.len())], 16, first, 512);

    // The host comes back with a ring of its own.
    let host = Host::start(ip, mode, 4, &mut rendezvous).await;
    load(rendezvous.client()).await;
    play(rendezvous.client()).await;
    rendezvous.unconfigure().await.unwrap();
    host.has_echoed(one_pass).await;
    let seen = host.finish();
    let number = seen.first().map_or(0, |(_, metadata)| metadata.frame_number);
    assert!(personality == Personality::Lenient || number == 0, "an FPGA counts from 0 again");
    assert_in_order(&seen, 4, first, number);

    let summary = fpga.finish();
    assert_eq!((summary.timeouts.total(), summary.failures.total()), (0, 0), "{summary:?}");
    assert_eq!(summary.control.resets, u64::from(personality == Personality::Fpga));
}

macro_rules! with_an_fpga {
    ($($name:ident: $personality:ident, $mode:ident;)*) => {
        $(#[tokio::test]
        async fn $name() {
            life_with_an_fpga(Personality::$personality, Mode::$mode).await;
        })*
    };
}

with_an_fpga! {
    threads_with_an_fpga_as_the_hardware_is: Fpga, Threads;
    unified_with_an_fpga_as_the_hardware_is: Fpga, Unified;
    forward_with_an_fpga_as_the_hardware_is: Fpga, Forward;
    threads_with_an_fpga_as_another_emulator_is: Lenient, Threads;
    unified_with_an_fpga_as_another_emulator_is: Lenient, Unified;
    forward_with_an_fpga_as_another_emulator_is: Lenient, Forward;
}
