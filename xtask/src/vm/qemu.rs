//! QEMU: how it is called, and which accelerator it gets.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::job::{Job, Share};

pub(super) const PROGRAM: &str = "qemu-system-x86_64";
const KVM: &str = "/dev/kvm";

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accel {
    /// The processor.
    Kvm,
    /// QEMU itself; works everywhere.
    Tcg,
}

impl Accel {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kvm => "KVM",
            Self::Tcg => "TCG",
        }
    }

    /// How long each try waits for the guest's first line. A busy host is slow, a hung guest says nothing for ever.
    pub(super) fn patience(self) -> &'static [Duration] {
        match self {
            Self::Kvm => const { &[Duration::from_secs(5)] },
            Self::Tcg => {
                const { &[Duration::from_secs(20), Duration::from_secs(30), Duration::from_secs(60)] }
            }
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// The machine's own serial ports, by the number of an open socket each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) console: i32,
    pub(super) output: i32,
}

/// The arguments for one boot. `dir` holds `vmlinux` and `initrd`.
pub(super) fn arguments(
    job: &Job,
    accel: Accel,
    dir: &Path,
    shares: &[Share],
    ports: Ports,
    verbose: bool,
) -> Vec<OsString> {
    let mut args: Vec<OsString> = [
        "-M",
        "microvm",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
        "-device",
        "isa-debug-exit,iobase=0xf4,iosize=4",
        "-device",
        "isa-serial,iobase=0x3f8,irq=4,index=0,chardev=console",
        "-device",
        "isa-serial,iobase=0x2f8,irq=3,index=1,chardev=output",
    ]
    .map(OsString::from)
    .to_vec();
    let mut add = |option: &str, value: OsString| args.extend([option.into(), value]);
    add("-chardev", format!("socket,id=console,fd={}", ports.console).into());
    add("-chardev", format!("socket,id=output,fd={}", ports.output).into());
    add("-smp", job.smp.to_string().into());
    add("-m", job.mem.to_string().into());
    add("-kernel", dir.join("vmlinux").into());
    add("-initrd", dir.join("initrd").into());
    add("-append", kernel_command_line(accel, verbose).into());
    for (index, share) in shares.iter().enumerate() {
        let tag = Share::tag(index);
        let mut device = OsString::from(format!("local,id={tag},security_model=none,multidevs=remap,path="));
        device.push(without_commas(&share.path));
        device.push(if share.writable { "" } else { ",readonly=on" });
        add("-fsdev", device);
        add("-device", format!("virtio-9p-device,fsdev={tag},mount_tag={tag}").into());
    }
    args.extend(accel.arguments().map(OsString::from));
    args
}

/// QEMU reads two commas as one that separates nothing.
fn without_commas(path: &Path) -> OsString {
    let parts: Vec<&[u8]> =
        std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).split(|b| *b == b',').collect();
    std::os::unix::ffi::OsStringExt::from_vec(parts.join(&b",,"[..]))
}

fn kernel_command_line(accel: Accel, verbose: bool) -> String {
    let mut line = "console=ttyS0 panic=-1 oops=panic mitigations=off".to_owned();
    if !verbose {
        line += " quiet";
    }
    if accel == Accel::Tcg {
        // TCG's time stamp counter is the host's, but says so nowhere: without this the clock ticks in 4 ms, and now and then
        // the kernel measures for ever.
        line += " tsc=reliable";
        if let Some(khz) = tsc_khz(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()) {
            line += &format!(" tsc_early_khz={khz}");
        }
    }
    line
}

/// The host's counter, from the text of /proc/cpuinfo: "bogomips" is twice its frequency in MHz.
fn tsc_khz(cpuinfo: &str) -> Option<u64> {
    let value = cpuinfo.lines().find_map(|line| line.strip_prefix("bogomips")?.split_once(':'))?.1.trim();
    let (whole, hundredths) = value.split_once('.')?;
    let hundredths: u64 = format!("{hundredths:0<2}").get(..2)?.parse().ok()?;
    Some((whole.parse::<u64>().ok()? * 100 + hundredths) * 5)
}

/// The choice between the accelerators. A KVM that failed is remembered in a file, for this processor and this kernel.
#[derive(Debug)]
pub(super) struct Choice {
    memory: PathBuf,
    host: String,
}

impl Choice {
    pub(super) fn new(vm: &Path) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
        let kernel = fs::read_to_string("/proc/version").unwrap_or_default();
        Self { memory: vm.join("no-kvm"), host: format!("{model}\n{}", kernel.trim()) }
    }

    /// The best that may work.
    pub(super) fn best(&self) -> Accel {
        let usable = OpenOptions::new().read(true).write(true).open(KVM).is_ok();
        if usable && !self.is_remembered() { Accel::Kvm } else { Accel::Tcg }
    }

    /// The file that has to go before KVM is tried again.
    pub(super) fn remember(&self) -> &Path {
        // A memory that cannot be written costs the next boot some seconds, and nothing else.
        let _ = fs::write(&self.memory, &self.host);
        &self.memory
    }

    fn is_remembered(&self) -> bool {
        fs::read_to_string(&self.memory).is_ok_and(|text| text == self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_frequency_is_half_of_bogomips() {
        assert_eq!(tsc_khz("processor: 0\nbogomips\t: 4890.86\n"), Some(2_445_430));
        assert_eq!(tsc_khz("bogomips : 4000.5\n"), Some(2_000_250));
        assert_eq!(tsc_khz("BogoMIPS : 50.00\n"), None);
        assert_eq!(tsc_khz("bogomips : many\n"), None);
    }

    #[test]
    fn commas_in_paths_are_doubled() {
        assert_eq!(without_commas(Path::new("/a,b,/c")), OsString::from("/a,,b,,/c"));
    }

    #[test]
    fn a_failed_kvm_is_remembered_for_this_host_alone() {
        let vm = crate::vm::scratch_for_tests("choice");
        let here = Choice::new(&vm);
        assert!(!here.is_remembered());
        assert_eq!(here.remember(), vm.join("no-kvm"));
        assert!(here.is_remembered());
        assert_eq!(here.best(), Accel::Tcg);
        let elsewhere = Choice { memory: vm.join("no-kvm"), host: "another".to_owned() };
        assert!(!elsewhere.is_remembered());
        fs::remove_dir_all(vm).unwrap();
    }
}
