//! What RDMA devices need, looked up in sysfs and /proc: nothing here opens a device.

use std::fs;
use std::net::Ipv4Addr;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::options::HwOptions;
use crate::rdma::{Port, Sysfs, path_mtu};
use crate::table;

/// Below this, interfaces carry no frame of the default page.
const LEAST_MTU: u32 = 1500;
/// RoCEv2's headers around a frame, bytes.
const ROCE_HEADERS: u32 = 96;
/// Rings that a process registers: RX, TX, and one for copies of what is sent.
const RINGS: u64 = 3;
/// Memory that a process locks besides its rings, bytes: queues and completion queues.
const QUEUES: u64 = 2 << 20;
/// The capability that lifts the limit on locked memory.
const CAP_IPC_LOCK: u32 = 14;

/// Where one of our ends shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) device: String,
    pub(super) port: u8,
    /// Asked for; otherwise one of the port's.
    pub(super) ip: Option<Ipv4Addr>,
    /// What asks for it.
    pub(super) option: &'static str,
}

/// What the machine allows its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machine {
    /// Bytes that a process may lock; `None` where there is no limit.
    memlock: Option<u64>,
    /// CPUs that we may run on, such as "0-3".
    cpus: String,
    /// The frequency governors in use; none where the kernel has none to choose.
    governors: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Good,
    /// Works, and could be better.
    Note,
    Failure,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    what: String,
    grade: Grade,
    found: String,
    cure: String,
    /// Lines to show below.
    table: String,
}

impl Finding {
    fn good(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            grade: Grade::Good,
            found: found.into(),
            cure: String::new(),
            table: String::new(),
        }
    }

    fn note(what: impl Into<String>, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { grade: Grade::Note, cure: cure.into(), ..Self::good(what, found) }
    }

    fn failure(what: impl Into<String>, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { grade: Grade::Failure, ..Self::note(what, found, cure) }
    }

    fn with_gids_of(self, port: &Port) -> Self {
        Self { table: format!("\n{}", port.gids), ..self }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.grade == Grade::Failure
    }

    /// "FAILED: what: found; the cure", and a table below.
    pub(super) fn cure(&self) -> Option<String> {
        let word = match self.grade {
            Grade::Good => return None,
            Grade::Note => "NOTE",
            Grade::Failure => "FAILED",
        };
        Some(format!("{word}: {}: {}; {}{}", self.what, self.found, self.cure, self.table))
    }
}

pub(super) fn table(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        let state = match finding.grade {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Failure => "FAILED",
        };
        vec![finding.what.clone(), state.to_owned(), finding.found.clone()]
    };
    table::render(&["precondition", "state", "found"], &findings.iter().map(row).collect::<Vec<_>>())
}

/// Everything that was looked at, whatever failed before.
pub(super) fn all(options: &HwOptions, sysfs: &Sysfs, machine: &Machine) -> Vec<Finding> {
    let seats = options.seats();
    let mut findings = Vec::new();
    let mut ports: Vec<Port> = Vec::new();
    for seat in &seats {
        if ports.iter().any(|port| is_on(seat, port)) {
            continue;
        }
        match sysfs.port(&seat.device, seat.port) {
            Ok(port) => {
                findings.extend(of_port(&port, options));
                ports.push(port);
            }
            Err(error) => {
                let (found, cure) = split(&format!("{error:#}"));
                findings.push(Finding::failure(format!("device {}", seat.device), found, cure));
            }
        }
    }
    findings.dedup();
    match (seats.as_slice(), ports.as_slice()) {
        ([bridge, emulator], [port]) if is_on(bridge, port) && is_on(emulator, port) => {
            findings.push(of_shared_table(port, bridge, emulator));
        }
        _ => {
            for seat in &seats {
                findings.extend(ports.iter().find(|port| is_on(seat, port)).map(|port| of_table(port, seat)));
            }
        }
    }
    if let [one, two] = ports.as_slice() {
        findings.extend(of_both_mtus(one, two));
    }
    findings.push(machine.memlock(options));
    findings.push(machine.governor());
    findings.push(machine.cpus(sysfs, &options.device));
    findings
}

fn is_on(seat: &Seat, port: &Port) -> bool {
    seat.device == port.device && seat.port == port.number
}

/// "what is; what to do" in two.
fn split(error: &str) -> (String, String) {
    let (found, cure) = error.split_once("; ").unwrap_or((error, "see `rdma link`"));
    (found.to_owned(), cure.to_owned())
}

