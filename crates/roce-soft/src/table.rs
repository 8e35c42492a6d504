//! The queue pairs of a socket, by number.

#![forbid(unsafe_code)]

use roce_core::Qpn;

/// Anything with a queue pair number.
pub(crate) trait Numbered {
    fn qpn(&self) -> Qpn;
}

/// Values by queue pair number: one probe or two whatever their count, as numbers mostly follow each other.
#[derive(Debug)]
pub(crate) struct QpTable<T> {
    values: Vec<T>,
    /// Open addressing by the number's low bits: the number, and where its value is.
    index: Vec<Option<(Qpn, usize)>>,
}

impl<T: Numbered> QpTable<T> {
    pub(crate) fn new() -> Self {
        Self { values: Vec::new(), index: vec![None; 2] }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut T> {
        self.find(qpn).and_then(|at| self.values.get_mut(at))
    }

    pub(crate) fn contains(&self, qpn: Qpn) -> bool {
        self.find(qpn).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Adds a value whose number is not there yet.
    pub(crate) fn insert(&mut self, value: T) {
        self.values.push(value);
        self.rebuild();
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<T> {
        let removed = self.find(qpn).map(|at| self.values.swap_remove(at));
        self.rebuild();
        removed
    }

    #[inline]
    fn find(&self, qpn: Qpn) -> Option<usize> {
        let mut at = self.home(qpn);
        // At least half of the index is empty, so this ends.
        while let Some((found, value)) = self.index[at] {
            if found == qpn {
                return Some(value);
            }
            at = (at + 1) % self.index.len();
        }
        None
    }

    fn home(&self, qpn: Qpn) -> usize {
        qpn.get() as usize & (self.index.len() - 1)
    }

    fn rebuild(&mut self) {
        self.index.clear();
        self.index.resize((self.values.len() * 2).next_power_of_two().max(2), None);
        for (i, value) in self.values.iter().enumerate() {
            let mut at = self.home(value.qpn());
            while self.index[at].is_some() {
                at = (at + 1) % self.index.len();
            }
            self.index[at] = Some((value.qpn(), i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Numbered for u32 {
        fn qpn(&self) -> Qpn {
            Qpn::from_low_bits(*self)
        }
    }

    #[test]
    fn finds_what_is_there_and_nothing_else() {
        let mut table = QpTable::new();
        let numbers: Vec<u32> = (0..64).map(|i| i % 3 * 0x1000 + i * 64).collect();
        for &n in &numbers {
            table.insert(n);
        }
        for &n in numbers.iter().step_by(2) {
            assert_eq!(table.remove(Qpn::from_low_bits(n)), Some(n));
        }
        for (i, &n) in numbers.iter().enumerate() {
            assert_eq!(table.contains(Qpn::from_low_bits(n)), i % 2 == 1);
            assert_eq!(table.get_mut(Qpn::from_low_bits(n)).is_some(), i % 2 == 1);
        }
        assert_eq!(table.len(), 32);
        assert_eq!(table.remove(Qpn::MAX), None);
    }
}
