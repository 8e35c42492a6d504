//! The options of `cargo xtask install`.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::{Arg, Parser};

pub(super) const USAGE: &str = "\
usage: cargo xtask install --prefix DIR [--destdir DIR] [--soft-only]

Builds the C libraries and the programs, optimised, and puts them with headers, pkg-config files and a CMake package
where C and C++ builds find them. Prints every file. See docs/c.md.

  --prefix DIR    where they are to live, such as /usr/local
  --destdir DIR   put before the prefix while copying, for those who make packages
  --soft-only     without RDMA devices, also where what they need to build is there
  --help
";

/// What the arguments ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Help,
    Install(Options),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    /// Absolute.
    pub(super) prefix: PathBuf,
    pub(super) destdir: Option<PathBuf>,
    pub(super) soft_only: bool,
}

/// Reads the arguments; the error says which one is wrong, and how.
pub(super) fn parse(args: Vec<OsString>) -> Result<Request, String> {
    let (mut prefix, mut destdir, mut soft_only) = (None, None, false);
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let place = match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(Request::Help),
            Arg::Long("soft-only") => {
                soft_only = true;
                continue;
            }
            Arg::Long("prefix") => &mut prefix,
            Arg::Long("destdir") => &mut destdir,
            other => return Err(other.unexpected().to_string()),
        };
        let dir = parser.value().map_err(|error| error.to_string())?;
        *place = Some(std::path::absolute(&dir).map_err(|error| format!("{}: {error}", dir.display()))?);
    }
    let prefix = prefix.ok_or("--prefix is missing: say where to, such as --prefix /usr/local")?;
    Ok(Request::Install(Options { prefix, destdir, soft_only }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn a_prefix_is_all_that_it_needs() {
        let options = |destdir: Option<&str>, soft_only| {
            Ok(Request::Install(Options {
                prefix: "/opt/roce".into(),
                destdir: destdir.map(PathBuf::from),
                soft_only,
            }))
        };
        assert_eq!(of("--prefix /opt/roce"), options(None, false));
        assert_eq!(of("--destdir=/tmp/x --soft-only --prefix=/opt/roce"), options(Some("/tmp/x"), true));
        assert_eq!(of("--prefix / --help"), Ok(Request::Help));
        let Ok(Request::Install(relative)) = of("--prefix out") else { panic!("it is one") };
        assert!(relative.prefix.is_absolute());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            ("", "--prefix is missing"),
            ("--prefix", "--prefix"),
            ("--prefix=", "cannot"),
            ("--prefix /x --verbs", "--verbs"),
            ("--prefix /x /y", "/y"),
        ] {
            let error = of(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
