//! How the three programs are called.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::handshake::BridgeEnd;
use super::link::{self, End, Link, Peer};
use super::options::{Immediate, Mode, Options, Workload};
use crate::{build, cargo};

/// Where the programs are.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) emulator: PathBuf,
    pub(super) bridge: PathBuf,
    pub(super) playback: PathBuf,
}

impl Programs {
    /// Builds them, optimised; with what RDMA devices need, or without.
    pub(super) fn build(verbs: bool) -> Result<Self> {
        if verbs {
            return Self::built_in(&build::verbs_programs()?);
        }
        let built = build::only(&link::PROGRAMS)?;
        let [emulator, bridge, playback] = link::PROGRAMS.map(|name| cargo::named(&built, name));
        Ok(Self { emulator: emulator?, bridge: bridge?, playback: playback? })
    }
}

impl Programs {
    /// Takes those that were built before.
    pub(super) fn built_in(dir: &Path) -> Result<Self> {
        let [emulator, bridge, playback] = link::programs_in(dir)?;
        Ok(Self { emulator, bridge, playback })
    }
}

/// The files of the surface-code workload.
#[derive(Debug, Clone)]
pub(super) struct SurfaceCode {
    /// The detector error model.
    dem: PathBuf,
    /// Detection events, one row a shot.
    dets: PathBuf,
    /// The true flips of the observables, one row a shot.
    obs: PathBuf,
    /// What another decoder predicts, one row a shot.
    pred: PathBuf,
}

impl SurfaceCode {
    /// Bytes of detection events a shot: 120 detectors.
    const BYTES: u32 = 15;

    /// The files below `root`, the workspace's.
    pub(super) fn below(root: &Path) -> Result<Self> {
        let dir = root.join("crates/roce-tools/tests/data");
        let file = |extension: &str| dir.join(format!("surface_d5_r5.{extension}"));
        let files =
            Self { dem: file("dem"), dets: file("dets.b8"), obs: file("obs.b8"), pred: file("pred.b8") };
        for path in [&files.dem, &files.dets, &files.obs, &files.pred] {
            ensure!(path.is_file(), "{} is missing; `git checkout` brings it back", path.display());
        }
        Ok(files)
    }
}

/// Milliseconds that the emulator waits for an answer when answers are dropped on purpose. One that comes later even so
/// is counted as late beside the losses.
const LOSSY_RESPONSE_MS: &str = "2000";

/// The last version of the HSB IP with the older immediate; it has the newer registers, which take more than 4 pages.
const OLDER_IP: &str = "0x2602";

pub(super) fn emulator(options: &Options, link: &Link, end: &End, report: &Path) -> Vec<OsString> {
    let mut args = Args(end.arguments());
    args.value("--port", options.control_port.to_string())
        .value("--bridge-ip", link.bridge.ip.to_string())
        .value("--page-size", options.page_size.to_string())
        .value("--personality", options.personality.name())
        .value("--json", report)
        .flag("--forward", options.mode == Mode::Forward);
    if options.immediate == Some(Immediate::Hsb2510) {
        args.value("--hsb-ip-version", OLDER_IP);
    }
    if let Some(faults) = options.faults {
        args.value("--drop-rate", faults.drop_rate.to_string())
            .value("--seed", faults.seed.to_string())
            .value("--response-timeout-ms", LOSSY_RESPONSE_MS);
    }
    args.0
}

pub(super) fn bridge(
    options: &Options,
    link: &Link,
    code: &SurfaceCode,
    remote_qp: u32,
    report: &Path,
) -> Vec<OsString> {
    let decodes = options.mode != Mode::Forward && options.workloads.contains(&Workload::SurfaceCode);
    let mut args = Args(link.bridge.arguments());
    args.value("--peer-ip", link.peer.ip().to_string())
        .value("--remote-qp", format!("{remote_qp:#x}"))
        .value("--num-pages", options.num_pages.to_string())
        .value("--page-size", options.page_size.to_string())
        .value("--payload-size", largest_payload(options).to_string())
        .value("--timeout", lifetime(options).to_string())
        .value("--json", report)
        .flag("--unified", options.mode == Mode::Unified)
        .flag("--forward", options.mode == Mode::Forward);
    if decodes {
        args.value("--dem", &code.dem);
    }
    if let Some(immediate) = options.immediate {
        args.value("--immediate", immediate.name());
    }
    if let Some(faults) = options.faults {
        // The sides must not drop in step.
        args.value("--drop-rate", faults.drop_rate.to_string())
            .value("--seed", faults.seed.wrapping_add(1).to_string());
    }
    if let Some(pcap) = &options.pcap {
        args.value("--pcap", pcap);
    }
    args.0
}

