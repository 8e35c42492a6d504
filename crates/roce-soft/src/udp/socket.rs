//! A UDP socket whose packets look as a RoCE sender's do.

#![allow(clippy::cast_possible_truncation)] // sizes and constants of C, all small

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_void, socklen_t};
use socket2::{Domain, Protocol, Type};

use super::control::Control;

/// With privilege, room for several thousand short packets, so that a poller may be away for milliseconds. Without
/// it `net.core.rmem_max` is the limit, by default room for a few hundred; the crate's page has a table.
const RECV_BUFFER: c_int = 4 << 20;

/// The most packets in one system call.
const SEND_BATCH: usize = 32;

/// The most bytes in one datagram that the kernel takes for many.
const RUN_BYTES: usize = 65_000;

/// Where packets go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) addr: SocketAddrV4,
    raw: libc::sockaddr_in,
}

impl Peer {
    pub(crate) fn new(addr: SocketAddrV4) -> Self {
        let raw = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: addr.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
            sin_zero: [0; 8],
        };
        Self { addr, raw }
    }
}

/// A bound socket that never blocks.
///
/// It stays unconnected with path MTU discovery set to PROBE: then Linux sends DF and the IP identification 0,
/// which the ICRC covers, and the interface's MTU is the only limit. With DO the limit would be the path's MTU,
/// which anybody can lower by a forged ICMP message.
///
/// On loopback, runs of packets of one length pass the kernel as one datagram, and leave it as one where the receiver
/// can take them apart: see [`Run`]. Nobody there sees an IP identification, which the ICRC covers and which would run
/// from packet to packet on any other network.
#[derive(Debug)]
pub(crate) struct Socket {
    inner: socket2::Socket,
    /// Until the kernel refuses one that is no worse than its packets.
    sends_runs: AtomicBool,
}

