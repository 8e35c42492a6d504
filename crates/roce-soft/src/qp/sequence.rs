//! What the sequence numbers say about packets that never came.

use roce_core::{Lead, Psn};

/// Follows the numbers of the packets that come.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The number after the highest one seen.
    next: Option<Psn>,
    lost: u64,
    late: u64,
    /// How many late packets in a row came in order, and the number after them.
    late_run: u32,
    after_late: Psn,
    recent: Recent,
}

impl Sequence {
    /// Farther behind than this is no late packet: the sender has started again.
    const REORDER_WINDOW: u32 = 4096;
    /// So many late packets in order are no late ones either.
    const RESTART_RUN: u32 = 8;
    const HALF: u32 = 1 << 23;

    /// Packets that never came, but for those that came late.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Packets behind a later one.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// A packet has come.
    #[inline]
    pub(super) fn note(&mut self, psn: Psn) {
        let Some(next) = self.next else { return self.begin(psn) };
        let ahead = psn.since(next);
        if ahead < Self::HALF {
            self.late_run = 0;
            self.lost += u64::from(ahead);
            self.next = Some(psn.next());
            self.recent.advance(psn, ahead + 1);
        } else if next.since(psn) <= Self::REORDER_WINDOW {
            self.note_late(psn);
        } else {
            self.begin(psn);
        }
    }

    fn note_late(&mut self, psn: Psn) {
        self.late += 1;
        self.late_run = if self.after_late == psn { self.late_run + 1 } else { 1 };
        self.after_late = psn.next();
        if self.late_run == Self::RESTART_RUN {
            self.begin(psn);
        }
    }

    /// Its bytes are in the region.
    #[inline]
    pub(super) fn landed(&mut self, psn: Psn) {
        self.recent.landed(psn);
    }

    /// A message from packet `first` to packet `last` has landed and is completed.
    #[inline]
    pub(super) fn complete(&mut self, first: Psn, last: Psn) -> Lead {
        self.recent.completed(last);
        let behind = self.next.map_or(0, |next| next.since(first));
        self.recent.lead(first, behind)
    }

    fn begin(&mut self, psn: Psn) {
        (self.next, self.late_run) = (Some(psn.next()), 0);
        self.recent.begin(psn);
    }
}

/// What became of the packets with the highest numbers.
#[derive(Debug)]
struct Recent {
    words: Box<[Word; Self::LEN as usize / 64]>,
    /// How many packets are known, at most [`LEN`](Self::LEN).
    known: u32,
}

/// A bit for each of 64 packets.
#[derive(Debug, Clone, Copy, Default)]
struct Word {
    landed: u64,
    completed: u64,
}

impl Recent {
    /// Frames of as many packets are known to be whole or not.
    const LEN: u32 = 1 << 14;

    /// Nothing is known before this packet.
    fn begin(&mut self, psn: Psn) {
        self.known = 0;
        self.advance(psn, 1);
    }

    /// The highest number is now `psn`, by so many more than before.
    #[inline]
    fn advance(&mut self, psn: Psn, by: u32) {
        let mut left = by.min(Self::LEN);
        while left > 0 {
            let (word, bit) = self.place_mut(before(psn, left - 1));
            let bits = left.min(64 - bit);
            let others = !(u64::MAX >> (64 - bits) << bit);
            word.landed &= others;
            word.completed &= others;
            left -= bits;
        }
        self.known = self.known.saturating_add(by).min(Self::LEN);
    }

    #[inline]
    fn landed(&mut self, psn: Psn) {
        let (word, bit) = self.place_mut(psn);
        word.landed |= 1 << bit;
    }

    #[inline]
    fn completed(&mut self, psn: Psn) {
        let (word, bit) = self.place_mut(psn);
        word.completed |= 1 << bit;
    }

    /// What went before `first`, which is so far behind the next number: back to the last message that is complete.
    #[inline]
    fn lead(&self, first: Psn, behind: u32) -> Lead {
        let mut lead = Lead::NONE;
        for back in 1..=self.known.saturating_sub(behind) {
            let (at, bit) = Self::place(before(first, back));
            let Word { landed, completed } = self.words[at];
            if completed >> bit & 1 != 0 {
                break;
            }
            if landed >> bit & 1 == 0 {
                lead.missed += 1;
            } else if lead.missed == 0 {
                lead.packets += 1;
            }
        }
        lead
    }

    #[inline]
    fn place(psn: Psn) -> (usize, u32) {
        let at = psn.get() % Self::LEN;
        (at as usize / 64, at % 64)
    }

    #[inline]
    fn place_mut(&mut self, psn: Psn) -> (&mut Word, u32) {
        let (at, bit) = Self::place(psn);
        (&mut self.words[at], bit)
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self { words: Box::new([Word::default(); Self::LEN as usize / 64]), known: 0 }
    }
}

