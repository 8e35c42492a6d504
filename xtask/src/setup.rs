//! `cargo xtask setup`: what this machine needs, and how it gets it.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;

use crate::process::{how, run as run_command};
use crate::{cargo, interrupt, only_flag, table};

/// Something that must be on the machine.
#[derive(Debug)]
struct Need {
    /// Where it comes from.
    source: Source,
    /// What cannot be done without it.
    purpose: Purpose,
    /// What for.
    why: &'static str,
    /// How to see that it is there.
    probe: Probe,
}

/// `cargo xtask emulate` needs nothing but what is for building.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Building anything at all.
    Building,
    /// Testing.
    Testing,
    /// Building what speaks to RDMA devices.
    Verbs,
    /// `cargo xtask vm` and `vm-test`.
    Machine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A Debian package.
    Debian(&'static str),
    /// A component of the Rust toolchain.
    Component(&'static str),
}

#[derive(Debug)]
enum Probe {
    /// A program on the PATH.
    Program(&'static str),
    /// One of these files.
    File(&'static [&'static str]),
    /// A command of cargo answers to `--version`.
    Cargo(&'static str),
}

const NEEDS: &[Need] = &[
    debian("gcc", Purpose::Building, "links every program", Probe::Program("cc")),
    debian(
        "libc6-dev",
        Purpose::Building,
        "start files and C library that programs link with",
        Probe::File(&[
            "/usr/lib/x86_64-linux-gnu/crt1.o",
            "/usr/lib/aarch64-linux-gnu/crt1.o",
            "/usr/lib64/crt1.o",
            "/usr/lib/crt1.o",
        ]),
    ),
    component("rustfmt", "checks the formatting", Probe::Cargo("fmt")),
    component("clippy", "runs the lints", Probe::Cargo("clippy")),
    debian("g++", Purpose::Testing, "compiles the C++ examples", Probe::Program("c++")),
    debian(
        "cmake",
        Purpose::Testing,
        "builds the examples against the installed library",
        Probe::Program("cmake"),
    ),
    debian("make", Purpose::Testing, "runs what cmake writes", Probe::Program("make")),
    debian(
        "valgrind",
        Purpose::Testing,
        "looks for leaks and bad accesses, and counts instructions",
        Probe::Program("valgrind"),
    ),
    debian(
        "libibverbs-dev",
        Purpose::Verbs,
        "headers and library of the RDMA verbs",
        Probe::File(&["/usr/include/infiniband/verbs.h"]),
    ),
    debian(
        "librdmacm-dev",
        Purpose::Verbs,
        "the bindings to libibverbs ask for it too",
        Probe::File(&["/usr/include/rdma/rdma_cma.h"]),
    ),
    debian(
        "libclang-14-dev",
        Purpose::Verbs,
        "reads the headers; 16 and newer do not work with these bindings",
        Probe::File(&[
            "/usr/lib/llvm-14/lib/libclang.so",
            "/usr/lib/llvm-14/lib/libclang.so.1",
            "/usr/lib/llvm-15/lib/libclang.so",
            "/usr/lib/llvm-15/lib/libclang.so.1",
        ]),
    ),
    debian("pkg-config", Purpose::Verbs, "finds libibverbs", Probe::Program("pkg-config")),
    debian(
        "ibverbs-providers",
        Purpose::Verbs,
        "drivers of the RDMA devices of this machine",
        Probe::File(&["/etc/libibverbs.d/mlx5.driver"]),
    ),
    debian("qemu-system-x86", Purpose::Machine, "runs the guest", Probe::Program("qemu-system-x86_64")),
    debian("xz-utils", Purpose::Machine, "unpacks the guest's kernel", Probe::Program("xz")),
];

const fn debian(name: &'static str, purpose: Purpose, why: &'static str, probe: Probe) -> Need {
    Need { source: Source::Debian(name), purpose, why, probe }
}

const fn component(name: &'static str, why: &'static str, probe: Probe) -> Need {
    Need { source: Source::Component(name), purpose: Purpose::Testing, why, probe }
}

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let check = only_flag(args, Some("--check"))?;
    interrupt::install()?;
    Ok(if complete(check)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows what is needed and, unless only asked to check, installs what is missing. Is everything there in the end that
/// this machine can be expected to have?
pub(crate) fn complete(check: bool) -> Result<bool> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !is_there(&need.probe)).collect();
    let rows: Vec<Vec<String>> = NEEDS.iter().map(|need| row(need, &missing)).collect();
    print!("{}", table::render(&["needed", "from", "state", "for", "why"], &rows));
    if missing.is_empty() {
        println!("Nothing is missing.");
        return Ok(true);
    }
    let commands = commands(&missing, &Machine::this());
    if check || commands.iter().any(Vec::is_empty) {
        println!("{}", advice(&missing, &commands));
        return Ok(!check && missing.iter().all(|need| need.can_be_done_without()));
    }
    for words in &commands {
        // What failed shows below: it is still missing.
        succeeds(words)?;
    }
    let still: Vec<&Need> = missing.into_iter().filter(|need| !is_there(&need.probe)).collect();
    if still.is_empty() {
        println!("Nothing is missing any more.");
    }
    for need in &still {
        eprintln!("{}", need.not_installed());
    }
    Ok(still.iter().all(|need| need.can_be_done_without()))
}

/// Runs a command. It may fail.
fn succeeds(words: &[String]) -> Result<bool> {
    println!("+ {}", words.join(" "));
    let status = run_command(Command::new(&words[0]).args(&words[1..]))?;
    if !status.success() {
        eprintln!("`{}` failed ({})", words.join(" "), how(status));
    }
    Ok(status.success())
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Testing => "testing",
            Self::Verbs => "RDMA devices",
            Self::Machine => "virtual machine",
        }
    }
}

