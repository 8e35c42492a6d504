//! Which IP identifications a peer may use.

/// What is known of the peer's IP identifications.
///
/// A solved identification vouches for a packet with only 16 bits. Most senders always use 0, which vouches
/// with 32: a peer that was seen to do so is held to it.
#[derive(Debug, Default)]
pub(crate) struct IdPolicy {
    zeros_in_a_row: u8,
}

impl IdPolicy {
    const SETTLED: u8 = 3;

    /// Whether a packet with this identification counts as undamaged.
    pub(crate) fn accepts(&mut self, id: u16) -> bool {
        let settled = self.zeros_in_a_row == Self::SETTLED;
        if id == 0 {
            self.zeros_in_a_row = Self::SETTLED.min(self.zeros_in_a_row + 1);
            true
        } else if settled {
            false
        } else {
            self.zeros_in_a_row = 0;
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_identifications_are_taken_until_three_zeros() {
        let mut policy = IdPolicy::default();
        assert!([5, 0, 0, 6, 0xFFFF, 0, 1].iter().all(|&id| policy.accepts(id)));
        assert!([0, 0, 0].iter().all(|&id| policy.accepts(id)));
        assert!(!policy.accepts(1));
        assert!(policy.accepts(0));
        assert!(!policy.accepts(0x8000));
    }
}
