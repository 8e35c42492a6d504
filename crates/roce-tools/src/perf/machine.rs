//! What a measurement was made on.

use std::fs;

use serde::{Deserialize, Serialize};

/// Load that leaves no CPU of its own to somebody.
const BUSY: f64 = 1.0;

/// What a measurement was made on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// CPUs that the process may use.
    pub cores: usize,
    /// Whether the processor says that it is a virtual machine's.
    pub virtual_machine: bool,
    /// The kernel's release.
    pub kernel: String,
    /// The frequency governor; `None` where the machine has none to set.
    pub governor: Option<String>,
    /// CPUs that the scheduler leaves alone, as the kernel lists them; empty: none.
    pub isolated: String,
    /// Runnable threads, averaged over the minute before: more than 0.2 disturb a measurement.
    pub load: f64,
    /// The commit that was measured, where it is known.
    pub commit: Option<String>,
}

impl Machine {
    /// This one, now.
    pub fn here(cores: usize, commit: Option<String>) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        let load = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok());
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        Self {
            cpu: field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores,
            virtual_machine: field("flags").is_some_and(|f| f.split(' ').any(|flag| flag == "hypervisor")),
            kernel: read("/proc/sys/kernel/osrelease"),
            governor: (!governor.is_empty()).then_some(governor),
            isolated: read("/sys/devices/system/cpu/isolated"),
            load: load.unwrap_or(0.0),
            commit,
        }
    }

    /// What a reader has to know first, if the machine had other work.
    pub fn warning(&self) -> Option<String> {
        let Self { load, cores, .. } = self;
        (*load >= BUSY).then(|| {
            format!(
                "The machine was busy before (load {load:.1}, {cores} cores): times are not to be trusted, and ratios \
                 less; measure again when it is idle."
            )
        })
    }

    /// In a line, for plots.
    pub(super) fn brief(&self) -> String {
        let kernel = self.kernel.split('-').next().unwrap_or_default();
        let virtual_machine = if self.virtual_machine { ", virtual machine" } else { "" };
        let governor = self.governor.as_deref().unwrap_or("none");
        format!("{}{virtual_machine}, {} cores, Linux {kernel}, governor {governor}", self.cpu, self.cores)
    }

    /// Name and value of each fact, for people.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let none = || "none".to_owned();
        let virtual_machine = if self.virtual_machine { " (in a virtual machine)" } else { "" };
        vec![
            ("CPU", format!("{}{virtual_machine}", self.cpu)),
            ("cores", self.cores.to_string()),
            ("kernel", self.kernel.clone()),
            ("governor", self.governor.clone().unwrap_or_else(none)),
            ("isolated CPUs", if self.isolated.is_empty() { none() } else { self.isolated.clone() }),
            ("load before", format!("{:.2}", self.load)),
            ("commit", self.commit.clone().unwrap_or_else(|| "unknown".to_owned())),
        ]
    }
}

/// Memory of this process that is in RAM, KiB; 0 where the system does not say.
pub fn resident_kib() -> u64 {
    let status = read("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let machine = Machine::here(2, Some("abc".to_owned()));
        assert!(!machine.kernel.is_empty() && !machine.cpu.is_empty());
        assert!(machine.facts().contains(&("commit", "abc".to_owned())));
        assert!(resident_kib() > 100);
    }

    #[test]
    fn a_busy_machine_is_told() {
        let machine = Machine { load: 0.4, ..Machine::here(2, None) };
        assert_eq!(machine.warning(), None);
        let busy = Machine { load: 9.53, ..machine };
        assert!(busy.warning().is_some_and(|text| text.contains("load 9.5, 2 cores")));
    }

    #[test]
    fn a_line_says_what_decides() {
        let mut machine = Machine::here(8, None);
        (machine.cpu, machine.kernel) = ("Quick 9000".to_owned(), "6.18.44-fc-v657".to_owned());
        (machine.governor, machine.virtual_machine) = (Some("performance".to_owned()), false);
        assert_eq!(machine.brief(), "Quick 9000, 8 cores, Linux 6.18.44, governor performance");
    }
}