impl Need {
    fn name(&self) -> &'static str {
        match self.source {
            Source::Debian(name) | Source::Component(name) => name,
        }
    }

    /// Some releases of Debian have nothing that these bindings can be made with; all that is for other links works there.
    fn can_be_done_without(&self) -> bool {
        self.purpose == Purpose::Verbs
    }

    fn not_installed(&self) -> String {
        let (name, purpose, why) = (self.name(), self.purpose.name(), self.why);
        let word = if self.can_be_done_without() { "warning" } else { "error" };
        let mut text = format!(
            "{word}: {name} could not be installed, the messages are above; it is for: {purpose} ({why})"
        );
        if self.can_be_done_without() {
            text += "; nothing for RDMA devices can be built here, all else can, and `cargo xtask test` leaves \
                     those tests out";
        }
        text
    }
}

fn row(need: &Need, missing: &[&Need]) -> Vec<String> {
    let from = match need.source {
        Source::Debian(_) => "Debian",
        Source::Component(_) => "rustup",
    };
    let state = if missing.iter().any(|m| m.source == need.source) { "missing" } else { "there" };
    [need.name(), from, state, need.purpose.name(), need.why].map(str::to_owned).to_vec()
}

fn is_there(probe: &Probe) -> bool {
    match probe {
        Probe::Program(name) => on_path(name),
        Probe::File(paths) => paths.iter().any(|path| Path::new(path).exists()),
        Probe::Cargo(command) => {
            let mut version = cargo::command([command, "--version"]);
            version.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            version.status().is_ok_and(|status| status.success())
        }
    }
}

/// What building for RDMA devices lacks here.
pub(crate) fn lacking_for_verbs() -> Vec<&'static str> {
    let builds = |need: &&Need| need.purpose == Purpose::Verbs && need.name() != "ibverbs-providers";
    let named_by_hand =
        |need: &Need| need.name() == "libclang-14-dev" && std::env::var_os("LIBCLANG_PATH").is_some();
    NEEDS
        .iter()
        .filter(builds)
        .filter(|need| !is_there(&need.probe) && !named_by_hand(need))
        .map(Need::name)
        .collect()
}

pub(crate) fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// What decides how something is installed here.
#[derive(Debug, Clone, Copy)]
struct Machine {
    /// Debian, or one of its children.
    debian: bool,
    root: bool,
    sudo: bool,
    rustup: bool,
}

impl Machine {
    fn this() -> Self {
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        Self {
            debian: is_debian(&release) && on_path("apt-get"),
            root: nix::unistd::geteuid().is_root(),
            sudo: on_path("sudo"),
            rustup: on_path("rustup"),
        }
    }
}

/// Reads the text of /etc/os-release.
fn is_debian(os_release: &str) -> bool {
    let fields = os_release.lines().filter_map(|line| line.split_once('='));
    fields
        .filter(|(key, _)| matches!(*key, "ID" | "ID_LIKE"))
        .flat_map(|(_, value)| value.trim_matches(['"', '\'']).split_whitespace())
        .any(|id| id == "debian" || id == "ubuntu")
}

