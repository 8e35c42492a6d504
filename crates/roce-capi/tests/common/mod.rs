//! C and C++ programs against the library as it is installed.
#![allow(dead_code)] // each test binary uses its part

use std::env;
use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

pub(crate) const SONAME: &str = "libcudaq-realtime-cpu-roce-transport.so";

/// The shared library that Cargo built for this test.
pub(crate) fn library() -> PathBuf {
    let file = "libcudaq_realtime_cpu_roce_transport.so";
    let deps = env::current_exe().expect("our own path").parent().expect("in a folder").to_owned();
    let found = [deps.join(file), deps.join("..").join(file)].into_iter().find(|path| path.exists());
    found.expect("cargo builds the cdylib with the tests")
}

pub(crate) fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A loopback address that no other test of this machine uses at the same time.
pub(crate) fn unused_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [.., high, low] = (std::process::id() << 2).to_be_bytes();
    let [.., n] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 128 | (low >> 2), high, n.max(1))
}

/// A folder with the library under its installed name, and programs built against it.
pub(crate) struct Installed {
    dir: TempDir,
}

impl Installed {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        symlink(library(), dir.path().join(SONAME)).expect("a link");
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles without a warning, as C11 or C++17 by the source's suffix, and links.
    pub(crate) fn compile(&self, source: &Path) -> PathBuf {
        self.compile_with(source, &[])
    }

    pub(crate) fn compile_with(&self, source: &Path, options: &[&str]) -> PathBuf {
        let is_c = source.extension() == Some(OsStr::new("c"));
        let (compiler, standard) = if is_c { ("cc", "-std=c11") } else { ("c++", "-std=c++17") };
        let program = self.dir().join(source.file_stem().expect("a file"));
        let output = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1", "-pthread"])
            .args(options)
            .args(env::var("ROCE_TEST_CFLAGS").unwrap_or_default().split_whitespace())
            .arg("-I")
            .arg(crate_dir().join("include"))
            .arg(source)
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(self.dir())
            .arg("-lcudaq-realtime-cpu-roce-transport")
            .output()
            .expect("a compiler");
        assert!(output.status.success(), "{}: {}", source.display(), text(&output.stderr));
        program
    }

    /// The command that runs a program with the library in its path.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.dir());
        command
    }
}

/// Runs what follows under valgrind: a bad access or a lost block is an error.
pub(crate) fn valgrind(installed: &Installed) -> Command {
    let mut command = installed.command("valgrind");
    command.args(["--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"]);
    // A hash table that lives for ever is known by a pointer to its middle: "possibly" lost.
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    command
}

/// Runs a command that must end well; its standard error.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let stderr = text(&output.stderr);
    let (status, stdout) = (output.status, text(&output.stdout));
    assert!(status.success(), "{command:?} ended with {status}\n{stdout}\n{stderr}");
    stderr
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    text(&output.stdout)
}
