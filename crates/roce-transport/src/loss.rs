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
    /// [`ANY`] before the first.
    expected: u32,
    missing: Box<[bool]>,
    /// The number of slots, a power of two, less one.
    mask: u32,
}

/// No slot: a ring has 2^31 at most.
const ANY: u32 = u32::MAX;

impl SlotSequence {
    pub(crate) fn new(num_pages: u32) -> Self {
        Self { expected: ANY, missing: vec![false; num_pages as usize].into(), mask: num_pages - 1 }
    }

    /// Takes the slot of the next message; gives the change in the number of lost ones.
    #[inline]
    pub(crate) fn arrived(&mut self, slot: u32) -> i64 {
        if slot == self.expected {
            self.missing[slot as usize] = false;
            self.expected = (slot + 1) & self.mask;
            return 0;
        }
        self.arrived_elsewhere(slot)
    }

    #[cold]
    fn arrived_elsewhere(&mut self, slot: u32) -> i64 {
        let expected = if self.expected == ANY { slot } else { self.expected };
        let gap = slot.wrapping_sub(expected) & self.mask;
        let pages = self.mask + 1;
        let behind = pages - gap;
        let was_missing = std::mem::replace(&mut self.missing[slot as usize], false);
        if was_missing && behind < gap {
            return -1;
        }
        if !was_missing && behind <= pages / 4 {
            return 0;
        }
        for skipped in 0..gap {
            self.missing[(expected.wrapping_add(skipped) & self.mask) as usize] = true;
        }
        self.expected = slot.wrapping_add(1) & self.mask;
        i64::from(gap)
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
    fn one_page_never_shows_a_gap() {
        let mut sequence = SlotSequence::new(1);
        assert_eq!((0..5).map(|_| sequence.arrived(0)).sum::<i64>(), 0);
    }
}
