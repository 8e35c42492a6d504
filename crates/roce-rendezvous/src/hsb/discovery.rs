//! Hears the boards that make themselves known.

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::libc::in_pktinfo;
use nix::net::if_::if_indextoname;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt,
    sockopt::{BindToDevice, Ipv4PacketInfo},
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::HsbError;
use super::board::Board;
use super::enumeration::{Announcement, EnumerationError, HOST_PORT};

/// More than any announcement has, so that a longer datagram is known to be one.
const DATAGRAM: usize = 2048;

/// Where boards are listened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// The address and UDP port to listen on; default 0.0.0.0:12267. Broadcasts arrive at 0.0.0.0 alone.
    pub address: SocketAddrV4,
    /// Hear this interface alone; default all.
    pub interface: Option<String>,
}

impl Default for DiscoveryConfig {
    fn default() -> Self {
        Self { address: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, HOST_PORT), interface: None }
    }
}

/// Datagrams on the enumeration port that announce no board, by what is wrong with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ignored {
    /// Truncated or oversized.
    pub length: u64,
    /// BOOTP of another kind, or no BOOTP.
    pub operation: u64,
    /// No Ethernet address.
    pub hardware: u64,
    /// Foreign BOOTP: no vendor area of a board.
    pub tag: u64,
    /// Another vendor's.
    pub vendor: u64,
    /// An unknown version of the announcement.
    pub version: u64,
}

impl Ignored {
    /// Name and value of every counter.
    pub const fn fields(&self) -> [(&'static str, u64); 6] {
        let Self { length, operation, hardware, tag, vendor, version } = *self;
        [
            ("length", length),
            ("operation", operation),
            ("hardware", hardware),
            ("tag", tag),
            ("vendor", vendor),
            ("version", version),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.fields().iter().map(|(_, count)| count).sum()
    }

    fn count(&mut self, error: EnumerationError) {
        *match error {
            EnumerationError::Length(_) => &mut self.length,
            EnumerationError::Operation(_) => &mut self.operation,
            EnumerationError::HardwareLength(_) => &mut self.hardware,
            EnumerationError::Tag(_) => &mut self.tag,
            EnumerationError::Vendor(_) => &mut self.vendor,
            EnumerationError::Version(_) => &mut self.version,
        } += 1;
    }
}

/// A socket that hears boards. Several may listen at once, in one program or many.
#[derive(Debug)]
pub struct Discovery {
    socket: UdpSocket,
    address: SocketAddrV4,
    ignored: Ignored,
}

/// A datagram, and how it came.
struct Heard {
    len: usize,
    from: Ipv4Addr,
    interface: u32,
    local_ip: Ipv4Addr,
}

impl Discovery {
    /// Begins to listen. Must be called within a tokio runtime, as must all of its calls.
    pub fn open(config: &DiscoveryConfig) -> Result<Self, HsbError> {
        let address = config.address;
        let error = |call| move |source| HsbError::Discovery { call, address, source };
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).map_err(error("socket"))?;
        socket.set_reuse_address(true).map_err(error("SO_REUSEADDR"))?;
        setsockopt(&socket, nix::sys::socket::sockopt::ReusePort, &true)
            .map_err(|e| error("SO_REUSEPORT")(e.into()))?;
        setsockopt(&socket, Ipv4PacketInfo, &true).map_err(|e| error("IP_PKTINFO")(e.into()))?;
        if let Some(interface) = &config.interface {
            setsockopt(&socket, BindToDevice, &interface.into())
                .map_err(|e| HsbError::Interface { interface: interface.clone(), source: e.into() })?;
        }
        socket.bind(&address.into()).map_err(error("bind"))?;
        socket.set_nonblocking(true).map_err(error("O_NONBLOCK"))?;
        let socket = UdpSocket::from_std(socket.into()).map_err(error("epoll"))?;
        Ok(Self { socket, address, ignored: Ignored::default() })
    }

    /// What came that announces no board.
    pub const fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// The next announcement, from whichever board. A future that is dropped loses none.
    pub async fn next(&mut self) -> Result<Board, HsbError> {
        let mut bytes = [0; DATAGRAM];
        loop {
            let socket = &self.socket;
            let heard = socket.async_io(Interest::READABLE, || receive(socket, &mut bytes)).await;
            if let Some(board) = self.board(&bytes, heard)? {
                return Ok(board);
            }
        }
    }

    /// The data planes that make themselves known within `time`: each once for every interface that hears it, by
    /// serial number, data plane and interface. A board announces itself once a second.
    pub async fn collect(&mut self, time: Duration) -> Result<Vec<Board>, HsbError> {
        let key = |board: &Board| (board.serial(), board.data_plane(), board.interface.clone());
        let until = Instant::now() + time;
        let mut boards: Vec<Board> = Vec::new();
        while let Ok(heard) = timeout_at(until, self.next()).await {
            let heard = heard?;
            match boards.iter_mut().find(|board| key(board) == key(&heard)) {
                Some(known) => *known = heard,
                None => boards.push(heard),
            }
        }
        boards.sort_by_key(key);
        Ok(boards)
    }

    /// The first announcement that is `wanted`, within `time`.
    pub async fn find(
        &mut self,
        time: Duration,
        mut wanted: impl FnMut(&Board) -> bool,
    ) -> Result<Board, HsbError> {
        let until = Instant::now() + time;
        let mut others = 0;
        while let Ok(heard) = timeout_at(until, self.next()).await {
            let board = heard?;
            if wanted(&board) {
                return Ok(board);
            }
            others += 1;
        }
        Err(HsbError::NoBoard { address: self.address, waited: time, others, ignored: self.ignored })
    }

    /// Forgets what has come so far: it was sent in the past.
    pub(super) fn forget(&mut self) -> Result<(), HsbError> {
        let mut bytes = [0; DATAGRAM];
        loop {
            let socket = &self.socket;
            match socket.try_io(Interest::READABLE, || receive(socket, &mut bytes)) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                heard => self.board(&bytes, heard)?,
            };
        }
    }

