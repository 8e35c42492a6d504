//! What can go wrong between opening a device and connecting a queue pair.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;

use roce_core::{Gid, Mtu, Qpn};

use crate::gid::GidTable;

/// A port of a device, as messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The device's name, as `rdma link` shows it.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.device, self.port)
    }
}

/// What can go wrong between opening a device and connecting a queue pair.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs is not installed.
    #[error(
        "cannot load libibverbs: {reason}; install it with the drivers of its devices (Debian and Ubuntu: \
         libibverbs1 ibverbs-providers; Fedora and RHEL: libibverbs), or take a soft device"
    )]
    Library {
        /// What the dynamic linker says.
        reason: String,
    },
    /// libibverbs is older than what this crate needs.
    #[error("libibverbs lacks {symbol}@{version}; install rdma-core 32 or newer")]
    Symbol {
        /// The function.
        symbol: &'static str,
        /// Its version in the library.
        version: &'static str,
    },
    /// The devices cannot be listed.
    #[error("ibv_get_device_list failed: {source}")]
    DeviceList {
        /// Why.
        source: io::Error,
    },
    /// No device has that name.
    #[error("no RDMA device {device:?}; {}", list_of_devices(.known))]
    NoSuchDevice {
        /// The name asked for.
        device: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The device cannot be opened.
    #[error(
        "ibv_open_device for {device} failed: {source}; check that /dev/infiniband/uverbs* exists and may be \
         read and written (module ib_uverbs)"
    )]
    Open {
        /// The device.
        device: String,
        /// Why.
        source: io::Error,
    },
    /// The device does not answer.
    #[error("ibv_query_device for {device} failed: {source}")]
    QueryDevice {
        /// The device.
        device: String,
        /// Why.
        source: io::Error,
    },
    /// The device has fewer ports.
    #[error("{at}: the device has ports 1 to {ports}")]
    NoSuchPort {
        /// The port asked for.
        at: Place,
        /// The last port.
        ports: u8,
    },
    /// The port does not answer.
    #[error("ibv_query_port for {at} failed: {source}")]
    QueryPort {
        /// The port.
        at: Place,
        /// Why.
        source: io::Error,
    },
    /// The port carries no traffic.
    #[error(
        "{at} is {state}, not active: check the cable, and bring its interface up (`rdma link show \
         {device}/{port}` names it, `ip link set IFACE up`)", device = at.device, port = at.port
    )]
    PortDown {
        /// The port.
        at: Place,
        /// Its state.
        state: crate::PortState,
    },
    /// The port is no Ethernet port.
    #[error(
        "{at} is a port of {layer}, and RoCE needs Ethernet; set the port's link type (ConnectX: `mlxconfig \
         set LINK_TYPE_P{port}=2`)", port = at.port
    )]
    NotEthernet {
        /// The port.
        at: Place,
        /// Its link layer.
        layer: crate::LinkLayer,
    },
    /// The GID table cannot be read.
    #[error("ibv_query_gid_table for {at} failed: {source}")]
    GidTable {
        /// The port.
        at: Place,
        /// Why.
        source: io::Error,
    },
    /// The GID table has no RoCEv2 entry for the address.
    #[error("no RoCEv2 GID for {} on {at}; {}\n{table}", WantedGid(*.wanted), gid_cure(*.wanted))]
    NoGid {
        /// The port.
        at: Place,
        /// The address asked for; `None` where any would have done.
        wanted: Option<Ipv4Addr>,
        /// What the table holds.
        table: GidTable,
    },
    /// The link does not carry packets of that size.
    #[error(
        "path MTU {asked} is larger than the active MTU {active} of {at}, and such packets would vanish; ask \
         for at most {active}, or raise the MTU of the interface and of the switch (4200 bytes carry 4096)"
    )]
    PathMtu {
        /// The port.
        at: Place,
        /// The path MTU asked for.
        asked: Mtu,
        /// What the port carries.
        active: Mtu,
    },
    /// No protection domain left.
    #[error("ibv_alloc_pd on {device} failed: {source}")]
    AllocPd {
        /// The device.
        device: String,
        /// Why.
        source: io::Error,
    },
    /// A region cannot be registered.
    #[error("{verb} of the {region} region ({len} bytes) on {device} failed: {source}{}", registration_cure(.source, *.memlock))]
    RegisterMr {
        /// The call.
        verb: &'static str,
        /// Which region: "RX", "TX", or "staging" for the copies of what is sent.
        region: &'static str,
        /// The device.
        device: String,
        /// Bytes of the region.
        len: usize,
        /// The limit on locked memory in bytes; `None` where there is none.
        memlock: Option<u64>,
        /// Why.
        source: io::Error,
    },
    /// There is no memory for copies of what is sent.
    #[error(
        "mmap for copies of {send_depth} messages from a TX region of {tx_len} bytes failed: {source}; make \
         the region smaller, or the send queue less deep"
    )]
    Staging {
        /// Bytes of the TX region.
        tx_len: usize,
        /// Sends asked for.
        send_depth: u32,
        /// Why.
        source: io::Error,
    },
    /// A completion queue cannot be made.
    #[error("ibv_create_cq of {depth} entries on {device} failed: {source}{}", queue_cure(.source, *.max))]
    CreateCq {
        /// The device.
        device: String,
        /// Entries asked for.
        depth: u32,
        /// The most that the device takes; `None` where it does not answer.
        max: Option<i32>,
        /// Why.
        source: io::Error,
    },
    /// A queue pair cannot be made.
    #[error(
        "ibv_create_qp (UC, {send_depth} sends, {recv_depth} receives) on {at} failed: {source}{}",
        queue_cure(.source, *.max)
    )]
    CreateQp {
        /// The port.
        at: Place,
        /// Sends asked for.
        send_depth: u32,
        /// Receives asked for.
        recv_depth: u32,
        /// The most that the device takes; `None` where it does not answer.
        max: Option<i32>,
        /// Why.
        source: io::Error,
    },
    /// A queue pair cannot change its state, other than to RTR.
    #[error("ibv_modify_qp of QP {qpn} to {to} on {at} failed: {source}")]
    ModifyQp {
        /// The port.
        at: Place,
        /// The queue pair.
        qpn: Qpn,
        /// The state it should have reached.
        to: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A queue pair cannot reach its peer.
    #[error(transparent)]
    ReadyToReceive(Box<RtrError>),
    /// No one host has that address.
    #[error("the peer's address {peer} is not that of one host; give the peer's own IPv4 address")]
    Peer {
        /// The address asked for.
        peer: Ipv4Addr,
    },
    /// The receives could not be posted again after a failed connect.
    #[error("ibv_post_recv on QP {qpn} of {at} failed: {source}")]
    PostRecv {
        /// The port.
        at: Place,
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        source: io::Error,
    },
}

