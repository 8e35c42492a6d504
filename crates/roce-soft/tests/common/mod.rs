//! Regions, addresses and connected queue pairs for the tests.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::cast_possible_truncation)] // each file uses its part

use std::cell::UnsafeCell;
use std::io::{ErrorKind, Read};
use std::net::Ipv4Addr;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use roce_core::{
    Device, DmaRegion, Mtu, PeerEndpoint, QpAttr, RecvCompletion, RecvWr, RegionId, SendWr, Sge, UcQp,
    UcRecv, UcSend, Verb,
};
use roce_soft::{SoftConfig, SoftDevice, SoftQp, SoftRecv, SoftSend, SoftStats};
use socket2::{Domain, Protocol, Socket, Type};

/// A loopback address that no other test has, in this process or another one: 127.80.0.0/12 is for this crate's
/// tests, with 12 bits of the process id, then a count.
pub fn fresh_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(count < 255, "a test process has 254 addresses");
    let [_, a, b, c] = ((std::process::id() & 0xFFF) << 8 | count).to_be_bytes();
    Ipv4Addr::new(127, 80 + a, b, c)
}

/// Zeroed memory that a queue pair writes.
pub struct Region(Box<[UnsafeCell<u8>]>);

// SAFETY: the boxed bytes stay in place until the value is dropped.
unsafe impl DmaRegion for Region {
    fn base(&self) -> NonNull<u8> {
        NonNull::from(&*self.0).cast()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}
// SAFETY: the bytes are reached through raw pointers and volatile accesses only.
unsafe impl Send for Region {}
// SAFETY: shared use makes only the accesses named above.
unsafe impl Sync for Region {}

impl Region {
    pub fn new(len: usize) -> Arc<Self> {
        Arc::new(Self((0..len).map(|_| UnsafeCell::new(0)).collect()))
    }

    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        // SAFETY: the cells are valid bytes, and a racing writer can only change their value.
        self.0[offset..offset + len].iter().map(|cell| unsafe { cell.get().read_volatile() }).collect()
    }

    pub fn set(&self, offset: usize, bytes: &[u8]) {
        for (cell, &byte) in self.0[offset..offset + bytes.len()].iter().zip(bytes) {
            // SAFETY: the cell is a valid byte, and a racing reader can only see either value.
            unsafe { cell.get().write_volatile(byte) };
        }
    }
}

/// Waits for a condition with a generous ceiling.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::yield_now();
    }
}

/// One end of a connection.
pub struct End {
    pub send: SoftSend,
    pub recv: SoftRecv,
    pub rx: Arc<Region>,
    pub tx: Arc<Region>,
    pub stats: Arc<SoftStats>,
    pub local: PeerEndpoint,
    pub peer: PeerEndpoint,
}

/// A queue pair that is not connected yet.
pub struct Unconnected {
    pub qp: SoftQp,
    pub rx: Arc<Region>,
    pub tx: Arc<Region>,
}

pub const REGION: usize = 64 * 1024;
pub const DEPTH: u32 = 64;

pub fn qp_on(device: &SoftDevice, mtu: Option<Mtu>) -> Unconnected {
    qp_with(device, mtu, REGION)
}

/// With regions of so many bytes.
pub fn qp_with(device: &SoftDevice, mtu: Option<Mtu>, region: usize) -> Unconnected {
    let (rx, tx) = (Region::new(region), Region::new(region));
    let attr = QpAttr { rx: rx.clone(), tx: tx.clone(), send_depth: DEPTH, recv_depth: DEPTH, mtu };
    Unconnected { qp: device.create_qp(&attr).unwrap(), rx, tx }
}

impl Unconnected {
    pub fn endpoint(&self) -> PeerEndpoint {
        PeerEndpoint { qpn: self.qp.qpn(), rkey: Some(self.qp.rkey()), ip: self.qp.local_ip() }
    }

    pub fn connect(self, peer: &PeerEndpoint) -> End {
        let (local, stats) = (self.endpoint(), self.qp.stats());
        let (send, recv) = self.qp.connect(peer).unwrap();
        End { send, recv, rx: self.rx, tx: self.tx, stats, local, peer: *peer }
    }
}

pub fn open(addr: Ipv4Addr) -> SoftDevice {
    SoftDevice::open(SoftConfig { addr, ..SoftConfig::default() }).unwrap()
}

/// Two connected queue pairs.
pub fn connect(a: &SoftDevice, b: &SoftDevice, mtu: Option<Mtu>) -> (End, End) {
    let (a, b) = (qp_on(a, mtu), qp_on(b, mtu));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    (a.connect(&at_b), b.connect(&at_a))
}

