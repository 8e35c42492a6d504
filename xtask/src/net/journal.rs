//! What was done to the network, on disk before it is done, so that it can be taken back by a later process. A journal is
//! of one boot and one network namespace: in others nothing of it is true.

use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Subnet;

const EXTENSION: &str = "undo";

/// How a step is taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Undo {
    /// Delete this RDMA device, if it still is on that interface.
    Rdma {
        name: String,
        interface: String,
    },
    /// Delete this interface, if it still is the one that was made.
    Link {
        name: String,
        index: u32,
    },
    Address {
        interface: String,
        subnet: Subnet,
    },
    Mtu {
        interface: String,
        mtu: u32,
    },
    Down {
        interface: String,
    },
    Neighbour {
        interface: String,
        ip: Ipv4Addr,
        /// The permanent entry that was there before, and comes back.
        before: Option<String>,
    },
    /// Write the value back into a file below /proc/sys.
    Sysctl {
        key: String,
        value: String,
    },
    Module {
        name: String,
    },
}

impl Undo {
    fn line(&self) -> String {
        match self {
            Self::Rdma { name, interface } => format!("rdma {name} {interface}"),
            Self::Link { name, index } => format!("link {name} {index}"),
            Self::Address { interface, subnet } => format!("address {interface} {subnet}"),
            Self::Mtu { interface, mtu } => format!("mtu {interface} {mtu}"),
            Self::Down { interface } => format!("down {interface}"),
            Self::Neighbour { interface, ip, before: None } => format!("neighbour {interface} {ip}"),
            Self::Neighbour { interface, ip, before: Some(mac) } => {
                format!("neighbour {interface} {ip} {mac}")
            }
            Self::Sysctl { key, value } => format!("sysctl {key} {value}"),
            Self::Module { name } => format!("module {name}"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Some(match *words.as_slice() {
            ["rdma", name, interface] => {
                Self::Rdma { name: name.to_owned(), interface: interface.to_owned() }
            }
            ["link", name, index] => Self::Link { name: name.to_owned(), index: index.parse().ok()? },
            ["address", interface, subnet] => {
                Self::Address { interface: interface.to_owned(), subnet: subnet.parse().ok()? }
            }
            ["mtu", interface, mtu] => Self::Mtu { interface: interface.to_owned(), mtu: mtu.parse().ok()? },
            ["down", interface] => Self::Down { interface: interface.to_owned() },
            ["neighbour", interface, ip, ref mac @ ..] if mac.len() < 2 => Self::Neighbour {
                interface: interface.to_owned(),
                ip: ip.parse().ok()?,
                before: mac.first().map(|mac| (*mac).to_owned()),
            },
            ["sysctl", key, value] => Self::Sysctl { key: key.to_owned(), value: value.to_owned() },
            ["module", name] => Self::Module { name: name.to_owned() },
            _ => return None,
        })
    }

    /// Do both speak of the same thing? Then the older one knows how it was at first.
    fn is_about_the_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Mtu { interface: a, .. }, Self::Mtu { interface: b, .. }) => a == b,
            (Self::Sysctl { key: a, .. }, Self::Sysctl { key: b, .. }) => a == b,
            (Self::Neighbour { interface, ip, .. }, Self::Neighbour { interface: other, ip: at, .. }) => {
                (interface, ip) == (other, at)
            }
            _ => self == other,
        }
    }
}

/// Steps to take back, the last first.
#[derive(Debug)]
pub(super) struct Journal {
    file: PathBuf,
    steps: Vec<Undo>,
}

impl Journal {
    /// That of `net-setup`, which goes on from one call to the next.
    pub(super) fn of_net_setup() -> Result<Self> {
        Self::open(Path::new(super::FOLDER).join(format!("{}-kept.{EXTENSION}", here()?)))
    }

    /// A fresh one, for what ends with this process.
    pub(super) fn of_this_process() -> Result<Self> {
        let pid = std::process::id();
        Self::open(Path::new(super::FOLDER).join(format!("{}-{pid}.{EXTENSION}", here()?)))
    }

