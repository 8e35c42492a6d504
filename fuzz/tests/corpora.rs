//! Replays what fuzzing found worth keeping.

use std::fs;
use std::path::{Path, PathBuf};

use roce_fuzz::CHECKS;

fn corpus(name: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    entries.map(|entry| entry.expect("a file").path()).collect()
}

#[test]
fn every_corpus_holds() {
    for (name, check) in CHECKS {
        let files = corpus(name);
        assert!(files.len() >= 3, "the corpus of {name} has {} files", files.len());
        for file in files {
            let bytes = fs::read(&file).expect("readable");
            println!("{}", file.display());
            check(&bytes);
        }
    }
}

/// Truncated at every length, and with each byte changed.
#[test]
fn every_neighbour_of_a_corpus_holds() {
    for (name, check) in CHECKS {
        for file in corpus(name) {
            let bytes = fs::read(&file).expect("readable");
            for len in 0..bytes.len().min(400) {
                check(&bytes[..len]);
                let mut changed = bytes.clone();
                changed[len] = changed[len].wrapping_add(0x81);
                check(&changed);
            }
        }
    }
}

/// A fuzzer without a corpus, or a corpus without a fuzzer, is one that nobody runs.
#[test]
fn fuzzers_and_corpora_are_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |dir: &str| {
        let entries = fs::read_dir(root.join(dir)).expect("the folder is there");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    };
    let mut checks: Vec<String> = CHECKS.iter().map(|(name, _)| (*name).to_owned()).collect();
    checks.sort();
    assert_eq!(names("fuzz_targets"), checks);
    assert_eq!(names("corpus"), checks);
}