fn of_port(port: &Port, options: &HwOptions) -> Vec<Finding> {
    let place = port.place();
    let interface = port.interface.as_ref();
    let name = interface.map_or("IFACE", |interface| interface.name.as_str());
    let mut findings = Vec::new();
    findings.push(if port.is_active() {
        Finding::good(format!("{place}: state"), &port.state)
    } else {
        Finding::failure(
            format!("{place}: state"),
            &port.state,
            format!("check the cable and the far end, then `ip link set {name} up`"),
        )
    });
    findings.push(if port.is_ethernet() {
        Finding::good(format!("{place}: link layer"), &port.link_layer)
    } else {
        let number = port.number;
        Finding::failure(
            format!("{place}: link layer"),
            &port.link_layer,
            format!("RoCE needs Ethernet (ConnectX: `mlxconfig set LINK_TYPE_P{number}=2`, then reboot)"),
        )
    });
    let Some(interface) = interface else {
        findings.push(Finding::failure(
            format!("{place}: interface"),
            "none",
            "load the driver of its network interface (ConnectX: mlx5_core)",
        ));
        return findings;
    };
    let needed = needed_mtu(options);
    let found = format!("{} on {}, path MTU {}", interface.mtu, interface.name, path_mtu(interface.mtu));
    findings.push(if interface.mtu >= needed {
        Finding::good(format!("{place}: MTU"), found)
    } else {
        Finding::failure(
            format!("{place}: MTU"),
            found,
            format!(
                "{needed} bytes are needed: `ip link set {name} mtu {needed}`, and as much on the switch and the far end"
            ),
        )
    });
    findings
}

/// A real FPGA sends a frame as one packet.
fn needed_mtu(options: &HwOptions) -> u32 {
    let frame = options.fpga.map_or(0, |_| options.run.page_size.saturating_add(ROCE_HEADERS));
    options.mtu.unwrap_or(LEAST_MTU).max(frame)
}

/// Both ends on one port: exactly their two addresses, the bridge's first. With a third in the table, a program that counts
/// entries sends under a wrong address: all looks well, and nothing arrives.
fn of_shared_table(port: &Port, bridge: &Seat, emulator: &Seat) -> Finding {
    let what = format!("{}: addresses", port.place());
    let name = port.interface.as_ref().map_or("IFACE", |interface| interface.name.as_str());
    let known: Vec<Ipv4Addr> = port.gids.addresses().map(|(ip, _)| ip).collect();
    let found = format!("{} (RoCE v2)", listed(&known));
    let failure = |cure: String| Finding::failure(what.clone(), found.clone(), cure).with_gids_of(port);
    let missing = [bridge, emulator].into_iter().filter_map(|seat| Some((seat.option, seat.ip?)));
    let missing: Vec<(&str, Ipv4Addr)> = missing.filter(|(_, ip)| !known.contains(ip)).collect();
    if !missing.is_empty() {
        let cure = |(option, ip): &(&str, Ipv4Addr)| {
            format!("{ip} of {option} is missing: `ip address add {ip}/24 dev {name}`, or --setup-network")
        };
        return failure(missing.iter().map(cure).collect::<Vec<_>>().join("; "));
    }
    match known.as_slice() {
        [] | [_] => failure(format!(
            "both ends share this port, so it needs two: `ip address add IP/24 dev {name}`, or --setup-network with \
             --bridge-ip and --emulator-ip"
        )),
        [first, second] => {
            let wrong_way = bridge.ip == Some(*second) || emulator.ip == Some(*first);
            if wrong_way {
                return failure(format!(
                    "the bridge's must come first: `ip address delete {first}/24 dev {name}` and add it again behind"
                ));
            }
            Finding::good(what, found)
        }
        [first, second, ..] => {
            let ours = [bridge.ip.unwrap_or(*first), emulator.ip.unwrap_or(*second)];
            let others: Vec<Ipv4Addr> = known.iter().copied().filter(|ip| !ours.contains(ip)).collect();
            failure(format!(
                "the loop-back of one port wants exactly two addresses, and {} may be taken for one of them, with both \
                 queue pairs ready and nothing arriving: `ip address delete {}/LENGTH dev {name}`",
                listed(&others),
                others.first().map(Ipv4Addr::to_string).unwrap_or_default()
            ))
        }
    }
}

