//! Tells an FPGA whom to stream to.

use std::net::Ipv4Addr;
use std::time::Duration;

use roce_core::{Qpn, Rkey};

use super::ecb::Pair;
use super::regs::{self, Hif, PAGE_UNIT, Vp};
use super::{Client, HsbError};

/// Ethernet, IPv4, UDP, BTH, RETH and ICRC around the payload of a packet, in bytes.
const PACKET_OVERHEAD: u32 = 14 + 20 + 8 + 12 + 16 + 4;
/// The UDP port that an FPGA's packets come from.
const SOURCE_PORT: u32 = 12288;
/// Payload per packet is an 8-bit number of page units.
const MAX_PACKET_UNITS: u32 = 255;
const MAX_PAGES: u32 = 4096;
/// The FPGA counts pages within 8 GiB; the address bits above stay as configured.
const WINDOW_SHIFT: u32 = 33;
/// Frames that were under way when streaming stopped leave within this time.
const DRAIN: Duration = Duration::from_millis(10);

/// A host's ring, as a virtual port of the FPGA must know it, in the register layout of version 0x2602 and
/// later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoceConfig {
    /// The virtual port's registers.
    pub vp_address: u32,
    /// The virtual port's bit in the mask of those that stream.
    pub vp_mask: u32,
    /// The host interface's registers.
    pub hif_address: u32,
    /// The sensor interface's registers.
    pub sif_address: u32,
    /// The host's queue pair.
    pub qpn: Qpn,
    /// The key of the host's ring.
    pub rkey: Rkey,
    /// Where the ring begins, as the peer addresses it; a multiple of 128, in bytes. 0 for a ring that is
    /// addressed by offset.
    pub base: u64,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// From page to page in bytes, a multiple of 128.
    pub page_size: u32,
    /// How many pages, 1 to 4096.
    pub pages: u32,
    /// The host's RoCE address.
    pub ip: Ipv4Addr,
    /// The host's MAC address.
    pub mac: [u8; 6],
    /// The UDP port that packets go to; 4791 is RoCE's.
    pub udp_port: u16,
    /// Whether 128 bytes of metadata follow each frame in its page. Without them the frame's last packet
    /// carries the immediate.
    pub metadata: bool,
    /// The link's MTU in bytes.
    pub mtu: u32,
}

impl RoceConfig {
    /// Virtual port 0 and data plane 0 of an FPGA, a ring addressed by offset, no metadata, an MTU of 1500.
    pub const fn new(
        qpn: Qpn,
        rkey: Rkey,
        ip: Ipv4Addr,
        frame_size: u32,
        page_size: u32,
        pages: u32,
    ) -> Self {
        Self {
            vp_address: regs::VP_ADDRESS,
            vp_mask: 1,
            hif_address: regs::HIF_ADDRESS,
            sif_address: regs::SIF_ADDRESS,
            qpn,
            rkey,
            base: 0,
            frame_size,
            page_size,
            pages,
            ip,
            mac: [0; 6],
            udp_port: 4791,
            metadata: false,
            mtu: 1500,
        }
    }

    /// Whether an FPGA can be told this; the first field that it cannot.
    pub fn check(&self) -> Result<(), HsbError> {
        let unit = u64::from(PAGE_UNIT);
        self.packet_units()?;
        require("base", self.base, self.base.is_multiple_of(unit), || "a multiple of 128".into())?;
        let page = u64::from(self.page_size);
        require("page_size", page, page.is_multiple_of(unit), || "a multiple of 128".into())?;
        let room = self.room_for_a_frame();
        require("page_size", page, page >= room, || format!("{room} bytes at least, for the frame in it"))?;
        let pages = u64::from(self.pages);
        require("pages", pages, (1..=MAX_PAGES).contains(&self.pages), || "1 to 4096".into())?;
        let end = self.base.checked_add(page * pages);
        let reachable = end.is_some_and(|end| end / unit <= u64::from(u32::MAX));
        require("base", self.base, reachable, || "so low that the ring ends below 512 GiB".into())?;
        let one_window = end.is_some_and(|end| self.base >> WINDOW_SHIFT == (end - 1) >> WINDOW_SHIFT);
        require("base", self.base, one_window, || "so that the ring crosses no multiple of 8 GiB".into())
    }

