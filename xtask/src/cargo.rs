//! How this workspace calls cargo.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{Process, Stderr, how};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The cargo that runs us, at the root of the workspace.
pub(crate) fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    command
}

/// The bindings to libibverbs are made with libclang, of which 16 and newer do not do. Where one that does is not the
/// machine's first, it is named.
pub(crate) fn find_libclang(command: &mut Command) {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return;
    }
    let known = ["/usr/lib/llvm-15/lib", "/usr/lib/llvm-14/lib"];
    let there =
        |dir: &&&str| ["libclang.so", "libclang.so.1"].iter().any(|file| Path::new(dir).join(file).exists());
    if let Some(dir) = known.iter().find(there) {
        command.env("LIBCLANG_PATH", dir);
    }
}

/// What `cargo metadata` says of the workspace's own crates.
pub(crate) fn metadata() -> Result<Value> {
    let output = command(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed ({})", output.status);
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// Where builds go.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let metadata = metadata()?;
    let dir = metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(dir))
}

/// Runs a `cargo build` and returns the programs that it made. Its messages go to stderr.
pub(crate) fn build_programs(build: Command) -> Result<Vec<PathBuf>> {
    build_and_find(build, |artifact| artifact["executable"].as_str().map(PathBuf::from).into_iter().collect())
}

/// As [`build_programs`], with the libraries.
pub(crate) fn build_files(build: Command) -> Result<Vec<PathBuf>> {
    build_and_find(build, |artifact| {
        let files = artifact["filenames"].as_array().into_iter().flatten();
        files.filter_map(|file| file.as_str().map(PathBuf::from)).collect()
    })
}

fn build_and_find(mut build: Command, find: fn(&Value) -> Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    build.arg("--message-format=json-render-diagnostics");
    let (found, files) = mpsc::channel();
    let sink = move |_, line: &str| {
        if let Some(artifact) = artifact(line) {
            // Nobody listens any more only when the build was given up.
            let _ = found.send(find(&artifact));
        }
    };
    let status = Process::spawn(&mut build, Stderr::Inherit, sink)?.wait()?;
    if !status.success() {
        bail!("cargo build failed ({}); its messages are above", how(status));
    }
    Ok(files.iter().flatten().collect())
}

/// What a line of cargo's JSON says of something built.
fn artifact(line: &str) -> Option<Value> {
    let message: Value = serde_json::from_str(line).ok()?;
    (message["reason"] == "compiler-artifact").then_some(message)
}

/// The one called `name` of what was built.
pub(crate) fn named(built: &[PathBuf], name: &str) -> Result<PathBuf> {
    let found = built.iter().find(|path| path.file_name().is_some_and(|file| file == name));
    found.cloned().with_context(|| format!("the build made nothing called {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A build that says these lines.
    fn says(lines: &str) -> Command {
        let mut command = Command::new("sh");
        // The option of cargo becomes $0.
        command.args(["-c", &format!("printf '%s\\n' '{lines}'")]);
        command
    }

    #[test]
    fn what_was_built_is_taken_from_artifact_lines_alone() {
        let lines = r#"{"reason":"compiler-artifact","filenames":["/t/liba.so","/t/liba.a"],"executable":null}
{"reason":"compiler-artifact","filenames":["/t/b"],"executable":"/t/b"}
{"reason":"build-script-executed","executable":"/x","filenames":["/x"]}
   Compiling xtask"#;
        assert_eq!(build_programs(says(lines)).unwrap(), [PathBuf::from("/t/b")]);
        assert_eq!(build_files(says(lines)).unwrap(), ["/t/liba.so", "/t/liba.a", "/t/b"].map(PathBuf::from));
    }

    #[test]
    fn files_are_found_by_name() {
        let programs = [PathBuf::from("/t/a"), PathBuf::from("/t/b")];
        assert_eq!(named(&programs, "b").unwrap(), PathBuf::from("/t/b"));
        assert!(named(&programs, "c").is_err());
    }
}
