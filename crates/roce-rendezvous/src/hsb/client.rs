//! Reads and writes the registers of an FPGA.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::HsbError;
use super::ecb::{Command, Flags, Pair, Request, Response, Status};
use super::error::{Access, Silence};
use super::regs;

/// What fits a packet of 1472 bytes together with its answer, rounded to what known hosts send.
const WRITE_PAIRS: usize = 180;
const READ_WORDS: usize = 128;
const FIRST_SEQUENCE: u16 = 0x100;
/// An FPGA that has not answered for so long is restarting.
const GONE: Duration = Duration::from_millis(500);
/// The longest UDP payload there is.
const DATAGRAM: usize = 65536;

/// How long to wait for the FPGA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// In all, for one transaction.
    pub timeout: Duration,
    /// From one attempt to the next.
    pub retry: Duration,
    /// In all, for the first transaction: the FPGA may still be starting.
    pub first_timeout: Duration,
    /// From one attempt to the next, in the first transaction.
    pub first_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(500),
            retry: Duration::from_millis(100),
            first_timeout: Duration::from_secs(30),
            first_retry: Duration::from_millis(200),
        }
    }
}

#[derive(Clone, Copy)]
struct Patience {
    timeout: Duration,
    retry: Duration,
}

/// A session with an FPGA's control plane. One request is outstanding at a time.
///
/// A session begins with a read of the FPGA's version that asks for no sequence check, so that both ends are in
/// step; so does the request after one that failed. All others ask for the check. A request is repeated until it is
/// answered or the time is up, with the number that it has:
///
/// - A repeated read asks for no check, since the FPGA may have carried it out and lost the answer.
/// - A repeated write still asks for it. An FPGA that has carried it out refuses it and says that its number is the
///   last accepted one; then the write is done, and was done once. No write that is late on the wire can undo what
///   came after it.
///
/// One board takes one controller: with a second one both will fail, by [`HsbError::OtherController`].
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
    peer: SocketAddrV4,
    timing: Timing,
    block_access: bool,
    sequence: u16,
    in_step: bool,
    version: u32,
    datagram: Box<[u8]>,
}

impl Client {
    /// Opens a session with the FPGA at `peer`: reads its version, for as long as `timing` allows.
    pub async fn connect(peer: SocketAddrV4, timing: Timing) -> Result<Self, HsbError> {
        let socket = connected_socket(peer).await?;
        let mut client = Self {
            socket,
            peer,
            timing,
            block_access: true,
            sequence: FIRST_SEQUENCE,
            in_step: false,
            version: 0,
            datagram: vec![0; DATAGRAM].into(),
        };
        client.get_into_step(client.first_patience()).await?;
        Ok(client)
    }

    /// The same session with a board whose requests may hold one pair only, or more.
    #[must_use]
    pub fn with_block_access(self, block_access: bool) -> Self {
        Self { block_access, ..self }
    }

    /// Begins anew with a board that has restarted, perhaps at another address.
    pub(super) async fn reconnect(&mut self, ip: Ipv4Addr) -> Result<(), HsbError> {
        self.peer.set_ip(ip);
        self.socket = connected_socket(self.peer).await?;
        self.sequence = FIRST_SEQUENCE;
        self.get_into_step(self.first_patience()).await
    }

    /// The version of the FPGA's design, as read when the session began.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// The FPGA.
    pub const fn peer(&self) -> SocketAddrV4 {
        self.peer
    }

    /// Our address on the way to the FPGA: what it can answer to.
    pub fn local_ip(&self) -> Result<Ipv4Addr, HsbError> {
        match self.socket.local_addr() {
            Ok(SocketAddr::V4(local)) => Ok(*local.ip()),
            Ok(SocketAddr::V6(_)) => Err(self.socket_error("getsockname", ErrorKind::Unsupported.into())),
            Err(source) => Err(self.socket_error("getsockname", source)),
        }
    }

    /// Reads the register at `address`.
    pub async fn read(&mut self, address: u32) -> Result<u32, HsbError> {
        check_range(address, 1)?;
        let pairs = self.request(Command::ReadDword, vec![Pair::new(address, 0)]).await?;
        Ok(pairs[0].data)
    }

    /// Writes the register at `address`.
    pub async fn write(&mut self, address: u32, data: u32) -> Result<(), HsbError> {
        check_range(address, 1)?;
        self.request(Command::WriteDword, vec![Pair::new(address, data)]).await.map(drop)
    }