    /// Those of `net-setup` and of processes that are gone.
    pub(super) fn all_left() -> Result<Vec<Self>> {
        let here = here()?;
        let entries = fs::read_dir(super::FOLDER).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| is_left(path, &here)).collect();
        files.sort_unstable();
        files.into_iter().map(Self::open).collect()
    }

    fn open(file: PathBuf) -> Result<Self> {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        };
        let mut steps = Vec::new();
        for line in text.lines() {
            match Undo::parse(line) {
                Some(step) => steps.push(step),
                None => bail!(
                    "{}: nobody understands {line:?}; take it back by hand and remove the file",
                    file.display()
                ),
            }
        }
        Ok(Self { file, steps })
    }

    pub(super) fn steps(&self) -> &[Undo] {
        &self.steps
    }

    /// Notes a step, before it is done. False: an older entry says how it was at first, and stays alone.
    pub(super) fn note(&mut self, step: Undo) -> Result<bool> {
        if self.steps.iter().any(|known| known.is_about_the_same(&step)) {
            return Ok(false);
        }
        self.steps.push(step);
        self.save()?;
        Ok(true)
    }

    /// Takes the last entry out: it is undone, or was never done.
    pub(super) fn drop_last(&mut self) -> Result<()> {
        self.steps.pop();
        self.save()
    }

    /// Written anew and moved into place, so that no half of it is ever there; none where nothing is left.
    fn save(&self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.file.display());
        if self.steps.is_empty() {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).with_context(cannot),
                _ => Ok(()),
            };
        }
        let dir = self.file.parent().with_context(cannot)?;
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut text = String::new();
        for step in &self.steps {
            writeln!(text, "{}", step.line()).with_context(cannot)?;
        }
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &self.file)).with_context(cannot)
    }
}

/// This boot of this machine, and this network namespace.
fn here() -> Result<String> {
    let boot = "/proc/sys/kernel/random/boot_id";
    let boot_id = fs::read_to_string(boot).with_context(|| format!("cannot read {boot}"))?;
    let namespace = "/proc/self/ns/net";
    let inode = fs::metadata(namespace).with_context(|| format!("cannot read {namespace}"))?.ino();
    Ok(format!("{}-{inode}", boot_id.trim()))
}

fn is_left(path: &Path, here: &str) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let owner = name.strip_prefix(here).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".undo"));
    match owner {
        Some("kept") => true,
        Some(pid) => pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Undo> {
        let interface = || "eth0".to_owned();
        vec![
            Undo::Module { name: "rdma_rxe".into() },
            Undo::Sysctl { key: "net/ipv4/conf/all/rp_filter".into(), value: "2".into() },
            Undo::Link { name: "roce_a".into(), index: 7 },
            Undo::Mtu { interface: interface(), mtu: 1500 },
            Undo::Address { interface: interface(), subnet: "10.0.0.1/24".parse().unwrap() },
            Undo::Down { interface: interface() },
            Undo::Neighbour { interface: interface(), ip: [10, 0, 0, 2].into(), before: None },
            Undo::Neighbour {
                interface: interface(),
                ip: [10, 0, 0, 3].into(),
                before: Some("02:00:00:00:00:01".into()),
            },
            Undo::Rdma { name: "rxe0".into(), interface: interface() },
        ]
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-journal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_later_process_reads_every_step_back() {
        let dir = scratch("steps");
        let file = dir.join("x.undo");
        let mut journal = Journal::open(file.clone()).unwrap();
        assert_eq!(journal.steps(), []);
        for step in every_kind() {
            assert!(journal.note(step).unwrap());
        }
        let mut again = Journal::open(file.clone()).unwrap();
        assert_eq!(again.steps(), every_kind());
        for _ in every_kind() {
            again.drop_last().unwrap();
        }
        assert!(!file.exists(), "nothing left, no file left");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_first_value_is_the_one_to_come_back_to() {
        let dir = scratch("first");
        let mut journal = Journal::open(dir.join("x.undo")).unwrap();
        let mtu = |mtu| Undo::Mtu { interface: "eth0".into(), mtu };
        assert!(journal.note(mtu(1500)).unwrap());
        assert!(!journal.note(mtu(4200)).unwrap());
        assert_eq!(journal.steps(), [mtu(1500)]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_journal_that_nobody_understands_is_not_half_done() {
        let dir = scratch("odd");
        fs::create_dir_all(&dir).unwrap();
        for text in
            ["rdma rxe0 eth0\nlink roce_a\n", "format /\n", "mtu eth0 many\n", "neighbour e 10.0.0.1 a b\n"]
        {
            fs::write(dir.join("x.undo"), text).unwrap();
            assert!(Journal::open(dir.join("x.undo")).is_err(), "{text}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn other_boots_and_living_processes_keep_theirs() {
        let is_left = |name: &str| is_left(Path::new(name), "b00t-1");
        assert!(is_left("/t/net/b00t-1-kept.undo"));
        // Process ids end below four million.
        assert!(is_left("/t/net/b00t-1-4194999.undo"));
        let ours = format!("/t/net/b00t-1-{}.undo", std::process::id());
        for other in ["/t/net/b00t-2-kept.undo", "/t/net/b00t-11-kept.undo", "/t/net/b00t-1-kept.new", &ours]
        {
            assert!(!is_left(other), "{other}");
        }
    }
}
