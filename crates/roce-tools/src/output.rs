//! What the programs print: lines for people and scripts, and a report as JSON.

use std::fs;
use std::io::{self, Write};

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::Error;
use crate::cli::JsonTarget;

/// Sends log lines to standard error, as many as `RUST_LOG` asks for (default: warnings).
pub fn init_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

/// Prints a line to standard output at once, for whoever waits for it. That nobody reads it is no error.
pub fn announce(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The end of a program: what it found out, for people and as JSON.
#[derive(Debug, Clone, Default)]
pub struct Output {
    json: Option<JsonTarget>,
}

impl Output {
    /// With the target of `--json`, if there is one.
    pub fn new(json: Option<JsonTarget>) -> Self {
        Self { json }
    }

    /// Prints for people: to standard output, unless the JSON goes there.
    pub fn say(&self, text: &str) {
        if self.json == Some(JsonTarget::Stdout) {
            let _ = writeln!(io::stderr(), "{text}");
        } else {
            announce(text);
        }
    }

    /// Writes the report as JSON, where one was asked for.
    pub fn report(&self, report: &impl Serialize) -> Result<(), Error> {
        let Some(target) = &self.json else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(report).map_err(Error::Json)?;
        text.push('\n');
        match target {
            JsonTarget::Stdout => {
                let _ = io::stdout().lock().write_all(text.as_bytes());
                Ok(())
            }
            JsonTarget::File(path) => fs::write(path, text).map_err(|source| Error::File {
                call: "write",
                path: path.clone(),
                source,
            }),
        }
    }
}

/// Rows of a name and a value, the values aligned.
pub fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = rows.iter().map(|(name, value)| format!("  {name:width$}  {value}")).collect();
    lines.join("\n")
}
