//! Finds the messages that never arrived from the order of the slots that did.

/// Follows a sender that fills its peer's slots in ring order.
///
/// A slot ahead of the expected one means that those between were lost, until one of them comes after all: a
/// producer may publish out of order, and a late message was not lost. A slot that was skipped is late if it lies
/// nearer behind the expected one than ahead of it; else the sender has come round to it again. One a little
/// behind that was not skipped is a duplicate, and says nothing. What was lost before the first arrival nobody
/// can tell: a sender may start at any slot.
#[derive(Debug)]
pub(crate) struct SlotSequence {
    /// The expected slot while none is missing, else [`NONE`].
    next: u64,
    /// The expected slot if `next` does not tell; [`NONE`] before the first.
    expected: u64,
    missing: Box<[bool]>,
    missing_count: u32,
    /// The number of slots, a power of two, less one.
    mask: u32,
}

/// No 32-bit number.
const NONE: u64 = u64::MAX;

impl SlotSequence {
    pub(crate) fn new(num_pages: u32) -> Self {
        let missing = vec![false; num_pages as usize].into();
        Self { next: NONE, expected: NONE, missing, missing_count: 0, mask: num_pages - 1 }
    }

    /// Whether the slot is the expected one, and none is missing. Then it is one of the ring.
    #[inline]
    pub(crate) fn is_next(&self, slot: u32) -> bool {
        u64::from(slot) == self.next
    }

    /// Whether no message has come yet.
    pub(crate) fn is_unbegun(&self) -> bool {
        self.next == NONE && self.expected == NONE
    }

    /// Takes the slot of the next message, for which [`is_next`](Self::is_next).
    #[inline]
    pub(crate) fn advance(&mut self, slot: u32) {
        self.next = self.after(slot);
    }

    /// Takes the slot of the next message, which is one of the ring; gives the change in the number of lost ones.
    pub(crate) fn arrived(&mut self, slot: u32) -> i64 {
        if self.next != NONE {
            self.expected = self.next;
        }
        let change = self.arrived_anywhere(slot);
        self.next = if self.missing_count == 0 { self.expected } else { NONE };
        change
    }

    fn arrived_anywhere(&mut self, slot: u32) -> i64 {
        let expected = u32::try_from(self.expected).unwrap_or(slot);
        let gap = slot.wrapping_sub(expected) & self.mask;
        let pages = self.mask + 1;
        let behind = pages - gap;
        let was_missing = self.set_missing(slot, false);
        if was_missing && behind < gap {
            return -1;
        }
        if !was_missing && behind <= pages / 4 {
            return 0;
        }
        for skipped in 0..gap {
            self.set_missing(expected.wrapping_add(skipped) & self.mask, true);
        }
        self.expected = self.after(slot);
        i64::from(gap)
    }

    /// Whether it was.
    fn set_missing(&mut self, slot: u32, missing: bool) -> bool {
        let was_missing = std::mem::replace(&mut self.missing[slot as usize], missing);
        self.missing_count = self.missing_count + u32::from(missing) - u32::from(was_missing);
        was_missing
    }

    #[inline]
    fn after(&self, slot: u32) -> u64 {
        u64::from(slot.wrapping_add(1) & self.mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(slots: &[u32]) -> i64 {
        let mut sequence = SlotSequence::new(8);
        slots.iter().map(|&s| sequence.arrived(s)).sum()
    }

    #[test]
    fn in_order_loses_nothing_wherever_it_starts() {
        assert_eq!(lost(&[5, 6, 7, 0, 1, 2, 3, 4, 5, 6]), 0);
    }

    #[test]
    fn a_gap_counts_what_it_skips_across_the_wrap() {
        assert_eq!(lost(&[0, 1, 3]), 1);
        assert_eq!(lost(&[6, 7, 2]), 2);
    }

    #[test]
    fn a_late_slot_was_not_lost() {
        assert_eq!(lost(&[0, 2, 1, 3]), 0);
        assert_eq!(lost(&[0, 3, 2, 1, 4]), 0);
    }

    #[test]
    fn a_lost_slot_counts_again_in_the_next_lap() {
        assert_eq!(lost(&[0, 1, 3, 4, 5, 6, 7, 0, 1, 3]), 2);
        assert_eq!(lost(&[0, 1, 3, 4, 5, 6, 7, 0, 1, 2, 3]), 1);
        assert_eq!(lost(&[0, 1, 3, 4, 5, 6, 7, 0, 2, 3]), 2, "slot 2 was lost before, and comes round again");
    }

    #[test]
    fn a_duplicate_says_nothing() {
        assert_eq!(lost(&[0, 1, 2, 2, 3]), 0);
        assert_eq!(lost(&[6, 7, 6, 7, 0, 2, 2, 3]), 1);
    }

    #[test]
    fn only_the_expected_slot_is_next_and_only_while_none_is_missing() {
        let mut sequence = SlotSequence::new(8);
        assert!(!sequence.is_next(6) && !sequence.is_next(u32::MAX), "nothing is expected yet");
        assert_eq!(sequence.arrived(6), 0);
        for slot in [7, 0, 1] {
            assert!(sequence.is_next(slot) && !sequence.is_next(slot + 1));
            sequence.advance(slot);
        }
        assert_eq!(sequence.arrived(3), 1);
        assert!(!sequence.is_next(4) && !sequence.is_next(u32::MAX), "slot 2 is missing");
        assert_eq!((sequence.arrived(4), sequence.arrived(2)), (0, -1));
        assert!(sequence.is_next(5));
    }

    #[test]
    fn one_page_never_shows_a_gap() {
        let mut sequence = SlotSequence::new(1);
        assert_eq!((0..5).map(|_| sequence.arrived(0)).sum::<i64>(), 0);
    }
}