impl Socket {
    /// Opens and binds. The error names the call.
    pub(crate) fn bind(addr: SocketAddrV4) -> Result<Self, (&'static str, io::Error)> {
        let inner = socket2::Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))
            .map_err(|e| ("socket(SOCK_DGRAM)", e))?;
        inner.set_nonblocking(true).map_err(|e| ("fcntl(O_NONBLOCK)", e))?;
        let mut socket = Self { inner, sends_runs: AtomicBool::new(false) };
        socket
            .set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
            .map_err(|e| ("setsockopt(IP_MTU_DISCOVER)", e))?;
        if addr.ip().is_loopback() {
            // Linux 4.18 and later. Such datagrams have checksums, which nobody computes on loopback.
            *socket.sends_runs.get_mut() = socket.set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        } else {
            // As NICs send it; the ICRC protects what a UDP checksum would.
            socket.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).map_err(|e| ("setsockopt(SO_NO_CHECK)", e))?;
        }
        // With privilege beyond the system's limit, else up to it.
        socket
            .set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECV_BUFFER)
            .or_else(|_| socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, RECV_BUFFER))
            .map_err(|e| ("setsockopt(SO_RCVBUF)", e))?;
        socket.inner.bind(&addr.into()).map_err(|e| ("bind", e))?;
        Ok(socket)
    }

    /// Sends one packet.
    #[inline]
    pub(crate) fn send(&self, to: &Peer, packet: &[u8]) -> io::Result<()> {
        // SAFETY: the packet and the address live until the call returns, and their lengths are their own.
        let sent = unsafe {
            libc::sendto(
                self.fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const to.raw).cast(),
                ADDRESS_LEN,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends packets in order and says how many of them left. An error says that the first one did not.
    pub(crate) fn send_many<'a>(
        &self,
        to: &Peer,
        packets: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> io::Result<usize> {
        let mut vectors: [MaybeUninit<libc::iovec>; SEND_BATCH] =
            [const { MaybeUninit::uninit() }; SEND_BATCH];
        let mut headers: [MaybeUninit<libc::mmsghdr>; SEND_BATCH] =
            [const { MaybeUninit::uninit() }; SEND_BATCH];
        let mut runs = [const { Run::EMPTY }; SEND_BATCH];
        let as_runs = self.sends_runs.load(Ordering::Relaxed) && to.addr.ip().is_loopback();
        // Of the whole array: a header leads to as many vectors as its run has packets.
        let first_vector = vectors.as_mut_ptr();
        let mut count = 0;
        for (at, packet) in packets.clone().take(SEND_BATCH).enumerate() {
            // SAFETY: there are SEND_BATCH vectors.
            let vector = unsafe { first_vector.add(at) };
            let value = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
            // SAFETY: it is one of the vectors, and nothing else borrows them.
            unsafe { vector.write(MaybeUninit::new(value)) };
            if as_runs && count > 0 && runs[count - 1].takes(packet.len()) {
                continue;
            }
            runs[count] = Run::of(packet.len());
            // SAFETY: all-zero bytes are a value of this C structure.
            let header = headers[count].write(unsafe { std::mem::zeroed() });
            header.msg_hdr.msg_name = (&raw const to.raw).cast_mut().cast();
            header.msg_hdr.msg_namelen = ADDRESS_LEN;
            header.msg_hdr.msg_iov = vector.cast();
            count += 1;
        }
        for (header, run) in headers.iter_mut().zip(&mut runs[..count]) {
            // SAFETY: the first `count` headers were written.
            run.describe(unsafe { &mut header.assume_init_mut().msg_hdr });
        }
        // SAFETY: the first `count` headers were written, and lead to packets, an address, vectors and control messages
        // that live until the call returns; the kernel only reads what they lead to.
        let sent = unsafe { libc::sendmmsg(self.fd(), headers.as_mut_ptr().cast(), count as u32, 0) };
        match usize::try_from(sent) {
            Ok(sent) => Ok(runs[..sent].iter().map(|run| run.packets).sum()),
            Err(_) if runs[0].packets > 1 => self.send_first(to, packets, io::Error::last_os_error()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// What keeps a run from leaving need not keep its packets, unless it is want of room. Where it is about runs, none
    /// is tried again.
    #[cold]
    fn send_first<'a>(
        &self,
        to: &Peer,
        mut packets: impl Iterator<Item = &'a [u8]>,
        refusal: io::Error,
    ) -> io::Result<usize> {
        let Some(packet) = packets.next().filter(|_| refusal.kind() != io::ErrorKind::WouldBlock) else {
            return Err(refusal);
        };
        self.send(to, packet)?;
        if is_about_runs(&refusal) {
            self.sends_runs.store(false, Ordering::Relaxed);
        }
        Ok(1)
    }

    /// Asks for runs to be received as one, with the length of their packets in a control message. Whether they will be:
    /// on loopback alone, and on Linux 5.0 and later.
    #[cold]
    pub(super) fn receive_runs(&self) -> bool {
        self.sends_runs.load(Ordering::Relaxed) && self.set(libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
    }

    /// Datagrams that the kernel dropped because the receive buffer was full: packets, and whole runs of them.
    pub(crate) fn overflow(&self) -> u64 {
        const FIELDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;
        let mut info = [0u32; FIELDS];
        let mut len = size_of_val(&info) as socklen_t;
        // SAFETY: the array and its length are valid for the call, which writes at most `len` bytes.
        let result = unsafe {
            libc::getsockopt(self.fd(), libc::SOL_SOCKET, SO_MEMINFO, info.as_mut_ptr().cast(), &raw mut len)
        };
        if result == 0 { info[FIELDS - 1].into() } else { 0 }
    }

    #[cfg(test)]
    pub(super) fn local_addr(&self) -> Option<SocketAddrV4> {
        self.inner.local_addr().ok()?.as_socket_ipv4()
    }

    #[cfg(test)]
    pub(super) fn sends_runs(&self) -> bool {
        self.sends_runs.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }

    pub(super) fn set(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        let at: *const c_void = (&raw const value).cast();
        // SAFETY: the value lives until the call returns, and the length is its own.
        let result =
            unsafe { libc::setsockopt(self.fd(), level, option, at, size_of::<c_int>() as socklen_t) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Whether the kernel would refuse every run so, and not what is in it.
pub(super) fn is_about_runs(refusal: &io::Error) -> bool {
    matches!(refusal.raw_os_error(), Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP))
}

pub(super) const ADDRESS_LEN: socklen_t = size_of::<libc::sockaddr_in>() as socklen_t;

/// `asm-generic/socket.h`; the libc crate has the indices and not the option.
const SO_MEMINFO: c_int = 55;

/// Packets of one length behind one another, the last of which may be shorter.
#[derive(Debug)]
struct Run {
    packet_len: usize,
    packets: usize,
    last_len: usize,
    control: Control<u16>,
}

impl Run {
    const EMPTY: Self = Self::of(0);

    const fn of(packet_len: usize) -> Self {
        // Where the kernel is to cut.
        let control = Control::new(libc::UDP_SEGMENT, packet_len as u16);
        Self { packet_len, packets: 1, last_len: packet_len, control }
    }

    /// Appends a packet if it can be of this run.
    fn takes(&mut self, len: usize) -> bool {
        let takes = self.last_len == self.packet_len
            && len <= self.packet_len
            && (self.packets + 1) * self.packet_len <= RUN_BYTES;
        if takes {
            self.packets += 1;
            self.last_len = len;
        }
        takes
    }

    /// Completes the header of its datagram.
    fn describe(&mut self, header: &mut libc::msghdr) {
        header.msg_iovlen = self.packets as _;
        if self.packets > 1 {
            self.control.attach_to(header);
        }
    }
}
