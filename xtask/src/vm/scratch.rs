//! Folders in `target/vm` that go with the process that made them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

const PREFIX: &str = "run-";

/// A folder of this run's own.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one, and takes away what killed processes left.
    pub(super) fn new(vm: &Path) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        sweep(vm);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = vm.join(format!("{PREFIX}{}-{n}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What does not go away now goes with the next run's sweep.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sweep(vm: &Path) {
    for entry in fs::read_dir(vm).into_iter().flatten().flatten() {
        if owner(&entry.file_name().to_string_lossy()).is_some_and(|pid| !is_alive(pid)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process that a folder's name speaks of.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_go_with_their_owner() {
        let vm = crate::vm::scratch_for_tests("scratch");
        // Process ids end below four million.
        let (left, other) = (vm.join("run-4194999-0"), vm.join("guest"));
        fs::create_dir_all(left.join("sub")).unwrap();
        fs::create_dir_all(&other).unwrap();
        let first = Scratch::new(&vm).unwrap();
        let second = Scratch::new(&vm).unwrap();
        assert_ne!(first.path(), second.path());
        assert!(!left.exists() && other.exists() && first.path().is_dir());
        let path = first.path().to_path_buf();
        drop(first);
        assert!(!path.exists() && second.path().is_dir());
        fs::remove_dir_all(vm).unwrap();
    }

    #[test]
    fn owners_are_read_from_names() {
        assert_eq!(owner("run-12-3"), Some(12));
        assert_eq!(owner("run-x-3"), None);
        assert_eq!(owner("guest"), None);
    }
}
