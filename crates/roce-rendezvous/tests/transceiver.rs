//! A transceiver meets an FPGA or another program: the rendezvous is the only difference.

#![allow(clippy::unwrap_used)] // helpers of tests

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hsb_emulator::{Config as FpgaConfig, Emulator, Personality};
use roce_rendezvous::hsb::ecb::Pair;
use roce_rendezvous::hsb::regs::{self, Capture, PLAYBACK_RAM, Player};
use roce_rendezvous::hsb::{Client as Registers, HsbRendezvous, RoceConfig, StartOptions, Timing};
use roce_rendezvous::socket::{Client, Form, Server, Timeouts};
use roce_rendezvous::{Geometry, Offer, Peer, Rendezvous, TxMode};
use roce_soft::{SoftConfig, SoftDevice};
use roce_transport::{Config, Error, Mode, State, Transceiver};

const CEILING: Duration = Duration::from_secs(60);
const PAGES: u32 = 64;
const PAGE_SIZE: u32 = 384;
const FRAME_SIZE: u32 = 64;
const WINDOWS: u32 = 200;

/// An address of this machine that no other test has.
fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, 32 | high & 0x1F, low, NEXT.fetch_add(1, Ordering::Relaxed))
}

fn transceiver() -> Transceiver {
    let config = Config::builder(format!("soft:{}", own_ip()))
        .num_pages(PAGES)
        .page_size(PAGE_SIZE)
        .frame_size(FRAME_SIZE)
        .mode(Mode::Forward);
    Transceiver::new(config.build().unwrap())
}

/// Connects a transceiver to whatever peer the rendezvous finds.
async fn meet<R: Rendezvous>(transceiver: &Transceiver, rendezvous: &mut R) -> Peer {
    let offer = Offer::from(transceiver.setup().unwrap()).with_geometry(Geometry {
        slots: PAGES,
        slot_size: PAGE_SIZE,
        frame_size: FRAME_SIZE,
        mtu: transceiver.path_mtu().unwrap(),
        tx_mode: TxMode::Send,
    });
    let connect = async |peer: Peer| transceiver.connect(&peer.endpoint);
    let peer = rendezvous.exchange::<_, _, Error>(&offer, connect).await.unwrap();
    assert_eq!(transceiver.state(), State::Connected);
    peer
}

#[tokio::test]
async fn with_another_program() {
    let (ours, theirs) = (transceiver(), transceiver());
    let timeouts = Timeouts { peer: Some(CEILING), message: CEILING, connect: CEILING };
    let mut server = Server::bind(SocketAddr::new(own_ip().into(), 0)).await.unwrap().with_timeouts(timeouts);
    let mut client = Client::new(server.local_addr(), Form::Json).with_timeouts(timeouts);
    let (peer, caller) = tokio::join!(meet(&ours, &mut client), meet(&theirs, &mut server));
    assert_eq!(peer.endpoint.qpn, theirs.setup().unwrap().qpn);
    assert_eq!(caller.endpoint.qpn, ours.setup().unwrap().qpn);
}

/// A software FPGA whose player runs. Ends when dropped.
struct Fpga {
    control: SocketAddrV4,
    qpn: roce_core::Qpn,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<hsb_emulator::Summary>>,
}

impl Fpga {
    fn start(personality: Personality) -> Self {
        let ip = own_ip();
        let device = SoftDevice::open(SoftConfig { addr: ip, ..SoftConfig::default() }).unwrap();
        let config = FpgaConfig {
            personality,
            control: SocketAddrV4::new(ip, 0),
            forward: true,
            response_timeout: CEILING,
            ..FpgaConfig::default()
        };
        let mut fpga = Emulator::bind(config, device).unwrap();
        let (control, qpn) = (fpga.control_address(), fpga.qpn());
        let stop: Arc<AtomicBool> = Arc::default();
        let flag = Arc::clone(&stop);
        Self { control, qpn, stop, thread: Some(thread::spawn(move || fpga.run(&flag))) }
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

/// Windows of one beat: a request's header and zeros.
fn windows() -> Vec<Pair> {
    let word = |window: u32, word: u32, data: u32| {
        let (bank, column) = regs::playback_word(window, 1, word);
        Pair::new(PLAYBACK_RAM.address(bank, column).unwrap(), data)
    };
    let magic = 0x4355_5152;
    (0..WINDOWS).flat_map(|w| [word(w, 0, magic), word(w, 2, 40), word(w, 3, w)]).collect()
}

/// Plays all windows once and waits until each has its answer.
async fn play(registers: &mut Registers) {
    registers.write_pairs(&windows()).await.unwrap();
    let orders = [
        (Player::Timer.address(), 0),
        (Player::WindowSize.address(), regs::BEAT_SIZE),
        (Player::WindowNumber.address(), WINDOWS),
        (Capture::Control.address(), regs::CAPTURE_RESET),
        (Capture::Control.address(), regs::CAPTURE_ENABLE),
    ];
    registers.write_pairs(&orders.map(|(address, data)| Pair::new(address, data))).await.unwrap();
    registers.write(Player::Enable.address(), regs::ENABLE_SINGLE).await.unwrap();
    let until = Instant::now() + CEILING;
    while registers.read(Capture::Status.address()).await.unwrap() & regs::CAPTURE_DONE == 0 {
        assert!(Instant::now() < until, "no complete capture within {CEILING:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    registers.write(Player::Enable.address(), regs::ENABLE_OFF).await.unwrap();
}

async fn with_an_fpga(personality: Personality) {
    let fpga = Fpga::start(personality);
    let timing = Timing { timeout: CEILING, first_timeout: CEILING, ..Timing::default() };
    let mut registers = Registers::connect(fpga.control, timing).await.unwrap();
    registers.start(&StartOptions::default()).await.unwrap();
    let ours = Arc::new(transceiver());
    let endpoint = ours.setup().unwrap();
    let template = RoceConfig::new(endpoint.qpn, endpoint.rkey, endpoint.ip, FRAME_SIZE, PAGE_SIZE, PAGES);
    let mut rendezvous = HsbRendezvous::new(registers, template).with_fpga_qpn(fpga.qpn);
    let peer = meet(&ours, &mut rendezvous).await;
    assert_eq!((peer.endpoint.qpn, peer.endpoint.ip), (fpga.qpn, *fpga.control.ip()));
    let monitor = thread::spawn({
        let ours = Arc::clone(&ours);
        move || ours.blocking_monitor()
    });
    play(rendezvous.client()).await;
    rendezvous.unconfigure().await.unwrap();
    assert_eq!(rendezvous.client().read(0x1000).await.unwrap(), 0);
    ours.close();
    monitor.join().unwrap().unwrap();
    let summary = fpga.finish();
    assert_eq!((summary.windows, summary.responses), (WINDOWS.into(), WINDOWS.into()), "{summary:?}");
}

#[tokio::test]
async fn with_an_fpga_as_the_hardware_is() {
    with_an_fpga(Personality::Fpga).await;
}

#[tokio::test]
async fn with_an_fpga_as_another_emulator_is() {
    with_an_fpga(Personality::Lenient).await;
}
