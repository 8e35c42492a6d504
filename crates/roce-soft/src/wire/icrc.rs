//! The invariant CRC: over all that a packet keeps on its way.
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, the IPv4, UDP and base transport headers with the
//! fields that may change on the way as ones, and the rest up to the pad (InfiniBand Architecture
//! Specification, annex A17).
//!
//! It covers the IP identification, which a UDP socket does not show. Most senders of RoCEv2 use 0; Linux
//! soft-RoCE uses running ones. A CRC is linear, so [`Icrc::verify`] can tell which identification, if any, makes
//! the ICRC right: the difference to the one for identification 0, taken back over the bytes that follow
//! the field, must fit into 16 bits, and these are the identification.

use crc32fast::Hasher;
use zerocopy::IntoBytes;

use super::pseudo::{IPV4_LEN, Masked, UDP_LEN};
use super::{Flow, ICRC_LEN, MAX_HEADER_LEN, MAX_PAYLOAD};

/// The CRC of eight bytes of ones, which stand for the link's own header.
const START: u32 = 0x2144_DF1C;

/// The byte of the BTH with the congestion bits, which routers set.
const CONGESTION_AT: usize = 4;

/// The ICRCs of the packets of one flow.
///
/// The headers outside of the datagram are the same in packets of one length, so their CRC is kept from packet to
/// packet. The CRC of the datagram goes on from there.
#[derive(Debug, Clone)]
pub struct Icrc {
    flow: Flow,
    /// The length that `start` is for; none has the largest.
    datagram_len: usize,
    start: Hasher,
}

impl Icrc {
    /// Of packets along `flow`.
    pub fn new(flow: Flow) -> Self {
        Self { flow, datagram_len: usize::MAX, start: Hasher::new() }
    }

    /// The flow.
    pub fn flow(&self) -> &Flow {
        &self.flow
    }

    /// Writes the ICRC of a packet with IP identification 0 into the last four bytes of its UDP payload.
    ///
    /// # Panics
    /// When `datagram` is shorter than that.
    #[inline]
    pub fn seal(&mut self, datagram: &mut [u8]) {
        let (covered, icrc) =
            datagram.split_last_chunk_mut::<ICRC_LEN>().expect("a packet has room for its ICRC");
        *icrc = self.compute(covered).to_le_bytes();
    }

    /// The IP identification with which the ICRC at the end of a UDP payload is right; `None` where there is
    /// none, so the packet is damaged.
    ///
    /// 0 is certain as any CRC-32. Any other value is found by solving for it, and a random damage passes as one
    /// of these once in 2^16.
    #[inline]
    pub fn verify(&mut self, datagram: &[u8]) -> Option<u16> {
        let (covered, icrc) = datagram.split_last_chunk::<ICRC_LEN>()?;
        match u32::from_le_bytes(*icrc) ^ self.compute(covered) {
            0 => Some(0),
            difference => solve(difference, covered.len()),
        }
    }

    /// The ICRC over `covered`, a UDP payload without its ICRC.
    #[inline]
    fn compute(&mut self, covered: &[u8]) -> u32 {
        let datagram_len = covered.len() + ICRC_LEN;
        if datagram_len != self.datagram_len {
            self.start = start_of(&self.flow, datagram_len);
            self.datagram_len = datagram_len;
        }
        let mut crc = match covered.get(CONGESTION_AT) {
            None | Some(0) => self.start.clone(),
            Some(&bits) => Hasher::new_with_initial(self.start.clone().finalize() ^ in_front(bits)),
        };
        crc.update(covered);
        crc.finalize()
    }
}

/// The CRC of what precedes a UDP payload of `datagram_len` bytes, if that has a congestion byte of zero.
#[cold]
#[inline(never)]
fn start_of(flow: &Flow, datagram_len: usize) -> Hasher {
    const ONES: u32 = in_front(0xFF);
    let mut crc = Hasher::new_with_initial(START);
    crc.update(Masked::new(flow, datagram_len).as_bytes());
    Hasher::new_with_initial(crc.finalize() ^ ONES)
}

/// What makes the same difference in front of a UDP payload as these bits do in its congestion byte.
const fn in_front(congestion: u8) -> u32 {
    // A CRC meets the next four bytes as its own, the first in its low bits; the congestion byte is the one behind them.
    back_over((congestion as u32) << 24, CONGESTION_AT - 3)
}

/// As [`Icrc::seal`], for a single packet.
///
/// # Panics
/// When `datagram` is shorter than an ICRC.
pub fn seal(flow: &Flow, datagram: &mut [u8]) {
    Icrc::new(*flow).seal(datagram);
}

/// As [`Icrc::verify`], for a single packet.
pub fn verify(flow: &Flow, datagram: &[u8]) -> Option<u16> {
    Icrc::new(*flow).verify(datagram)
}

/// The identification that explains a difference of the ICRC, `covered_len` bytes of UDP payload later.
#[inline(never)] // for peers with running identifications alone
#[allow(clippy::cast_possible_truncation)] // the high half was seen to be zero
fn solve(difference: u32, covered_len: usize) -> Option<u16> {
    let factor = *BACK.get(covered_len)?;
    let at_the_field = multiply(difference, factor);
    (at_the_field >> 16 == 0).then_some((at_the_field as u16).swap_bytes())
}

