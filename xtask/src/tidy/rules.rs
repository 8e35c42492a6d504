//! What a single file must hold to.

use super::Finding;
use super::code::{has_word, only};

/// Sources that may say `unsafe`, each for a purpose of its own; a crate whose purpose is C is named whole.
const UNSAFE: &[&str] = &[
    "crates/roce-capi/src/",
    "crates/roce-conformance/src/foreign.rs",
    "crates/roce-core/src/region.rs",
    "crates/roce-dispatch/src/raw.rs",
    "crates/roce-ffi/src/",
    "crates/roce-provider/src/",
    "crates/roce-ring/src/mapping.rs",
    "crates/roce-ring/src/memory.rs",
    "crates/roce-soft/src/udp/batch.rs",
    "crates/roce-soft/src/udp/socket.rs",
    "crates/roce-tools/src/perf/limit/socket.rs",
    "crates/roce-tools/src/service/plugin.rs",
    "crates/roce-transport/src/cpu.rs",
    "crates/roce-verbs/src/",
    "xtask/src/process.rs",
];
/// Code that ships nowhere plays the foreign side of interfaces, and may.
const UNSHIPPED: &[&str] = &["/tests/", "/benches/", "/examples/"];

/// Words that mean work is left. Split, so that this file does not have them.
const STRAY: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];
/// Macros that mean the same.
const STRAY_MACROS: &[&str] = &[concat!("to", "do!"), concat!("unimple", "mented!"), "dbg!"];
/// Macros that write where a library must not.
const PRINTS: &[&str] = &["println!", "print!", "eprintln!", "eprint!"];
/// Packages whose output is their purpose.
const PROGRAMS: &[&str] = &["crates/roce-tools/", "xtask/"];

/// A SAFETY comment shorter than this says nothing.
const SAFETY_CHARS: usize = 20;

/// A file as the rules see it.
struct File<'a> {
    path: &'a str,
    text: &'a str,
    /// The text without comments and strings.
    code: &'a str,
}

type Found = Vec<(usize, String)>;

