//! The control plane: register requests over UDP, answered as an FPGA does.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use roce_rendezvous::hsb::ecb::{Command, Flags, Pair, Request, RequestError, RequestHead, Response, Status};

use crate::error::EmulatorError;
use crate::regs::Registers;

/// How long the thread may take to see that it shall end.
const TICK: Duration = Duration::from_millis(50);
/// More than any request has.
const DATAGRAM: usize = 8192;

/// What the control plane saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControlCounts {
    /// Requests carried out, the last pair perhaps in vain.
    pub executed: u64,
    /// Requests refused before anything was done: command, flags, length or sequence.
    pub refused: u64,
    /// Datagrams too short to be requests; dropped.
    pub garbage: u64,
    /// Times that the socket failed to receive or send.
    pub socket_errors: u64,
}

#[derive(Default)]
struct Counters {
    executed: AtomicU64,
    refused: AtomicU64,
    garbage: AtomicU64,
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
    /// Serves `registers` at `address`; port 0 takes a free one.
    pub(crate) fn bind(address: SocketAddrV4, registers: Arc<Registers>) -> Result<Self, EmulatorError> {
        let (socket, address) = open(address)?;
        let counters = Arc::new(Counters::default());
        let stop = Arc::new(AtomicBool::new(false));
        let ecb = Ecb { registers, latched: 0, counters: Arc::clone(&counters) };
        let thread = thread::Builder::new()
            .name("hsb-control".into())
            .spawn({
                let stop = Arc::clone(&stop);
                move || serve(&socket, ecb, &stop)
            })
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

fn serve(socket: &UdpSocket, mut ecb: Ecb, stop: &AtomicBool) {
    let mut datagram = vec![0; DATAGRAM];
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = serve_one(socket, &mut ecb, &mut datagram) {
            ecb.counters.socket_errors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "the control plane's socket failed");
            thread::sleep(TICK / 10);
        }
    }
}

fn serve_one(socket: &UdpSocket, ecb: &mut Ecb, datagram: &mut [u8]) -> io::Result<()> {
    let (len, from) = match socket.recv_from(datagram) {
        Err(e)
            if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
        {
            return Ok(());
        }
        received => received?,
    };
    if let Some(response) = ecb.handle(&datagram[..len]) {
        socket.send_to(&response.encode(), from)?;
    }
    Ok(())
}

/// The register protocol over a register file.
struct Ecb {
    registers: Arc<Registers>,
    /// The sequence number of the last request that was accepted.
    latched: u16,
    counters: Arc<Counters>,
}

impl Ecb {
    /// The response to a datagram; `None` where an FPGA stays silent.
    fn handle(&mut self, datagram: &[u8]) -> Option<Response> {
        let request = match Request::parse(datagram) {
            Ok(request) => request,
            Err(RequestError::Truncated(len)) => {
                self.counters.garbage.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(len, "a datagram too short for a request was dropped");
                return None;
            }
            Err(RequestError::Refused { head, status }) => return self.refuse(head, status),
        };
        if request.flags.check_sequence && request.sequence != self.latched.wrapping_add(1) {
            return self.refuse(request.head(), Status::SequenceCheck);
        }
        let response = self.execute(&request);
        (request.flags.ack || request.command.is_read()).then_some(response)
    }

    /// An address without a register undoes the latching, but none of the pairs before it.
    fn execute(&mut self, request: &Request) -> Response {
        self.counters.executed.fetch_add(1, Ordering::Relaxed);
        let mut done = Vec::with_capacity(request.pairs.len());
        for pair in &request.pairs {
            let Some(data) = self.access(request.command, *pair) else {
                done.push(Pair::new(pair.address, 0));
                return Response::to(request, Status::InvalidAddress, done, self.latched);
            };
            done.push(Pair::new(pair.address, data));
        }
        self.latched = request.sequence;
        Response::to(request, Status::Success, done, self.latched)
    }

    /// The data word of the response: 0 for a write.
    fn access(&self, command: Command, pair: Pair) -> Option<u32> {
        if command.is_read() {
            self.registers.read(pair.address)
        } else {
            self.registers.write(pair.address, pair.data).map(|()| 0)
        }
    }

