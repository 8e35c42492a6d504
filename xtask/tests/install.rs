//! What `xtask install` puts below a prefix, used as strangers would: C and C++ programs are built against it with
//! pkg-config and CMake, linked with either library, and run. `cargo test -p xtask --test install -- --ignored`.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

const NAME: &str = "cudaq-realtime-cpu-roce-transport";
const LIBRARY: &str = "libcudaq-realtime-cpu-roce-transport.so";
const PROVIDER: &str = "libcudaq-realtime-bridge-cpu-roce.so";
const CALLS: &str = "50";

const FILES: [&str; 16] = [
    "bin/hsb",
    "bin/hsb-bridge-cpu",
    "bin/hsb-fpga-emulator",
    "bin/hsb-fpga-playback",
    "bin/roce-call",
    "bin/roce-perf",
    "bin/roce-service",
    "include/cudaq/realtime/cpu_transport/roce_wrapper.h",
    "include/cudaq/realtime/cpu_transport/roce_wrapper_ext.h",
    "lib/cmake/cudaq-realtime-cpu-roce-transport/cudaq-realtime-cpu-roce-transport-config-version.cmake",
    "lib/cmake/cudaq-realtime-cpu-roce-transport/cudaq-realtime-cpu-roce-transport-config.cmake",
    "lib/libcudaq-realtime-bridge-cpu-roce.so",
    "lib/libcudaq-realtime-cpu-roce-transport.a",
    "lib/libcudaq-realtime-cpu-roce-transport.so",
    "lib/pkgconfig/cudaq-realtime-cpu-roce-transport-static.pc",
    "lib/pkgconfig/cudaq-realtime-cpu-roce-transport.pc",
];

/// A folder of this process, in the build directory. What earlier ones left goes.
fn scratch(name: &str) -> PathBuf {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("install");
        fs::create_dir_all(&all).unwrap();
        for earlier in fs::read_dir(&all).unwrap() {
            let earlier = earlier.unwrap().path();
            if !Path::new("/proc").join(earlier.file_name().unwrap()).exists() {
                let _ = fs::remove_dir_all(earlier);
            }
        }
        all.join(std::process::id().to_string())
    });
    let path = ROOT.join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Runs a command that must succeed; what it says on both streams.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

fn install(args: &[&str]) -> String {
    run(Command::new(env!("CARGO_BIN_EXE_xtask")).arg("install").args(args))
}

/// The prefix, and what was said of RDMA devices.
static INSTALLED: LazyLock<(PathBuf, String)> = LazyLock::new(|| {
    let prefix = scratch("prefix");
    let said = install(&["--prefix", prefix.to_str().unwrap()]);
    (prefix, said)
});

fn prefix() -> &'static Path {
    &INSTALLED.0
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

/// What pkg-config says of a package.
fn flags(package: &str) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", package]).env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    run(&mut command).split_whitespace().map(str::to_owned).collect()
}

/// Compiles a source as C11 or C++17, with the flags behind it.
fn compile(source: &Path, into: &Path, flags: &[String]) -> PathBuf {
    let is_c = source.extension().unwrap() == "c";
    let program = into.join(source.file_stem().unwrap());
    let mut command = Command::new(if is_c { "cc" } else { "c++" });
    command.args([if is_c { "-std=c11" } else { "-std=c++17" }, "-pthread", "-Wall", "-Wextra", "-Werror"]);
    run(command.arg(source).arg("-o").arg(&program).args(flags));
    program
}

fn examples(into: &Path, flags: &[String]) {
    for source in ["ring_caller.c", "ring_service.c", "shared_service.c", "unified_service.cpp"] {
        compile(&example(source), into, flags);
    }
}

/// An address that nobody else has.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let [.., n] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 0x60 | (a ^ n) & 0x1F, b, c).to_string()
}

