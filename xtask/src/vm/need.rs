//! Whether this machine has what building and running a guest needs, asked before anything is begun.

use anyhow::{Result, bail, ensure};

use super::qemu;
use crate::setup::on_path;

/// Programs, and the Debian packages that they come from.
const PROGRAMS: &[(&str, &str)] = &[
    (qemu::PROGRAM, "qemu-system-x86"),
    ("apt-get", "apt"),
    ("apt-cache", "apt"),
    ("dpkg-deb", "dpkg"),
    ("ldd", "libc-bin"),
    ("xz", "xz-utils"),
];

pub(super) fn check() -> Result<()> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the guest is an x86-64 machine that runs programs built here, which this machine's are not"
    );
    let missing: Vec<String> = PROGRAMS
        .iter()
        .filter(|(program, _)| !on_path(program))
        .map(|(program, package)| format!("{program} (Debian package {package})"))
        .collect();
    if !missing.is_empty() {
        bail!(
            "no virtual machine without {}; `cargo xtask setup` installs it. The guest is built from Debian packages, so this \
             needs a Debian host",
            missing.join(", ")
        );
    }
    Ok(())
}