/// The CRC's polynomial, the lowest power in the highest bit, as all polynomials here.
const POLYNOMIAL: u32 = 0xEDB8_8320;
const ONE: u32 = 1 << 31;

/// Bytes from the start of the IP identification to the end of the UDP header.
const FIELD_TO_PAYLOAD: usize = IPV4_LEN - 4 + UDP_LEN;

/// For each length of covered UDP payload, what takes a CRC back over it and to the front of the IP
/// identification: x^-8n for n bytes.
static BACK: [u32; MAX_HEADER_LEN + MAX_PAYLOAD + 4] = {
    let mut table = [0; MAX_HEADER_LEN + MAX_PAYLOAD + 4];
    let mut factor = back_over(ONE, FIELD_TO_PAYLOAD);
    let mut i = 0;
    while i < table.len() {
        table[i] = factor;
        factor = back_over(factor, 1);
        i += 1;
    }
    table
};

/// A CRC before `bytes` bytes of zeros, from the one after them.
const fn back_over(mut crc: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < bytes * 8 {
        // Forwards the polynomial is folded in when the low bit falls out, which sets the high bit.
        crc = if crc & ONE != 0 { (crc ^ POLYNOMIAL) << 1 | 1 } else { crc << 1 };
        bit += 1;
    }
    crc
}

/// The product modulo the CRC's polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        product ^= b & (a << bit & ONE).wrapping_shr(31).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
        bit += 1;
    }
    product
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddrV4};

    fn flow() -> Flow {
        let at = |last, port| SocketAddrV4::new(Ipv4Addr::new(10, 8, 0, last), port);
        Flow { src: at(1, 0xC121), dst: at(2, 4791) }
    }

    /// The ICRC with any identification, computed the long way.
    fn compute_with_id(flow: &Flow, covered: &[u8], id: u16) -> u32 {
        let mut bytes = vec![0xFF; 8];
        bytes.extend_from_slice(Masked::new(flow, covered.len() + ICRC_LEN).as_bytes());
        bytes[8 + 4..8 + 6].copy_from_slice(&id.to_be_bytes());
        bytes.extend_from_slice(covered);
        bytes[8 + IPV4_LEN + UDP_LEN + CONGESTION_AT] = 0xFF;
        crc32fast::hash(&bytes)
    }

    #[test]
    fn starts_after_eight_bytes_of_ones() {
        assert_eq!(crc32fast::hash(&[0xFF; 8]), START);
    }

    #[test]
    fn back_undoes_forth() {
        let forth = |crc: u32| if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        for crc in [1, ONE, 0xDEAD_BEEF, u32::MAX] {
            assert_eq!((0..8).fold(back_over(crc, 1), |c, _| forth(c)), crc);
        }
    }

    #[test]
    fn finds_any_identification_at_any_length() {
        let covered: Vec<u8> = (0..4128u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in (12..=64).chain([1040, 4096, 4128]) {
            for id in [0, 1, 0x80, 0xFF, 0x100, 0x3039, 0x8000, 0xFFFF] {
                let mut packet = covered[..len].to_vec();
                packet.extend(compute_with_id(&flow(), &packet, id).to_le_bytes());
                assert_eq!(verify(&flow(), &packet), Some(id), "{len} bytes");
            }
        }
    }

    #[test]
    fn lengths_may_change_and_congestion_bits_do_not_matter() {
        let mut icrc = Icrc::new(flow());
        let covered: Vec<u8> = (0..4128u32).map(|i| (i * 5 + 1) as u8).collect();
        for (len, bits) in [12, 96, 96, 76, 96, 1040, 4128].into_iter().zip([0, 0, 0x40, 0, 0x80, 0xFF, 1]) {
            let mut packet = covered[..len].to_vec();
            packet[CONGESTION_AT] = bits;
            packet.extend([0; ICRC_LEN]);
            icrc.seal(&mut packet);
            let right = compute_with_id(&flow(), &packet[..len], 0);
            assert_eq!(packet[len..], right.to_le_bytes(), "{len} bytes");
            packet[CONGESTION_AT] = !bits;
            assert_eq!(icrc.verify(&packet), Some(0), "a router has set congestion bits");
        }
    }

    #[test]
    fn damage_is_seen() {
        let mut packet: Vec<u8> = (0..100).collect();
        seal(&flow(), &mut packet);
        assert_eq!(verify(&flow(), &packet), Some(0));
        let passed = (0..800)
            .filter(|bit| {
                let mut damaged = packet.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                bit / 8 != CONGESTION_AT && verify(&flow(), &damaged).is_some()
            })
            .count();
        assert_eq!(passed, 0);
    }

    #[test]
    fn any_length_is_taken() {
        for len in 0..40 {
            verify(&flow(), &vec![0; len]);
        }
        assert_eq!(verify(&flow(), &vec![0xAA; 70_000]), None);
    }
}
