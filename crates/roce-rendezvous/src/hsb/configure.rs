//! Tells an FPGA whom to stream to.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use roce_core::{Qpn, Rkey};

use super::board::Place;
use super::ecb::Pair;
use super::identity::Mac;
use super::regs::{self, Hif, OldVp, PAGE_UNIT, Vp};
use super::{Client, HsbError};

/// The oldest HSB IP that can be configured.
pub(super) const OLDEST_VERSION: u32 = 0x2501;
/// From this version on a virtual port has a ring of pages instead of four addresses.
pub(super) const NEW_LAYOUT: u32 = 0x2602;
/// A version has 16 bits.
const NEWEST_VERSION: u32 = 0xFFFF;

/// The UDP port that an FPGA's packets come from.
const SOURCE_PORT: u32 = 12288;
/// Payload per packet is an 8-bit number of page units.
const MAX_PACKET_UNITS: u32 = 255;
/// The FPGA counts pages within 8 GiB; the address bits above stay as configured.
const WINDOW_SHIFT: u32 = 33;
/// Frames that were under way when streaming stopped leave within this time.
const DRAIN: Duration = Duration::from_millis(10);
/// For [`Vp::Vlan`].
const VLAN_ON: u32 = 1 << 16;

/// How the registers of a virtual port are laid out, by the version of the HSB IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisterLayout {
    /// 0x2501 to 0x2601: an address for each of at most four pages.
    FourPages,
    /// 0x2602 and later: the first page's address, a stride and a number of pages.
    Ring,
}

impl RegisterLayout {
    /// `None` for a version that cannot be configured.
    pub const fn of_version(version: u32) -> Option<Self> {
        match version {
            OLDEST_VERSION..NEW_LAYOUT => Some(Self::FourPages),
            NEW_LAYOUT..=NEWEST_VERSION => Some(Self::Ring),
            _ => None,
        }
    }

    const fn max_pages(self) -> u32 {
        match self {
            Self::FourPages => 4,
            Self::Ring => 4096,
        }
    }

    /// Ethernet, IPv4, UDP, BTH, RETH and ICRC around the payload of a packet, in bytes; the old host side adds the
    /// immediate.
    const fn packet_overhead(self) -> u32 {
        match self {
            Self::FourPages => 78,
            Self::Ring => 14 + 20 + 8 + 12 + 16 + 4,
        }
    }
}

