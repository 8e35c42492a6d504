//! `cargo xtask vm` as long as no machine has been started.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A build directory, and beside it the names of the programs that a machine needs, of which none is called.
struct Stage(PathBuf);

impl Stage {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("xtask-vm-stage-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::create_dir_all(dir.join("target/vm")).unwrap();
        for program in ["qemu-system-x86_64", "apt-get", "apt-cache", "dpkg-deb", "ldd", "xz"] {
            symlink("/bin/false", dir.join("bin").join(program)).unwrap();
        }
        Self(dir)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_signal_ends_the_wait_for_another_run() {
    let stage = Stage::new();
    let vm = stage.0.join("target/vm");
    let held = Flock::lock(File::create(vm.join("lock")).unwrap(), FlockArg::LockExclusive).unwrap();
    let path = format!("{}:{}", stage.0.join("bin").display(), std::env::var("PATH").unwrap());
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["vm", "--", "true"])
        .env("CARGO_TARGET_DIR", stage.0.join("target"))
        .env("PATH", path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(xtask.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for another run"), "{line}");
    kill(Pid::from_raw(i32::try_from(xtask.id()).unwrap()), Signal::SIGINT).unwrap();
    said.read_to_string(&mut line).unwrap();
    assert_eq!(xtask.wait().unwrap().code(), Some(128 + 2), "{line}");
    let left: Vec<_> = fs::read_dir(&vm).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "files of the run are left");
    drop(held);
}
