//! The guest's file system: busybox, the networking and RDMA tools, the libraries they link, the drivers, and the host's
//! own C library, so that programs built on the host run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;
use super::kernel::Modules;
use super::tool;

pub(super) const INIT: &str = include_str!("guest/init.sh");
pub(super) const NET: &str = include_str!("guest/net.sh");

/// Drivers to load; what they depend on comes along. rdma_rxe asks the kernel for crc32 at run time: no dependency says so.
pub(super) const MODULES: &[&str] =
    &["virtio_mmio", "9pnet_virtio", "9p", "crc32_generic", "veth", "ib_uverbs", "rdma_rxe"];
const PROGRAMS: &[&str] = &[
    "ip",
    "rdma",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
];
/// What programs built on the host may link besides the C library.
const LIBRARIES: &[&str] = &["libibverbs.so.1", "librdmacm.so.1"];
/// From the host: its dynamic loader, a shell, and the libraries of every Rust program.
pub(super) const HOST_LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
pub(super) const HOST_SHELL: &str = "/bin/dash";
pub(super) const HOST_LIBRARIES: &[&str] = &[
    "/lib/x86_64-linux-gnu/libc.so.6",
    "/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "/lib/x86_64-linux-gnu/libm.so.6",
];

const LIB: &str = "usr/lib/x86_64-linux-gnu";
const FOLDERS: &[&str] = &[
    "dev",
    "etc",
    "etc/libibverbs.d",
    "lib64",
    "modules",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "usr",
    "usr/bin",
    "usr/lib",
    LIB,
    "usr/lib/x86_64-linux-gnu/libibverbs",
];
const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("lib", "usr/lib"),
    ("sbin", "usr/bin"),
    ("usr/sbin", "bin"),
    // Busybox's own shell would run busybox's ip.
    ("usr/bin/sh", "dash"),
];
const FILES: &[(&str, &str)] = &[
    ("etc/group", "root:x:0:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n"),
    ("etc/libibverbs.d/rxe.driver", "driver rxe\n"),
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
    ("etc/shrc", "ip() { /usr/bin/ip \"$@\"; }\nPS1='vm:\\w# '\n"),
];

/// Builds it from unpacked packages.
pub(super) fn build(userland: &Path, modules: &Modules) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    FOLDERS.iter().for_each(|path| archive.folder(path));
    LINKS.iter().for_each(|(path, to)| archive.link(path, to));
    FILES.iter().for_each(|(path, text)| archive.file(path, text.as_bytes()));
    archive.program("init", INIT.as_bytes());
    archive.program("usr/bin/vm-net", NET.as_bytes());
    archive.program("usr/bin/dash", &read(Path::new(HOST_SHELL))?);
    busybox(userland, &mut archive)?;
    programs(userland, &mut archive)?;
    drivers(modules, &mut archive)?;
    Ok(archive.finish())
}

fn busybox(userland: &Path, archive: &mut Archive) -> Result<()> {
    let busybox = find(userland, &["usr/bin", "bin"], "busybox")?;
    archive.program("usr/bin/busybox", &read(&busybox)?);
    for applet in tool::run(Command::new(&busybox).arg("--list"))? {
        let ours =
            PROGRAMS.contains(&applet.as_str()) || ["busybox", "sh", "dash"].contains(&applet.as_str());
        if !ours {
            archive.link(&format!("usr/bin/{applet}"), "busybox");
        }
    }
    Ok(())
}

