//! What is installed, and where: libraries, headers, programs, and what tells other builds of them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Content, File};
use crate::cargo;

/// The C library: `-l`, pkg-config and CMake know it by this name.
pub(super) const NAME: &str = "cudaq-realtime-cpu-roce-transport";

/// As cargo names what it builds, without dashes, and where that goes.
const BUILT: [(&str, &str); 10] = [
    ("libcudaq_realtime_cpu_roce_transport.so", "lib/libcudaq-realtime-cpu-roce-transport.so"),
    ("libcudaq_realtime_cpu_roce_transport.a", "lib/libcudaq-realtime-cpu-roce-transport.a"),
    ("libcudaq_realtime_bridge_cpu_roce.so", "lib/libcudaq-realtime-bridge-cpu-roce.so"),
    ("hsb", "bin/hsb"),
    ("hsb-bridge-cpu", "bin/hsb-bridge-cpu"),
    ("hsb-fpga-emulator", "bin/hsb-fpga-emulator"),
    ("hsb-fpga-playback", "bin/hsb-fpga-playback"),
    ("roce-call", "bin/roce-call"),
    ("roce-perf", "bin/roce-perf"),
    ("roce-service", "bin/roce-service"),
];
const HEADERS: &str = "include/cudaq/realtime/cpu_transport";
/// What the static library leaves to the linker: all of it is part of the C library and of gcc.
const SYSTEM: [&str; 5] = ["gcc_s", "rt", "pthread", "m", "dl"];

/// A prefix, and what is to be below it.
#[derive(Debug)]
pub(super) struct Tree {
    prefix: PathBuf,
    version: String,
}

impl Tree {
    pub(super) fn new(prefix: PathBuf, version: String) -> Self {
        Self { prefix, version }
    }

    /// All files, of those that cargo built and of the headers.
    pub(super) fn files(&self, built: &[PathBuf]) -> Result<Vec<File>> {
        let mut files = self.texts();
        for (name, at) in BUILT {
            files.push(self.copy(cargo::named(built, name)?, at));
        }
        let headers = cargo::root().join("crates/roce-capi").join(HEADERS);
        let entries = headers.read_dir().with_context(|| format!("cannot list {}", headers.display()))?;
        for entry in entries {
            let header = entry?.path();
            let at = Path::new(HEADERS).join(header.file_name().context("a header without a name")?);
            files.push(self.copy(header, at));
        }
        files.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(files)
    }

    fn copy(&self, from: PathBuf, at: impl AsRef<Path>) -> File {
        File { at: self.prefix.join(at), content: Content::CopyOf(from) }
    }

    fn texts(&self) -> Vec<File> {
        let text = |at: String, template: &str| File {
            at: self.prefix.join(at),
            content: Content::Text(self.filled(template)),
        };
        vec![
            text(format!("lib/pkgconfig/{NAME}.pc"), include_str!("shared.pc.in")),
            text(format!("lib/pkgconfig/{NAME}-static.pc"), include_str!("static.pc.in")),
            text(format!("lib/cmake/{NAME}/{NAME}-config.cmake"), include_str!("config.cmake.in")),
            text(
                format!("lib/cmake/{NAME}/{NAME}-config-version.cmake"),
                include_str!("config-version.cmake.in"),
            ),
        ]
    }

    fn filled(&self, template: &str) -> String {
        template
            .replace("@prefix@", &self.prefix.to_string_lossy())
            .replace("@version@", &self.version)
            .replace("@name@", NAME)
            .replace("@system_flags@", &SYSTEM.map(|name| format!("-l{name}")).join(" "))
            .replace("@system_list@", &SYSTEM.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_blank_of_every_template_is_filled() {
        let tree = Tree::new("/opt/roce".into(), "1.2.3".into());
        let texts = tree.texts();
        assert_eq!(texts.len(), 4);
        for File { at, content } in texts {
            assert!(at.starts_with("/opt/roce/lib"), "{}", at.display());
            let Content::Text(text) = content else { panic!("a text") };
            assert!(!text.contains('@'), "{text}");
        }
    }

    #[test]
    fn every_program_is_installed() {
        let bins = cargo::root().join("crates/roce-tools/src/bin").read_dir().unwrap();
        let bins = bins.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
        let installed = BUILT.iter().filter_map(|(_, at)| at.strip_prefix("bin/").map(str::to_owned));
        assert_eq!(installed.collect::<BTreeSet<_>>(), bins.collect());
    }

    #[test]
    fn what_was_not_built_is_named() {
        let tree = Tree::new("/opt/roce".into(), "1.2.3".into());
        let error = tree.files(&["/t/libcudaq_realtime_cpu_roce_transport.so".into()]).unwrap_err();
        assert!(error.to_string().contains("libcudaq_realtime_cpu_roce_transport.a"), "{error}");
    }
}
