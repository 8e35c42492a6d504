//! A capture file of what goes over the wire, for Wireshark.
//!
//! A UDP socket shows no Ethernet and IP headers, so they are made up as the kernel and the link make them:
//! the hardware address from the IP address, and the IP identification from the ICRC.
//!
//! Each packet is one write call: a process that is killed leaves a whole file. It costs a microsecond or two
//! a packet, which is why it is off unless asked for.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::wire::{DONT_FRAGMENT, Flow, IPV4_LEN, UDP_LEN, UDP_PROTOCOL};

/// Seconds and nanoseconds, in the byte order of whoever wrote it.
const MAGIC: u32 = 0xA1B2_3C4D;
const VERSION: [u16; 2] = [2, 4];
const SNAP_LEN: u32 = 65_535;
const ETHERNET: u32 = 1;

const RECORD_LEN: usize = 16;
const ETHERNET_LEN: usize = 14;
const TTL: u8 = 64;

/// A capture file that packets are appended to.
#[derive(Debug)]
pub(crate) struct Pcap {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    record: Vec<u8>,
    failed: bool,
}

impl Pcap {
    /// Creates the file, or empties it.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let mut header = Vec::with_capacity(24);
        header.extend(MAGIC.to_ne_bytes());
        header.extend(VERSION.iter().flat_map(|v| v.to_ne_bytes()));
        header.extend([0; 8]);
        header.extend(SNAP_LEN.to_ne_bytes());
        header.extend(ETHERNET.to_ne_bytes());
        file.write_all(&header)?;
        let record = Vec::with_capacity(RECORD_LEN + ETHERNET_LEN + SNAP_LEN as usize);
        Ok(Self { path: path.to_owned(), inner: Mutex::new(Inner { file, record, failed: false }) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a packet. The first failure is logged and ends the capture.
    pub(crate) fn record(&self, flow: &Flow, ip_id: u16, datagram: &[u8]) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.failed {
            return;
        }
        if let Err(error) = inner.append(flow, ip_id, datagram) {
            inner.failed = true;
            tracing::warn!(path = %self.path.display(), %error, "the packet capture ends here");
        }
    }
}

impl Inner {
    fn append(&mut self, flow: &Flow, ip_id: u16, datagram: &[u8]) -> io::Result<()> {
        let frame_len = u32::try_from(ETHERNET_LEN + IPV4_LEN + UDP_LEN + datagram.len())
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The format has 32 bits for the seconds, unsigned: until 2106.
        let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        self.record.clear();
        for field in [seconds, now.subsec_nanos(), frame_len, frame_len] {
            self.record.extend(field.to_ne_bytes());
        }
        self.record.extend(mac(flow.dst.ip()));
        self.record.extend(mac(flow.src.ip()));
        self.record.extend(0x0800u16.to_be_bytes());
        self.record.extend(ipv4(flow, ip_id, datagram.len())?);
        self.record.extend(udp(flow, datagram.len())?);
        self.record.extend(datagram);
        self.file.write_all(&self.record)
    }
}

/// A locally administered hardware address.
fn mac(ip: &Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [2, 0, a, b, c, d]
}

fn ipv4(flow: &Flow, id: u16, datagram_len: usize) -> io::Result<[u8; IPV4_LEN]> {
    let len = length(IPV4_LEN + UDP_LEN + datagram_len)?;
    let mut header = [0; IPV4_LEN];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[4..6].copy_from_slice(&id.to_be_bytes());
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    header[8..10].copy_from_slice(&[TTL, UDP_PROTOCOL]);
    header[12..16].copy_from_slice(&flow.src.ip().octets());
    header[16..20].copy_from_slice(&flow.dst.ip().octets());
    let checksum = internet_checksum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Ok(header)
}

fn udp(flow: &Flow, datagram_len: usize) -> io::Result<[u8; UDP_LEN]> {
    let len = length(UDP_LEN + datagram_len)?;
    let mut header = [0; UDP_LEN];
    header[0..2].copy_from_slice(&flow.src.port().to_be_bytes());
    header[2..4].copy_from_slice(&flow.dst.port().to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    Ok(header)
}

fn length(len: usize) -> io::Result<u16> {
    u16::try_from(len).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// RFC 1071, over an even number of bytes.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !u16::try_from((folded & 0xFFFF) + (folded >> 16)).unwrap_or(0)
}