/// A host's ring, as a virtual port of the FPGA must know it.
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
    /// From page to page in bytes, a multiple of 128, with room for the frame and its metadata.
    pub page_size: u32,
    /// How many pages, 1 to 4096; before version 0x2602 at most 4.
    pub pages: u32,
    /// The host's RoCE address.
    pub ip: Ipv4Addr,
    /// The host's MAC address.
    pub mac: Mac,
    /// The UDP port that packets go to; 4791 is RoCE's.
    pub udp_port: u16,
    /// Whether 128 bytes of metadata follow each frame in its page. Without them the frame's last packet
    /// carries the immediate.
    pub metadata: bool,
    /// The link's MTU in bytes.
    pub mtu: u32,
    /// The VLAN tag of packets: priority, drop-eligible, number, as on the wire. Default: none.
    pub vlan: Option<u16>,
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
            vp_address: Place::FIRST.vp_address,
            vp_mask: Place::FIRST.vp_mask,
            hif_address: Place::FIRST.hif_address,
            sif_address: Place::FIRST.sif_address,
            qpn,
            rkey,
            base: 0,
            frame_size,
            page_size,
            pages,
            ip,
            mac: Mac([0; 6]),
            udp_port: 4791,
            metadata: false,
            mtu: 1500,
            vlan: None,
        }
    }

    /// The same ring for another stream of the board.
    #[must_use]
    pub const fn at(self, place: Place) -> Self {
        let Place { vp_address, vp_mask, hif_address, sif_address } = place;
        Self { vp_address, vp_mask, hif_address, sif_address, ..self }
    }

    /// The same ring for another queue pair. No register is written: what other hosts call authentication is to know
    /// these two numbers when the ring is configured.
    #[must_use]
    pub const fn authenticate(self, qpn: Qpn, rkey: Rkey) -> Self {
        Self { qpn, rkey, ..self }
    }

    /// Whether an FPGA can be told this; the first field that it cannot.
    pub fn check(&self, layout: RegisterLayout) -> Result<(), HsbError> {
        let unit = u64::from(PAGE_UNIT);
        self.packet_units(layout)?;
        require("frame_size", self.frame_size.into(), self.frame_size > 0, || "1 byte at least".into())?;
        require("base", self.base, self.base.is_multiple_of(unit), || "a multiple of 128".into())?;
        let page = u64::from(self.page_size);
        require("page_size", page, page.is_multiple_of(unit), || "a multiple of 128".into())?;
        let room = self.room_for_a_frame(layout);
        require("page_size", page, page >= room, || format!("{room} bytes at least, for the frame in it"))?;
        let (pages, most) = (u64::from(self.pages), layout.max_pages());
        require("pages", pages, (1..=most).contains(&self.pages), || format!("1 to {most}"))?;
        let end = self.base.checked_add(page * pages);
        let reachable = end.is_some_and(|end| end / unit <= u64::from(u32::MAX));
        require("base", self.base, reachable, || "so low that the ring ends below 512 GiB".into())?;
        let one_window = end.is_some_and(|end| self.base >> WINDOW_SHIFT == (end - 1) >> WINDOW_SHIFT);
        require("base", self.base, one_window || layout == RegisterLayout::FourPages, || {
            "so that the ring crosses no multiple of 8 GiB".into()
        })
    }

    /// Bytes of a page that one frame and its metadata take. No old FPGA is known to leave them out.
    fn room_for_a_frame(&self, layout: RegisterLayout) -> u64 {
        let frame = u64::from(self.frame_size).next_multiple_of(u64::from(PAGE_UNIT));
        let metadata = self.metadata || layout == RegisterLayout::FourPages;
        if metadata { frame + u64::from(PAGE_UNIT) } else { frame }
    }

    fn packet_units(&self, layout: RegisterLayout) -> Result<u32, HsbError> {
        let overhead = layout.packet_overhead();
        let units = self.mtu.saturating_sub(overhead) / PAGE_UNIT;
        let least = overhead + PAGE_UNIT;
        // Other hosts want one byte more than a packet of one unit takes.
        require("mtu", self.mtu.into(), self.mtu > least, || format!("more than {least} bytes"))?;
        Ok(units.min(MAX_PACKET_UNITS))
    }

    fn vp(&self, register: Vp, data: u32) -> Pair {
        Pair::new(register.at(self.vp_address), data)
    }

    /// What is written before the peer's ring: the port still stands still.
    fn frame_registers(&self, layout: RegisterLayout) -> Result<Vec<Pair>, HsbError> {
        let [m0, m1, m2, m3, m4, m5] = self.mac.0;
        let metadata = if self.metadata { 0 } else { regs::METADATA_OFF };
        let mut pairs = vec![
            Pair::new(Hif::PacketSize.at(self.hif_address), self.packet_units(layout)?),
            Pair::new(Hif::UdpPort.at(self.hif_address), SOURCE_PORT),
            self.vp(Vp::BufferLength, self.frame_size),
            self.vp(Vp::HostMacLow, u32::from_be_bytes([m2, m3, m4, m5])),
            self.vp(Vp::HostMacHigh, u32::from_be_bytes([0, 0, m0, m1])),
            self.vp(Vp::HostIp, self.ip.to_bits()),
            self.vp(Vp::HostUdpPort, u32::from(self.udp_port) | metadata),
            Pair::new(self.sif_address + regs::SIF_PACKETIZER_MODE, 0),
        ];
        pairs.extend(self.vlan.map(|tag| self.vp(Vp::Vlan, VLAN_ON | u32::from(tag))));
        Ok(pairs)
    }

    fn ring_registers(&self, layout: RegisterLayout) -> Vec<Pair> {
        let mut pairs = vec![self.vp(Vp::Qp, self.qpn.get()), self.vp(Vp::Rkey, self.rkey.get())];
        match layout {
            RegisterLayout::Ring => pairs.extend([
                self.vp(Vp::PageLsb, low_word(self.base)),
                self.vp(Vp::PageMsb, low_word(self.base >> 32)),
                self.vp(Vp::PageInc, self.page_size / PAGE_UNIT),
                self.vp(Vp::MaxBuff, self.pages - 1),
            ]),
            RegisterLayout::FourPages => {
                let pages = (0..).zip(OldVp::PAGES);
                pairs.extend(
                    pages.map(|(page, register)| Pair::new(register.at(self.vp_address), self.unit_of(page))),
                );
                pairs.push(Pair::new(OldVp::BufferMask.at(self.vp_address), (1 << self.pages) - 1));
            }
        }
        pairs
    }

    /// The address of a page, in page units; 0 for one that is not used.
    fn unit_of(&self, page: u32) -> u32 {
        let address = self.base + u64::from(page) * u64::from(self.page_size);
        if page < self.pages { low_word(address / u64::from(PAGE_UNIT)) } else { 0 }
    }

    fn cleared_registers(&self, layout: RegisterLayout) -> Vec<Pair> {
        let pages = [Vp::PageLsb, Vp::PageMsb, Vp::PageInc, Vp::MaxBuff];
        let host = [Vp::HostMacLow, Vp::HostMacHigh, Vp::HostIp, Vp::HostUdpPort];
        let zero = |register: Vp| self.vp(register, 0);
        let mut pairs: Vec<Pair> = [Vp::BufferLength, Vp::Qp, Vp::Rkey].map(zero).into();
        pairs.extend(pages.map(zero));
        if layout == RegisterLayout::FourPages {
            pairs.push(Pair::new(OldVp::BufferMask.at(self.vp_address), 0));
        }
        pairs.extend(host.map(zero));
        pairs.push(Pair::new(self.sif_address + regs::SIF_PACKETIZER_MODE, 0));
        // Or the next host's packets would be tagged.
        pairs.extend(self.vlan.map(|_| zero(Vp::Vlan)));
        pairs
    }
}