pub(super) fn playback(
    options: &Options,
    link: &Link,
    workload: Workload,
    code: &SurfaceCode,
    end: &BridgeEnd,
    seconds: u64,
    report: &Path,
) -> Vec<OsString> {
    let mut args = Args::default();
    args.value("--hsb-ip", link.peer.ip().to_string())
        .value("--control-port", options.control_port.to_string())
        .value("--bridge-ip", link.bridge.ip.to_string())
        .value("--bridge-qp", format!("{:#x}", end.qpn))
        .value("--bridge-rkey", end.rkey.to_string())
        .value("--bridge-buffer", format!("{:#x}", end.buffer))
        .value("--num-pages", options.num_pages.to_string())
        .value("--page-size", options.page_size.to_string())
        .value("--timeout", seconds.to_string())
        .value("--json", report)
        .flag("--emulator", matches!(link.peer, Peer::Emulator(_)))
        .flag("--forward", options.mode == Mode::Forward)
        .flag("--start", options.start)
        .flag("--no-verify", !options.verify);
    if let Some(dir) = &options.rtt_csv {
        args.value("--rtt-csv", dir.join(format!("{}.csv", workload.name())));
    }
    match workload {
        Workload::Increment => args
            .value("--num-messages", options.num_messages.to_string())
            .value("--payload-size", options.payload_size.to_string()),
        Workload::SurfaceCode => {
            args.value("--dem", &code.dem).value("--dets", &code.dets);
            args.value("--obs", &code.obs).value("--pred", &code.pred)
        }
    };
    args.0
}

/// What the bridge's frames must hold.
fn largest_payload(options: &Options) -> u32 {
    let of = |workload: &Workload| match workload {
        Workload::Increment => options.payload_size,
        Workload::SurfaceCode => SurfaceCode::BYTES,
    };
    options.workloads.iter().map(of).max().unwrap_or(0)
}

/// Seconds after which the bridge ends by itself: later than we would end it.
fn lifetime(options: &Options) -> u64 {
    options.timeout.as_secs().saturating_add(30)
}

/// A command line in the making.
#[derive(Default)]
struct Args(Vec<OsString>);

impl Args {
    fn value(&mut self, name: &str, value: impl Into<OsString>) -> &mut Self {
        self.0.extend([name.into(), value.into()]);
        self
    }