/// Ends with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both services answer the caller, all built in this folder. `change` may change how they are started.
fn they_talk(programs: &Path, change: impl Fn(&mut Command)) {
    for service in ["ring_service", "unified_service"] {
        let (ours, theirs) = (address(), address());
        let mut command = Command::new(programs.join(service));
        change(command.args(["soft", &theirs, "0", CALLS]).stdout(Stdio::piped()));
        let mut service = Service(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(service.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim_end().rsplit(' ').next().unwrap();
        let mut caller = Command::new(programs.join("ring_caller"));
        change(caller.args(["soft", &ours, &theirs, port, CALLS]));
        let said = run(&mut caller);
        assert!(said.starts_with(&format!("{CALLS} of {CALLS} calls answered well\n")), "{said}");
        assert!(service.0.wait().unwrap().success());
    }
}

fn with_our_library(command: &mut Command) {
    command.env("LD_LIBRARY_PATH", prefix().join("lib"));
}

fn needed(program: &Path) -> BTreeSet<String> {
    let text = run(Command::new("readelf").arg("--dynamic").arg(program));
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    lines.map(|line| line.rsplit('[').next().unwrap().trim_end_matches(']').to_owned()).collect()
}

/// All files below a folder, relative to it.
fn files(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
#[ignore = "builds everything optimised; `cargo xtask test` runs it"]
fn a_staged_tree_speaks_of_its_later_place() {
    let stage = scratch("stage");
    let said = install(&["--destdir", stage.to_str().unwrap(), "--prefix", "/opt/roce"]);
    let root = stage.join("opt/roce");
    assert_eq!(files(&root), FILES.map(str::to_owned).into());
    for file in FILES {
        assert!(said.contains(root.join(file).to_str().unwrap()), "{file}: {said}");
    }
    let text = fs::read_to_string(root.join("lib/pkgconfig").join(format!("{NAME}.pc"))).unwrap();
    assert!(text.starts_with("prefix=/opt/roce\n"), "{text}");
}

#[test]
#[ignore = "builds everything optimised; `cargo xtask test` runs it"]
fn pkg_config_links_the_shared_library() {
    let dir = scratch("shared");
    examples(&dir, &flags(NAME));
    assert!(needed(&dir.join("ring_caller")).contains(LIBRARY));
    they_talk(&dir, with_our_library);
}

#[test]
#[ignore = "builds everything optimised; `cargo xtask test` runs it"]
fn pkg_config_links_the_static_library() {
    let dir = scratch("static");
    examples(&dir, &flags(&format!("{NAME}-static")));
    assert!(!needed(&dir.join("ring_caller")).contains(LIBRARY));
    they_talk(&dir, |_| ());
}

#[test]
#[ignore = "builds everything optimised; `cargo xtask test` runs it"]
fn cmake_finds_the_package() {
    for (kind, option) in [("shared", "OFF"), ("static", "ON")] {
        let dir = scratch(&format!("cmake-{kind}"));
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(example("")).arg("-B").arg(&dir);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display()));
        run(configure.arg(format!("-DROCE_STATIC={option}")));
        run(Command::new("cmake").arg("--build").arg(&dir));
        assert_eq!(needed(&dir.join("ring_caller")).contains(LIBRARY), kind == "shared");
        they_talk(&dir, |_| ());
    }
    // A version that it is not.
    let dir = scratch("cmake-version");
    fs::write(
        dir.join("CMakeLists.txt"),
        format!("cmake_minimum_required(VERSION 3.16)\nproject(x C)\nfind_package({NAME} 7.0 REQUIRED)\n"),
    )
    .unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&dir).arg("-B").arg(dir.join("build"));
    let output = configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("version: 0."), "{output:?}");
}