impl Client {
    /// Stops the virtual port, tells it the host's ring and lets it stream. Nothing is written where the board's
    /// version or the ring does not allow it.
    ///
    /// Page and packet numbers go on where they were. A ring with fewer pages than the one before may therefore see
    /// frames for pages that it does not have, until they wrap at 4096: reset the board, or keep the number of pages.
    pub async fn configure_roce(&mut self, config: &RoceConfig) -> Result<(), HsbError> {
        let layout = self.layout()?;
        config.check(layout)?;
        let mask = Hif::VpMask.at(config.hif_address);
        self.modify(mask, config.vp_mask, 0).await?;
        self.write_pairs(&config.frame_registers(layout)?).await?;
        self.write_pairs(&config.ring_registers(layout)).await?;
        self.modify(mask, 0, config.vp_mask).await.map(drop)
    }

    /// Stops the virtual port and makes it forget the host's ring.
    pub async fn unconfigure_roce(&mut self, config: &RoceConfig) -> Result<(), HsbError> {
        let layout = self.layout()?;
        self.modify(Hif::VpMask.at(config.hif_address), config.vp_mask, 0).await?;
        tokio::time::sleep(DRAIN).await;
        self.write_pairs(&config.cleared_registers(layout)).await
    }

    /// How this board's virtual ports are laid out.
    pub fn layout(&self) -> Result<RegisterLayout, HsbError> {
        let unsupported = |peer: SocketAddrV4| HsbError::Version { peer, version: self.version() };
        RegisterLayout::of_version(self.version()).ok_or_else(|| unsupported(self.peer()))
    }
}

