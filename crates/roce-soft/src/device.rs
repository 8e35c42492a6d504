//! The device, and queue pairs that are not connected yet.

#![forbid(unsafe_code)]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use roce_core::{
    ConnectError, Device, Memory, Mtu, PeerEndpoint, PostError, Psn, QpAttr, Qpn, RecvWr, Rkey, UcQp,
    WireStats,
};

use crate::arena::Arena;
use crate::config::SoftConfig;
use crate::counters::SoftStats;
use crate::error::SoftError;
use crate::fault::Injector;
use crate::port::{Port, RxQp};
use crate::qp::{IdPolicy, Requester, Responder};
use crate::recv::{ReceiveQueue, SoftRecv};
use crate::send::{FaultyLink, Link, MAX_OVERHEAD, Regions, SoftSend};
use crate::udp::Peer;

/// The deepest queue of a queue pair.
const MAX_DEPTH: u32 = 1 << 20;

/// The bytes that may wait to be sent: as many as the regions hold, within these bounds.
const MIN_STAGED: usize = 64 << 10;
const MAX_STAGED: usize = 16 << 20;

/// A RoCE port in userspace: makes UC queue pairs that talk RoCEv2 through a UDP socket.
///
/// Devices of one process on the same address share the socket. It is closed with the last device and queue
/// pair on it.
#[derive(Debug)]
pub struct SoftDevice {
    port: Arc<Port>,
    config: SoftConfig,
    next_qpn: AtomicU32,
    made: AtomicU64,
}

impl SoftDevice {
    /// Binds the socket, or joins the one that this process has on that address.
    pub fn open(config: SoftConfig) -> Result<Self, SoftError> {
        if !is_one_host(config.addr) {
            return Err(SoftError::NotLocal { addr: config.addr });
        }
        let port = Port::open(SocketAddrV4::new(config.addr, config.port))?;
        if let Some(path) = &config.pcap {
            port.capture(path)?;
        }
        let first = config.first_qpn.unwrap_or_else(|| Qpn::from_low_bits(random()));
        Ok(Self { port, config, next_qpn: AtomicU32::new(first.get()), made: AtomicU64::new(0) })
    }

    /// The local address and UDP port.
    pub fn addr(&self) -> SocketAddrV4 {
        self.port.addr()
    }

    fn injector(&self, mtu: Mtu) -> Option<Injector> {
        let ordinal = self.made.fetch_add(1, Ordering::Relaxed);
        let packet_len = mtu.bytes() as usize + MAX_OVERHEAD;
        self.config.faults.map(|faults| Injector::new(faults, ordinal, packet_len))
    }
}

impl Device for SoftDevice {
    type Qp = SoftQp;
    type Error = SoftError;

    fn create_qp(&self, attr: &QpAttr) -> Result<SoftQp, SoftError> {
        let mtu = self.port.link().path_mtu(attr.mtu)?;
        check_depth("send depth", attr.send_depth)?;
        check_depth("receive depth", attr.recv_depth)?;
        let (rx, tx) = (Memory::new(Arc::clone(&attr.rx)), Memory::new(Arc::clone(&attr.tx)));
        let rkey = Rkey::new(random());
        let stats = Arc::new(SoftStats::new(&self.port));
        let (receive_queue, receives, completions) = ReceiveQueue::new(attr.recv_depth, rx.clone());
        let side = Box::new(RxQp {
            qpn: Qpn::MAX,
            peer: None,
            responder: Responder::new(mtu, rkey, rx.len()),
            ids: IdPolicy::default(),
            mem: rx.clone(),
            receives,
            completions,
            stats: Arc::clone(&stats),
        });
        let next = Qpn::from_low_bits(self.next_qpn.load(Ordering::Relaxed));
        // A number that was asked for is the first choice again as soon as it is free.
        let qpn = self.port.add(self.config.first_qpn.unwrap_or(next), side)?;
        self.next_qpn.store(qpn.get() + 1, Ordering::Relaxed);
        let registration = Arc::new(Registration { port: Arc::clone(&self.port), qpn });
        Ok(SoftQp {
            registration,
            rkey,
            mtu,
            first_psn: Psn::default(),
            receive_queue,
            regions: Regions { rx, tx },
            arena: arena(attr, mtu),
            injector: self.injector(mtu),
            stats,
        })
    }
}

fn arena(attr: &QpAttr, mtu: Mtu) -> Arena {
    let payload = attr.tx.len().max(attr.rx.len()).clamp(MIN_STAGED, MAX_STAGED);
    let messages = attr.send_depth as usize;
    // Each message has at most one packet that is not full.
    let packets = payload / mtu.bytes() as usize + messages;
    Arena::new(payload + packets * MAX_OVERHEAD, packets, messages)
}

fn check_depth(what: &'static str, depth: u32) -> Result<(), SoftError> {
    if depth <= MAX_DEPTH { Ok(()) } else { Err(SoftError::Depth { what, depth, max: MAX_DEPTH }) }
}

fn is_one_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast())
}

/// Not to be guessed by a peer.
#[allow(clippy::cast_possible_truncation)] // all bits are equally random
fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// A place among the socket's queue pairs; given up when dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) port: Arc<Port>,
    pub(crate) qpn: Qpn,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.port.remove(self.qpn);
    }
}

/// A queue pair in INIT: it takes receives, and drops what comes.
#[derive(Debug)]
pub struct SoftQp {
    registration: Arc<Registration>,
    rkey: Rkey,
    mtu: Mtu,
    first_psn: Psn,
    receive_queue: ReceiveQueue,
    regions: Regions,
    arena: Arena,
    injector: Option<Injector>,
    stats: Arc<SoftStats>,
}

impl SoftQp {
    /// The counters, as their own type.
    pub fn stats(&self) -> Arc<SoftStats> {
        Arc::clone(&self.stats)
    }
}

impl UcQp for SoftQp {
    type Send = SoftSend;
    type Recv = SoftRecv;
    type Error = SoftError;

    fn qpn(&self) -> Qpn {
        self.registration.qpn
    }

    fn rkey(&self) -> Rkey {
        self.rkey
    }

    fn local_ip(&self) -> Ipv4Addr {
        *self.registration.port.addr().ip()
    }

    fn path_mtu(&self) -> Mtu {
        self.mtu
    }

    fn wire_stats(&self) -> Arc<dyn WireStats> {
        self.stats()
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.receive_queue.post(wr)
    }

    fn start_at(&mut self, psn: Psn) {
        self.first_psn = psn;
    }

    fn connect(self, peer: &PeerEndpoint) -> Result<(SoftSend, SoftRecv), ConnectError<Self>> {
        if !is_one_host(peer.ip) {
            return Err(ConnectError { qp: self, error: SoftError::Peer { peer: peer.ip } });
        }
        let port = &self.registration.port;
        port.connect(self.registration.qpn, peer.ip);
        let link = Link {
            registration: Arc::clone(&self.registration),
            to: Peer::new(SocketAddrV4::new(peer.ip, port.addr().port())),
            stats: self.stats,
        };
        let faults = self.injector.map(|injector| FaultyLink::new(link.clone(), injector));
        let recv = SoftRecv::new(self.registration, self.receive_queue, faults.clone());
        let requester = Requester::new(peer.qpn, self.mtu).starting_at(self.first_psn);
        let send = SoftSend::new(requester, self.mtu, self.regions, self.arena, link, faults);
        Ok((send, recv))
    }
}