/// Every rule that the file at `path` breaks.
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let rust = path.ends_with(".rs");
    let code = if rust { only(text) } else { String::new() };
    let file = File { path, text, code: &code };
    let for_all: &[fn(&File<'_>) -> Found] = &[stray_words, trailing_whitespace];
    let for_rust: &[fn(&File<'_>) -> Found] =
        &[module_docs, stray_macros, safety_comments, unsafe_places, unsafe_lint, prints];
    let rules = for_all.iter().chain(for_rust.iter().filter(|_| rust));
    rules
        .flat_map(|rule| rule(&file))
        .map(|(line, text)| Finding { path: path.to_owned(), line, text })
        .collect()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn module_docs(file: &File<'_>) -> Found {
    let first = file.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if first.starts_with("//!") {
        Vec::new()
    } else {
        vec![(1, "begins without module docs (//!)".to_owned())]
    }
}

fn stray_words(file: &File<'_>) -> Found {
    let mut found = Vec::new();
    for (line, text) in numbered(file.text) {
        found.extend(STRAY.iter().filter(|w| has_word(text, w)).map(|w| (line, format!("says {w}"))));
    }
    found
}

fn stray_macros(file: &File<'_>) -> Found {
    macros(file.code, STRAY_MACROS, "calls")
}

fn macros(code: &str, names: &[&str], verb: &str) -> Found {
    let mut found = Vec::new();
    for (line, text) in numbered(code) {
        let called = names.iter().filter(|name| has_word(text, name));
        found.extend(called.map(|name| (line, format!("{verb} {name}"))));
    }
    found
}

fn trailing_whitespace(file: &File<'_>) -> Found {
    let bad = numbered(file.text).filter(|(_, text)| text.ends_with([' ', '\t', '\r']));
    bad.map(|(line, _)| (line, "ends with whitespace".to_owned())).collect()
}

fn safety_comments(file: &File<'_>) -> Found {
    let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let comment = line.strip_prefix("//").map(str::trim_start);
        let Some(first) = comment.and_then(|text| text.strip_prefix("SAFETY:")) else { continue };
        let rest = lines[index + 1..].iter().map_while(|line| line.strip_prefix("//"));
        let said: usize = std::iter::once(first).chain(rest).map(|line| line.trim().chars().count()).sum();
        if said < SAFETY_CHARS {
            found.push((index + 1, format!("a SAFETY comment of {said} characters; say why it is sound")));
        }
    }
    found
}

fn unsafe_places(file: &File<'_>) -> Found {
    let folder_or_file = |place: &&str| {
        if place.ends_with('/') { file.path.starts_with(*place) } else { file.path == *place }
    };
    let listed = UNSAFE.iter().any(folder_or_file);
    if listed || UNSHIPPED.iter().any(|folder| file.path.contains(folder)) {
        return Vec::new();
    }
    let first = numbered(file.code).find(|(_, text)| has_word(text, "unsafe"));
    let why = "unsafe outside the sources that may have it (listed in xtask/src/tidy/rules.rs)";
    first.map(|(line, _)| (line, why.to_owned())).into_iter().collect()
}

fn unsafe_lint(file: &File<'_>) -> Found {
    let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
    let guarded = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"].iter().any(|a| file.code.contains(a));
    if is_root && !guarded {
        return vec![(0, "the crate neither forbids nor denies unsafe_code".to_owned())];
    }
    Vec::new()
}

/// Libraries speak through tracing and errors. Their unit tests come last in a file and may print.
fn prints(file: &File<'_>) -> Found {
    let library = file.path.starts_with("crates/")
        && file.path.contains("/src/")
        && !PROGRAMS.iter().any(|program| file.path.starts_with(program));
    if !library {
        return Vec::new();
    }
    let shipped = file.code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    macros(shipped, PRINTS, "a library calls")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_file_has_no_findings() {
        let text = "//! What it does.\n\n/// Adds.\nfn add() {}\n";
        assert_eq!(texts("crates/roce-ring/src/x.rs", text), [""; 0]);
        assert_eq!(texts("README.md", "# Title\n\ntext\n"), [""; 0]);
    }

    #[test]
    fn module_docs_come_first() {
        assert_eq!(texts("a/x.rs", "use std::io;\n"), ["a/x.rs:1: begins without module docs (//!)"]);
        assert_eq!(texts("a/x.rs", "\n//! Docs.\n"), [""; 0]);
    }

    #[test]
    fn words_of_unfinished_work_are_found_even_in_comments() {
        let word = STRAY[0];
        assert_eq!(texts("a.md", &format!("ok\nsee {word}: later\n")), [format!("a.md:2: says {word}")]);
        assert_eq!(texts("a.md", &format!("pre{word}\n")), [""; 0]);
        assert_eq!(texts("a/x.rs", "//! D.\nfn f() { dbg!(1) }\n"), ["a/x.rs:2: calls dbg!"]);
        assert_eq!(texts("a/x.rs", "//! D. dbg!\nconst A: &str = \"dbg!\";\n"), [""; 0]);
    }

    #[test]
    fn whitespace_at_the_end() {
        assert_eq!(texts("a.toml", "a = 1 \n"), ["a.toml:1: ends with whitespace"]);
        assert_eq!(texts("a.toml", "a = 1\n\n"), [""; 0]);
    }

    #[test]
    fn hollow_safety_comments() {
        let path = "xtask/src/process.rs";
        let hollow = "//! D.\n// SAFETY: fine\nunsafe {}\n";
        let found = texts(path, hollow);
        assert_eq!(found, [format!("{path}:2: a SAFETY comment of 4 characters; say why it is sound")]);
        let sound = "//! D.\n// SAFETY: nobody else\n// has the pointer.\nunsafe {}\n";
        assert_eq!(texts(path, sound), [""; 0]);
    }

    #[test]
    fn unsafe_has_its_files() {
        let text = "//! D.\nunsafe fn f() {} // unsafe\nunsafe fn g() {}\n";
        assert_eq!(texts("crates/roce-ring/src/flag.rs", text).len(), 1);
        assert_eq!(texts("crates/roce-core/src/region.rs", text), [""; 0]);
        assert_eq!(texts("crates/roce-verbs/src/qp/handle.rs", text), [""; 0]);
        assert_eq!(texts("crates/roce-ring/tests/flag.rs", text), [""; 0]);
        assert_eq!(texts("crates/roce-ring/src/flag.rs", "//! No unsafe.\n#![x(unsafe_code)]\n"), [""; 0]);
    }

    #[test]
    fn crates_guard_themselves_against_unsafe() {
        let bare = texts("crates/roce-ring/src/lib.rs", "//! D.\n");
        assert_eq!(bare, ["crates/roce-ring/src/lib.rs: the crate neither forbids nor denies unsafe_code"]);
        assert_eq!(texts("crates/roce-ring/src/lib.rs", "//! D.\n#![forbid(unsafe_code)]\n"), [""; 0]);
    }

    #[test]
    fn libraries_do_not_print() {
        let text = "//! D.\nfn f() { println!(\"x\"); }\n";
        let found = texts("crates/roce-ring/src/x.rs", text);
        assert_eq!(found, ["crates/roce-ring/src/x.rs:2: a library calls println!"]);
        assert_eq!(texts("crates/roce-tools/src/x.rs", text), [""; 0]);
        assert_eq!(texts("crates/roce-ring/tests/x.rs", text), [""; 0]);
        let in_tests = "//! D.\n/// println!(1)\n#[cfg(test)]\nmod tests { fn f() { println!(); } }\n";
        assert_eq!(texts("crates/roce-ring/src/x.rs", in_tests), [""; 0]);
    }
}
