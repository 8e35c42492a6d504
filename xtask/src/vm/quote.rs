//! Words for the guest's shell.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `word` so that a POSIX shell reads it back byte for byte.
pub(super) fn word(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            other => quoted.push(*other),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// `words` as one command.
pub(super) fn command<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Vec<u8> {
    let quoted: Vec<Vec<u8>> = words.into_iter().map(|w| word(w.as_ref())).collect();
    quoted.join(&b' ')
}

/// `export NAME=VALUE`; the name is one that a shell takes.
pub(super) fn export(name: &str, value: &OsStr) -> Vec<u8> {
    let mut line = format!("export {name}=").into_bytes();
    line.extend(word(value));
    line
}

/// May a shell variable be called so?
pub(super) fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c == '_' || c.is_ascii_alphabetic())
        && chars.all(|c| c == '_' || c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use super::*;

    /// What a shell makes of the words, each followed by a NUL.
    fn read_back(words: &[OsString]) -> Vec<u8> {
        let mut script = b"printf '%s\\0' ".to_vec();
        script.extend(command(words));
        let output = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap();
        assert!(output.status.success());
        output.stdout
    }

    #[test]
    fn a_shell_reads_every_word_back() {
        let mut words: Vec<OsString> =
            ["", " ", "a b", "'", "''", "\"$HOME\"", "`id`", "\\", "a\nb\n", "*", "-n", "ä", "#", "!x", "~"]
                .map(OsString::from)
                .to_vec();
        // Every byte that an argument can hold, no UTF-8 at all.
        words.push(OsString::from_vec((1..=255).collect()));
        let expected: Vec<u8> = words.iter().flat_map(|w| [w.as_bytes(), b"\0"].concat()).collect();
        assert_eq!(read_back(&words), expected);
    }

    #[test]
    fn exported_variables_arrive_whole() {
        let mut script = export("LONELY", OsStr::new("it's \"$x\"\n"));
        script.extend(b"; env -u PATH /usr/bin/printenv LONELY");
        let output = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap();
        assert_eq!(output.stdout, b"it's \"$x\"\n\n");
    }

    #[test]
    fn names_of_variables() {
        assert!(is_name("A") && is_name("_a1"));
        assert!(!is_name("") && !is_name("1A") && !is_name("A-B") && !is_name("A=B") && !is_name("Ä"));
    }
}
