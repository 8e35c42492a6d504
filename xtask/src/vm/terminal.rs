//! The terminal of a person who sits in the guest's shell: raw while the guest has it, and afterwards as it was.

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use nix::sys::termios::{self, SetArg, Termios};

use super::tool;

/// Ctrl-].
const ESCAPE: u8 = 0x1d;
/// Ctrl-D: no more input.
const END_OF_INPUT: u8 = 0x04;

/// Dropping it gives the terminal back.
#[derive(Debug)]
pub(super) struct Terminal {
    /// `None` where our input is no terminal.
    before: Option<Termios>,
}

/// Sends our input to `console` from now on; `leave` is called at Ctrl-].
pub(super) fn connect(mut console: UnixStream, leave: impl FnOnce() + Send + 'static) -> Result<Terminal> {
    let input = io::stdin();
    let before = if input.is_terminal() { Some(make_raw(&input)?) } else { None };
    let terminal = Terminal { before };
    let escape = input.is_terminal().then_some(ESCAPE);
    thread::spawn(move || {
        let mut bytes = [0; 256];
        loop {
            match io::stdin().read(&mut bytes) {
                Ok(n) if n > 0 => {
                    if escape.is_some_and(|escape| bytes[..n].contains(&escape)) {
                        leave();
                        return;
                    }
                    if console.write_all(&bytes[..n]).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    // The machine is gone already, or will go for this.
                    let _ = console.write_all(&[END_OF_INPUT]);
                    return;
                }
            }
        }
    });
    Ok(terminal)
}

fn make_raw(input: &io::Stdin) -> Result<Termios> {
    let before = termios::tcgetattr(input).context("cannot read the terminal's settings")?;
    let mut raw = before.clone();
    termios::cfmakeraw(&mut raw);
    termios::tcsetattr(input, SetArg::TCSADRAIN, &raw).context("cannot make the terminal raw")?;
    Ok(before)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal itself is gone when this fails.
            let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, before);
        }
    }
}

/// "rows R columns C" of our terminal, in the words of stty.
pub(super) fn window() -> Option<String> {
    let lines = tool::run(Command::new("stty").args(["-F", "/dev/tty", "size"])).ok()?;
    let (rows, columns) = lines.first()?.split_once(' ')?;
    let (rows, columns): (u16, u16) = (rows.parse().ok()?, columns.parse().ok()?);
    (rows > 0 && columns > 0).then(|| format!("rows {rows} columns {columns}"))
}
