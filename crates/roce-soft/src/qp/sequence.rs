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
    /// The number after the message completed last, or the first one.
    start: Psn,
    /// Since `start`: packets whose bytes are not there, and the number after the last of them.
    missed: u32,
    gap_end: Psn,
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
    pub(super) fn note(&mut self, psn: Psn) {
        let Some(next) = self.next else { return self.begin(psn) };
        let ahead = psn.since(next);
        if ahead < Self::HALF {
            self.late_run = 0;
            self.lost += u64::from(ahead);
            if ahead > 0 {
                self.miss(ahead, psn);
            }
            self.next = Some(psn.next());
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

    /// Its bytes are in the region. If it is late, it was missed before; when no other one is, all is well.
    pub(super) fn landed(&mut self, psn: Psn) {
        if self.missed == 1 && self.gap_end == psn.next() {
            self.missed = 0;
        }
    }

    /// Its bytes are not in the region, though it came. One that is late is known to be missing, or came before.
    pub(super) fn dropped(&mut self, psn: Psn) {
        if self.next == Some(psn.next()) {
            self.miss(1, psn.next());
        }
    }

    /// A message from packet `first` to packet `last` has landed and is completed.
    pub(super) fn complete(&mut self, first: Psn, last: Psn) -> Lead {
        let from = if self.missed == 0 { self.start } else { self.gap_end };
        let lead = Lead { missed: self.missed, packets: distance(from, first) };
        // Not so for one that came twice.
        if last.next().since(self.start) < Self::HALF {
            self.start = last.next();
            self.missed = 0;
        }
        lead
    }

    fn begin(&mut self, psn: Psn) {
        (self.next, self.start, self.missed, self.late_run) = (Some(psn.next()), psn, 0, 0);
    }

    fn miss(&mut self, packets: u32, gap_end: Psn) {
        self.missed = self.missed.saturating_add(packets);
        self.gap_end = gap_end;
    }
}

/// Packets from one to a later one; 0 if it is not later.
fn distance(from: Psn, to: Psn) -> u32 {
    let distance = to.since(from);
    if distance < Sequence::HALF { distance } else { 0 }
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
            match fate {
                Dropped(_) => sequence.dropped(psn),
                Lands(_) | Completes(_) => sequence.landed(psn),
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
    fn the_only_one_that_was_overtaken_is_not_missing() {
        assert_eq!(leads(&[Completes(0), Lands(2), Lands(1), Completes(3)]), [(0, 0), (0, 2)]);
        assert_eq!(
            leads(&[Completes(0), Lands(1), Lands(3), Completes(2), Completes(4)]),
            [(0, 0), (0, 1), (0, 1)]
        );
        assert_eq!(
            leads(&[Completes(0), Lands(3), Lands(1), Completes(4)]),
            [(0, 0), (2, 1)],
            "two were missing"
        );
        assert_eq!(leads(&[Completes(0), Lands(2), Dropped(1), Completes(3)]), [(0, 0), (1, 1)]);
    }

    #[test]
    fn one_that_comes_twice_changes_nothing() {
        assert_eq!(leads(&[Completes(0), Completes(0), Lands(1), Completes(2)]), [(0, 0), (0, 0), (0, 1)]);
        assert_eq!(leads(&[Lands(0), Lands(0), Completes(1)]), [(0, 1)]);
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
