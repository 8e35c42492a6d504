//! What a guest is asked to do, and how it is told: a small archive behind its file system.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use super::cpio::Archive;
use super::quote;

/// The soft-RoCE devices that the guest comes up with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Net {
    /// None.
    None,
    /// `rxe0` on `lo`, 127.0.0.1.
    Lo,
    /// `rxe_a`, 10.0.0.1, and `rxe_b`, 10.0.0.2, on the two ends of a veth pair.
    Veth,
    /// `rxe_a`, 10.0.0.1; the other end of the pair, 10.0.0.2, lies in the namespace "far" and has no device.
    Netns,
}

impl Net {
    pub(crate) const ALL: [Self; 4] = [Self::None, Self::Lo, Self::Veth, Self::Netns];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lo => "lo",
            Self::Veth => "veth",
            Self::Netns => "netns",
        }
    }
}

/// What runs in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    /// A program or a builtin of the shell, and its arguments.
    Command(Vec<OsString>),
    /// A shell for whoever sits at the terminal.
    Shell,
}

/// One run of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) task: Task,
    /// Added to the guest's environment; the names are such that a shell takes them.
    pub(crate) env: Vec<(String, OsString)>,
    /// Where the task runs: inside a shared folder, or anything that the guest has.
    pub(crate) cwd: PathBuf,
    pub(crate) net: Net,
    /// Of the veth pair's interfaces, bytes.
    pub(crate) mtu: u32,
    /// Processors.
    pub(crate) smp: u32,
    /// Memory, MiB.
    pub(crate) mem: u32,
    /// From the moment the task runs; a shell has none.
    pub(crate) timeout: Option<Duration>,
}

/// A folder of the host that the guest has at the same path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
}

impl Share {
    /// Its name in the machine.
    pub(super) fn tag(index: usize) -> String {
        format!("host{index}")
    }
}

impl Job {
    /// A command that plays or measures between the two soft-RoCE devices of a veth pair.
    pub(crate) fn on_the_pair(words: Vec<OsString>, timeout: Duration) -> Self {
        Self {
            task: Task::Command(words),
            env: vec![("TERM".to_owned(), "dumb".into())],
            cwd: "/".into(),
            net: Net::Veth,
            mtu: 9000,
            smp: 2,
            mem: 1024,
            timeout: Some(timeout),
        }
    }

    /// What the guest's first process reads. `window`: rows and columns of the terminal.
    pub(super) fn archive(&self, token: &str, shares: &[Share], window: Option<&str>) -> Vec<u8> {
        let mut archive = Archive::default();
        archive.folder("job");
        archive.file("job/facts", self.facts(token, window).as_bytes());
        archive.file("job/shares", &mounts(shares));
        archive.program("job/run", &self.script());
        archive.finish()
    }

    fn facts(&self, token: &str, window: Option<&str>) -> String {
        let interactive = u8::from(self.task == Task::Shell);
        format!(
            "TOKEN={token}\nNET={}\nMTU={}\nINTERACTIVE={interactive}\nWINDOW='{}'\n",
            self.net.name(),
            self.mtu,
            window.unwrap_or_default()
        )
    }

    fn script(&self) -> Vec<u8> {
        let mut script = b"#!/bin/sh\n".to_vec();
        for (name, value) in &self.env {
            script.extend(quote::export(name, value));
            script.push(b'\n');
        }
        script.extend(quote::command(["cd".into(), self.cwd.clone().into_os_string()]));
        script.extend_from_slice(b" || exit 126\n");
        match &self.task {
            Task::Command(words) => script.extend(quote::command(words)),
            Task::Shell => script.extend_from_slice(b"ENV=/etc/shrc exec busybox ash -i"),
        }
        script.push(b'\n');
        script
    }
}

fn mounts(shares: &[Share]) -> Vec<u8> {
    let mut script = Vec::new();
    for (index, share) in shares.iter().enumerate() {
        let mode = if share.writable { "rw" } else { "ro" };
        let words =
            ["share".into(), OsString::from(Share::tag(index)), share.path.clone().into(), mode.into()];
        script.extend(quote::command(words));
        script.push(b'\n');
    }
    script
}

/// What a shell would make of the task, for people: of something long the beginning.
pub(super) fn shown(task: &Task) -> String {
    const LONGEST: usize = 100;
    let words = match task {
        Task::Shell => return "a shell".to_owned(),
        Task::Command(words) => words.iter().map(shown_word).collect::<Vec<_>>().join(" "),
    };
    let line: String = words.chars().take(LONGEST).take_while(|c| *c != '\n').collect();
    if line.len() < words.len() { line + " ..." } else { line }
}

fn shown_word(word: &OsString) -> String {
    let text = word.to_string_lossy();
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(safe) {
        return text.into_owned();
    }
    OsString::from_vec(quote::word(word)).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn job(words: &[&str]) -> Job {
        Job {
            task: Task::Command(words.iter().map(OsString::from).collect()),
            env: vec![("GREETING".to_owned(), "it's me".into())],
            cwd: "/".into(),
            net: Net::Veth,
            mtu: 1500,
            smp: 2,
            mem: 512,
            timeout: None,
        }
    }

    fn run(script: Vec<u8>) -> (Option<i32>, String) {
        let output = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn the_script_runs_the_command_where_and_as_it_shall() {
        let words = ["sh", "-c", "echo \"$GREETING, $1\"; pwd; exit 7", "sh", "a  'b'"];
        assert_eq!(run(job(&words).script()), (Some(7), "it's me, a  'b'\n/\n".to_owned()));
        assert_eq!(run(job(&["exit", "9"]).script()).0, Some(9), "builtins are commands too");
        let lost = Job { cwd: "/no/such/folder".into(), ..job(&["true"]) };
        assert_eq!(run(lost.script()).0, Some(126));
    }

    #[test]
    fn facts_and_shares_are_shell() {
        let facts = job(&["true"]).facts("7f", Some("24 80"));
        let script = format!("{facts}echo $TOKEN $NET $MTU $INTERACTIVE $WINDOW");
        assert_eq!(run(script.into_bytes()).1, "7f veth 1500 0 24 80\n");
        let shares = [
            Share { path: "/a b".into(), writable: false },
            Share { path: "/a b/target".into(), writable: true },
        ];
        let script = [b"share() { echo \"$1|$2|$3\"; }\n".to_vec(), mounts(&shares)].concat();
        assert_eq!(run(script).1, "host0|/a b|ro\nhost1|/a b/target|rw\n");
    }

    #[test]
    fn tasks_are_shown_as_they_would_be_typed() {
        assert_eq!(shown(&job(&["ls", "-l", "a b", ""]).task), "ls -l 'a b' ''");
        assert_eq!(shown(&Task::Shell), "a shell");
        assert_eq!(shown(&job(&["echo", "a\nb"]).task), "echo 'a ...");
        assert_eq!(shown(&job(&["x".repeat(200).as_str()]).task), format!("{} ...", "x".repeat(100)));
    }
}