    /// A write after which the FPGA is gone, most likely before it has answered. If it is back by the next attempt
    /// it says so.
    pub(super) async fn write_and_lose(&mut self, address: u32, data: u32) -> Result<(), HsbError> {
        let patient = self.timing;
        self.timing.timeout = patient.timeout.min(GONE);
        let result = self.write(address, data).await;
        self.timing = patient;
        match result {
            Ok(()) | Err(HsbError::Timeout { .. } | HsbError::Restarted { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads a register and writes it back with the bits of `clear` cleared, then those of `set` set. Not
    /// atomic on the FPGA. Returns what was written.
    pub async fn modify(&mut self, address: u32, clear: u32, set: u32) -> Result<u32, HsbError> {
        let value = self.read(address).await? & !clear | set;
        self.write(address, value).await?;
        Ok(value)
    }

    /// Reads `count` registers from `address` on, in as many packets as it takes.
    pub async fn read_block(&mut self, address: u32, count: usize) -> Result<Vec<u32>, HsbError> {
        check_range(address, count)?;
        let pairs: Vec<Pair> =
            (address..).step_by(4).take(count).map(|address| Pair::new(address, 0)).collect();
        let (command, size) = self.block(Command::ReadBlock, READ_WORDS);
        let mut words = Vec::with_capacity(count);
        for packet in pairs.chunks(size) {
            let read = self.request(command, packet.to_vec()).await?;
            words.extend(read.iter().map(|pair| pair.data));
        }
        Ok(words)
    }

    /// Writes each pair in turn, in as many packets as it takes. After an error the pairs before the one that
    /// failed have been written.
    pub async fn write_pairs(&mut self, pairs: &[Pair]) -> Result<(), HsbError> {
        for pair in pairs {
            check_range(pair.address, 1)?;
        }
        let (command, size) = self.block(Command::WriteBlock, WRITE_PAIRS);
        for packet in pairs.chunks(size) {
            self.request(command, packet.to_vec()).await?;
        }
        Ok(())
    }

    /// The command for many pairs, and how many of them a packet holds.
    const fn block(&self, command: Command, pairs: usize) -> (Command, usize) {
        match (self.block_access, command) {
            (true, _) => (command, pairs),
            (false, Command::ReadBlock) => (Command::ReadDword, 1),
            (false, _) => (Command::WriteDword, 1),
        }
    }

    const fn patience(&self) -> Patience {
        Patience { timeout: self.timing.timeout, retry: self.timing.retry }
    }

    const fn first_patience(&self) -> Patience {
        Patience { timeout: self.timing.first_timeout, retry: self.timing.first_retry }
    }

    async fn request(&mut self, command: Command, pairs: Vec<Pair>) -> Result<Vec<Pair>, HsbError> {
        // The number that a restarted FPGA has accepted last: of a request with it, nobody could tell whether it was
        // accepted or the FPGA restarted. The read that gets into step has it then, and any answer to that one will do.
        if !self.in_step || self.sequence == 0 {
            self.get_into_step(self.patience()).await?;
        }
        self.transact(command, pairs, true, self.patience()).await
    }

    /// Reads the version without a check, which the FPGA accepts whatever it accepted last.
    async fn get_into_step(&mut self, patience: Patience) -> Result<(), HsbError> {
        let version =
            self.transact(Command::ReadDword, vec![Pair::new(regs::VERSION, 0)], false, patience).await?;
        self.version = version[0].data;
        Ok(())
    }

    async fn transact(
        &mut self,
        command: Command,
        pairs: Vec<Pair>,
        check_sequence: bool,
        patience: Patience,
    ) -> Result<Vec<Pair>, HsbError> {
        // Until the answer is here nobody knows what the FPGA latched, even if this future is dropped.
        self.in_step = false;
        let mut request =
            Request { command, flags: Flags { ack: true, check_sequence }, sequence: self.sequence, pairs };
        self.sequence = self.sequence.wrapping_add(1);

        let response = self.exchange(&mut request, patience).await?;
        if response.status != Status::Success {
            return Err(self.refused(&request, &response));
        }
        self.in_step = true;
        Ok(response.pairs)
    }

    /// Sends until an answer comes. Every attempt has its share of the time, the last one too.
    async fn exchange(&mut self, request: &mut Request, patience: Patience) -> Result<Response, HsbError> {
        let start = Instant::now();
        let deadline = start + patience.timeout;
        let mut silence = Silence::default();
        let mut attempts = 0;
        loop {
            attempts += 1;
            self.send(&request.encode(), &mut silence).await?;
            let until = deadline.min(Instant::now() + patience.retry);
            let response = self.receive(request, until, &mut silence).await?;
            // A first attempt that is refused so met another controller, which counts as we do.
            let repeats = attempts > 1 && response.as_ref().is_some_and(|r| was_accepted(request, r));
            match response {
                Some(response) if !repeats => return Ok(response),
                Some(response) if !request.command.is_read() => {
                    return Ok(Response { status: Status::Success, ..response });
                }
                _ => {}
            }
            if Instant::now() >= deadline {
                return Err(HsbError::Timeout {
                    peer: self.peer,
                    access: access(request.command),
                    address: request.head().address,
                    waited: start.elapsed(),
                    attempts,
                    silence,
                });
            }
            request.flags.check_sequence &= !request.command.is_read();
        }
    }

    async fn send(&self, bytes: &[u8], silence: &mut Silence) -> Result<(), HsbError> {
        for _ in 0..2 {
            match self.socket.send(bytes).await {
                Ok(_) => return Ok(()),
                // The answer to an earlier datagram, told to this one, which was not sent: once more.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => silence.port_closed = true,
                Err(source) => return Err(self.socket_error("send", source)),
            }
        }
        Ok(())
    }

    async fn receive(
        &mut self,
        request: &Request,
        until: Instant,
        silence: &mut Silence,
    ) -> Result<Option<Response>, HsbError> {
        loop {
            let received = match timeout_at(until, self.socket.recv(&mut self.datagram)).await {
                Err(_) => return Ok(None),
                Ok(received) => received,
            };
            match received {
                Ok(len) => match answer_to(request, &self.datagram[..len]) {
                    Some(response) => return Ok(Some(response)),
                    None => silence.foreign += 1,
                },
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => silence.port_closed = true,
                Err(source) => return Err(self.socket_error("recv", source)),
            }
        }
    }

    fn refused(&self, request: &Request, response: &Response) -> HsbError {
        let (peer, access) = (self.peer, access(request.command));
        // A block stops at the pair that failed, which is the last one of the answer.
        let address = response.pairs.last().map_or(request.head().address, |pair| pair.address);
        match (response.status, response.latched) {
            // Where both ends were in step, only a restart or somebody else can have moved the FPGA's number.
            (Status::SequenceCheck, 0) => HsbError::Restarted { peer, access, address },
            (Status::SequenceCheck, latched) => {
                HsbError::OtherController { peer, access, address, sequence: request.sequence, latched }
            }
            (status, _) => HsbError::Refused { peer, access, address, status },
        }
    }

    fn socket_error(&self, call: &'static str, source: io::Error) -> HsbError {
        HsbError::Socket { call, peer: self.peer, source }
    }
}

async fn connected_socket(peer: SocketAddrV4) -> Result<UdpSocket, HsbError> {
    let error = |call| move |source| HsbError::Socket { call, peer, source };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.map_err(error("bind"))?;
    socket.connect(peer).await.map_err(error("connect"))?;
    Ok(socket)
}

/// Whether an FPGA refuses a request because it has accepted that very request before.
fn was_accepted(request: &Request, response: &Response) -> bool {
    response.status == Status::SequenceCheck && response.latched == request.sequence
}

/// The response in `bytes`, if it answers this very request: same command and transaction, and when it succeeded the
/// same addresses, all of them.
fn answer_to(request: &Request, bytes: &[u8]) -> Option<Response> {
    let response = Response::parse(bytes, request.pairs.len())?;
    // An FPGA that does not know a command repeats it unchanged.
    let commands = [request.command.response_code(), request.command.code()];
    if response.sequence != request.sequence || !commands.contains(&response.command) {
        return None;
    }
    let same = |(asked, got): (&Pair, &Pair)| asked.address == got.address;
    let whole = response.pairs.len() == request.pairs.len() || response.status != Status::Success;
    (whole && request.pairs.iter().zip(&response.pairs).all(same)).then_some(response)
}

fn check_range(address: u32, count: usize) -> Result<(), HsbError> {
    let end = u64::from(address) + 4 * count as u64;
    if address.is_multiple_of(4) && end <= 1 << 32 {
        Ok(())
    } else {
        Err(HsbError::Address { address, count })
    }
}

const fn access(command: Command) -> Access {
    if command.is_read() { Access::Read } else { Access::Write }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as StdSocket;
    use std::thread;

    use super::*;

    const QUICK: Timing = Timing {
        timeout: Duration::from_secs(20),
        retry: Duration::from_millis(100),
        first_timeout: Duration::from_secs(20),
        first_retry: Duration::from_millis(100),
    };
    const VERSION: u32 = 0x2606;

    /// Plays the FPGA: `script` sees every request, and how often it has come before, and says what goes
    /// back.
    struct Fpga {
        peer: SocketAddrV4,
        seen: thread::JoinHandle<Vec<Request>>,
    }

    impl Fpga {
        fn start(mut script: impl FnMut(usize, &Request) -> Vec<Vec<u8>> + Send + 'static) -> Self {
            let socket = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let SocketAddr::V4(peer) = socket.local_addr().expect("its address") else { unreachable!() };
            let seen = thread::spawn(move || {
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                loop {
                    let (len, from) = socket.recv_from(&mut buffer).expect("a request");
                    if len == 0 {
                        return seen;
                    }
                    let request = Request::parse(&buffer[..len]).expect("well-formed");
                    let again = seen.iter().filter(|r: &&Request| r.sequence == request.sequence).count();
                    for reply in script(again, &request) {
                        socket.send_to(&reply, from).expect("the way back");
                    }
                    seen.push(request);
                }
            });
            Self { peer, seen }
        }

        /// An empty datagram, which no client sends, ends it.
        fn requests(self) -> Vec<Request> {
            let socket = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            socket.send_to(&[], self.peer).expect("loopback");
            self.seen.join().expect("the script holds")
        }
    }

    fn good(request: &Request) -> Vec<u8> {
        let pairs = request.pairs.iter().map(|pair| Pair::new(pair.address, VERSION)).collect();
        Response::to(request, Status::Success, pairs, request.sequence).encode()
    }

    fn failed(request: &Request, status: Status, pairs: usize) -> Vec<u8> {
        Response::to(request, status, request.pairs[..pairs].to_vec(), 0).encode()
    }

    /// Sequence and flags of each transaction's first request; a slow machine may see it repeated.
    fn firsts(mut requests: Vec<Request>) -> Vec<(u16, u8)> {
        requests.dedup_by_key(|request| request.sequence);
        requests.iter().map(|request| (request.sequence, request.flags.bits())).collect()
    }

    #[tokio::test]
    async fn a_session_seeds_the_latch_then_checks_every_step() {
        let fpga = Fpga::start(|_, request| vec![good(request)]);
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        assert_eq!((client.version(), client.local_ip().ok()), (VERSION, Some(Ipv4Addr::LOCALHOST)));
        client.write(0x1000, 7).await.expect("written");
        client.read(0x1000).await.expect("read");
        assert_eq!(firsts(fpga.requests()), [(0x100, 1), (0x101, 3), (0x102, 3)]);
    }

    #[tokio::test]
    async fn a_repeated_request_keeps_its_sequence_and_a_read_asks_for_no_check() {
        for command in [Command::ReadDword, Command::WriteDword, Command::ReadBlock, Command::WriteBlock] {
            let fpga = Fpga::start(|again, request| match (request.sequence, again) {
                (0x101, 0) => vec![],
                _ => vec![good(request)],
            });
            let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
            match command {
                Command::ReadDword => client.read(0x80).await.map(drop),
                Command::WriteDword => client.write(0x80, 0).await,
                Command::ReadBlock => client.read_block(0x80, 2).await.map(drop),
                Command::WriteBlock => client.write_pairs(&[Pair::new(0x80, 0)]).await,
            }
            .expect("the second attempt is answered");
            client.read(0x84).await.expect("back in step");
            let requests = fpga.requests();
            assert_eq!(requests.iter().find(|r| r.sequence == 0x101).map(|r| r.command), Some(command));
            let repeated = requests.iter().filter(|request| request.sequence == 0x101);
            let flags: Vec<u8> = repeated.map(|request| request.flags.bits()).collect();
            assert_eq!(flags[..2], [3, if command.is_read() { 1 } else { 3 }]);
            assert_eq!(firsts(requests), [(0x100, 1), (0x101, 3), (0x102, 3)]);
        }
    }

    #[tokio::test]
    async fn answers_to_something_else_are_passed_over() {
        let fpga = Fpga::start(|_, request| {
            let stale = Request { sequence: request.sequence.wrapping_sub(1), ..request.clone() };
            let elsewhere = Request { pairs: vec![Pair::new(0xDEAC, 0)], ..request.clone() };
            let mut other_command = good(request);
            other_command[0] ^= 0x10;
            vec![good(&stale), vec![1, 2, 3], good(&elsewhere), other_command, good(request)]
        });
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        assert_eq!(client.read(0x84).await.expect("the right one"), VERSION);
        drop(fpga.requests());
    }

    #[tokio::test]
    async fn a_refusal_names_the_pair_and_the_next_request_finds_into_step() {
        let fpga = Fpga::start(|_, request| match request.sequence {
            0x101 => vec![failed(request, Status::InvalidAddress, 2)],
            0x104 => vec![failed(request, Status::Unknown(0xF0), 1)],
            _ => vec![good(request)],
        });
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        let pairs = [Pair::new(0x1000, 1), Pair::new(0xDEAD_0000, 2), Pair::new(0x1004, 3)];
        let error = client.write_pairs(&pairs).await.expect_err("refused");
        assert!(
            matches!(error, HsbError::Refused { address: 0xDEAD_0000, status: Status::InvalidAddress, .. }),
            "{error}"
        );
        client.read(0x80).await.expect("in step again");
        let error = client.read(0x80).await.expect_err("refused");
        assert!(matches!(error, HsbError::Refused { status: Status::Unknown(0xF0), .. }), "{error}");
        assert_eq!(firsts(fpga.requests()), [(0x100, 1), (0x101, 3), (0x102, 1), (0x103, 3), (0x104, 3)]);
    }

    /// Refuses as an FPGA does whose last accepted request is `latched`.
    fn out_of_sequence(request: &Request, latched: u16) -> Vec<u8> {
        Response::refusal(request.head(), Status::SequenceCheck, latched).encode()
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_done() {
        let fpga = Fpga::start(|again, request| match (request.sequence, again) {
            (0x101 | 0x102, 0) => vec![],
            (0x101 | 0x102, _) => vec![out_of_sequence(request, request.sequence)],
            _ => vec![good(request)],
        });
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        client.write(0x1000, 1).await.expect("accepted before");
        client.write_pairs(&[Pair::new(0x1000, 1), Pair::new(0x1004, 2)]).await.expect("accepted before");
        client.read(0x80).await.expect("in step");
        assert_eq!(firsts(fpga.requests()), [(0x100, 1), (0x101, 3), (0x102, 3), (0x103, 3)]);
    }

    /// It restarts when the numbers have come round, and its number is 0 then, as that of a request would be.
    #[tokio::test]
    async fn a_write_that_meets_a_restart_is_not_taken_for_done() {
        let fpga = Fpga::start(|again, request| match (request.sequence, request.command.is_read(), again) {
            (0xFFFF, ..) | (_, true, _) => vec![good(request)],
            (_, _, 0) => vec![],
            _ => vec![out_of_sequence(request, 0)],
        });
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        client.sequence = 0xFFFF;
        client.write(0x1000, 1).await.expect("written");
        let error = client.write(0x1000, 2).await.expect_err("it restarted");
        assert!(matches!(error, HsbError::Restarted { address: 0x1000, .. }), "{error}");
        assert_eq!(firsts(fpga.requests()), [(0x100, 1), (0xFFFF, 3), (0, 1), (1, 3)]);
    }

    #[tokio::test]
    async fn a_repeated_read_waits_for_the_answer_that_has_the_value() {
        let fpga = Fpga::start(|again, request| match (request.sequence, again) {
            (0x101, 0) => vec![],
            (0x101, 1) => vec![out_of_sequence(request, 0x101)],
            _ => vec![good(request)],
        });
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        assert_eq!(client.read(0x84).await.expect("the value"), VERSION);
        let flags: Vec<u8> = fpga.requests().iter().map(|request| request.flags.bits()).collect();
        assert_eq!(flags[..4], [1, 3, 1, 1]);
    }

    #[tokio::test]
    async fn another_controller_and_a_restart_are_told_apart() {
        let fpga = Fpga::start(|_, request| match request.sequence {
            0x101 => vec![out_of_sequence(request, 0x1FF)],
            0x103 => vec![out_of_sequence(request, 0)],
            _ => vec![good(request)],
        });
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        let error = client.read(0x1000).await.expect_err("refused");
        let other = matches!(error, HsbError::OtherController { sequence: 0x101, latched: 0x1FF, .. });
        assert!(other && error.to_string().contains("another controller"), "{error}");
        let error = client.write(0x1000, 1).await.expect_err("refused");
        assert!(matches!(error, HsbError::Restarted { address: 0x1000, .. }), "{error}");
        client.write(0x1000, 1).await.expect("in step");
        let expected = [(0x100, 1), (0x101, 3), (0x102, 1), (0x103, 3), (0x104, 1), (0x105, 3)];
        assert_eq!(firsts(fpga.requests()), expected);
    }

    #[tokio::test]
    async fn a_board_without_blocks_gets_one_pair_at_a_time() {
        let fpga = Fpga::start(|_, request| vec![good(request)]);
        let client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        let mut client = client.with_block_access(false);
        client.write_pairs(&[Pair::new(0x1000, 1), Pair::new(0x1004, 2)]).await.expect("written");
        assert_eq!(client.read_block(0x1000, 2).await.expect("read"), [VERSION; 2]);
        let mut requests = fpga.requests();
        requests.dedup_by_key(|request| request.sequence);
        let commands: Vec<Command> = requests[1..].iter().map(|request| request.command).collect();
        let (read, write) = (Command::ReadDword, Command::WriteDword);
        assert_eq!(commands, [write, write, read, read]);
    }

    #[tokio::test]
    async fn silence_is_a_timeout_that_says_what_to_check() {
        let fpga = Fpga::start(|_, request| match request.sequence {
            0x100 => vec![good(request)],
            _ => vec![vec![0; 18]],
        });
        let impatient = Timing { timeout: Duration::from_millis(250), ..QUICK };
        let mut client = Client::connect(fpga.peer, impatient).await.expect("a session");
        let error = client.read(0x1004).await.expect_err("no answer");
        let words = error.to_string();
        for part in [&fpga.peer.to_string(), "0x00001004", "answer something else", "control port"] {
            assert!(words.contains(part), "{words}");
        }
        drop(fpga.requests());

        let nobody = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("it");
        let SocketAddr::V4(peer) = nobody else { unreachable!() };
        let soon = Timing { first_timeout: Duration::from_millis(120), ..QUICK };
        let error = Client::connect(peer, soon).await.expect_err("closed");
        assert!(error.to_string().contains("nobody listens"), "{error}");
    }

    #[tokio::test]
    async fn blocks_are_split_into_packets() {
        let fpga = Fpga::start(|_, request| vec![good(request)]);
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        let pairs: Vec<Pair> = (0..400).map(|n| Pair::new(4 * n, n)).collect();
        client.write_pairs(&pairs).await.expect("written");
        assert_eq!(client.read_block(0x100, 300).await.expect("read").len(), 300);
        let mut requests = fpga.requests();
        requests.dedup_by_key(|request| request.sequence);
        let sizes: Vec<usize> = requests.iter().map(|request| request.pairs.len()).collect();
        assert_eq!(sizes, [1, 180, 180, 40, 128, 128, 44]);
        assert_eq!(requests[6].pairs[43].address, 0x100 + 4 * 299);
    }

    #[tokio::test]
    async fn addresses_are_checked_before_anything_is_sent() {
        let fpga = Fpga::start(|_, request| vec![good(request)]);
        let mut client = Client::connect(fpga.peer, QUICK).await.expect("a session");
        let addresses = [client.read(2).await.err(), client.read_block(0xFFFF_FFFC, 2).await.err()];
        for error in addresses {
            assert!(matches!(error, Some(HsbError::Address { .. })), "{error:?}");
        }
        assert_eq!(client.read_block(0xFFFF_FFFC, 1).await.expect("the last register").len(), 1);
        assert_eq!(firsts(fpga.requests()), [(0x100, 1), (0x101, 3)]);
    }
}