    fn flag(&mut self, name: &str, given: bool) -> &mut Self {
        self.0.extend(given.then(|| name.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::options::Faults;

    fn code() -> SurfaceCode {
        SurfaceCode { dem: "d".into(), dets: "e".into(), obs: "o".into(), pred: "p".into() }
    }

    fn link() -> Link {
        Link::soft([127, 0, 0, 1].into(), [127, 0, 0, 2].into())
    }

    fn line(args: &[OsString]) -> String {
        args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_default_run() {
        let options = Options::default();
        assert_eq!(
            line(&emulator(&options, &link(), &End::soft([127, 0, 0, 2].into()), Path::new("r"))),
            "--device soft:127.0.0.2 --port 8193 --bridge-ip 127.0.0.1 --page-size 384 --personality fpga --json r"
        );
        assert_eq!(
            line(&bridge(&options, &link(), &code(), 0x12, Path::new("r"))),
            "--device soft:127.0.0.1 --peer-ip 127.0.0.2 --remote-qp 0x12 --num-pages 128 --page-size 384 \
             --payload-size 15 --timeout 150 --json r --dem d"
        );
        let end = BridgeEnd { qpn: 0xab, rkey: 7, buffer: 0 };
        let common = "--hsb-ip 127.0.0.2 --control-port 8193 --bridge-ip 127.0.0.1 --bridge-qp 0xab --bridge-rkey 7 \
                      --bridge-buffer 0x0 --num-pages 128 --page-size 384 --timeout 120 --json r --emulator";
        assert_eq!(
            line(&playback(&options, &link(), Workload::Increment, &code(), &end, 120, Path::new("r"))),
            format!("{common} --num-messages 100 --payload-size 8")
        );
        assert_eq!(
            line(&playback(&options, &link(), Workload::SurfaceCode, &code(), &end, 120, Path::new("r"))),
            format!("{common} --dem d --dets e --obs o --pred p")
        );
    }

    #[test]
    fn devices_are_named_with_port_and_address() {
        let end = |device: &str, last| End {
            device: Some(device.to_owned()),
            port: 2,
            ip: [10, 0, 0, last].into(),
            netns: None,
        };
        let emulator_end = end("mlx5_1", 2);
        let link =
            Link { name: "x".into(), bridge: end("mlx5_0", 1), peer: Peer::Emulator(emulator_end.clone()) };
        let options = Options::default();
        let bridge = line(&bridge(&options, &link, &code(), 1, Path::new("r")));
        let begin = "--device mlx5_0 --ib-port 2 --local-ip 10.0.0.1 --peer-ip 10.0.0.2 --remote-qp 0x1 ";
        assert!(bridge.starts_with(begin), "{bridge}");
        let emulator = line(&emulator(&options, &link, &emulator_end, Path::new("r")));
        assert!(
            emulator.starts_with("--device mlx5_1 --ib-port 2 --local-ip 10.0.0.2 --port 8193 "),
            "{emulator}"
        );
    }

    #[test]
    fn a_real_fpga_is_no_emulator() {
        let fpga = Link { peer: Peer::Fpga { ip: [192, 168, 0, 2].into(), qp: 2 }, ..link() };
        let end = BridgeEnd { qpn: 1, rkey: 7, buffer: 0 };
        let args = line(&playback(
            &Options::default(),
            &fpga,
            Workload::Increment,
            &code(),
            &end,
            9,
            Path::new("r"),
        ));
        assert!(args.starts_with("--hsb-ip 192.168.0.2 ") && !args.contains("--emulator"), "{args}");
    }

    #[test]
    fn forward_decodes_nothing_and_both_sides_drop_apart() {
        let faults = Some(Faults { drop_rate: 0.02, seed: u64::MAX });
        let options = Options { mode: Mode::Forward, faults, pcap: Some("p".into()), ..Options::default() };
        let bridge = line(&bridge(&options, &link(), &code(), 1, Path::new("r")));
        assert!(bridge.ends_with("--forward --drop-rate 0.02 --seed 0 --pcap p"), "{bridge}");
        let emulator = line(&emulator(&options, &link(), &End::soft([127, 0, 0, 2].into()), Path::new("r")));
        let end = "--forward --drop-rate 0.02 --seed 18446744073709551615 --response-timeout-ms 2000";
        assert!(emulator.ends_with(end), "{emulator}");
    }

    #[test]
    fn an_older_fpga_is_older_at_both_ends() {
        let options = Options { immediate: Some(Immediate::Hsb2510), ..Options::default() };
        let bridge = line(&bridge(&options, &link(), &code(), 1, Path::new("r")));
        assert!(bridge.ends_with("--dem d --immediate hsb-2510"), "{bridge}");
        let emulator = line(&emulator(&options, &link(), &End::soft([127, 0, 0, 2].into()), Path::new("r")));
        assert!(emulator.ends_with("--hsb-ip-version 0x2602"), "{emulator}");
    }

    #[test]
    fn frames_hold_the_larger_workload() {
        let large = Options { payload_size: 200, ..Options::default() };
        assert_eq!(largest_payload(&large), 200);
        let small = Options { workloads: vec![Workload::Increment], ..Options::default() };
        assert_eq!(largest_payload(&small), 8);
    }

    #[test]
    fn missing_data_is_named() {
        let error = SurfaceCode::below(Path::new("/no/such/root")).unwrap_err().to_string();
        assert!(error.contains("/no/such/root/crates/roce-tools/tests/data/surface_d5_r5.dem"), "{error}");
    }
}