    /// The board that a datagram announces; counts it if it announces none.
    fn board(&mut self, bytes: &[u8], heard: io::Result<Heard>) -> Result<Option<Board>, HsbError> {
        let heard =
            heard.map_err(|source| HsbError::Discovery { call: "recvmsg", address: self.address, source })?;
        match Announcement::parse(&bytes[..heard.len]) {
            Ok(announcement) => {
                let interface = interface_name(heard.interface);
                Ok(Some(Board::new(heard.from, interface, heard.local_ip, announcement)))
            }
            Err(error) => {
                debug!(from = %heard.from, %error, "a datagram announces no board");
                self.ignored.count(error);
                Ok(None)
            }
        }
    }
}

fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> io::Result<Heard> {
    let mut control = nix::cmsg_space!(in_pktinfo);
    let mut parts = [IoSliceMut::new(bytes)];
    let fd = socket.as_fd().as_raw_fd();
    let message = recvmsg::<SockaddrIn>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let mut heard = Heard {
        len: message.bytes,
        from: message.address.map_or(Ipv4Addr::UNSPECIFIED, |from| from.ip()),
        interface: 0,
        local_ip: Ipv4Addr::UNSPECIFIED,
    };
    for part in message.cmsgs()? {
        if let ControlMessageOwned::Ipv4PacketInfo(info) = part {
            heard.interface = info.ipi_ifindex.unsigned_abs();
            heard.local_ip = Ipv4Addr::from_bits(u32::from_be(info.ipi_spec_dst.s_addr));
        }
    }
    Ok(heard)
}

/// By its number where it has just gone.
fn interface_name(index: u32) -> String {
    let name = if_indextoname(index).ok().and_then(|name| name.into_string().ok());
    name.unwrap_or_else(|| format!("interface {index}"))
}
