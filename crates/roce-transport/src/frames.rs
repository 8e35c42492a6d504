//! Frames of several packets: what is missing of them, and the metadata behind them.

use std::sync::Arc;

use roce_core::{FrameMetadata, ImmediateLayout, Lead, METADATA_LEN, ShortMetadata};
use roce_ring::{Geometry, Ring, SlotBytes};

use crate::config::Config;

/// The metadata behind a frame in the slot of an RX ring of that shape, copied out. Whether they belong to it is known
/// while the slot is not overwritten, as for the rest of its bytes.
///
/// They lie where those of a frame of [`frame_size`](Geometry::frame_size) bytes lie. An FPGA puts them there also when
/// a frame ends early; its emulator puts them right behind the data.
///
/// # Errors
/// When a page ends before they do.
pub fn frame_metadata(slot: SlotBytes<'_>, geometry: Geometry) -> Result<FrameMetadata, ShortMetadata> {
    let offset = metadata_offset(geometry);
    let len = slot.len().saturating_sub(offset);
    if len < METADATA_LEN {
        return Err(ShortMetadata { len });
    }
    FrameMetadata::decode(&slot.read::<METADATA_LEN>(offset))
}

fn metadata_offset(geometry: Geometry) -> usize {
    usize::try_from(FrameMetadata::offset(geometry.frame_size())).unwrap_or(usize::MAX)
}

/// What an immediate tells of the packets before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    pub(crate) lost_packets: u32,
    pub(crate) torn: bool,
}

/// Judges frames by the packets before their immediate.
#[derive(Debug)]
pub(crate) struct FrameJudge {
    witness: Witness,
    /// What every frame that is well has before it, after which nothing needs to be looked at.
    usual: Lead,
    looks_at_immediates: bool,
    /// Looked at with every frame, by its sequence number.
    metadata: Option<(ImmediateLayout, Arc<Ring>)>,
}

/// Who knows that packets are missing.
#[derive(Debug)]
enum Witness {
    Link(PacketCount),
    Immediates(Numbers),
    Nobody,
}

/// No message has this before it.
const NEVER: Lead = Lead { missed: u32::MAX, packets: u32::MAX };

impl FrameJudge {
    pub(crate) fn new(config: &Config, link_counts: bool, rx_ring: &Arc<Ring>) -> Self {
        let format = config.immediate;
        let layout = format.layout(config.geometry.num_pages());
        let witness = match layout {
            _ if link_counts => Witness::Link(PacketCount::new(config.frame_packets, format.has_psn())),
            Some(layout) if format.has_psn() => {
                Witness::Immediates(Numbers::new(layout, config.frame_packets))
            }
            _ => Witness::Nobody,
        };
        let metadata = layout.filter(|&layout| config.metadata && layout != ImmediateLayout::Slot);
        let metadata = metadata.map(|layout| (layout, Arc::clone(rx_ring)));
        let mut judge = Self { witness, usual: NEVER, looks_at_immediates: layout.is_some(), metadata };
        judge.know_the_usual();
        judge
    }

    /// What goes before a message of which nothing else needs to be looked at here.
    #[inline]
    pub(crate) fn usual(&self) -> Lead {
        self.usual
    }

    /// A frame has come to its end.
    pub(crate) fn frame(&mut self, lead: Lead, imm: u32, place: PlaceInRing) -> Verdict {
        let verdict = match &mut self.witness {
            Witness::Link(count) => {
                Verdict { lost_packets: lead.missed, torn: count.is_torn(lead, place == PlaceInRing::First) }
            }
            Witness::Immediates(numbers) => {
                Verdict { lost_packets: numbers.lost(imm, place == PlaceInRing::Next), torn: false }
            }
            Witness::Nobody => Verdict::default(),
        };
        self.know_the_usual();
        verdict
    }

    /// Whether the metadata in a slot are not those of the frame with that immediate.
    pub(crate) fn has_stale_metadata(&self, slot: u32, imm: u32) -> bool {
        self.metadata.as_ref().is_some_and(|(layout, ring)| {
            let metadata = frame_metadata(ring.slot(slot), ring.geometry());
            metadata.is_ok_and(|metadata| !layout.agrees(imm, metadata.psn))
        })
    }

    fn know_the_usual(&mut self) {
        self.usual = match &self.witness {
            _ if self.metadata.is_some() || !self.looks_at_immediates => NEVER,
            Witness::Link(PacketCount { before_last: Some(packets), .. }) => {
                Lead { missed: 0, packets: *packets }
            }
            Witness::Link(_) | Witness::Immediates(_) => NEVER,
            Witness::Nobody => Lead::NONE,
        };
    }
}

/// Where a frame's slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceInRing {
    /// Anywhere: it is the first one.
    First,
    /// Behind the slot of the frame before.
    Next,
    Elsewhere,
}

/// Frames on a link that counts packets.
#[derive(Debug)]
struct PacketCount {
    /// Packets that a frame has before its last; `None` until a whole one was seen.
    before_last: Option<u32>,
    told: bool,
}

impl PacketCount {
    /// Until more is known, a peer that may be no FPGA sends nothing before the last packet.
    fn new(frame_packets: Option<u32>, is_fpga: bool) -> Self {
        let before_last = frame_packets.map(|packets| packets - 1);
        let unless_fpga = (!is_fpga).then_some(0);
        Self { before_last: before_last.or(unless_fpga), told: frame_packets.is_some() }
    }

