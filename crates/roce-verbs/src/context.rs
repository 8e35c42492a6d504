//! An open device, its ports and their GID tables.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use roce_core::{Gid, Mtu};

use crate::device;
use crate::error::{Place, VerbsError};
use crate::events::{DeviceFaults, OtherEvents};
use crate::gid::{GidEntry, GidTable};
use crate::sys::{
    self, Verbs, Zeroed, ibv_context, ibv_device_attr, ibv_gid_entry, ibv_mtu, ibv_port_attr, ibv_port_state,
};

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No state change yet.
    Nop,
    /// No link.
    Down,
    /// A link that is not configured yet.
    Init,
    /// Configured, not yet carrying traffic.
    Armed,
    /// Carrying traffic.
    Active,
    /// Carrying traffic, about to stop.
    ActiveDefer,
    /// A number newer than this crate.
    Unknown(u32),
}

impl From<u32> for PortState {
    fn from(number: u32) -> Self {
        match number {
            ibv_port_state::IBV_PORT_NOP => Self::Nop,
            ibv_port_state::IBV_PORT_DOWN => Self::Down,
            ibv_port_state::IBV_PORT_INIT => Self::Init,
            ibv_port_state::IBV_PORT_ARMED => Self::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::ActiveDefer,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nop => write!(f, "without state"),
            Self::Down => write!(f, "down"),
            Self::Init => write!(f, "initialising"),
            Self::Armed => write!(f, "armed"),
            Self::Active => write!(f, "active"),
            Self::ActiveDefer => write!(f, "active, deferred"),
            Self::Unknown(number) => write!(f, "in state {number}"),
        }
    }
}

/// What a port's cable carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// Not said.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet, which RoCE needs.
    Ethernet,
    /// A number newer than this crate.
    Unknown(u8),
}

impl From<u8> for LinkLayer {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Unspecified,
            sys::LINK_LAYER_INFINIBAND => Self::InfiniBand,
            sys::LINK_LAYER_ETHERNET => Self::Ethernet,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => write!(f, "an unspecified link layer"),
            Self::InfiniBand => write!(f, "InfiniBand"),
            Self::Ethernet => write!(f, "Ethernet"),
            Self::Unknown(number) => write!(f, "link layer {number}"),
        }
    }
}

/// What a port says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortInfo {
    /// Whether it carries traffic.
    pub state: PortState,
    /// What its cable carries.
    pub link_layer: LinkLayer,
    /// The largest path MTU that its interface's MTU allows now.
    pub active_mtu: Mtu,
    /// The largest path MTU that the device can do.
    pub max_mtu: Mtu,
    /// Places in its GID table.
    pub gid_table_len: u32,
    /// The longest message, bytes.
    pub max_message: u32,
}

/// An open device. What is made in it keeps it open.
#[derive(Debug)]
pub struct Context {
    verbs: &'static Verbs,
    raw: NonNull<ibv_context>,
    name: String,
    faults: DeviceFaults,
}

