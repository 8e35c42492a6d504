//! Instructions of our own per message, counted by callgrind: what a clock on a busy machine cannot tell.
//!
//! `cargo bench -p roce-conformance --bench instructions` runs each [case](cases::CASES) under callgrind, with two numbers
//! of messages, and takes the difference for one. What the [stub queue pairs](stub) and the driving loops take is
//! left out; all else counts, what is called in libc included. The counts are compared with those kept in
//! `instructions.json`: a change beyond 5 % in either direction fails, and so does a count above its budget.
//!
//! After `--`: words that cases must contain, `--functions` for where the instructions go, `--accept` to keep the
//! new counts.

mod cases;
mod counts;
mod profile;
mod run;
mod steps;
mod stub;

use std::env;
use std::env::consts::ARCH;
use std::fs;
use std::process::{Command, ExitCode};

use cases::{CASES, Case};
use counts::{Complaint, Counts, Row, Toolchain};
use profile::Profile;
use run::Run;

/// Where the counts are kept.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.json");

/// Multiples of all that recurs: slots of a ring, looks at send completions.
const FEW: u32 = 1_600;
const MANY: u32 = 9_600;

#[derive(Debug, Default)]
struct Options {
    accept: bool,
    functions: bool,
    words: Vec<String>,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self::default();
        for argument in env::args().skip(1) {
            match argument.as_str() {
                "--bench" => {} // from cargo
                "--accept" => options.accept = true,
                "--functions" => options.functions = true,
                _ => options.words.push(argument),
            }
        }
        options
    }

    fn choose_all(&self) -> bool {
        self.words.is_empty()
    }

    fn choose(&self, case: &Case) -> bool {
        self.choose_all() || self.words.iter().any(|word| case.name.contains(word.as_str()))
    }
}

fn main() -> ExitCode {
    if let Some((case, messages)) = run::order() {
        (find(&case).drive)(messages);
        return ExitCode::SUCCESS;
    }
    let (options, here) = (Options::parse(), this_toolchain());
    let kept = Counts::parse(&fs::read_to_string(FILE).expect(FILE));
    let count = |case| {
        let row = measure(case, options.functions).beside(&kept);
        println!("{row}");
        row
    };
    let rows: Vec<Row> = CASES.iter().filter(|case| options.choose(case)).map(count).collect();
    assert!(!rows.is_empty(), "no case is called so");
    let is_good = conclude(&rows, &kept.toolchain, &here, options.accept);
    if options.accept {
        fs::write(FILE, kept.with(&rows, options.choose_all(), &here).text()).expect(FILE);
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn find(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("a case of that name")
}

/// Of one message.
fn measure(case: &Case, show_functions: bool) -> Row {
    let profile = per_message(case);
    let less = case.less.map(|name| per_message(find(name)));
    if show_functions {
        println!("{}:\n{}", case.name, profile.beside(less.as_ref()));
    }
    let count = profile.total() - less.map_or(0.0, |profile| profile.total());
    Row::new(case.name, count, case.budget)
}

fn per_message(case: &Case) -> Profile {
    let runs = [FEW, MANY].map(|messages| Run::start(case.name, messages, case.collect));
    let [few, many] = runs.map(Run::finish);
    many.per_message(&few, f64::from(MANY - FEW))
}

fn this_toolchain() -> Toolchain {
    let version = |program: &str| {
        let output = Command::new(program).arg("--version").output();
        output.map_or_else(|_| "unknown".to_owned(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
    };
    Toolchain { rustc: version("rustc"), valgrind: version("valgrind"), arch: ARCH.to_owned() }
}

/// Says what is wrong, and whether nothing is.
fn conclude(rows: &[Row], kept: &Toolchain, here: &Toolchain, accept: bool) -> bool {
    if !here.counts_as(kept) && !accept {
        println!("Nothing is compared: the counts kept are of {kept}, these of {here}.");
        return true;
    }
    let (changes, excesses): (Vec<_>, Vec<_>) =
        rows.iter().filter_map(Row::complaint).partition(Complaint::can_be_accepted);
    for excess in &excesses {
        eprintln!("error: {excess}");
    }
    if accept || changes.is_empty() {
        return excesses.is_empty();
    }
    for change in changes {
        eprintln!("error: {change}");
    }
    if here != kept {
        eprintln!("The counts kept are of {kept}, these of {here}: that may be all.");
    }
    eprintln!("What is meant to change is kept by this, to be committed with it:");
    eprintln!("  cargo bench -p roce-conformance --bench instructions -- --accept");
    false
}