/// A refused move to RTR, with all that was asked for.
#[derive(Debug)]
pub struct RtrError {
    /// The port.
    pub at: Place,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// The peer's address.
    pub peer: Ipv4Addr,
    /// Index of our GID.
    pub gid_index: u32,
    /// Our GID.
    pub gid: Gid,
    /// The path MTU.
    pub mtu: Mtu,
    /// How often it was tried.
    pub attempts: u32,
    /// Why the last try failed.
    pub source: io::Error,
}

impl fmt::Display for RtrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, qpn, peer_qpn, peer, gid_index, gid, mtu, attempts, source } = self;
        write!(
            f,
            "ibv_modify_qp of QP {qpn} to RTR on {at} failed after {attempts} tries: {source} (peer {peer} QP \
             {peer_qpn}, GID index {gid_index} = {gid}, path MTU {mtu}); "
        )?;
        match source.raw_os_error() {
            Some(libc::ETIMEDOUT) => write!(
                f,
                "no neighbour answered for {peer}: check the cable, that the peer has that address, and `ip \
                 neigh`; a peer without ARP needs `ip neigh replace {peer} lladdr MAC dev IFACE`"
            ),
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ENODEV | libc::EADDRNOTAVAIL) => {
                write!(
                    f,
                    "there is no route to {peer} from the interface of {gid}; see `ip route get {peer}`"
                )
            }
            Some(libc::EINVAL) => write!(
                f,
                "the device refuses one of these: GID index {gid_index} must still hold {gid} and be RoCEv2, \
                 {mtu} must not exceed the port's active MTU, and {peer} must be reachable from its interface"
            ),
            _ => write!(f, "check that {peer} is reachable from the interface of {gid}"),
        }
    }
}

