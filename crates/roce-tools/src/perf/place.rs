//! Which thread runs where, and how it waits.

use std::fs;

use roce_transport::{SpinPolicy, pin_current_thread};

use crate::Error;

/// How threads wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Spin {
    /// Never give the CPU away where each thread has one, else as `yield`.
    Auto,
    /// Never give the CPU away.
    Spin,
    /// Spin a while, then yield.
    Yield,
}

/// On which CPUs the threads run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// Wherever the system puts them.
    No,
    /// On the CPUs that the process may use, where there is one for each thread; else wherever.
    Auto,
    /// The caller on the first of these, the service's threads on the others in turn.
    Cpus(Vec<usize>),
}

impl Pin {
    /// `auto`, `no`, or CPUs with commas in between. For clap's `value_parser`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "no" => Ok(Self::No),
            list => parse_cpus(list)
                .map(Self::Cpus)
                .ok_or_else(|| "not auto, no, or CPUs as in 0,1 or 2-5".to_owned()),
        }
    }
}

/// Which thread runs where, and how it waits; the same for a case and its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pin: Pin,
    spin: Spin,
    /// What this process may use.
    allowed: Vec<usize>,
}

/// The placement of the threads of one point.
#[derive(Debug, Clone)]
pub(super) struct Seats {
    cpus: Vec<usize>,
    pub(super) spin: SpinPolicy,
}

impl Placement {
    /// On the machine as it is.
    ///
    /// # Errors
    /// [`Error::Options`] for CPUs that this process may not use, or that are named twice.
    pub fn new(pin: Pin, spin: Spin) -> Result<Self, Error> {
        Self { pin, spin, allowed: allowed_cpus() }.checked()
    }

    fn checked(self) -> Result<Self, Error> {
        let Pin::Cpus(cpus) = &self.pin else { return Ok(self) };
        let mut rest = cpus.as_slice();
        while let [cpu, others @ ..] = rest {
            if !self.allowed.contains(cpu) {
                let allowed = listed(&self.allowed);
                return Err(Error::Options(format!(
                    "--pin: CPU {cpu} is not for this process; it may use {allowed}"
                )));
            }
            if others.contains(cpu) {
                return Err(Error::Options(format!(
                    "--pin: CPU {cpu} is named twice; threads share CPUs by themselves where there are too few"
                )));
            }
            rest = others;
        }
        Ok(self)
    }

    /// CPUs that this process may use.
    pub fn cpus(&self) -> usize {
        self.allowed.len()
    }

    /// Where threads run, for people.
    pub fn describe(&self) -> String {
        match &self.pin {
            Pin::No => "not pinned".to_owned(),
            Pin::Auto => format!("pinned to CPUs {} where each thread has one", listed(&self.allowed)),
            Pin::Cpus(cpus) => format!("pinned to CPUs {}", listed(cpus)),
        }
    }

    /// For so many threads that never sleep.
    pub(super) fn seats(&self, threads: usize) -> Seats {
        let enough = threads <= self.allowed.len();
        let cpus = match &self.pin {
            Pin::Cpus(cpus) => cpus.clone(),
            Pin::Auto if enough => self.allowed.clone(),
            Pin::Auto | Pin::No => Vec::new(),
        };
        let own_cpus = enough && (cpus.is_empty() || cpus.len() >= threads);
        let spin = match self.spin {
            Spin::Auto if own_cpus => SpinPolicy::Spin,
            Spin::Spin => SpinPolicy::Spin,
            Spin::Auto | Spin::Yield => SpinPolicy::default(),
        };
        Seats { cpus, spin }
    }
}

/// For people: `0, 1`.
pub(super) fn listed(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

impl Seats {
    /// The CPU of thread `index`; the caller is 0.
    pub(super) fn cpu(&self, index: usize) -> Option<usize> {
        match self.cpus.as_slice() {
            [] => None,
            [only] => Some(*only),
            [first, ..] if index == 0 => Some(*first),
            [_, others @ ..] => Some(others[(index - 1) % others.len()]),
        }
    }

    /// Puts the calling thread, which no other seat was given before, on its CPU.
    pub(super) fn take(&self, index: usize) -> Result<(), Error> {
        Ok(self.cpu(index).map_or(Ok(()), pin_current_thread)?)
    }

    /// For reports: the CPUs, or nothing.
    pub(super) fn cpus(&self) -> &[usize] {
        &self.cpus
    }
}

fn allowed_cpus() -> Vec<usize> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(|list| parse_cpus(list.trim())).unwrap_or_else(|| vec![0])
}

/// `0-2,5` as the kernel writes it.
fn parse_cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last > 65_535 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_four(pin: Pin, spin: Spin) -> Placement {
        Placement { pin, spin, allowed: vec![0, 1, 2, 3] }
    }

    #[test]
    fn cpu_lists_are_the_kernels() {
        assert_eq!(parse_cpus("0-2,5"), Some(vec![0, 1, 2, 5]));
        for bad in ["", "a", "3-1", "1,", "-1", "0-9999999"] {
            assert_eq!(parse_cpus(bad), None, "{bad:?}");
        }
        assert!(!allowed_cpus().is_empty());
    }

    #[test]
    fn the_caller_has_the_first_cpu_to_itself() {
        let seats = on_four(Pin::Cpus(vec![3, 1, 2]), Spin::Auto).seats(4);
        assert_eq!([0, 1, 2, 3].map(|i| seats.cpu(i)), [Some(3), Some(1), Some(2), Some(1)]);
        assert_eq!(on_four(Pin::Cpus(vec![2]), Spin::Auto).seats(2).cpu(1), Some(2));
        assert_eq!(on_four(Pin::No, Spin::Auto).seats(2).cpu(0), None);
    }

    #[test]
    fn cpus_that_cannot_be_are_named() {
        let error = |cpus| on_four(Pin::Cpus(cpus), Spin::Auto).checked().unwrap_err().to_string();
        assert!(error(vec![1, 9]).contains("CPU 9 is not for this process; it may use 0, 1, 2, 3"));
        assert!(error(vec![3, 1, 3]).contains("CPU 3 is named twice"));
        assert!(on_four(Pin::Cpus(vec![3, 0]), Spin::Auto).checked().is_ok());
    }

    #[test]
    fn threads_without_a_cpu_each_yield() {
        let spin = |pin, spin, threads| on_four(pin, spin).seats(threads).spin;
        assert_eq!(spin(Pin::No, Spin::Auto, 4), SpinPolicy::Spin);
        assert_eq!(spin(Pin::No, Spin::Auto, 5), SpinPolicy::default());
        assert_eq!(spin(Pin::Cpus(vec![0, 1]), Spin::Auto, 3), SpinPolicy::default());
        assert_eq!(spin(Pin::No, Spin::Yield, 1), SpinPolicy::default());
        assert!(on_four(Pin::Auto, Spin::Auto).seats(5).cpus().is_empty());
    }
}