// SAFETY: libibverbs locks what it shares: a context may be used by any thread, and by several at once.
unsafe impl Send for Context {}
// SAFETY: the same locks allow shared use from several threads.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name.
    ///
    /// # Errors
    ///
    /// libibverbs is not installed; no such device, with the names there are; the device cannot be opened.
    pub fn open(name: &str) -> Result<Self, VerbsError> {
        let verbs = sys::verbs()?;
        let raw = device::open(verbs, name)?;
        let context = Self { verbs, raw, name: name.to_owned(), faults: DeviceFaults::default() };
        context
            .make_events_nonblocking()
            .map_err(|source| VerbsError::Open { device: name.to_owned(), source })?;
        Ok(context)
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ports of the device; they are numbered from 1.
    pub fn ports(&self) -> Result<u8, VerbsError> {
        Ok(self.attributes()?.phys_port_cnt)
    }

    /// Asks a port for its state.
    ///
    /// # Errors
    ///
    /// The device has no such port; the port does not answer.
    pub fn port(&self, port: u8) -> Result<PortInfo, VerbsError> {
        described(&self.query_port(port)?, || self.at(port))
    }

    /// Asks a port that can carry RoCE now: active, and on Ethernet.
    ///
    /// # Errors
    ///
    /// As [`port`](Self::port), and the port is not active, or not of Ethernet.
    pub fn active_port(&self, port: u8) -> Result<PortInfo, VerbsError> {
        active(&self.query_port(port)?, || self.at(port))
    }

    /// Reads the whole GID table of a port.
    ///
    /// # Errors
    ///
    /// A port does not answer; the table cannot be read.
    pub fn gid_table(&self, port: u8) -> Result<GidTable, VerbsError> {
        // The call reads the tables of all ports at once, and wants room for all that they could hold.
        let mut room = 0;
        for port in 1..=self.ports()? {
            room += gid_table_len(&self.query_port(port)?) as usize;
        }
        let entries =
            self.read_gids(room).map_err(|source| VerbsError::GidTable { at: self.at(port), source })?;
        let of_port = entries.iter().filter(|e| e.port_num == u32::from(port)).map(|e| GidEntry {
            index: e.gid_index,
            gid: gid_bytes(e),
            kind: e.gid_type.into(),
            ifindex: e.ndev_ifindex,
        });
        Ok(GidTable::new(of_port.collect()))
    }

    pub(crate) fn at(&self, port: u8) -> Place {
        Place { device: self.name.clone(), port }
    }

    pub(crate) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(crate) fn raw(&self) -> NonNull<ibv_context> {
        self.raw
    }

    pub(crate) fn attributes(&self) -> Result<ibv_device_attr, VerbsError> {
        let mut attr = ibv_device_attr::zeroed();
        // SAFETY: an open context, and attributes that may be written.
        let ret = unsafe { (self.verbs.ibv_query_device)(self.raw.as_ptr(), &raw mut attr) };
        sys::check(ret).map_err(|source| VerbsError::QueryDevice { device: self.name.clone(), source })?;
        Ok(attr)
    }

    /// What has happened to the device or its port; takes the events that wait for every queue pair in it. A
    /// system call.
    pub(crate) fn collect_events(&self, port: u8) -> &DeviceFaults {
        // SAFETY: the context is open, its event file does not block, and `Cq` and `Qp` are the only makers of
        // objects in it: each puts a `Fault` that it keeps alive into the context word.
        unsafe { self.faults.collect(self.verbs, self.raw, port) };
        &self.faults
    }

    /// Those that [`collect_events`](Self::collect_events) has found and that break nothing.
    pub(crate) fn other_events(&self) -> &Arc<OtherEvents> {
        self.faults.others()
    }

    fn make_events_nonblocking(&self) -> io::Result<()> {
        // SAFETY: an open context has a file for events.
        let fd = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: asks and sets the flags of an open file.
        let ret = unsafe {
            match libc::fcntl(fd, libc::F_GETFL) {
                -1 => -1,
                flags => libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK),
            }
        };
        if ret == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn query_port(&self, port: u8) -> Result<ibv_port_attr, VerbsError> {
        let ports = self.ports()?;
        if !(1..=ports).contains(&port) {
            return Err(VerbsError::NoSuchPort { at: self.at(port), ports });
        }
        // SAFETY: an open context of this library.
        let attr = unsafe { sys::query_port(self.verbs, self.raw, port) };
        attr.map_err(|source| VerbsError::QueryPort { at: self.at(port), source })
    }

    fn read_gids(&self, room: usize) -> io::Result<Vec<ibv_gid_entry>> {
        let mut entries: Vec<ibv_gid_entry> = (0..room).map(|_| ibv_gid_entry::zeroed()).collect();
        // SAFETY: an open context, and `room` entries of the size that is told.
        let ret = unsafe {
            (self.verbs._ibv_query_gid_table)(
                self.raw.as_ptr(),
                entries.as_mut_ptr(),
                room,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        let used = usize::try_from(ret)
            .map_err(|_| io::Error::from_raw_os_error(i32::try_from(-ret).unwrap_or(libc::EIO)))?;
        entries.truncate(used);
        Ok(entries)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made in the context has kept it open, so nothing is left in it.
        let ret = unsafe { (self.verbs.ibv_close_device)(self.raw.as_ptr()) };
        torn_down("ibv_close_device", &self.name, ret);
    }
}

/// Whether a tear-down went well; if not, says so. The object is then leaked, and the caller leaks what it uses.
pub(crate) fn torn_down(verb: &'static str, device: &str, ret: std::ffi::c_int) -> bool {
    match sys::check(ret) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(verb, device, %error, "could not tear down; leaked");
            false
        }
    }
}

