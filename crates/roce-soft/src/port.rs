//! A UDP socket that plays a RoCE port: one per address in a process, shared by all queue pairs on it.
//!
//! There is no thread behind it. Whichever queue pair polls takes the receive side by trying its lock, hands
//! every packet that has come to the responder of its queue pair, and lets each queue pair's own completion
//! queue carry the result to whoever polls that one. Who finds the lock taken just looks at its queue.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use crossbeam_utils::CachePadded;
use roce_core::{Memory, Qpn, RecvWr};
use rtrb::{Consumer, Producer};

use crate::counters::{DropReason, PortCounters, SoftStats};
use crate::error::SoftError;
use crate::iface::Link;
use crate::pcap::Pcap;
use crate::qp::{Completion, IdPolicy, Responder};
use crate::table::{Numbered, QpTable};
use crate::udp::{Peer, RecvBatch, RecvPacket, Socket};
use crate::wire::icrc::Icrc;
use crate::wire::{Flow, Packet, ParseError};

/// The sockets of this process.
static PORTS: Mutex<Option<HashMap<SocketAddrV4, Weak<Port>>>> = Mutex::new(None);

fn ports<R>(with: impl FnOnce(&mut HashMap<SocketAddrV4, Weak<Port>>) -> R) -> R {
    with(PORTS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

/// Takes the address out of [`PORTS`] when dropped.
#[derive(Debug)]
struct Entry(SocketAddrV4);

impl Drop for Entry {
    fn drop(&mut self) {
        ports(|ports| ports.remove(&self.0));
    }
}

/// A UDP socket that plays a RoCE port.
#[derive(Debug)]
pub(crate) struct Port {
    addr: SocketAddrV4,
    link: Link,
    socket: Socket,
    /// Threads that wait for `rx` to add or remove a queue pair. Pollers stand back while there are any.
    waiting: CachePadded<AtomicU32>,
    rx: Mutex<RxSide>,
    counters: Arc<CachePadded<PortCounters>>,
    pcap: OnceLock<Pcap>,
    /// Last, so that the socket is closed when the address leaves the table.
    _entry: Entry,
}

/// Its counters outlive it.
impl Drop for Port {
    fn drop(&mut self) {
        self.counters.last_overflow.set(self.overflow());
    }
}

#[derive(Debug)]
struct RxSide {
    batch: RecvBatch,
    flows: Flows,
    qps: QpTable<Box<RxQp>>,
}

/// The flows that packets came along of late. Peers and lengths of packets are spread over the places, so that several
/// may take turns.
#[derive(Debug)]
struct Flows([Icrc; Self::PLACES]);

impl Flows {
    const PLACES: usize = 16;

    fn new(local: SocketAddrV4) -> Self {
        Self(std::array::from_fn(|_| Icrc::new(Flow { src: local, dst: local })))
    }

    #[inline]
    fn icrc(&mut self, flow: &Flow, datagram_len: usize) -> &mut Icrc {
        let [.., last] = flow.src.ip().octets();
        let place = &mut self.0[(usize::from(last) + datagram_len / 4) % Self::PLACES];
        if place.flow() != flow {
            *place = Icrc::new(*flow);
        }
        place
    }
}

impl Port {
    /// With so many packets a poll ends, whatever has come besides.
    const PACKETS_PER_POLL: usize = 64;

    /// The socket of this process at `addr`, bound now if there is none yet.
    pub(crate) fn open(addr: SocketAddrV4) -> Result<Arc<Self>, SoftError> {
        loop {
            let found = ports(|ports| match ports.get(&addr) {
                Some(port) => Ok(port.upgrade()),
                None => Self::bind(addr).map(|port| {
                    ports.insert(addr, Arc::downgrade(&port));
                    Some(port)
                }),
            })?;
            match found {
                Some(port) => return Ok(port),
                // It is being closed by its last user, who will then remove the entry.
                None => std::thread::yield_now(),
            }
        }
    }

    /// Runs under the lock of [`PORTS`]. The entry is made last: dropping it takes that lock.
    fn bind(addr: SocketAddrV4) -> Result<Arc<Self>, SoftError> {
        let link = Link::of(addr)?;
        let socket = Socket::bind(addr).map_err(|(call, source)| match source.kind() {
            io::ErrorKind::AddrInUse => SoftError::InUse { addr },
            io::ErrorKind::AddrNotAvailable => SoftError::NotLocal { addr: *addr.ip() },
            _ => SoftError::Socket { call, addr, source },
        })?;
        Ok(Arc::new(Self {
            addr,
            link,
            socket,
            waiting: CachePadded::default(),
            rx: Mutex::new(RxSide { batch: RecvBatch::new(), flows: Flows::new(addr), qps: QpTable::new() }),
            counters: Arc::default(),
            pcap: OnceLock::new(),
            _entry: Entry(addr),
        }))
    }

    /// Captures packets into `path` from now on. Later callers must name the same file.
    pub(crate) fn capture(&self, path: &Path) -> Result<(), SoftError> {
        if self.pcap.get().is_none() {
            let pcap =
                Pcap::create(path).map_err(|source| SoftError::Pcap { path: path.to_owned(), source })?;
            // Someone else may have been first; then the check below decides.
            let _ = self.pcap.set(pcap);
        }
        match self.pcap.get() {
            Some(pcap) if pcap.path() != path => Err(SoftError::PcapInUse {
                addr: self.addr,
                open: pcap.path().to_owned(),
                asked: path.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddrV4 {
        self.addr
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn counters(&self) -> &Arc<CachePadded<PortCounters>> {
        &self.counters
    }

    pub(crate) fn overflow(&self) -> u64 {
        self.socket.overflow()
    }

    /// Sends packets in order and says how many left; 0 when the link has no room. A single one goes with a
    /// plain call. The error names the call, and says that the first packet did not leave.
    #[inline]
    pub(crate) fn send<'a>(
        &self,
        to: &Peer,
        packets: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) -> Result<usize, (&'static str, io::Error)> {
        let mut rest = packets.clone();
        let (call, sent) = match (rest.next(), rest.len()) {
            (None, _) => return Ok(0),
            (Some(packet), 0) => ("sendto", self.socket.send(to, packet).map(|()| 1)),
            (Some(_), _) => ("sendmmsg", self.socket.send_many(to, packets.clone())),
        };
        match sent {
            Ok(sent) => {
                self.record_sent(to, packets.take(sent));
                Ok(sent)
            }
            Err(e) if is_no_room(&e) => Ok(0),
            Err(e) => Err((call, e)),
        }
    }

    #[inline]
    fn record_sent<'a>(&self, to: &Peer, packets: impl Iterator<Item = &'a [u8]>) {
        if let Some(pcap) = self.pcap.get() {
            let flow = Flow { src: self.addr, dst: to.addr };
            packets.for_each(|packet| pcap.record(&flow, 0, packet));
        }
    }

    /// Takes the packets that have come, unless another thread is at it, and says whether there were any.
    #[inline]
    pub(crate) fn drive(&self) -> io::Result<bool> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return Ok(false);
        }
        let mut rx = match self.rx.try_lock() {
            Ok(rx) => rx,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let RxSide { batch, flows, qps } = &mut *rx;
        let mut taken = 0;
        while batch.receive(&self.socket)? > 0 {
            for packets in batch.datagrams() {
                for packet in packets {
                    taken += 1;
                    self.counters.packets.add(1);
                    if let Err(reason) = self.take(flows, qps, &packet) {
                        self.counters.drops.count(reason);
                    }
                }
            }
            if taken >= Self::PACKETS_PER_POLL || !batch.is_more_likely() {
                break;
            }
        }
        Ok(taken > 0)
    }

    /// Hands a packet to its queue pair. The error is for packets that belong to none for sure.
    #[inline]
    fn take(
        &self,
        flows: &mut Flows,
        qps: &mut QpTable<Box<RxQp>>,
        &RecvPacket { source, bytes, cut }: &RecvPacket<'_>,
    ) -> Result<(), DropReason> {
        let flow = Flow { src: source, dst: self.addr };
        let ip_id = flows.icrc(&flow, bytes.len()).verify(bytes);
        if let Some(pcap) = self.pcap.get() {
            pcap.record(&flow, ip_id.unwrap_or(0), bytes);
        }
        let (packet, ip_id) = match (Packet::parse(bytes), ip_id) {
            (Ok(packet), Some(ip_id)) if !cut => (packet, ip_id),
            (Err(ParseError::Truncated { .. }), _) => return Err(DropReason::Truncated),
            _ if cut => return Err(DropReason::Truncated),
            (_, None) => return Err(DropReason::BadIcrc),
            (Err(ParseError::Opcode(_)), _) => return Err(DropReason::UnknownOpcode),
            _ => return Err(DropReason::BadHeader),
        };
        let qp = qps.get_mut(packet.header.bth.dest_qp).ok_or(DropReason::UnknownQp)?;
        qp.receive(&packet, *source.ip(), ip_id);
        Ok(())
    }

    /// Adds a queue pair under the first free number from `first` on, which it then has.
    pub(crate) fn add(&self, first: Qpn, mut qp: Box<RxQp>) -> Result<Qpn, SoftError> {
        let mut rx = self.control();
        let in_use = rx.qps.len();
        // Numbers 0 and 1 are those of the management queue pairs.
        let qpn = (first.get()..=Qpn::MAX.get())
            .chain(0..first.get())
            .take(in_use + 3)
            .map(Qpn::from_low_bits)
            .find(|&qpn| qpn.get() > 1 && !rx.qps.contains(qpn))
            .ok_or(SoftError::NoQpn { addr: self.addr })?;
        qp.qpn = qpn;
        rx.qps.insert(qp);
        Ok(qpn)
    }

    /// From now on packets of `peer` are for this queue pair.
    pub(crate) fn connect(&self, qpn: Qpn, peer: Ipv4Addr) {
        if let Some(qp) = self.control().qps.get_mut(qpn) {
            qp.peer = Some(peer);
        }
    }

    /// Nobody touches the queue pair's memory after this.
    pub(crate) fn remove(&self, qpn: Qpn) {
        let removed = self.control().qps.remove(qpn);
        // Only now, without the lock: the last user of a region frees it here.
        drop(removed);
    }

    /// The receive side, for changes. Pollers are kept off so that they cannot starve the caller.
    fn control(&self) -> MutexGuard<'_, RxSide> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let rx = self.rx.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        rx
    }
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_want_of_room_is_waited_for() {
        let waits = |errno| is_no_room(&io::Error::from_raw_os_error(errno));
        assert!([libc::EAGAIN, libc::EINTR, libc::ENOBUFS].into_iter().all(waits));
        assert!(![libc::ENOMEM, libc::ENETUNREACH, libc::EMSGSIZE].into_iter().any(waits));
    }

    #[test]
    fn pollers_stand_back_while_somebody_waits() {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        let port = Port::open(SocketAddrV4::new(Ipv4Addr::new(127, 32 + (a & 7), b, c), 4790)).unwrap();
        let itself = Peer::new(port.addr());
        port.send(&itself, std::iter::once(&[0; 40][..])).unwrap();
        port.waiting.fetch_add(1, Ordering::Relaxed);
        (0..100).for_each(|_| assert!(!port.drive().unwrap()));
        port.waiting.fetch_sub(1, Ordering::Relaxed);
        assert!(port.drive().unwrap());
        assert!(!port.drive().unwrap(), "there was one");
    }
}

/// The receiving side of a queue pair, in the hands of whoever polls the socket.
#[derive(Debug)]
pub(crate) struct RxQp {
    pub(crate) qpn: Qpn,
    /// `None` until it is connected.
    pub(crate) peer: Option<Ipv4Addr>,
    pub(crate) responder: Responder,
    pub(crate) ids: IdPolicy,
    pub(crate) mem: Memory,
    pub(crate) receives: Consumer<RecvWr>,
    pub(crate) completions: Producer<Completion>,
    pub(crate) stats: Arc<SoftStats>,
}

impl Numbered for Box<RxQp> {
    fn qpn(&self) -> Qpn {
        self.qpn
    }
}

impl RxQp {
    /// Takes a packet whose ICRC is right for IP identification `ip_id`.
    #[inline]
    fn receive(&mut self, packet: &Packet<'_>, source: Ipv4Addr, ip_id: u16) {
        self.stats.rx.packets.add(1);
        if let Err(reason) = self.accept(packet, source, ip_id) {
            self.stats.rx.drops.count(reason);
        }
    }

    #[inline]
    fn accept(&mut self, packet: &Packet<'_>, source: Ipv4Addr, ip_id: u16) -> Result<(), DropReason> {
        let peer = self.peer.ok_or(DropReason::NotReady)?;
        if source != peer {
            return Err(DropReason::WrongSource);
        }
        if !self.ids.accepts(ip_id) {
            return Err(DropReason::BadIcrc);
        }
        let receives = &mut self.receives;
        let outcome = self.responder.receive(packet, || receives.pop().ok());
        self.count();
        let accepted = outcome?;
        if !packet.payload.is_empty() {
            self.mem.store(accepted.offset, packet.payload).map_err(|_| DropReason::OutOfBounds)?;
        }
        if let Some(completion) = accepted.completion {
            self.stats.rx.messages.add(1);
            // There is room: the queue is as deep as receives may be outstanding. The push releases the bytes
            // written above to whoever pops it.
            let _ = self.completions.push(completion);
        }
        Ok(())
    }

    fn count(&self) {
        let counters = &self.stats.rx;
        counters.lost.set(self.responder.lost());
        counters.late.set(self.responder.late());
        counters.torn.set(self.responder.torn());
    }
}
