//! A run of ourselves under callgrind.

use std::env;
use std::fs;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::profile::Profile;

/// What the run is told in its environment: the case, and how many messages.
const CASE: &str = "INSTRUCTIONS_CASE";
const MESSAGES: &str = "INSTRUCTIONS_MESSAGES";

/// What this process is to drive, where it is such a run.
pub(crate) fn order() -> Option<(String, u32)> {
    let messages = env::var(MESSAGES).ok()?.parse().expect("a number of messages");
    Some((env::var(CASE).ok()?, messages))
}

/// A measured run under way.
pub(crate) struct Run {
    valgrind: Child,
    dir: TempDir,
}

const PROFILE: &str = "callgrind.out";

impl Run {
    /// `collect`: the step that is counted, with all that it calls. `None`: everything is.
    pub(crate) fn start(case: &str, messages: u32, collect: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut valgrind = Command::new("valgrind");
        valgrind
            .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
            .arg(format!("--callgrind-out-file={}", dir.path().join(PROFILE).display()))
            .args(collect.map(|step| format!("--toggle-collect=instructions::steps::{step}*")))
            .arg(env::current_exe().expect("our own path"))
            .envs([(CASE, case), (MESSAGES, messages.to_string().as_str())])
            .stderr(Stdio::null());
        Self { valgrind: valgrind.spawn().expect("valgrind; install it"), dir }
    }

    pub(crate) fn finish(mut self) -> Profile {
        let status = self.valgrind.wait().expect("valgrind is our child");
        assert!(status.success(), "the measured run ended with {status}");
        Profile::parse(&fs::read_to_string(self.dir.path().join(PROFILE)).expect("callgrind's profile"))
    }
}
