//! A board on loopback: the FPGA's rules for sequences, errors and answers, a register file, and a log of what was
//! carried out.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roce_rendezvous::hsb::ecb::{Pair, Request, RequestError, Response, Status};
use roce_rendezvous::hsb::enumeration::{Announcement, FpgaFields, Model};
use roce_rendezvous::hsb::{Mac, Serial, Uuid};

use super::own_ip;

const TICK: Duration = Duration::from_millis(5);
/// How long a restart takes.
const DOWN: Duration = Duration::from_millis(200);
const LITE: Uuid = Uuid::from_u128(0x889b7ce3_65a5_4247_8b05_4ff1904c3359);

/// Something that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Read(u32),
    Write(u32, u32),
}

#[derive(Default)]
struct State {
    registers: BTreeMap<u32, u32>,
    done: Vec<Done>,
    refused: u32,
    restarts: u32,
}

/// How a board behaves.
#[derive(Clone, Copy)]
pub(crate) struct Manners {
    pub(crate) version: u32,
    /// Where it announces itself, from its control address.
    pub(crate) announce_to: Option<SocketAddrV4>,
    /// Datagrams that mean nothing, before each answer.
    pub(crate) noise: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self { version: 0x2606, announce_to: None, noise: false }
    }
}

/// Ends its thread when dropped.
pub(crate) struct FakeBoard {
    pub(crate) address: SocketAddrV4,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeBoard {
    pub(crate) fn start(manners: Manners) -> Self {
        let socket = UdpSocket::bind((own_ip(), 0)).unwrap();
        socket.set_read_timeout(Some(TICK)).unwrap();
        let SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
        let (state, stop): (Arc<Mutex<State>>, Arc<AtomicBool>) = (Arc::default(), Arc::default());
        let (shared, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = thread::spawn(move || serve(&socket, manners, &shared, &stopped));
        Self { address, state, stop, thread: Some(thread) }
    }

    pub(crate) fn register(&self, address: u32) -> Option<u32> {
        self.state.lock().unwrap().registers.get(&address).copied()
    }

    /// What was carried out since the last call.
    pub(crate) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.state.lock().unwrap().done)
    }

    /// Of [`take_done`](Self::take_done), the writes.
    pub(crate) fn take_writes(&self) -> Vec<(u32, u32)> {
        let writes = |done| if let Done::Write(address, data) = done { Some((address, data)) } else { None };
        self.take_done().into_iter().filter_map(writes).collect()
    }

    /// Requests refused for their sequence number.
    pub(crate) fn refused(&self) -> u32 {
        self.state.lock().unwrap().refused
    }

    pub(crate) fn restarts(&self) -> u32 {
        self.state.lock().unwrap().restarts
    }
}

impl Drop for FakeBoard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

pub(crate) fn announcement(version: u32, ip: Ipv4Addr) -> Announcement {
    Announcement {
        xid: 0,
        seconds: 0,
        flags: 1,
        ip,
        mac: Mac([2, 0, 0, 0, 0, 1]),
        data_plane: 0,
        model: Model::Uuid { compat_id: 0x2603, uuid: LITE, packet_count: 0 },
        serial: Serial([1, 2, 3, 4, 5, 6, ip.octets()[3]]),
        hsb_ip_version: u16::try_from(version).unwrap_or(u16::MAX),
        fpga_crc: 0,
        fpga: Some(FpgaFields::default()),
    }
}

fn serve(socket: &UdpSocket, manners: Manners, state: &Mutex<State>, stop: &AtomicBool) {
    let SocketAddr::V4(address) = socket.local_addr().unwrap() else { unreachable!() };
    let announcement = announcement(manners.version, *address.ip()).encode();
    let mut bytes = [0; 2048];
    let mut latched = 0;
    let mut down_until = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let down = Instant::now() < down_until;
        if let (false, Some(to)) = (down, manners.announce_to) {
            socket.send_to(&announcement, to).unwrap();
        }
        let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
        if down {
            continue;
        }
        let mut state = state.lock().unwrap();
        let restarts = state.restarts;
        let answer = handle(&bytes[..len], manners.version, &mut latched, &mut state);
        if state.restarts > restarts {
            (latched, down_until) = (0, Instant::now() + DOWN);
            continue;
        }
        let Some(answer) = answer else { continue };
        if manners.noise {
            make_noise(socket, from, &answer);
        }
        socket.send_to(&answer.encode(), from).unwrap();
    }
}

/// An FPGA's answer.
fn handle(bytes: &[u8], version: u32, latched: &mut u16, state: &mut State) -> Option<Response> {
    let request = match Request::parse(bytes) {
        Ok(request) => request,
        Err(RequestError::Truncated(_)) => return None,
        Err(RequestError::Refused { head, status }) => {
            return Some(Response::refusal(head, status, *latched));
        }
    };
    if request.flags.check_sequence && request.sequence != latched.wrapping_add(1) {
        state.refused += 1;
        return Some(Response::refusal(request.head(), Status::SequenceCheck, *latched));
    }
    let mut pairs = Vec::new();
    for &Pair { address, data } in &request.pairs {
        if address >= 0xDEAD_0000 {
            pairs.push(Pair::new(address, 0));
            return Some(Response::to(&request, Status::InvalidAddress, pairs, *latched));
        }
        if request.command.is_read() {
            state.done.push(Done::Read(address));
            let value = state.registers.get(&address).copied().unwrap_or(0);
            pairs.push(Pair::new(address, if address == 0x80 { version } else { value }));
        } else {
            state.done.push(Done::Write(address, data));
            state.registers.insert(address, data);
            pairs.push(Pair::new(address, 0));
        }
        if (address, data) == (0x4, 8) {
            state.registers.clear();
            state.restarts += 1;
        }
    }
    *latched = request.sequence;
    Some(Response::to(&request, Status::Success, pairs, *latched))
}

/// Nothing of it answers the request.
fn make_noise(socket: &UdpSocket, to: SocketAddr, answer: &Response) {
    let good = answer.encode();
    let other_sequence = Response { sequence: answer.sequence.wrapping_add(1), ..answer.clone() };
    let mut other_address = answer.clone();
    other_address.pairs[0].address ^= 0x100;
    let mut random = 0x9E37_79B9_u32;
    let mut garbage = vec![vec![], good[..7].to_vec(), vec![0xFF; 1472], vec![0; 60_000]];
    garbage.push(other_sequence.encode());
    if answer.status == Status::Success {
        garbage.extend([other_address.encode(), good[..good.len() - 5].to_vec()]);
    }
    for len in 0..40_usize {
        let byte = |_| {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random.to_le_bytes()[0]
        };
        garbage.push((0..len).map(byte).collect());
    }
    for datagram in garbage {
        socket.send_to(&datagram, to).unwrap();
    }
}