impl std::error::Error for RtrError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

fn list_of_devices(known: &[String]) -> String {
    if known.is_empty() {
        return "this machine has none: load the driver of its card (such as mlx5_ib), or make a soft-RoCE \
                device with `rdma link add rxe0 type rxe netdev IFACE`"
            .to_owned();
    }
    format!("there are: {}", known.join(", "))
}

/// The address in "no RoCEv2 GID for …".
struct WantedGid(Option<Ipv4Addr>);

impl fmt::Display for WantedGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ip) => write!(f, "{ip}"),
            None => write!(f, "any IPv4 address"),
        }
    }
}

fn gid_cure(wanted: Option<Ipv4Addr>) -> &'static str {
    match wanted {
        Some(_) => {
            "add the address to the port's interface (its GID can take seconds to appear), or take an address \
             from its GID table:"
        }
        None => {
            "add an IPv4 address to the port's interface (its GID can take seconds to appear); its GID table:"
        }
    }
}

/// ENOMEM from a registration mostly means the limit on locked memory, and EINVAL that the address in the page is
/// not that of the address 0, which the RX region gets.
fn registration_cure(source: &io::Error, memlock: Option<u64>) -> String {
    match (source.raw_os_error(), memlock) {
        (Some(libc::ENOMEM), Some(limit)) => format!(
            "; registered memory is locked, and RLIMIT_MEMLOCK is {limit} bytes here: raise it (`ulimit -l \
             unlimited`, a memlock line in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit)"
        ),
        (Some(libc::ENOMEM), None) => {
            "; RLIMIT_MEMLOCK is unlimited here, so the machine or the device is out of memory".to_owned()
        }
        (Some(libc::EINVAL), _) => {
            "; a region must hold a byte, and begin on the boundary of a page".to_owned()
        }
        (Some(libc::EFAULT), _) => "; the region is not mapped writable".to_owned(),
        _ => String::new(),
    }
}