#[test]
#[ignore = "builds everything optimised; `cargo xtask test` runs it"]
fn the_shared_libraries_have_the_known_names_and_symbols() {
    let headers = prefix().join("include/cudaq/realtime/cpu_transport");
    let declared: String = ["roce_wrapper.h", "roce_wrapper_ext.h"]
        .map(|header| fs::read_to_string(headers.join(header)).unwrap())
        .concat();
    for (library, declared) in
        [(LIBRARY, declared.as_str()), (PROVIDER, "cudaq_realtime_get_bridge_interface(")]
    {
        let path = prefix().join("lib").join(library);
        let dynamic = run(Command::new("readelf").arg("--dynamic").arg(&path));
        assert!(dynamic.contains(&format!("Library soname: [{library}]")), "{dynamic}");
        // Of the system alone, so that it loads on machines without libibverbs.
        let system =
            ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
        let needed = needed(&path);
        assert!(needed.iter().all(|name| system.contains(&name.as_str())), "{library}: {needed:?}");
        let symbols = run(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&path));
        let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
        assert!(!names.is_empty(), "{library}");
        let unknown: Vec<_> = names.iter().filter(|name| !declared.contains(&format!("{name}("))).collect();
        assert!(unknown.is_empty(), "{library}: {unknown:?}");
    }
}

/// Programs that were linked with another library of that name, which does nothing, run with ours by its path alone.
#[test]
#[ignore = "builds everything optimised; `cargo xtask test` runs it"]
fn it_drops_in_for_another_library() {
    let dir = scratch("other");
    let symbols =
        run(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(prefix().join("lib").join(LIBRARY)));
    let functions: String = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(|name| format!("void *{name}(void) {{ return 0; }}\n"))
        .collect();
    fs::write(dir.join("other.c"), functions).unwrap();
    let mut other = Command::new("cc");
    other.args(["-shared", "-fPIC", &format!("-Wl,-soname,{LIBRARY}"), "-o"]).arg(dir.join(LIBRARY));
    run(other.arg(dir.join("other.c")));
    let mut flags: Vec<String> = flags(NAME).into_iter().filter(|flag| flag.starts_with("-I")).collect();
    let here = dir.display();
    flags.extend([format!("-L{here}"), format!("-l{NAME}"), format!("-Wl,-rpath,{here},--enable-new-dtags")]);
    examples(&dir, &flags);
    let caller = dir.join("ring_caller");
    let with_the_other =
        Command::new(&caller).args(["soft", "127.0.0.1", "127.0.0.1", "1", "1"]).output().unwrap();
    assert!(!with_the_other.status.success() && with_the_other.stderr.is_empty(), "it does nothing");
    they_talk(&dir, with_our_library);
}

/// With the loader's help, for whom no libibverbs exists then: soft devices work, and an RDMA device's name gives an error
/// that says what to install.
#[test]
#[ignore = "builds everything optimised; `cargo xtask test` runs it"]
fn without_libibverbs_soft_devices_work() {
    assert!(
        INSTALLED.1.contains("They open soft and RDMA devices"),
        "the library was built without RDMA devices; `cargo xtask setup` installs what that needs: {}",
        INSTALLED.1
    );
    let dir = scratch("hidden");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/install_c");
    let hider = dir.join("hide_verbs.so");
    run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&hider).arg(sources.join("hide_verbs.c")));
    let hides = |command: &mut Command| {
        with_our_library(command);
        command.env("LD_AUDIT", &hider);
    };
    let opener = compile(&sources.join("open_device.c"), &dir, &flags(NAME));
    let open = |device: &str, hidden: bool| {
        let mut command = Command::new(&opener);
        with_our_library(&mut command);
        if hidden {
            hides(&mut command);
        }
        let output = command.arg(device).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = open("mlx5_77", true);
    assert!(said.contains("hidden: libibverbs.so.1"), "the loader was not asked for it: {said}");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("cannot load libibverbs") && said.contains("libibverbs1"), "{said}");
    // Where it is there, the same name fails for another reason: what was hidden made the difference.
    let (status, said) = open("mlx5_77", false);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("mlx5_77") && !said.contains("cannot load"), "{said}");
    let (status, said) = open(&format!("soft:{}", address()), true);
    assert_eq!((status, said.as_str()), (Some(0), ""));
    examples(&dir, &flags(NAME));
    they_talk(&dir, hides);
}