fn before(psn: Psn, by: u32) -> Psn {
    Psn::new(psn.get().wrapping_sub(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of one packet.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        /// Its bytes land.
        Lands(u32),
        /// As the last one of a frame.
        Completes(u32),
        Dropped(u32),
    }
    use Fate::{Completes, Dropped, Lands};

    /// What is told of the completions, for numbers that wrap in the middle.
    fn leads(fates: &[Fate]) -> Vec<(u32, u32)> {
        let mut sequence = Sequence::default();
        let mut leads = Vec::new();
        for &fate in fates {
            let (Lands(number) | Completes(number) | Dropped(number)) = fate;
            let psn = Psn::new(0xFF_FFFA).add(number);
            sequence.note(psn);
            if !matches!(fate, Dropped(_)) {
                sequence.landed(psn);
            }
            if let Completes(_) = fate {
                let lead = sequence.complete(psn, psn);
                leads.push((lead.missed, lead.packets));
            }
        }
        leads
    }

    #[test]
    fn frames_without_a_gap() {
        let three = |at| [Lands(at), Lands(at + 1), Completes(at + 2)];
        assert_eq!(leads(&[three(0), three(3), three(6)].concat()), [(0, 2); 3]);
        assert_eq!(leads(&[Completes(0), Completes(1)]), [(0, 0); 2]);
    }

    #[test]
    fn what_is_missing_and_what_came_behind_it() {
        let frames = |lost: &[u32]| {
            let all = (0..12).filter(|n| !lost.contains(n));
            leads(&all.map(|n| if n % 4 == 3 { Completes(n) } else { Lands(n) }).collect::<Vec<_>>())
        };
        assert_eq!(frames(&[4]), [(0, 3), (1, 2), (0, 3)], "the first of a frame");
        assert_eq!(frames(&[5]), [(0, 3), (1, 1), (0, 3)]);
        assert_eq!(frames(&[6]), [(0, 3), (1, 0), (0, 3)], "the one before the last");
        assert_eq!(frames(&[7]), [(0, 3), (1, 3)], "the last: the next frame is whole");
        assert_eq!(frames(&[5, 7]), [(0, 3), (2, 3)]);
        assert_eq!(frames(&[7, 9]), [(0, 3), (2, 1)]);
        assert_eq!(frames(&[0]), [(0, 2), (0, 3), (0, 3)], "before the first nothing can be missing");
        assert_eq!(frames(&[4, 5, 6, 7]), [(0, 3), (4, 3)]);
    }

    #[test]
    fn what_is_dropped_is_missing() {
        assert_eq!(leads(&[Completes(0), Lands(1), Dropped(2), Lands(3), Completes(4)]), [(0, 0), (1, 1)]);
        assert_eq!(leads(&[Completes(0), Dropped(1), Completes(2)]), [(0, 0), (1, 0)]);
    }

    #[test]
    fn what_comes_late_is_not_missing() {
        assert_eq!(leads(&[Completes(0), Lands(2), Lands(1), Completes(3)]), [(0, 0), (0, 2)]);
        assert_eq!(leads(&[Completes(0), Lands(3), Lands(1), Completes(4)]), [(0, 0), (1, 1)]);
        assert_eq!(leads(&[Completes(0), Lands(3), Lands(1), Lands(2), Completes(4)]), [(0, 0), (0, 3)]);
        assert_eq!(leads(&[Completes(0), Lands(2), Dropped(1), Completes(3)]), [(0, 0), (1, 1)]);
    }

    #[test]
    fn the_last_of_a_frame_comes_late() {
        let begun = [Completes(0), Lands(1), Lands(3), Completes(2), Completes(4)];
        assert_eq!(leads(&begun), [(0, 0), (0, 1), (0, 1)], "after the next has begun");
        let gap = [Completes(0), Lands(1), Lands(4), Completes(2), Completes(5)];
        assert_eq!(leads(&gap), [(0, 0), (0, 1), (1, 1)], "and the next has a gap");
        let over = [Completes(0), Lands(2), Lands(4), Completes(5), Completes(3)];
        assert_eq!(leads(&over), [(0, 0), (2, 1), (1, 1)], "after the next is over");
    }

    #[test]
    fn one_that_comes_twice_is_told_of_as_the_first_time() {
        assert_eq!(leads(&[Completes(0), Completes(0), Lands(1), Completes(2)]), [(0, 0), (0, 0), (0, 1)]);
        assert_eq!(leads(&[Lands(0), Lands(0), Completes(1)]), [(0, 1)]);
        assert_eq!(leads(&[Completes(0), Lands(2), Completes(3), Completes(3)]), [(0, 0), (1, 1), (1, 1)]);
    }

    #[test]
    fn frames_as_long_as_can_be_remembered() {
        let frame = |missing: u32| {
            let data = (1..Recent::LEN).filter(|&n| n != missing).map(Lands);
            [Completes(0)].into_iter().chain(data).chain([Completes(Recent::LEN)]).collect::<Vec<_>>()
        };
        assert_eq!(leads(&frame(0))[1], (0, Recent::LEN - 1));
        assert_eq!(leads(&frame(2))[1], (1, Recent::LEN - 3));
        let far = [Completes(0), Lands(1), Lands(5 * Recent::LEN), Completes(5 * Recent::LEN + 1)];
        assert_eq!(leads(&far)[1], (Recent::LEN - 2, 1), "no more are remembered to be missing");
    }

    #[test]
    fn a_sender_that_starts_again_has_lost_nothing() {
        assert_eq!(leads(&[Completes(10_000), Lands(0), Completes(1)]), [(0, 0), (0, 1)]);
        // From so near that its packets might be late ones.
        let again = (0..12).filter(|&n| n != 10).map(|n| if n % 2 == 0 { Lands(n) } else { Completes(n) });
        let fates: Vec<Fate> = [Completes(100)].into_iter().chain(again).collect();
        assert_eq!(leads(&fates)[5..], [(0, 1), (1, 0)]);
    }
}