    /// Bytes of a page that one frame and its metadata take.
    fn room_for_a_frame(&self) -> u64 {
        let frame = u64::from(self.frame_size).next_multiple_of(u64::from(PAGE_UNIT));
        if self.metadata && self.frame_size > PAGE_UNIT { frame + u64::from(PAGE_UNIT) } else { frame }
    }

    fn packet_units(&self) -> Result<u32, HsbError> {
        let units = self.mtu.saturating_sub(PACKET_OVERHEAD) / PAGE_UNIT;
        require("mtu", self.mtu.into(), units > 0, || "more than 201 bytes".into())?;
        Ok(units.min(MAX_PACKET_UNITS))
    }

    /// What is written before the peer's ring: the port still stands still.
    fn frame_registers(&self) -> Result<Vec<Pair>, HsbError> {
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        let metadata = if self.metadata { 0 } else { regs::METADATA_OFF };
        let vp = |register: Vp, data| Pair::new(register.at(self.vp_address), data);
        Ok(vec![
            Pair::new(Hif::PacketSize.at(self.hif_address), self.packet_units()?),
            Pair::new(Hif::UdpPort.at(self.hif_address), SOURCE_PORT),
            vp(Vp::BufferLength, self.frame_size),
            vp(Vp::HostMacLow, u32::from_be_bytes([m2, m3, m4, m5])),
            vp(Vp::HostMacHigh, u32::from_be_bytes([0, 0, m0, m1])),
            vp(Vp::HostIp, self.ip.to_bits()),
            vp(Vp::HostUdpPort, u32::from(self.udp_port) | metadata),
            Pair::new(self.sif_address + regs::SIF_PACKETIZER_MODE, 0),
        ])
    }

    fn ring_registers(&self) -> Vec<Pair> {
        let [lsb, msb] = [self.base & u64::from(u32::MAX), self.base >> 32].map(|word| word.to_le_bytes());
        let word = |bytes: [u8; 8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let vp = |register: Vp, data| Pair::new(register.at(self.vp_address), data);
        vec![
            vp(Vp::Qp, self.qpn.get()),
            vp(Vp::Rkey, self.rkey.get()),
            vp(Vp::PageLsb, word(lsb)),
            vp(Vp::PageMsb, word(msb)),
            vp(Vp::PageInc, self.page_size / PAGE_UNIT),
            vp(Vp::MaxBuff, self.pages - 1),
        ]
    }

    fn cleared_registers(&self) -> Vec<Pair> {
        let registers = [
            Vp::BufferLength,
            Vp::Qp,
            Vp::Rkey,
            Vp::PageLsb,
            Vp::PageMsb,
            Vp::PageInc,
            Vp::MaxBuff,
            Vp::HostMacLow,
            Vp::HostMacHigh,
            Vp::HostIp,
            Vp::HostUdpPort,
        ];
        let mut pairs: Vec<Pair> = registers.map(|r| Pair::new(r.at(self.vp_address), 0)).into();
        pairs.push(Pair::new(self.sif_address + regs::SIF_PACKETIZER_MODE, 0));
        pairs
    }
}

impl Client {
    /// Stops the virtual port, tells it the host's ring and lets it stream.
    pub async fn configure_roce(&mut self, config: &RoceConfig) -> Result<(), HsbError> {
        config.check()?;
        let mask = Hif::VpMask.at(config.hif_address);
        self.modify(mask, config.vp_mask, 0).await?;
        self.write_pairs(&config.frame_registers()?).await?;
        self.write_pairs(&config.ring_registers()).await?;
        self.modify(mask, 0, config.vp_mask).await.map(drop)
    }