fn of_table(port: &Port, seat: &Seat) -> Finding {
    let what = format!("{}: address", port.place());
    let name = port.interface.as_ref().map_or("IFACE", |interface| interface.name.as_str());
    let known: Vec<Ipv4Addr> = port.gids.addresses().map(|(ip, _)| ip).collect();
    match (seat.ip, known.as_slice()) {
        (Some(ip), _) if !known.contains(&ip) => Finding::failure(
            what,
            format!("{ip} is missing"),
            format!(
                "`ip address add {ip}/24 dev {name}`, or --setup-network; its GID can take seconds to appear"
            ),
        )
        .with_gids_of(port),
        (_, []) => Finding::failure(
            what,
            "none",
            format!("`ip address add IP/24 dev {name}`; its GID can take seconds to appear"),
        )
        .with_gids_of(port),
        (asked, [first, ..]) => {
            let ip = asked.unwrap_or(*first);
            let index = port.gids.of(ip).map_or(0, |entry| entry.index);
            let found = format!("{ip}, GID {index}");
            let others: Vec<Ipv4Addr> = known.iter().copied().filter(|other| *other != ip).collect();
            if others.is_empty() {
                return Finding::good(what, found);
            }
            Finding::note(
                what,
                format!("{found}, beside {}", listed(&others)),
                format!("ours choose by address; a program that takes a GID by its index needs {index}"),
            )
        }
    }
}

fn of_both_mtus(one: &Port, two: &Port) -> Option<Finding> {
    let of = |port: &Port| port.interface.as_ref().map(|interface| path_mtu(interface.mtu));
    let (a, b) = (of(one)?, of(two)?);
    (a != b).then(|| {
        Finding::failure(
            "path MTU of both ports",
            format!("{a} and {b}"),
            "packets of the larger would vanish: give both interfaces the same MTU, with --mtu and --setup-network or by hand",
        )
    })
}