    fn refuse(&self, head: RequestHead, status: Status) -> Option<Response> {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(command = head.command, sequence = head.sequence, %status, "a request was refused");
        let is_write = Command::from_code(head.command).is_some_and(|command| !command.is_read());
        let wants_ack = head.flags & Flags { ack: true, check_sequence: false }.bits() != 0;
        (wants_ack || !is_write).then(|| Response::refusal(head, status, self.latched))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roce_rendezvous::hsb::regs;

    use super::*;

    fn ecb() -> Ecb {
        let registers =
            Registers::new(0x2606, regs::VP_ADDRESS, regs::EMULATOR_HIF_ADDRESS).expect("free places");
        Ecb { registers: Arc::new(registers), latched: 0, counters: Arc::default() }
    }

    fn reply(ecb: &mut Ecb, bytes: &[u8]) -> Option<Vec<u8>> {
        ecb.handle(bytes).map(|response| response.encode())
    }

    #[test]
    fn the_bytes_of_an_fpga() {
        let mut ecb = ecb();
        let read = [0x14, 1, 1, 0, 0, 0, 0, 0, 0, 0x80];
        let version = [0x94, 1, 1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0x26, 6, 1, 0, 0, 0];
        assert_eq!(reply(&mut ecb, &read).as_deref(), Some(version.as_slice()));
        let write = [4, 3, 1, 1, 0, 0, 0, 0, 0x10, 4, 0x11, 0x22, 0x33, 0x44];
        let written = [0x84, 3, 1, 1, 0, 0, 0, 0, 0x10, 4, 0, 0, 0, 0, 1, 1, 0, 0];
        assert_eq!(reply(&mut ecb, &write).as_deref(), Some(written.as_slice()));
        assert_eq!(ecb.registers.read(0x1004), Some(0x1122_3344));
        let bad = [4, 3, 1, 2, 0, 0, 0xDE, 0xAD, 0, 0, 0, 0, 0, 1];
        let refused = [0x84, 3, 1, 2, 3, 0, 0xDE, 0xAD, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0];
        assert_eq!(reply(&mut ecb, &bad).as_deref(), Some(refused.as_slice()));
    }

    fn request(command: Command, bits: u8, sequence: u16, pairs: &[(u32, u32)]) -> Vec<u8> {
        let pairs = pairs.iter().map(|&(address, data)| Pair::new(address, data)).collect();
        Request { command, flags: Flags::from_bits(bits).expect("two bits"), sequence, pairs }.encode()
    }

    fn status(ecb: &mut Ecb, bytes: &[u8]) -> Option<(Status, u16)> {
        ecb.handle(bytes).map(|response| (response.status, response.latched))
    }

    #[test]
    fn the_sequence_rule() {
        let mut ecb = ecb();
        let read = |bits, sequence| request(Command::ReadDword, bits, sequence, &[(0x80, 0)]);
        assert_eq!(status(&mut ecb, &read(1, 0xFFFE)), Some((Status::Success, 0xFFFE)), "unchecked");
        assert_eq!(status(&mut ecb, &read(3, 0xFFFE)), Some((Status::SequenceCheck, 0xFFFE)), "again");
        assert_eq!(status(&mut ecb, &read(3, 0xFFFF)), Some((Status::Success, 0xFFFF)));
        assert_eq!(status(&mut ecb, &read(3, 1)), Some((Status::SequenceCheck, 0xFFFF)), "one left out");
        assert_eq!(status(&mut ecb, &read(3, 0)), Some((Status::Success, 0)), "across the wrap");

        let write = request(Command::WriteDword, 3, 5, &[(0x1000, 9)]);
        assert_eq!(status(&mut ecb, &write), Some((Status::SequenceCheck, 0)));
        assert_eq!(ecb.registers.read(0x1000), Some(0), "not carried out");
        let nowhere = request(Command::WriteDword, 3, 1, &[(0xDEAD_0000, 9)]);
        assert_eq!(status(&mut ecb, &nowhere), Some((Status::InvalidAddress, 0)));
        assert_eq!(status(&mut ecb, &read(3, 1)), Some((Status::Success, 1)), "it was not latched");
    }

    #[test]
    fn refusals_latch_nothing_and_take_the_first_cause() {
        let mut ecb = ecb();
        let mut bad = request(Command::ReadDword, 3, 9, &[(0xDEAD_0000, 0)]);
        assert_eq!(status(&mut ecb, &bad), Some((Status::SequenceCheck, 0)));
        bad[1] = 0xFF;
        assert_eq!(status(&mut ecb, &bad), Some((Status::InvalidFlags, 0)));
        bad[0] = 0x55;
        assert_eq!(status(&mut ecb, &bad), Some((Status::InvalidCommand, 0)));
        assert_eq!(ecb.counters.refused.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn writes_are_answered_on_request_and_reads_always() {
        let mut ecb = ecb();
        for command in [Command::WriteDword, Command::WriteBlock] {
            assert_eq!(ecb.handle(&request(command, 0, 1, &[(0x1000, 8)])), None);
            assert_eq!(ecb.registers.read(0x1000), Some(8), "carried out in silence");
            assert_eq!(ecb.handle(&request(command, 2, 9, &[(0x1000, 8)])), None, "refused in silence");
        }
        assert_eq!(
            status(&mut ecb, &request(Command::ReadBlock, 0, 2, &[(0x80, 0)])),
            Some((Status::Success, 2))
        );
        assert_eq!(
            status(&mut ecb, &request(Command::ReadDword, 2, 9, &[(0x80, 0)])),
            Some((Status::SequenceCheck, 2))
        );
    }

    #[test]
    fn a_block_stops_at_the_first_pair_that_fails() {
        let mut ecb = ecb();
        let pairs = [(0x1000, 1), (0xDEAD_0000, 2), (0x1004, 3)];
        let response = ecb.handle(&request(Command::WriteBlock, 1, 7, &pairs)).expect("answered");
        assert_eq!((response.status, response.latched), (Status::InvalidAddress, 0));
        assert_eq!(response.pairs, [Pair::new(0x1000, 0), Pair::new(0xDEAD_0000, 0)]);
        assert_eq!((ecb.registers.read(0x1000), ecb.registers.read(0x1004)), (Some(1), Some(0)));
    }

    proptest! {
        #[test]
        fn any_datagram_is_counted_once(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut ecb = ecb();
            let answered = ecb.handle(&bytes).is_some();
            let counts = [&ecb.counters.executed, &ecb.counters.refused, &ecb.counters.garbage];
            prop_assert_eq!(counts.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>(), 1);
            prop_assert!(!(answered && bytes.len() < 10));
        }
    }
}
