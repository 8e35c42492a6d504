//! The control plane: register requests over UDP, answered as the personality does.

mod fpga;
mod lenient;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::EmulatorError;
use crate::personality::Personality;
use crate::regs::Registers;
use fpga::FpgaProtocol;
use lenient::LenientProtocol;

/// How long the thread may take to see that it shall end.
const TICK: Duration = Duration::from_millis(50);
/// The longest UDP payload there is.
const DATAGRAM: usize = 65536;

/// What the control plane saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlCounts {
    /// Requests carried out, the last pair perhaps in vain.
    pub executed: u64,
    /// Requests refused before anything was done: command, flags, length or sequence.
    pub refused: u64,
    /// Datagrams that are no requests; dropped.
    pub garbage: u64,
    /// Datagrams that came while the device restarted; lost.
    pub lost: u64,
    /// How often a host restarted the device.
    pub resets: u64,
    /// Times that the socket failed to receive or send.
    pub socket_errors: u64,
}

#[derive(Default)]
struct Counters {
    executed: AtomicU64,
    refused: AtomicU64,
    garbage: AtomicU64,
    lost: AtomicU64,
    resets: AtomicU64,
    socket_errors: AtomicU64,
}

/// The control plane's thread. Ends when dropped.
pub(crate) struct ControlPlane {
    address: SocketAddrV4,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlPlane {
    /// Serves `registers` at `address`; port 0 takes a free one. A restart takes `reboot`.
    pub(crate) fn bind(
        address: SocketAddrV4,
        personality: Personality,
        reboot: Duration,
        registers: Arc<Registers>,
    ) -> Result<Self, EmulatorError> {
        let (socket, address) = open(address)?;
        let counters = Arc::new(Counters::default());
        let stop = Arc::new(AtomicBool::new(false));
        let protocol = match personality {
            Personality::Fpga => Protocol::Fpga(FpgaProtocol::default()),
            Personality::Lenient => Protocol::Lenient(LenientProtocol),
        };
        let server = Server {
            socket,
            protocol,
            registers,
            reboot,
            counters: Arc::clone(&counters),
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new()
            .name("hsb-control".into())
            .spawn(move || server.run())
            .map_err(|source| EmulatorError::Control { call: "spawn", address, source })?;
        Ok(Self { address, counters, stop, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddrV4 {
        self.address
    }

    pub(crate) fn counts(&self) -> ControlCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ControlCounts {
            executed: load(&self.counters.executed),
            refused: load(&self.counters.refused),
            garbage: load(&self.counters.garbage),
            lost: load(&self.counters.lost),
            resets: load(&self.counters.resets),
            socket_errors: load(&self.counters.socket_errors),
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control plane's thread panicked");
        }
    }
}

fn open(address: SocketAddrV4) -> Result<(UdpSocket, SocketAddrV4), EmulatorError> {
    let error = |call| move |source| EmulatorError::Control { call, address, source };
    let socket = UdpSocket::bind(address).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => EmulatorError::PortInUse(address),
        ErrorKind::AddrNotAvailable => EmulatorError::NoSuchAddress(address),
        _ => error("bind")(source),
    })?;
    socket.set_read_timeout(Some(TICK)).map_err(error("SO_RCVTIMEO"))?;
    match socket.local_addr().map_err(error("getsockname"))? {
        SocketAddr::V4(bound) => Ok((socket, bound)),
        SocketAddr::V6(_) => Err(error("getsockname")(ErrorKind::Unsupported.into())),
    }
}

/// What comes of a datagram.
#[derive(Debug, PartialEq, Eq)]
enum Reaction {
    /// Nothing goes back.
    Silence,
    Answer(Vec<u8>),
    /// The device restarts, and nothing goes back.
    Restart,
}

/// A personality's side of the register protocol.
enum Protocol {
    Fpga(FpgaProtocol),
    Lenient(LenientProtocol),
}

impl Protocol {
    fn take(&mut self, datagram: &[u8], registers: &Registers, counters: &Counters) -> Reaction {
        match self {
            Self::Fpga(fpga) => fpga.take(datagram, registers, counters),
            Self::Lenient(lenient) => lenient.take(datagram, registers, counters),
        }
    }
}

impl Counters {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the thread has.
struct Server {
    socket: UdpSocket,
    protocol: Protocol,
    registers: Arc<Registers>,
    reboot: Duration,
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
}

impl Server {
    fn run(mut self) {
        let mut datagram = vec![0; DATAGRAM];
        while !self.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.serve_one(&mut datagram) {
                self.bear(&error);
            }
        }
    }

    fn serve_one(&mut self, datagram: &mut [u8]) -> io::Result<()> {
        let Some((len, from)) = receive(&self.socket, datagram)? else { return Ok(()) };
        match self.protocol.take(&datagram[..len], &self.registers, &self.counters) {
            Reaction::Silence => Ok(()),
            Reaction::Answer(answer) => self.socket.send_to(&answer, from).map(drop),
            Reaction::Restart => {
                self.restart(datagram);
                Ok(())
            }
        }
    }

    /// What comes meanwhile is lost.
    fn restart(&mut self, datagram: &mut [u8]) {
        tracing::info!(time = ?self.reboot, "the device restarts");
        Counters::count(&self.counters.resets);
        self.registers.restart();
        let up = Instant::now() + self.reboot;
        while Instant::now() < up && !self.stop.load(Ordering::Relaxed) {
            self.lose_one(datagram);
        }
        self.registers.restarted();
    }

    fn lose_one(&self, datagram: &mut [u8]) {
        match receive(&self.socket, datagram) {
            Ok(None) => {}
            Ok(Some(_)) => Counters::count(&self.counters.lost),
            Err(error) => self.bear(&error),
        }
    }

    fn bear(&self, error: &io::Error) {
        Counters::count(&self.counters.socket_errors);
        tracing::warn!(%error, "the control plane's socket failed");
        thread::sleep(TICK / 10);
    }
}

/// `None` where nothing came for a while.
fn receive(socket: &UdpSocket, datagram: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
    match socket.recv_from(datagram) {
        Err(e)
            if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
        {
            Ok(None)
        }
        received => received.map(Some),
    }
}

/// What the tests of both protocols share.
#[cfg(test)]
pub(crate) mod testing {
    use roce_rendezvous::hsb::ecb::{Command, Flags, Pair, Request};
    use roce_rendezvous::hsb::regs;

    use super::*;
    use crate::regs::Layout;

    /// A board without its socket.
    pub(super) struct Board {
        pub(super) registers: Registers,
        pub(super) counters: Counters,
        protocol: Protocol,
    }

    impl Board {
        pub(super) fn new(personality: Personality) -> Self {
            let layout = Layout {
                personality,
                hsb_ip_version: personality.hsb_ip_version(),
                vp_address: regs::VP_ADDRESS,
                hif_address: regs::EMULATOR_HIF_ADDRESS,
            };
            let protocol = match personality {
                Personality::Fpga => Protocol::Fpga(FpgaProtocol::default()),
                Personality::Lenient => Protocol::Lenient(LenientProtocol),
            };
            let registers = Registers::new(layout).expect("free places");
            Self { registers, counters: Counters::default(), protocol }
        }

        pub(super) fn take(&mut self, datagram: &[u8]) -> Reaction {
            self.protocol.take(datagram, &self.registers, &self.counters)
        }

        /// The answer, which there must be.
        pub(super) fn answer(&mut self, datagram: &[u8]) -> Vec<u8> {
            match self.take(datagram) {
                Reaction::Answer(bytes) => bytes,
                other => panic!("{other:?} to {datagram:02x?}"),
            }
        }

        /// A datagram and its answer, in hex.
        pub(super) fn exchange(&mut self, request: &str, answer: &str) {
            assert_eq!(self.answer(&hex(request)), hex(answer), "to {request}");
        }

        /// Executed, refused and garbage.
        pub(super) fn counts(&self) -> [u64; 3] {
            [&self.counters.executed, &self.counters.refused, &self.counters.garbage]
                .map(|counter| counter.load(Ordering::Relaxed))
        }
    }

    pub(crate) fn hex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex");
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    pub(super) fn request(command: Command, bits: u8, sequence: u16, pairs: &[(u32, u32)]) -> Vec<u8> {
        let pairs = pairs.iter().map(|&(address, data)| Pair::new(address, data)).collect();
        Request { command, flags: Flags::from_bits(bits).expect("two bits"), sequence, pairs }.encode()
    }
}