/// Queues lie in locked memory as well.
fn queue_cure(source: &io::Error, max: Option<i32>) -> String {
    let mut cure =
        max.map_or_else(String::new, |max| format!("; a queue of this device takes at most {max}"));
    if source.raw_os_error() == Some(libc::ENOMEM) {
        cure += "; queues are locked memory too: see RLIMIT_MEMLOCK (`ulimit -l`), and make the rings smaller or fewer";
    }
    cure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gid::{GidEntry, GidType};

    fn at() -> Place {
        Place { device: "mlx5_0".to_owned(), port: 1 }
    }

    #[track_caller]
    fn assert_says(error: &VerbsError, parts: &[&str]) {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
    }

    #[test]
    fn unknown_device_lists_the_others() {
        let known = vec!["mlx5_0".to_owned(), "rxe0".to_owned()];
        assert_says(
            &VerbsError::NoSuchDevice { device: "mlx5_9".to_owned(), known },
            &["mlx5_9", "mlx5_0, rxe0"],
        );
        let none = VerbsError::NoSuchDevice { device: "mlx5_9".to_owned(), known: Vec::new() };
        assert_says(&none, &["mlx5_9", "rdma link add"]);
    }

    #[test]
    fn missing_gid_shows_the_table() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 2));
        let table = GidTable::new(vec![GidEntry { index: 3, gid, kind: GidType::RoceV2, ifindex: 7 }]);
        let error = VerbsError::NoGid { at: at(), wanted: Some(Ipv4Addr::new(10, 0, 0, 1)), table };
        assert_says(&error, &["10.0.0.1", "mlx5_0 port 1", "add the address", "::ffff:10.0.0.2", "RoCE v2"]);
        let error = VerbsError::NoGid { at: at(), wanted: None, table: GidTable::new(Vec::new()) };
        assert_says(&error, &["any IPv4 address", "empty"]);
    }

    #[test]
    fn a_refused_registration_explains_itself() {
        let of = |region, errno, memlock| VerbsError::RegisterMr {
            verb: "ibv_reg_mr",
            region,
            device: "mlx5_0".to_owned(),
            len: 1 << 20,
            memlock,
            source: io::Error::from_raw_os_error(errno),
        };
        for region in ["TX", "staging"] {
            assert_says(
                &of(region, libc::ENOMEM, Some(65536)),
                &["ibv_reg_mr", region, "1048576", "mlx5_0", "RLIMIT_MEMLOCK is 65536", "ulimit -l"],
            );
        }
        let error = |errno, memlock| of("TX", errno, memlock);
        assert_says(&error(libc::ENOMEM, None), &["unlimited"]);
        assert_says(&error(libc::EINVAL, None), &["boundary of a page"]);
        assert!(!error(libc::EPERM, Some(65536)).to_string().contains("MEMLOCK"));
    }

    #[test]
    fn a_refused_queue_keeps_its_own_errno() {
        let error = |errno, max| VerbsError::CreateCq {
            device: "mlx5_0".to_owned(),
            depth: 1 << 28,
            max,
            source: io::Error::from_raw_os_error(errno),
        };
        assert_says(
            &error(libc::EINVAL, Some(4096)),
            &["ibv_create_cq", "268435456", "mlx5_0", "os error 22", "4096"],
        );
        assert_says(&error(libc::ENOMEM, Some(4096)), &["os error 12", "RLIMIT_MEMLOCK"]);
        let gone = error(libc::EIO, None).to_string();
        assert!(gone.contains("os error 5") && !gone.contains("at most"), "{gone}");
    }

    #[test]
    fn rtr_names_neighbour_and_attributes() {
        let error = |errno| {
            VerbsError::ReadyToReceive(Box::new(RtrError {
                at: at(),
                qpn: Qpn::from_low_bits(17),
                peer_qpn: Qpn::from_low_bits(18),
                peer: Ipv4Addr::new(10, 0, 0, 2),
                gid_index: 3,
                gid: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
                mtu: Mtu::B4096,
                attempts: 6,
                source: io::Error::from_raw_os_error(errno),
            }))
        };
        let common = ["mlx5_0 port 1", "GID index 3", "4096", "10.0.0.2", "0x12", "6 tries"];
        assert_says(
            &error(libc::ETIMEDOUT),
            &[&common[..], &["no neighbour answered for 10.0.0.2"]].concat(),
        );
        assert_says(&error(libc::EINVAL), &[&common[..], &["must still hold ::ffff:10.0.0.1"]].concat());
        assert_says(&error(libc::ENETUNREACH), &[&common[..], &["ip route get 10.0.0.2"]].concat());
    }

    #[test]
    fn mtu_and_port_name_their_cure() {
        let mtu = VerbsError::PathMtu { at: at(), asked: Mtu::B4096, active: Mtu::B1024 };
        assert_says(&mtu, &["4096", "1024", "mlx5_0 port 1", "4200"]);
        let down = VerbsError::PortDown { at: at(), state: crate::PortState::Down };
        assert_says(&down, &["mlx5_0 port 1 is down", "rdma link show mlx5_0/1"]);
        let layer = VerbsError::NotEthernet { at: at(), layer: crate::LinkLayer::InfiniBand };
        assert_says(&layer, &["InfiniBand", "LINK_TYPE_P1=2"]);
    }
}
