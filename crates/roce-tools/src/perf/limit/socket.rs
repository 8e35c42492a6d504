//! A UDP socket as bare as can be, with the options of the userspace link: what the limits are measured on.
//!
//! The calls are made straight: a wrapper's cost would flatter what is compared with it.

#![allow(clippy::cast_possible_truncation)] // sizes and constants of C, all small

use std::io;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_int, iovec, mmsghdr, sockaddr_in, socklen_t};

/// As the userspace link asks for.
const RECV_BUFFER: c_int = 4 << 20;
/// The longest packet of any case, and more.
const BUFFER_LEN: usize = 8192;

/// A bound, unconnected socket that never blocks.
#[derive(Debug)]
pub(super) struct Socket {
    inner: UdpSocket,
}

/// Where packets go, in the kernel's form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address(sockaddr_in);

impl Address {
    pub(super) fn new(address: SocketAddrV4) -> Self {
        Self(sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
            sin_zero: [0; 8],
        })
    }
}

impl Socket {
    pub(super) fn bind(address: SocketAddrV4) -> io::Result<Self> {
        let socket = Self { inner: UdpSocket::bind(address)? };
        socket.inner.set_nonblocking(true)?;
        socket.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        if !address.ip().is_loopback() {
            socket.set(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
        }
        socket
            .set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECV_BUFFER)
            .or_else(|_| socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, RECV_BUFFER))?;
        Ok(socket)
    }

    pub(super) fn address(&self) -> io::Result<SocketAddrV4> {
        match self.inner.local_addr()? {
            SocketAddr::V4(address) => Ok(address),
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    #[inline]
    pub(super) fn send(&self, to: &Address, packet: &[u8]) -> io::Result<()> {
        // SAFETY: packet and address live until the call returns, and their lengths are their own.
        let sent = unsafe {
            libc::sendto(
                self.inner.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const to.0).cast(),
                ADDRESS_LEN,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether a packet was there.
    #[inline]
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<bool> {
        // SAFETY: the buffer lives until the call returns, and the length is its own; no source is asked for.
        let received = unsafe {
            libc::recvfrom(
                self.inner.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if received < 0 { none(io::Error::last_os_error()).map(|_| false) } else { Ok(true) }
    }

    fn set(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        let len = size_of::<c_int>() as socklen_t;
        // SAFETY: the value lives until the call returns, and the length is its own.
        let result = unsafe {
            libc::setsockopt(self.inner.as_raw_fd(), level, option, (&raw const value).cast(), len)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// That there is no packet, or no room for one, is no error.
fn none(error: io::Error) -> io::Result<usize> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
        _ => Err(error),
    }
}

/// Buffers for packets of one length that go or come with one system call, prepared once.
pub(super) struct Batch {
    headers: Box<[mmsghdr]>,
    // What the headers lead to; a box stays where it is.
    _vectors: Box<[iovec]>,
    _bytes: Box<[u8]>,
    _to: Option<Box<Address>>,
}

impl Batch {
    /// For sending `packet_len` bytes each.
    pub(super) fn to(address: Address, packets: usize, packet_len: usize) -> Self {
        Self::new(packets, packet_len.min(BUFFER_LEN), Some(Box::new(address)))
    }

    /// For receiving.
    pub(super) fn incoming(packets: usize) -> Self {
        Self::new(packets, BUFFER_LEN, None)
    }

    fn new(packets: usize, len: usize, mut to: Option<Box<Address>>) -> Self {
        let mut bytes = vec![0u8; packets * len].into_boxed_slice();
        let mut vectors: Box<[iovec]> = bytes
            .chunks_exact_mut(len)
            .map(|packet| iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: len })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: all-zero bytes are a value of this C structure.
                let mut header: mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                if let Some(to) = &mut to {
                    header.msg_hdr.msg_name = (&raw mut to.0).cast();
                    header.msg_hdr.msg_namelen = ADDRESS_LEN;
                }
                header
            })
            .collect();
        Self { headers, _vectors: vectors, _bytes: bytes, _to: to }
    }

    /// Sends the first `count` packets, at most as many as there are, and says how many left.
    #[inline]
    pub(super) fn send(&mut self, socket: &Socket, count: usize) -> io::Result<usize> {
        let count = count.min(self.headers.len());
        let headers = self.headers.as_mut_ptr();
        // SAFETY: the first `count` headers lead to bytes, vectors and an address that this value owns.
        let sent = unsafe { libc::sendmmsg(socket.inner.as_raw_fd(), headers, count as u32, 0) };
        usize::try_from(sent).or_else(|_| none(io::Error::last_os_error()))
    }

    /// Takes what has come and says how many packets.
    #[inline]
    pub(super) fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        let count = self.headers.len() as u32;
        let headers = self.headers.as_mut_ptr();
        // SAFETY: as for `send`; nobody else looks at the bytes.
        let received = unsafe {
            libc::recvmmsg(socket.inner.as_raw_fd(), headers, count, libc::MSG_DONTWAIT as _, ptr::null_mut())
        };
        usize::try_from(received).or_else(|_| none(io::Error::last_os_error()))
    }
}

const ADDRESS_LEN: socklen_t = size_of::<sockaddr_in>() as socklen_t;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn pair() -> (Socket, Socket, Address) {
        let bind = || Socket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (a, b) = (bind(), bind());
        let to = Address::new(b.address().unwrap());
        (a, b, to)
    }

    #[test]
    fn a_packet_goes_and_no_packet_is_no_error() {
        let (a, b, to) = pair();
        let mut buffer = [0; 16];
        assert!(!b.receive(&mut buffer).unwrap());
        a.send(&to, b"hello").unwrap();
        while !b.receive(&mut buffer).unwrap() {}
        assert_eq!(&buffer[..5], b"hello");
    }

    #[test]
    fn batches_go_whole() {
        let (a, b, to) = pair();
        let (mut out, mut incoming) = (Batch::to(to, 4, 100), Batch::incoming(3));
        assert_eq!(incoming.receive(&b).unwrap(), 0);
        assert_eq!(out.send(&a, 9).unwrap(), 4);
        let mut received = 0;
        while received < 4 {
            let count = incoming.receive(&b).unwrap();
            assert!(count <= 3);
            received += count;
        }
        assert_eq!(received, 4);
        assert!(incoming.headers.iter().any(|header| header.msg_len == 100));
    }
}