#[allow(clippy::cast_possible_truncation)] // the low word is what is wanted
const fn low_word(value: u64) -> u32 {
    value as u32
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

    fn bad_field(config: &RoceConfig, layout: RegisterLayout) -> Option<&'static str> {
        match config.check(layout) {
            Err(HsbError::Config { field, .. }) => Some(field),
            _ => None,
        }
    }

    fn check(change: fn(&mut RoceConfig)) -> Option<&'static str> {
        let mut config = config();
        change(&mut config);
        bad_field(&config, RegisterLayout::Ring)
    }

    #[test]
    fn what_an_fpga_cannot_be_told() {
        assert_eq!(check(|_| {}), None);
        assert_eq!(check(|c| c.base = 64), Some("base"));
        assert_eq!(check(|c| c.base = (1 << 39) - 128 * 384 - 128), None);
        assert_eq!(check(|c| c.base = (1 << 39) - 128 * 384), Some("base"));
        assert_eq!(check(|c| c.base = !127), Some("base"));
        assert_eq!(check(|c| c.base = (1 << 33) - 128 * 384), None);
        assert_eq!(check(|c| c.base = (1 << 33) - 127 * 384), Some("base"));
        assert_eq!(check(|c| c.page_size = 200), Some("page_size"));
        assert_eq!(check(|c| c.frame_size = 0), Some("frame_size"));
        assert_eq!(check(|c| c.frame_size = 385), Some("page_size"));
        assert_eq!(check(|c| c.frame_size = 384), None);
        assert_eq!(check(|c| (c.frame_size, c.metadata) = (384, true)), Some("page_size"));
        assert_eq!(check(|c| (c.frame_size, c.metadata) = (256, true)), None);
        assert_eq!(check(|c| (c.frame_size, c.page_size) = (128, 128)), None);
        assert_eq!(check(|c| c.pages = 0), Some("pages"));
        assert_eq!(check(|c| c.pages = 4096), None);
        assert_eq!(check(|c| c.pages = 4097), Some("pages"));
        assert_eq!(check(|c| c.mtu = 202), Some("mtu"));
        assert_eq!(check(|c| c.mtu = 203), None);
    }

    #[test]
    fn metadata_of_a_small_frame_would_lie_in_the_next_page() {
        assert_eq!(check(|c| (c.frame_size, c.page_size, c.metadata) = (128, 128, true)), Some("page_size"));
    }

    #[test]
    fn versions_choose_the_layout() {
        let layout = RegisterLayout::of_version;
        for none in [0, 0x2500, 0x1_0000, 0xBADA_DD12] {
            assert_eq!(layout(none), None, "{none:#x}");
        }
        for old in [0x2501, 0x2502, 0x2507, 0x2510, 0x2601] {
            assert_eq!(layout(old), Some(RegisterLayout::FourPages), "{old:#x}");
        }
        for new in [0x2602, 0x2603, 0x2606, 0x2701] {
            assert_eq!(layout(new), Some(RegisterLayout::Ring), "{new:#x}");
        }
    }

    #[test]
    fn an_old_fpga_has_four_pages_and_always_metadata() {
        let old = |change: fn(&mut RoceConfig)| {
            let mut config = RoceConfig { pages: 4, ..config() };
            change(&mut config);
            bad_field(&config, RegisterLayout::FourPages)
        };
        assert_eq!(old(|_| {}), None);
        assert_eq!(old(|c| c.pages = 5), Some("pages"));
        assert_eq!(old(|c| c.frame_size = 257), Some("page_size"));
        assert_eq!(old(|c| c.base = (1 << 33) - 384), None);
        assert_eq!(old(|c| c.mtu = 206), Some("mtu"));
        assert_eq!(old(|c| c.mtu = 207), None);

        let ring = RoceConfig { base: 0x12_3456_7880, pages: 3, metadata: true, ..config() };
        let expected = [
            (0x1000, 0x123),
            (0x1004, 0xCAFE_BABE),
            (0x1008, 0x2468_ACF1),
            (0x100C, 0x2468_ACF4),
            (0x1010, 0x2468_ACF7),
            (0x1014, 0),
            (0x101C, 7),
        ];
        assert_eq!(ring.ring_registers(RegisterLayout::FourPages), expected.map(pair));
        let cleared: Vec<u32> =
            ring.cleared_registers(RegisterLayout::FourPages).iter().map(|pair| pair.address).collect();
        let order = [
            0x1018,
            0x1000,
            0x1004,
            0x1008,
            0x100C,
            0x1010,
            0x1014,
            0x101C,
            0x1020,
            0x1024,
            0x1028,
            0x102C,
            0x0100_000C,
        ];
        assert_eq!(cleared, order);
    }

    fn pair((address, data): (u32, u32)) -> Pair {
        Pair::new(address, data)
    }

    #[test]
    fn registers_in_their_order() {
        let config = RoceConfig { base: 0x12_3456_7880, mac: Mac([1, 2, 3, 4, 5, 6]), ..config() };
        let frame = |config: &RoceConfig| config.frame_registers(RegisterLayout::Ring).expect("valid");
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
        assert_eq!(frame(&config), expected.map(pair));
        let expected = [
            (0x1000, 0x123),
            (0x1004, 0xCAFE_BABE),
            (0x1008, 0x3456_7880),
            (0x100C, 0x12),
            (0x1010, 3),
            (0x1014, 127),
        ];
        assert_eq!(config.ring_registers(RegisterLayout::Ring), expected.map(pair));
        let cleared: Vec<Pair> = config.cleared_registers(RegisterLayout::Ring);
        let order = [
            0x1018,
            0x1000,
            0x1004,
            0x1008,
            0x100C,
            0x1010,
            0x1014,
            0x1020,
            0x1024,
            0x1028,
            0x102C,
            0x0100_000C,
        ];
        assert_eq!(cleared, order.map(|address| Pair::new(address, 0)));

        let tagged = RoceConfig { metadata: true, vlan: Some(0x6005), ..config };
        assert_eq!(frame(&tagged)[6].data, 4791);
        assert_eq!(frame(&tagged)[8], Pair::new(0x1034, 0x1_6005));
        assert_eq!(tagged.cleared_registers(RegisterLayout::Ring).last(), Some(&Pair::new(0x1034, 0)));
    }

    #[test]
    fn a_large_mtu_is_cut_to_eight_bits_of_units() {
        let jumbo = |mtu| RoceConfig { mtu, ..config() }.packet_units(RegisterLayout::Ring).expect("valid");
        assert_eq!((jumbo(9000), jumbo(65535)), (69, 255));
    }

    #[test]
    fn another_stream_and_another_queue_pair() {
        let place = Place::new(1, 2, 1).expect("a place");
        let other = config().at(place).authenticate(Qpn::from_low_bits(7), Rkey::new(8));
        assert_eq!((other.vp_address, other.vp_mask, other.hif_address), (0x1080, 4, 0x0201_0300));
        assert_eq!((other.sif_address, other.qpn.get(), other.rkey.get()), (0x0101_0000, 7, 8));
        assert_eq!(other.frame_size, config().frame_size);
    }
}