fn gid_bytes(entry: &ibv_gid_entry) -> Gid {
    // SAFETY: 16 bytes, however they are named.
    Gid::new(unsafe { entry.gid.raw })
}

fn described(attr: &ibv_port_attr, at: impl Fn() -> Place) -> Result<PortInfo, VerbsError> {
    let mtu = |number| mtu_of(number).map_err(|source| VerbsError::QueryPort { at: at(), source });
    Ok(PortInfo {
        state: attr.state.into(),
        link_layer: attr.link_layer.into(),
        active_mtu: mtu(attr.active_mtu)?,
        max_mtu: mtu(attr.max_mtu)?,
        gid_table_len: gid_table_len(attr),
        max_message: attr.max_msg_sz,
    })
}

/// The state first: a port that is down may have no MTU.
fn active(attr: &ibv_port_attr, at: impl Fn() -> Place) -> Result<PortInfo, VerbsError> {
    let layer = LinkLayer::from(attr.link_layer);
    if layer != LinkLayer::Ethernet {
        return Err(VerbsError::NotEthernet { at: at(), layer });
    }
    match attr.state.into() {
        PortState::Active | PortState::ActiveDefer => described(attr, at),
        state => Err(VerbsError::PortDown { at: at(), state }),
    }
}

fn gid_table_len(attr: &ibv_port_attr) -> u32 {
    u32::try_from(attr.gid_tbl_len).unwrap_or(0)
}

fn mtu_of(number: ibv_mtu::Type) -> io::Result<Mtu> {
    match number {
        ibv_mtu::IBV_MTU_256 => Ok(Mtu::B256),
        ibv_mtu::IBV_MTU_512 => Ok(Mtu::B512),
        ibv_mtu::IBV_MTU_1024 => Ok(Mtu::B1024),
        ibv_mtu::IBV_MTU_2048 => Ok(Mtu::B2048),
        ibv_mtu::IBV_MTU_4096 => Ok(Mtu::B4096),
        other => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("its MTU has the unknown code {other}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Place {
        Place { device: "mlx5_0".to_owned(), port: 2 }
    }

    /// As drivers answer for a port without interface: they fill in neither state nor MTU further.
    #[test]
    fn a_port_that_is_down_is_told_so_whatever_its_mtu() {
        let mut attr = ibv_port_attr::zeroed();
        attr.state = ibv_port_state::IBV_PORT_DOWN;
        attr.link_layer = sys::LINK_LAYER_ETHERNET;
        attr.max_mtu = ibv_mtu::IBV_MTU_4096;
        let refused = active(&attr, at);
        assert!(matches!(refused, Err(VerbsError::PortDown { state: PortState::Down, .. })), "{refused:?}");
        attr.state = ibv_port_state::IBV_PORT_ACTIVE;
        let text = active(&attr, at).map_err(|e| e.to_string()).expect_err("no MTU");
        assert!(text.contains("ibv_query_port for mlx5_0 port 2") && text.contains("code 0"), "{text}");
        attr.active_mtu = ibv_mtu::IBV_MTU_1024;
        assert_eq!(active(&attr, at).expect("active").active_mtu, Mtu::B1024);
        attr.link_layer = sys::LINK_LAYER_INFINIBAND;
        assert!(matches!(active(&attr, at), Err(VerbsError::NotEthernet { .. })));
    }
}