    /// Whether a packet before the frame's last is missing. While nothing is known of frames, those behind a gap are
    /// taken for torn.
    fn is_torn(&mut self, lead: Lead, first: bool) -> bool {
        let too_few = self.before_last.is_none_or(|packets| lead.packets < packets);
        // A frame has as many at least as came without a gap; from one immediate to the next it has just these.
        let is_whole = lead.missed == 0 && !first;
        if !self.told && (is_whole || self.before_last.is_some()) {
            self.before_last = self.before_last.max(Some(lead.packets));
        }
        match (lead.missed, first) {
            (0, false) => false,
            (0, true) => self.told && too_few,
            _ => too_few,
        }
    }
}

/// The sequence numbers in immediates, on a link that tells of nothing else.
#[derive(Debug)]
struct Numbers {
    layout: ImmediateLayout,
    last: Option<u32>,
    frame_packets: Option<u32>,
    told: bool,
}

impl Numbers {
    fn new(layout: ImmediateLayout, frame_packets: Option<u32>) -> Self {
        Self { layout, last: None, frame_packets, told: frame_packets.is_some() }
    }

    /// Packets of the frames that should have come between the one before and this one.
    fn lost(&mut self, imm: u32, is_next: bool) -> u32 {
        let Some(number) = self.layout.psn(imm) else { return 0 };
        let Some(last) = self.last.replace(number) else { return 0 };
        let bits = u32::BITS - self.layout.page_bits();
        let ahead = number.wrapping_sub(last) & (u32::MAX >> (u32::BITS - bits));
        if ahead == 0 || ahead >> (bits - 1) != 0 {
            self.last = Some(last); // it comes late, or twice
            return 0;
        }
        if is_next && !self.told {
            self.frame_packets = Some(self.frame_packets.map_or(ahead, |known| known.min(ahead)));
        }
        self.frame_packets.map_or(0, |packets| ahead.saturating_sub(packets))
    }
}

#[cfg(test)]
mod tests {
    use roce_core::Psn;

    use super::*;

    fn torn(count: &mut PacketCount, leads: &[(u32, u32)]) -> Vec<bool> {
        let first = |at| at == 0;
        let judge = |(at, &(missed, packets))| count.is_torn(Lead { missed, packets }, first(at));
        leads.iter().enumerate().map(judge).collect()
    }

    #[test]
    fn a_gap_within_a_frame_tears_it_and_one_before_it_does_not() {
        for count in [PacketCount::new(Some(4), true), PacketCount::new(None, false)] {
            let mut count = count;
            let leads = [(0, 3), (0, 3), (1, 2), (1, 3), (4, 3), (2, 0), (0, 3)];
            assert_eq!(torn(&mut count, &leads), [false, false, true, false, false, true, false]);
        }
    }

    #[test]
    fn an_fpgas_frames_are_torn_by_any_gap_until_a_whole_one_has_come() {
        let leads = [(0, 1), (1, 3), (0, 3), (1, 3), (1, 2)];
        let expected = [false, true, false, false, true];
        assert_eq!(torn(&mut PacketCount::new(None, true), &leads), expected);
    }

    #[test]
    fn only_who_was_told_knows_of_a_first_frame_without_its_beginning() {
        assert_eq!(torn(&mut PacketCount::new(Some(4), true), &[(0, 2)]), [true]);
        assert_eq!(torn(&mut PacketCount::new(None, true), &[(0, 2)]), [false]);
        assert_eq!(torn(&mut PacketCount::new(Some(4), true), &[(0, 3)]), [false]);
    }

    #[test]
    fn messages_of_software_peers_are_never_torn() {
        let leads = [(0, 0), (0, 0), (3, 0), (0, 0), (1, 0)];
        assert_eq!(torn(&mut PacketCount::new(None, false), &leads), [false; 5]);
    }

    #[test]
    fn frames_that_end_early_are_whole_where_nothing_is_missing() {
        let leads = [(0, 3), (0, 1), (0, 3), (1, 1)];
        assert_eq!(torn(&mut PacketCount::new(None, true), &leads), [false, false, false, true]);
    }

    /// What is lost according to immediates with these numbers, each with whether its slot is the next one.
    fn lost(layout: ImmediateLayout, told: Option<u32>, numbers: &[(u32, bool)]) -> Vec<u32> {
        let mut judge = Numbers::new(layout, told);
        let imm = |number| layout.encode(3, Psn::new(number));
        numbers.iter().map(|&(number, is_next)| judge.lost(imm(number), is_next)).collect()
    }

    #[test]
    fn numbers_tell_what_is_lost_across_their_wrap() {
        for (layout, wrap) in [(ImmediateLayout::Hsb, 1 << 20), (ImmediateLayout::Hsb2510, 1 << 24)] {
            let from = wrap - 6;
            let numbers = [3, 7, 11, 19, 23, 35].map(|n| ((from + n) % wrap, n != 19));
            assert_eq!(lost(layout, None, &numbers), [0, 0, 0, 4, 0, 8], "{layout:?}: a lap lost as well");
        }
    }

    #[test]
    fn nothing_is_lost_by_what_comes_late_or_twice_or_before_frames_are_known() {
        let hsb = ImmediateLayout::Hsb;
        let numbers = [(10, false), (16, false), (18, true), (18, false), (16, false), (20, true)];
        assert_eq!(lost(hsb, None, &numbers), [0; 6]);
        assert_eq!(lost(hsb, Some(2), &numbers), [0, 4, 0, 0, 0, 0]);
        assert_eq!(lost(ImmediateLayout::Slot, Some(1), &numbers), [0; 6]);
    }
}