/// The commands that install what is missing. An empty one: this machine has no way to do it.
fn commands(missing: &[&Need], machine: &Machine) -> Vec<Vec<String>> {
    let mut packages = Vec::new();
    let mut components = Vec::new();
    for need in missing {
        match need.source {
            Source::Debian(name) => packages.push(name),
            Source::Component(name) => components.push(name),
        }
    }
    let mut commands = Vec::new();
    if !packages.is_empty() {
        let as_root: Option<&[&str]> = match machine {
            Machine { debian: false, .. } => None,
            Machine { root: true, .. } => Some(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]),
            Machine { sudo: true, .. } => {
                Some(&["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
            }
            Machine { .. } => None,
        };
        match as_root {
            Some(apt) => {
                commands.push(words(apt, &["update"]));
                // One by one: a release that lacks one of them still gets the others.
                for package in packages {
                    commands.push(words(apt, &["install", "-y", "--no-install-recommends", package]));
                }
            }
            None => commands.push(Vec::new()),
        }
    }
    if !components.is_empty() {
        commands.push(if machine.rustup {
            words(&["rustup", "component", "add"], &components)
        } else {
            Vec::new()
        });
    }
    commands
}

fn words(head: &[&str], tail: &[&str]) -> Vec<String> {
    head.iter().chain(tail).map(|word| (*word).to_owned()).collect()
}

/// What to do by hand.
fn advice(missing: &[&Need], commands: &[Vec<String>]) -> String {
    let mut text = String::from("Missing:\n");
    for need in missing {
        text += &match need.source {
            Source::Debian(name) => format!("  {name} (its name on Debian): {}\n", need.why),
            Source::Component(name) => format!("  {name} (component of the Rust toolchain): {}\n", need.why),
        };
    }
    if commands.iter().any(Vec::is_empty) {
        text += "This program can install Debian packages as root or with sudo, and components with rustup; \
                 please install them your system's way.";
    } else {
        let lines: Vec<String> = commands.iter().map(|words| format!("  {}", words.join(" "))).collect();
        text += &format!("`cargo xtask setup` would run:\n{}", lines.join("\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Machine = Machine { debian: true, root: true, sudo: false, rustup: true };

    fn need(name: &str) -> &'static Need {
        NEEDS.iter().find(|need| need.name() == name).unwrap()
    }

    fn lines(missing: &[&Need], machine: Machine) -> Vec<String> {
        commands(missing, &machine).iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn debian_and_its_children_are_known() {
        assert!(is_debian("PRETTY_NAME=\"x\"\nID=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(is_debian("ID=pop\nID_LIKE=\"ubuntu\"\n"));
        assert!(!is_debian("ID=fedora\nVARIANT=debian\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn root_installs_packages_at_once_and_others_through_sudo() {
        let missing = [need("gcc"), need("libc6-dev")];
        assert_eq!(
            lines(&missing, ROOT),
            [
                "env DEBIAN_FRONTEND=noninteractive apt-get update",
                "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc",
                "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libc6-dev"
            ]
        );
        let user = Machine { root: false, sudo: true, ..ROOT };
        assert!(
            lines(&missing, user)[1]
                .starts_with("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install")
        );
    }

    #[test]
    fn nobody_is_asked_for_what_the_machine_cannot_do() {
        let user = Machine { root: false, ..ROOT };
        assert_eq!(lines(&[need("gcc")], user), [""]);
        assert_eq!(lines(&[need("gcc")], Machine { debian: false, ..ROOT }), [""]);
        assert_eq!(lines(&[need("clippy")], Machine { rustup: false, ..ROOT }), [""]);
        assert_eq!(lines(&[need("clippy")], user), ["rustup component add clippy"]);
    }

    #[test]
    fn the_advice_names_each_need() {
        let missing = [need("gcc"), need("clippy")];
        let by_hand = advice(&missing, &commands(&missing, &Machine { debian: false, ..ROOT }));
        assert!(
            by_hand.contains("gcc (its name on Debian)") && by_hand.contains("your system's way"),
            "{by_hand}"
        );
        let would = advice(&missing, &commands(&missing, &ROOT));
        assert!(would.contains("would run:\n  env DEBIAN_FRONTEND=noninteractive apt-get update"), "{would}");
    }

    #[test]
    fn what_is_for_rdma_devices_may_be_missing() {
        let [libclang, gcc] = ["libclang-14-dev", "gcc"].map(need);
        assert!(libclang.can_be_done_without() && !gcc.can_be_done_without());
        let warning = libclang.not_installed();
        assert!(
            warning.starts_with("warning: libclang-14-dev") && warning.contains("all else can"),
            "{warning}"
        );
        assert!(gcc.not_installed().starts_with("error: gcc"), "{}", gcc.not_installed());
    }

    #[test]
    fn probes_tell_what_is_there() {
        assert!(is_there(&Probe::Program("sh")));
        assert!(!is_there(&Probe::Program("no-such-program-anywhere")));
        assert!(is_there(&Probe::File(&["/no/such/file", "/"])));
        assert!(!is_there(&Probe::File(&["/no/such/file"])));
        assert!(!is_there(&Probe::Cargo("no-such-command")));
    }
}