    /// Stops the virtual port and makes it forget the host's ring.
    pub async fn unconfigure_roce(&mut self, config: &RoceConfig) -> Result<(), HsbError> {
        self.modify(Hif::VpMask.at(config.hif_address), config.vp_mask, 0).await?;
        tokio::time::sleep(DRAIN).await;
        self.write_pairs(&config.cleared_registers()).await
    }
}

fn require(
    field: &'static str,
    value: u64,
    holds: bool,
    reason: impl FnOnce() -> String,
) -> Result<(), HsbError> {
    if holds {
        Ok(())
    } else {
        Err(HsbError::Config { field, value, reason: format!("it must be {}", reason()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RoceConfig {
        RoceConfig::new(
            Qpn::from_low_bits(0x123),
            Rkey::new(0xCAFE_BABE),
            Ipv4Addr::new(10, 0, 0, 1),
            32,
            384,
            128,
        )
    }

    fn bad_field(config: &RoceConfig) -> Option<&'static str> {
        match config.check() {
            Err(HsbError::Config { field, .. }) => Some(field),
            _ => None,
        }
    }

    #[test]
    fn what_an_fpga_cannot_be_told() {
        assert_eq!(bad_field(&config()), None);
        let check = |change: fn(&mut RoceConfig)| {
            let mut config = config();
            change(&mut config);
            bad_field(&config)
        };
        assert_eq!(check(|c| c.base = 64), Some("base"));
        assert_eq!(check(|c| c.base = (1 << 39) - 128 * 384 - 128), None);
        assert_eq!(check(|c| c.base = (1 << 39) - 128 * 384), Some("base"));
        assert_eq!(check(|c| c.base = !127), Some("base"));
        assert_eq!(check(|c| c.base = (1 << 33) - 128 * 384), None);
        assert_eq!(check(|c| c.base = (1 << 33) - 127 * 384), Some("base"));
        assert_eq!(check(|c| c.page_size = 200), Some("page_size"));
        assert_eq!(check(|c| c.frame_size = 385), Some("page_size"));
        assert_eq!(check(|c| c.frame_size = 384), None);
        assert_eq!(check(|c| (c.frame_size, c.metadata) = (384, true)), Some("page_size"));
        assert_eq!(check(|c| (c.frame_size, c.page_size, c.metadata) = (128, 128, true)), None);
        assert_eq!(check(|c| c.pages = 0), Some("pages"));
        assert_eq!(check(|c| c.pages = 4096), None);
        assert_eq!(check(|c| c.pages = 4097), Some("pages"));
        assert_eq!(check(|c| c.mtu = 201), Some("mtu"));
        assert_eq!(check(|c| c.mtu = 202), None);
    }

    #[test]
    fn registers_in_their_order() {
        let config = RoceConfig { base: 0x12_3456_7880, mac: [1, 2, 3, 4, 5, 6], ..config() };
        let frame = config.frame_registers().expect("valid");
        let expected = [
            (0x0200_0304, 11),
            (0x0200_0308, 12288),
            (0x1018, 32),
            (0x1020, 0x0304_0506),
            (0x1024, 0x0102),
            (0x1028, 0x0A00_0001),
            (0x102C, 0x1_0000 | 4791),
            (0x0100_000C, 0),
        ];
        assert_eq!(frame, expected.map(|(a, d)| Pair::new(a, d)));
        let expected = [
            (0x1000, 0x123),
            (0x1004, 0xCAFE_BABE),
            (0x1008, 0x3456_7880),
            (0x100C, 0x12),
            (0x1010, 3),
            (0x1014, 127),
        ];
        assert_eq!(config.ring_registers(), expected.map(|(a, d)| Pair::new(a, d)));
        assert_eq!(RoceConfig { metadata: true, ..config }.frame_registers().expect("valid")[6].data, 4791);
    }
}