/// The programs, the libraries, and what both need.
fn programs(userland: &Path, archive: &mut Archive) -> Result<()> {
    let mut needed = BTreeMap::new();
    for name in PROGRAMS {
        let path = find(userland, &["usr/bin", "bin", "usr/sbin", "sbin"], name)?;
        archive.program(&format!("usr/bin/{name}"), &read(&path)?);
        libraries_of(&path, userland, &mut needed)?;
    }
    let providers = format!("{LIB}/libibverbs");
    let provider = find_if(userland, &[&providers], "librxe-*.so", |name| {
        name.starts_with("librxe-") && name.ends_with(".so")
    })?;
    libraries_of(&provider, userland, &mut needed)?;
    let name = provider.file_name().unwrap_or_default().to_string_lossy();
    archive.file(&format!("{providers}/{name}"), &read(&provider)?);
    for name in LIBRARIES {
        let path = find(userland, &library_folders(), name)?;
        libraries_of(&path, userland, &mut needed)?;
        needed.insert((*name).to_owned(), path);
    }
    for path in HOST_LIBRARIES.iter().map(Path::new) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        needed.insert(name.into_owned(), path.to_path_buf());
    }
    for (name, path) in needed {
        archive.program(&format!("{LIB}/{name}"), &read(&path)?);
    }
    archive.program(HOST_LOADER.trim_start_matches('/'), &read(Path::new(HOST_LOADER))?);
    Ok(())
}

fn drivers(modules: &Modules, archive: &mut Archive) -> Result<()> {
    let mut order = String::new();
    for (name, module) in modules.in_order(MODULES)? {
        archive.file(&format!("modules/{name}.ko"), &module);
        order += &format!("{name}\n");
    }
    archive.file("modules/order", order.as_bytes());
    Ok(())
}

/// Where packages put libraries, before and after the merge of /usr.
fn library_folders() -> [&'static str; 2] {
    [LIB, LIB.trim_start_matches("usr/")]
}

fn find(userland: &Path, folders: &[&str], name: &str) -> Result<PathBuf> {
    find_if(userland, folders, name, |file| file == name)
}

fn find_if(userland: &Path, folders: &[&str], name: &str, is_it: impl Fn(&str) -> bool) -> Result<PathBuf> {
    for folder in folders {
        let Ok(entries) = fs::read_dir(userland.join(folder)) else { continue };
        for entry in entries {
            let entry = entry?;
            if is_it(&entry.file_name().to_string_lossy()) {
                return Ok(entry.path());
            }
        }
    }
    bail!("the packages hold no {name} in {}", folders.join(", "))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Adds the libraries that the dynamic loader gives to `file`.
fn libraries_of(file: &Path, userland: &Path, needed: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let folders = library_folders().map(|folder| userland.join(folder));
    let path = std::env::join_paths(folders).context("a target directory with a colon in its path")?;
    for line in tool::run(Command::new("ldd").env("LD_LIBRARY_PATH", path).arg(file))? {
        match dependency(&line) {
            Some((name, Some(path))) => {
                needed.insert(name.to_owned(), path.to_path_buf());
            }
            Some((name, None)) => bail!("{} needs {name}, which no package of the guest has", file.display()),
            None => {}
        }
    }
    Ok(())
}

/// Reads a line of `ldd`: the library's name, and its file if it has one.
fn dependency(line: &str) -> Option<(&str, Option<&Path>)> {
    let (name, file) = line.trim().split_once(" => ")?;
    let file = file.rsplit_once(" (").map(|(file, _address)| Path::new(file));
    Some((name, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_ldd() {
        assert_eq!(
            dependency("\tlibc.so.6 => /lib/x y/libc.so.6 (0x00007f)"),
            Some(("libc.so.6", Some(Path::new("/lib/x y/libc.so.6"))))
        );
        assert_eq!(dependency("\tlibx.so => not found"), Some(("libx.so", None)));
        assert_eq!(dependency("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(dependency("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"), None);
    }

    #[test]
    fn the_scripts_are_good_shell() {
        for script in [INIT, NET] {
            tool::run(Command::new("sh").args(["-n", "-c", script])).unwrap();
        }
    }

    #[test]
    fn folders_come_before_what_they_hold() {
        let mut made = vec![""];
        for folder in FOLDERS {
            let parent = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
            assert!(made.contains(&parent), "{folder}");
            made.push(folder);
        }
    }
}