/// Two connected queue pairs on two addresses.
pub fn pair(mtu: Option<Mtu>) -> (End, End) {
    connect(&open(fresh_addr()), &open(fresh_addr()), mtu)
}

impl End {
    pub fn post(&mut self, id: u32, offset: u64, len: u32) {
        self.recv.post_recv(RecvWr { id, offset, len }).unwrap();
    }

    pub fn stage(&mut self, offset: u64, len: u32, verb: Verb) {
        self.send.stage(&SendWr { sge: Sge { region: RegionId::Tx, offset, len }, verb }).unwrap();
    }

    pub fn flush(&mut self) {
        assert_eq!(self.send.flush().unwrap(), 0);
        self.send.reap().unwrap();
    }

    /// A WRITE to the peer.
    pub fn write(&self, addr: u64, imm: Option<u32>) -> Verb {
        Verb::Write { addr, rkey: self.peer.rkey.unwrap(), imm }
    }

    pub fn poll(&mut self) -> Option<RecvCompletion> {
        let mut out = [RecvCompletion::EMPTY];
        (self.recv.poll(&mut out).unwrap() == 1).then_some(out[0])
    }

    pub fn next(&mut self) -> RecvCompletion {
        wait_for("a completion", || self.poll())
    }
}

/// Bytes that differ from message to message and from place to place.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (seed.wrapping_mul(31).wrapping_add(i.wrapping_mul(7)) >> 1) as u8).collect()
}

/// What crosses the interfaces of the calling thread's network.
pub struct Capture(Socket);

impl Capture {
    /// `None` without CAP_NET_RAW, which it tells.
    pub fn start() -> Option<Self> {
        /// ETH_P_IP in network order, as AF_PACKET wants it.
        const IPV4: i32 = 0x0800_u16.to_be() as i32;
        let (packet, raw) = (Domain::from(libc::AF_PACKET), Type::from(libc::SOCK_RAW));
        match Socket::new(packet, raw, Some(Protocol::from(IPV4))) {
            Ok(socket) => {
                socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                Some(Self(socket))
            }
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: capturing needs CAP_NET_RAW: {e}");
                None
            }
            Err(e) => panic!("socket(AF_PACKET): {e}"),
        }
    }

    /// The next UDP datagram that comes from this address, if one does soon.
    pub fn next_from(&mut self, ip: Ipv4Addr) -> Option<CapturedPacket> {
        let mut frame = vec![0; 1 << 17];
        while let Ok(len) = self.0.read(&mut frame) {
            if len > 34 && frame[23] == 17 && frame[26..30] == ip.octets() {
                return Some(CapturedPacket::from_frame(&frame[..len]));
            }
        }
        None
    }
}

/// The UDP packets of a pcap file: flow, IP identification, UDP payload.
pub fn read_pcap(path: impl AsRef<Path>) -> Vec<CapturedPacket> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!(matches!(word(0), 0xA1B2_C3D4 | 0xA1B2_3C4D), "a pcap file");
    assert_eq!(word(20), 1, "of Ethernet frames");
    let mut packets = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        assert_eq!(word(at + 12) as usize, len, "captured whole");
        packets.push(CapturedPacket::from_frame(&bytes[at + 16..at + 16 + len]));
        at += 16 + len;
    }
    packets
}

pub struct CapturedPacket {
    pub flow: roce_soft::wire::Flow,
    pub ip_id: u16,
    pub ip_header: Vec<u8>,
    pub udp_checksum: u16,
    pub datagram: Vec<u8>,
}

impl CapturedPacket {
    pub fn from_frame(frame: &[u8]) -> Self {
        let u16_at = |at: usize| u16::from_be_bytes(frame[at..at + 2].try_into().unwrap());
        assert_eq!(u16_at(12), 0x0800, "IPv4");
        assert_eq!(frame[14], 0x45, "without options");
        assert_eq!(frame[23], 17, "UDP");
        let ip = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
        let at = |ip_at, port_at| std::net::SocketAddrV4::new(ip(ip_at), u16_at(port_at));
        let ip_len = usize::from(u16_at(16));
        assert_eq!(usize::from(u16_at(38)), ip_len - 20, "UDP length");
        Self {
            flow: roce_soft::wire::Flow { src: at(26, 34), dst: at(30, 36) },
            ip_id: u16_at(18),
            ip_header: frame[14..34].to_vec(),
            udp_checksum: u16_at(40),
            datagram: frame[42..14 + ip_len].to_vec(),
        }
    }
}
