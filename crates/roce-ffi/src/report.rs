//! Refusals, for the user of a C program to read.

use std::fmt;
use std::io::{self, Write};

/// Writes `call: why` as one line on standard error. It has nowhere to say that it could not.
#[cold]
pub fn report(call: &str, why: impl fmt::Display) {
    let line = format!("{call}: {why}\n");
    let _ = io::stderr().lock().write_all(line.as_bytes());
}
