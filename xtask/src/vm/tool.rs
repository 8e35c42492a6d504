//! Small programs that are run to their end for what they print.

use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};

use crate::process::{Process, Stderr, Stream, how};

/// Runs it; the lines of its stdout. It failed: what it said on stderr is in the error.
pub(super) fn run(command: &mut Command) -> Result<Vec<String>> {
    let said = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let sink = Arc::clone(&said);
    let keep = move |stream, line: &str| {
        let mut said = sink.lock().unwrap_or_else(PoisonError::into_inner);
        match stream {
            Stream::Out => said.0.push(line.to_owned()),
            Stream::Err => said.1.push(line.to_owned()),
        }
    };
    let status = Process::spawn(command, Stderr::Lines, keep)?.wait()?;
    let (out, err) = std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner));
    if !status.success() {
        let name = command.get_program().to_string_lossy().into_owned();
        bail!("{name} failed ({}): {}", how(status), err.join("; "));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_what_succeeds_and_complaints_of_what_fails() {
        let shell = |script: &str| run(Command::new("sh").args(["-c", script]));
        assert_eq!(shell("echo a; echo b; echo c >&2").unwrap(), ["a", "b"]);
        let error = shell("echo out; echo no such thing >&2; exit 3").unwrap_err();
        assert_eq!(error.to_string(), "sh failed (exit code 3): no such thing");
    }
}
