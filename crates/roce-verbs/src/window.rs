//! Which sends are signalled, and when the send queue has room.
//!
//! Every posted send has a number, from 1. Those whose number is a multiple of the interval are signalled, and the
//! completion of one says that all before it are done as well. Numbers are given to what was posted, not to what
//! was tried: a refused post leaves no gap in which a signal could be lost.

/// The sends of one queue pair.
#[derive(Debug)]
pub(crate) struct SendWindow {
    depth: u64,
    /// A power of two: this is asked for every send.
    interval: u64,
    posted: u64,
    completed: u64,
}

impl SendWindow {
    /// Sends from one signalled to the next, at most.
    const MAX_INTERVAL: u64 = 16;

    /// For a queue of `depth` sends, at least 1.
    pub(crate) fn new(depth: u32) -> Self {
        let depth = u64::from(depth.max(1));
        let most = (depth / 2).clamp(1, Self::MAX_INTERVAL);
        Self { depth, interval: 1 << most.ilog2(), posted: 0, completed: 0 }
    }

    /// Sends that may be posted now.
    pub(crate) fn room(&self) -> u64 {
        self.depth - (self.posted - self.completed)
    }

    /// Sends posted so far.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Sends known to be done.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Signalled sends posted so far.
    pub(crate) fn signalled(&self) -> u64 {
        self.posted >> self.interval.trailing_zeros()
    }

    /// The number of the send after `ahead` more.
    pub(crate) fn number(&self, ahead: u64) -> u64 {
        self.posted + 1 + ahead
    }

    /// Whether the send of that number is signalled.
    pub(crate) fn is_signalled(&self, number: u64) -> bool {
        number & (self.interval - 1) == 0
    }

    /// `count` more were posted.
    pub(crate) fn add_posted(&mut self, count: u64) {
        debug_assert!(count <= self.room(), "{count} posted, room for {}", self.room());
        self.posted += count;
    }

    /// The send of that number has completed, and so all before it.
    pub(crate) fn complete(&mut self, number: u64) {
        if (self.completed..=self.posted).contains(&number) {
            self.completed = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn interval_is_half_the_depth_and_16_at_most() {
        let interval = |depth| SendWindow::new(depth).interval;
        assert_eq!([0, 1, 2, 3, 4, 31, 32, 33, 4096].map(interval), [1, 1, 1, 1, 2, 8, 16, 16, 16]);
        assert!(
            (1..200).all(|depth| interval(depth) <= 16 && interval(depth) <= u64::from(depth / 2).max(1))
        );
    }

    #[test]
    fn numbers_from_nowhere_change_nothing() {
        let mut window = SendWindow::new(4);
        window.add_posted(4);
        window.complete(4);
        window.complete(2);
        window.complete(99);
        assert_eq!((window.completed(), window.room()), (4, 4));
    }

    proptest! {
        /// A queue that accepts only some of what is posted, and completes signalled sends in order, late: it never
        /// overflows, and never stays full once it has completed what is signalled.
        #[test]
        fn never_overfull_and_never_stuck(
            depth in 1u32..80,
            steps in prop::collection::vec((0u64..40, 0u64..40, any::<bool>()), 1..200),
        ) {
            let mut window = SendWindow::new(depth);
            let mut queue: VecDeque<u64> = VecDeque::new();
            for (wanted, accepted, completes) in steps {
                let tried = wanted.min(window.room());
                let accepted = accepted.min(tried);
                for ahead in 0..accepted {
                    queue.push_back(window.number(ahead));
                }
                window.add_posted(accepted);
                prop_assert!(queue.len() as u64 <= u64::from(depth));
                let signalled: Vec<u64> = queue.iter().copied().filter(|&n| window.is_signalled(n)).collect();
                prop_assert_eq!(signalled.len() as u64, window.signalled() - window.completed() / window.interval);
                if completes && let Some(&last) = signalled.last() {
                    window.complete(last);
                    queue.retain(|&n| n > last);
                }
                prop_assert_eq!(window.room(), u64::from(depth) - queue.len() as u64);
                if window.room() == 0 {
                    prop_assert!(queue.iter().any(|&n| window.is_signalled(n)), "full, and nothing will free it");
                }
            }
        }
    }
}