fn listed(ips: &[Ipv4Addr]) -> String {
    match ips {
        [] => "none".to_owned(),
        ips => ips.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl Machine {
    pub(super) fn this() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
        let unlimited = limit == RLIM_INFINITY || has_capability(&status, CAP_IPC_LOCK);
        Self {
            memlock: (!unlimited).then_some(limit),
            cpus: field(&status, "Cpus_allowed_list").unwrap_or_default().to_owned(),
            governors: governors(),
        }
    }

    fn memlock(&self, options: &HwOptions) -> Finding {
        let what = "locked memory (RLIMIT_MEMLOCK)";
        let rings = RINGS * u64::from(options.run.num_pages) * u64::from(options.run.page_size);
        let needed = rings + QUEUES;
        match self.memlock {
            None => Finding::good(what, "no limit"),
            Some(limit) if limit >= needed => Finding::good(what, format!("{limit} bytes, {needed} needed")),
            Some(limit) => Finding::failure(
                what,
                format!("{limit} bytes, {needed} needed"),
                "`ulimit -l unlimited`, or a memlock line in /etc/security/limits.conf, or LimitMEMLOCK=infinity in a \
                 systemd unit",
            ),
        }
    }

    fn governor(&self) -> Finding {
        let what = "CPU frequency governor";
        match self.governors.as_slice() {
            [] => Finding::good(what, "none to choose"),
            all if all.iter().all(|governor| governor == "performance") => Finding::good(what, "performance"),
            all => Finding::note(
                what,
                all.join(", "),
                "round trips are longer and jitter: `cpupower frequency-set -g performance`",
            ),
        }
    }

    fn cpus(&self, sysfs: &Sysfs, device: &str) -> Finding {
        let near = sysfs.near_cpus(device).map_or(String::new(), |near| format!(", beside {device}: {near}"));
        Finding::good("CPUs", format!("{}{near}", self.cpus))
    }
}

fn governors() -> Vec<String> {
    let of_cpu = |dir: fs::DirEntry| fs::read_to_string(dir.path().join("cpufreq/scaling_governor")).ok();
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let mut governors: Vec<String> = cpus.filter_map(of_cpu).map(|text| text.trim().to_owned()).collect();
    governors.sort_unstable();
    governors.dedup();
    governors
}

/// A field of /proc/PID/status.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

fn has_capability(status: &str, capability: u32) -> bool {
    let effective = field(status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    effective.is_some_and(|bits| bits >> capability & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::options::{Request, parse};
    use super::*;
    use crate::rdma::fake::Tree;

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];
    const C: [u8; 4] = [10, 0, 0, 3];

    fn machine() -> Machine {
        Machine { memlock: None, cpus: "0-3".into(), governors: vec!["performance".into()] }
    }

    fn failures_on(tree: &Tree, line: &str, machine: &Machine) -> Vec<String> {
        let Ok(Request::Run(options)) = parse(line.split_whitespace().map(OsString::from).collect()) else {
            panic!("{line}")
        };
        let findings = all(&options, &tree.sysfs(), machine);
        findings.iter().filter(|finding| finding.is_failure()).filter_map(Finding::cure).collect()
    }

    fn failures(tree: &Tree, line: &str) -> Vec<String> {
        failures_on(tree, line, &machine())
    }

    #[track_caller]
    fn assert_one(failures: &[String], parts: &[&str]) {
        assert_eq!(failures.len(), 1, "{failures:#?}");
        for part in parts {
            assert!(failures[0].contains(part), "{part:?} is not in: {}", failures[0]);
        }
    }

    #[test]
    fn one_port_with_exactly_its_two_addresses() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[A, B]);
        assert_eq!(failures(&tree, "--device mlx5_0"), [""; 0]);
        assert_eq!(failures(&tree, "--device mlx5_0 --bridge-ip 10.0.0.1 --emulator-ip 10.0.0.2"), [""; 0]);
        let swapped = failures(&tree, "--device mlx5_0 --bridge-ip 10.0.0.2 --emulator-ip 10.0.0.1");
        assert_one(&swapped, &["the bridge's must come first", "10.0.0.1/24 dev eth2"]);
        let foreign = failures(&tree, "--device mlx5_0 --emulator-ip 10.0.0.9");
        assert_one(&foreign, &["10.0.0.9 of --emulator-ip is missing", "::ffff:10.0.0.2"]);
    }

    #[test]
    fn one_port_with_too_few_or_too_many() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[A]);
        assert_one(&failures(&tree, "--device mlx5_0"), &["needs two", "ip address add", "dev eth2"]);
        tree.port("mlx5_0", "eth2", 4200, &[C, A, B]);
        let third = failures(&tree, "--device mlx5_0 --bridge-ip 10.0.0.1 --emulator-ip 10.0.0.2");
        assert_one(&third, &["10.0.0.3 may be taken", "`ip address delete 10.0.0.3/LENGTH dev eth2`"]);
    }

    #[test]
    fn two_ports_need_one_each_and_one_mtu() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[A]).port("mlx5_1", "eth3", 4200, &[B, C]);
        assert_eq!(failures(&tree, "--device mlx5_0 --peer-device mlx5_1"), [""; 0]);
        tree.port("mlx5_1", "eth3", 1500, &[B]);
        assert_one(&failures(&tree, "--device mlx5_0 --peer-device mlx5_1"), &["4096 and 1024", "same MTU"]);
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 1400, &[]);
        tree.file("infiniband/mlx5_0/ports/1/state", "1: DOWN")
            .file("infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
        let poor = Machine { memlock: Some(65536), ..machine() };
        let all = failures_on(&tree, "--device mlx5_0 --peer-device mlx5_9", &poor).join("\n");
        for part in [
            "state: DOWN; check the cable",
            "ip link set eth2 up",
            "InfiniBand; RoCE needs Ethernet",
            "LINK_TYPE_P1=2",
            "1400 on eth2",
            "no RDMA device \"mlx5_9\"; there are: mlx5_0",
            "ip address add IP/24 dev eth2",
            "65536 bytes",
            "ulimit -l unlimited",
        ] {
            assert!(all.contains(part), "{part:?} is not in: {all}");
        }
    }

    #[test]
    fn a_real_fpga_needs_room_for_a_frame_in_one_packet() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 1500, &[A, B]);
        assert_eq!(failures(&tree, "--device mlx5_0 --fpga-ip 10.0.0.7"), [""; 0]);
        let large = failures(&tree, "--device mlx5_0 --fpga-ip 10.0.0.7 --page-size 4096");
        assert_one(&large, &["mtu 4192"]);
        assert_one(&failures(&tree, "--device mlx5_0 --mtu 4200"), &["mtu 4200"]);
    }

    #[test]
    fn a_slow_governor_is_a_note() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[A, B]);
        let slow = Machine { governors: vec!["powersave".into()], ..machine() };
        assert_eq!(failures_on(&tree, "--device mlx5_0", &slow), [""; 0]);
        assert!(
            slow.governor()
                .cure()
                .is_some_and(|cure| cure.starts_with("NOTE: ") && cure.contains("cpupower"))
        );
    }

    /// Both rings of the bridge, and as much again as the TX ring for copies of what it sends.
    #[test]
    fn locked_memory_is_for_three_rings() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[A, B]);
        let line = "--device mlx5_0 --num-pages 1024 --page-size 4096";
        let with = |mib: u64| failures_on(&tree, line, &Machine { memlock: Some(mib << 20), ..machine() });
        assert_one(&with(13), &["14680064 needed", "LimitMEMLOCK=infinity"]);
        assert_eq!(with(14), [""; 0]);
    }

    #[test]
    fn capabilities_lift_the_limit() {
        let status = "Name:\tx\nCapEff:\t0000000000004000\nCpus_allowed_list:\t0-1\n";
        assert!(has_capability(status, CAP_IPC_LOCK) && !has_capability(status, 13));
        assert_eq!(field(status, "Cpus_allowed_list"), Some("0-1"));
    }
}
