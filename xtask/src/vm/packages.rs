//! The Debian packages of the guest: which, in which versions, downloaded and unpacked but never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tool;

/// Depends on the kernel that Debian would install; not the "cloud" flavour, which has neither rdma_rxe nor 9p.
const KERNEL: &str = "linux-image-amd64";
/// What programs in the guest come from; apt adds what they depend on.
pub(super) const WANTED: &[&str] = &[
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libibverbs1",
    "librdmacm1",
    "perftest",
];
/// Taken from the host, so that what was built there runs.
const FROM_THE_HOST: &[&str] = &["libc6", "libgcc-s1"];

/// A package in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
}

impl Package {
    pub(super) fn is_kernel(&self) -> bool {
        self.name.starts_with("linux-image-")
    }

    /// From a file name as apt prints it: `libelf1_1%3a0.188-2.1_amd64.deb`.
    fn from_file_name(file: &str) -> Option<Self> {
        let mut fields = file.strip_suffix(".deb")?.split('_');
        let (name, version) = (fields.next()?, fields.next()?);
        Some(Self { name: name.to_owned(), version: version.replace("%3a", ":") })
    }
}

/// A way to ask for packages.
#[derive(Debug)]
pub(super) struct Apt {
    options: Vec<String>,
    /// A dpkg status without a package: apt then lists all dependencies.
    nothing_installed: PathBuf,
}

impl Apt {
    /// With the package lists of the machine.
    pub(super) fn of_the_machine(dir: &Path) -> Result<Self> {
        let cache = dir.join("cache");
        for needed in [cache.join("archives/partial"), dir.join("lists/partial")] {
            fs::create_dir_all(&needed).with_context(|| format!("cannot make {}", needed.display()))?;
        }
        let nothing_installed = dir.join("nothing-installed");
        fs::write(&nothing_installed, "")
            .with_context(|| format!("cannot write {}", nothing_installed.display()))?;
        let settings = [
            format!("Dir::Cache={}", cache.display()),
            "Debug::NoLocking=1".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ];
        let options = settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect();
        Ok(Self { options, nothing_installed })
    }

    /// With lists of our own, fresh from the archive; nobody needs to be root for them.
    pub(super) fn of_our_own(dir: &Path) -> Result<Self> {
        let mut apt = Self::of_the_machine(dir)?;
        apt.options.extend(["-o".to_owned(), format!("Dir::State::Lists={}", dir.join("lists").display())]);
        tool::run(apt.command("apt-get").args(["--quiet", "update"]))?;
        Ok(apt)
    }

    /// The kernel, and `WANTED` with all dependencies, sorted by name.
    pub(super) fn packages(&self) -> Result<Vec<Package>> {
        let depends = tool::run(self.command("apt-cache").args(["depends", KERNEL]))?;
        let kernel = kernel_of(&depends).with_context(|| format!("apt knows no kernel below {KERNEL}"))?;
        let mut uris = tool::run(self.command("apt-get").args(["download", "--print-uris", kernel]))?;
        let status = format!("Dir::State::status={}", self.nothing_installed.display());
        let mut solve = self.command("apt-get");
        solve
            .args(["-o", &status, "--yes", "--no-install-recommends", "--print-uris", "install"])
            .args(WANTED);
        uris.extend(tool::run(&mut solve)?);
        let mut packages: Vec<Package> = uris.iter().filter_map(|line| package_of(line)).collect();
        packages.retain(|package| !FROM_THE_HOST.contains(&package.name.as_str()));
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        for name in WANTED.iter().chain([&kernel]) {
            ensure!(packages.iter().any(|package| package.name == *name), "apt offers no package {name}");
        }
        Ok(packages)
    }

    /// Downloads them into `dir`.
    pub(super) fn download(&self, packages: &[Package], dir: &Path) -> Result<()> {
        let wanted = packages.iter().map(|package| format!("{}={}", package.name, package.version));
        tool::run(self.command("apt-get").args(["--quiet", "download"]).args(wanted).current_dir(dir))?;
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LC_ALL", "C").args(&self.options);
        command
    }
}

/// Unpacks the downloads in `debs`: the kernel into `kernel`, the others into `userland`.
pub(super) fn unpack(debs: &Path, kernel: &Path, userland: &Path) -> Result<()> {
    for entry in fs::read_dir(debs).with_context(|| format!("cannot list {}", debs.display()))? {
        let deb = entry?.path();
        let package = deb.file_name().and_then(|name| Package::from_file_name(name.to_str()?));
        let into = if package.is_some_and(|package| package.is_kernel()) { kernel } else { userland };
        tool::run(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(into))?;
    }
    Ok(())
}

/// Reads `apt-cache depends`.
fn kernel_of(depends: &[String]) -> Option<&str> {
    let names = depends.iter().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.into_iter().find(|name| name.starts_with("linux-image-"))
}

/// Reads a line of `--print-uris`: 'http://...' file-name size hash.
fn package_of(line: &str) -> Option<Package> {
    if !line.starts_with('\'') {
        return None;
    }
    Package::from_file_name(line.split(' ').nth(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package { name: name.into(), version: version.into() }
    }

    #[test]
    fn packages_are_read_from_what_apt_would_download() {
        let line = "'http://deb.debian.org/debian/pool/main/libb/libbpf/libbpf1_1.1.2-0%2bdeb12u1_amd64.deb' \
                    libbpf1_1%3a1.1.2-0+deb12u1_amd64.deb 145032 MD5Sum:0";
        assert_eq!(package_of(line), Some(package("libbpf1", "1:1.1.2-0+deb12u1")));
        assert_eq!(package_of("Reading package lists..."), None);
        assert_eq!(package_of("'http://x' no-package 3"), None);
    }

    #[test]
    fn the_kernel_is_the_one_that_the_meta_package_names() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let depends = lines("linux-image-amd64\n  Depends: linux-image-6.1.0-57-amd64\n");
        assert_eq!(kernel_of(&depends), Some("linux-image-6.1.0-57-amd64"));
        assert_eq!(kernel_of(&lines("linux-image-amd64\n  Depends: linux-base\n")), None);
        assert!(package("linux-image-6.1.0-57-amd64", "6.1").is_kernel());
    }
}
