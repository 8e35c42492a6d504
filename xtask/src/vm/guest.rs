//! The built guest, a kernel and its file system, kept in `target/vm` until something that it is made of changes.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::initramfs::{self, HOST_LIBRARIES, HOST_LOADER, HOST_SHELL};
use super::kernel::{self, Modules};
use super::packages::{self, Apt, Package, WANTED};
use super::{Progress, scratch::Scratch};
use crate::interrupt;

/// Sources that decide what the guest is: a change of any of them rebuilds it.
const RECIPE: &[&str] = &[
    initramfs::INIT,
    initramfs::NET,
    include_str!("cpio.rs"),
    include_str!("guest.rs"),
    include_str!("initramfs.rs"),
    include_str!("kernel.rs"),
    include_str!("packages.rs"),
];
/// Where apt keeps the lists of the machine; they change when it learns of new versions.
const APT_LISTS: &str = "/var/lib/apt/lists";
/// How long between two looks at a lock that others have.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a guest is made of, as text. Two guests are alike when their texts are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inputs {
    /// Known without asking apt.
    cheap: String,
    packages: String,
}

/// Puts the guest's files into `dir`, as `vmlinux` and `initramfs`, and returns the kernel's release ("6.1.0-57-amd64").
/// The guest is built first where `vm` has none, or one that is not made of what it should be.
pub(super) fn lend(vm: &Path, dir: &Path, progress: Progress) -> Result<String> {
    let _lock = lock(vm, progress)?;
    let guest = Guest { dir: vm.join("guest") };
    guest.refresh(vm, progress)?;
    for name in ["vmlinux", "initramfs"] {
        let file = guest.dir.join(name);
        fs::hard_link(&file, dir.join(name))
            .with_context(|| format!("cannot link {} into {}", file.display(), dir.display()))?;
    }
    guest.note("release").with_context(|| format!("{} does not say its release", guest.dir.display()))
}

/// A kernel and a file system that belong together.
#[derive(Debug)]
struct Guest {
    dir: PathBuf,
}

impl Guest {
    fn refresh(&self, vm: &Path, progress: Progress) -> Result<()> {
        let cheap = cheap_inputs(HOST_LIBRARIES.iter().chain([&HOST_LOADER, &HOST_SHELL]))?;
        let lists = stamp_of_lists();
        let fits = self.inputs().is_some_and(|inputs| inputs.cheap == cheap);
        if fits && self.note("lists").as_deref() == Some(&lists) {
            return Ok(());
        }
        match self.renew(vm, &cheap, progress) {
            Ok(()) => {
                fs::write(self.dir.join("lists"), lists).context("cannot note the state of apt's lists")
            }
            Err(error) if fits && interrupt::check().is_ok() => {
                progress.line(&format!("keeping the guest as it is, for apt does not answer: {error:#}"));
                Ok(())
            }
            Err(error) => Err(error.context("cannot build the guest")),
        }
    }

    fn inputs(&self) -> Option<Inputs> {
        Some(Inputs { cheap: self.note("inputs")?, packages: self.note("packages")? })
    }

    fn note(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(name)).ok()
    }

    /// Asks apt what the guest should be made of, and builds it where it is not. The machine's lists may be missing, or so
    /// old that the archive has nothing of what they name: then fresh ones are fetched.
    fn renew(&self, vm: &Path, cheap: &str, progress: Progress) -> Result<()> {
        let ways: [fn(&Path) -> Result<Apt>; 2] = [Apt::of_the_machine, Apt::of_our_own];
        let mut reasons = Vec::new();
        for way in ways {
            let asked = way(&vm.join("apt")).and_then(|apt| {
                let packages = apt.packages()?;
                let inputs = Inputs { cheap: cheap.to_owned(), packages: listed(&packages) };
                if self.inputs().as_ref() == Some(&inputs) {
                    return Ok(());
                }
                self.build(vm, &apt, &packages, &inputs, progress)
            });
            match asked {
                Ok(()) => return Ok(()),
                Err(error) => {
                    interrupt::check()?;
                    if reasons.is_empty() {
                        progress.line("apt's package lists do not do; trying with fresh ones");
                    }
                    reasons.push(format!("{error:#}"));
                }
            }
        }
        bail!("{}", reasons.join("; then, with fresh package lists: "))
    }

    fn build(
        &self,
        vm: &Path,
        apt: &Apt,
        packages: &[Package],
        inputs: &Inputs,
        progress: Progress,
    ) -> Result<()> {
        let scratch = Scratch::new(vm)?;
        let [debs, kernel, userland, made] =
            ["debs", "kernel", "userland", "made"].map(|name| scratch.path().join(name));
        for dir in [&debs, &kernel, &userland, &made] {
            fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        progress.line(&format!("building the guest: downloading {} packages ...", packages.len()));
        apt.download(packages, &debs)?;
        progress.line("building the guest: unpacking ...");
        packages::unpack(&debs, &kernel, &userland)?;
        let modules = only_entry(&["lib/modules", "usr/lib/modules"].map(|dir| kernel.join(dir)))?;
        let release = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
        kernel::extract(&kernel.join(format!("boot/vmlinuz-{release}")), &made.join("vmlinux"))?;
        let files = initramfs::build(&userland, &Modules::below(&modules)?)?;
        progress
            .line(&format!("building the guest: Linux {release}, file system of {} MiB", files.len() >> 20));
        let notes = [("release", &release), ("inputs", &inputs.cheap), ("packages", &inputs.packages)];
        for (name, text) in notes {
            fs::write(made.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        fs::write(made.join("initramfs"), files).context("cannot write the file system")?;
        // A guest is there whole or not at all.
        if self.dir.exists() {
            fs::rename(&self.dir, scratch.path().join("old")).context("cannot put the old guest aside")?;
        }
        fs::rename(&made, &self.dir).context("cannot put the guest in its place")
    }
}

/// Held while a guest is looked at or built, so that two of us do not build at once.
fn lock(vm: &Path, progress: Progress) -> Result<Flock<File>> {
    fs::create_dir_all(vm).with_context(|| format!("cannot make {}", vm.display()))?;
    let path = vm.join("lock");
    let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut told = false;
    loop {
        // Not one call that waits: no signal would end it.
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, errno)) => bail!("cannot lock {}: {errno}", path.display()),
        };
        if !told {
            progress.line(&format!(
                "waiting for another run, which has {} and may build the guest",
                path.display()
            ));
            told = true;
        }
        interrupt::check()?;
        thread::sleep(LOOK_EVERY);
    }
}

/// `from_the_host`: files that the guest takes from the host.
fn cheap_inputs<'a>(from_the_host: impl IntoIterator<Item = &'a &'a str>) -> Result<String> {
    let mut text = format!("recipe {:016x}\nwanted {}\n", fingerprint(RECIPE), WANTED.join(" "));
    for path in from_the_host {
        let facts = fs::metadata(path).with_context(|| {
            format!("cannot find {path}; the guest takes it from a Debian or Ubuntu host")
        })?;
        text += &format!("{path} {} {}\n", facts.size(), facts.mtime());
    }
    Ok(text)
}

fn listed(packages: &[Package]) -> String {
    packages.iter().map(|package| format!("{} {}\n", package.name, package.version)).collect()
}

/// Changes whenever `apt-get update` brought something.
fn stamp_of_lists() -> String {
    let mut files = 0;
    let mut newest = 0;
    for entry in fs::read_dir(APT_LISTS).into_iter().flatten().flatten() {
        let Ok(facts) = entry.metadata() else { continue };
        if facts.is_file() && facts.size() > 0 {
            files += 1;
            newest = newest.max(facts.mtime());
        }
    }
    format!("{files} files, newest {newest}")
}

/// FNV-1a over the parts, each closed by a byte that no text has.
fn fingerprint(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xFF]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The one entry of the first folder that exists.
fn only_entry(folders: &[PathBuf]) -> Result<PathBuf> {
    let folder =
        folders.iter().find(|folder| folder.is_dir()).context("the kernel's package has no modules")?;
    let mut entries = fs::read_dir(folder)?;
    let entry = entries.next().with_context(|| format!("{} is empty", folder.display()))??;
    if entries.next().is_some() {
        bail!("{} holds more than one kernel's modules", folder.display());
    }
    Ok(entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_fnv_and_knows_where_parts_end() {
        assert_eq!(fingerprint(&[]), 0xcbf2_9ce4_8422_2325);
        assert_ne!(fingerprint(&["ab", "c"]), fingerprint(&["a", "bc"]));
        assert_ne!(fingerprint(&["ab"]), fingerprint(&["ab", ""]));
        assert_eq!(fingerprint(RECIPE), fingerprint(RECIPE));
    }

    #[test]
    fn inputs_tell_of_the_recipe_the_list_and_the_host() {
        let dir = crate::vm::scratch_for_tests("inputs");
        let library = dir.join("libc.so.6");
        let name = library.to_str().unwrap();
        assert!(cheap_inputs([&name]).unwrap_err().to_string().contains(name));
        fs::write(&library, "1").unwrap();
        let inputs = cheap_inputs([&name]).unwrap();
        assert!(inputs.starts_with(&format!("recipe {:016x}\n", fingerprint(RECIPE))), "{inputs}");
        assert!(WANTED.iter().all(|wanted| inputs.contains(wanted)), "{inputs}");
        assert_eq!(inputs, cheap_inputs([&name]).unwrap());
        fs::write(&library, "22").unwrap();
        assert_ne!(inputs, cheap_inputs([&name]).unwrap(), "another C library is another guest");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_guest_is_known_by_its_notes() {
        let vm = crate::vm::scratch_for_tests("guest");
        let guest = Guest { dir: vm.join("guest") };
        assert_eq!(guest.inputs(), None);
        fs::create_dir(&guest.dir).unwrap();
        fs::write(guest.dir.join("inputs"), "recipe 1\n").unwrap();
        assert_eq!(guest.inputs(), None, "half a guest is none");
        fs::write(guest.dir.join("packages"), "a 1\n").unwrap();
        let package = |version: &str| Package { name: "a".into(), version: version.into() };
        let made_of = |version| Inputs { cheap: "recipe 1\n".into(), packages: listed(&[package(version)]) };
        assert_eq!(guest.inputs(), Some(made_of("1")));
        assert_ne!(guest.inputs(), Some(made_of("2")), "another version is another guest");
        fs::remove_dir_all(vm).unwrap();
    }

    #[test]
    fn the_only_entry_is_taken_and_no_choice_is_made() {
        let dir = crate::vm::scratch_for_tests("only");
        let folders = [dir.join("absent"), dir.join("modules")];
        assert!(only_entry(&folders).is_err());
        fs::create_dir_all(folders[1].join("6.1")).unwrap();
        assert_eq!(only_entry(&folders).unwrap(), folders[1].join("6.1"));
        fs::create_dir_all(folders[1].join("6.2")).unwrap();
        assert!(only_entry(&folders).is_err());
        fs::remove_dir_all(dir).unwrap();
    }
}
