//! The counts that are kept, and what a new one is beside them.

use std::fmt;

use serde_json::{Map, Value, json};

/// The part of itself that a count may change by.
const TOLERANCE: f64 = 0.05;

/// What decides which instructions there are, besides the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Toolchain {
    pub(crate) rustc: String,
    pub(crate) valgrind: String,
    pub(crate) arch: String,
}

/// The counts of a toolchain.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) toolchain: Toolchain,
    by_case: Map<String, Value>,
}

/// A case that was counted.
#[derive(Debug)]
pub(crate) struct Row {
    case: &'static str,
    count: f64,
    kept: Option<f64>,
    budget: Option<f64>,
}

impl Toolchain {
    /// Whether counts can be compared at all.
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        self.arch == other.arch
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.rustc, self.valgrind, self.arch)
    }
}

impl Counts {
    pub(crate) fn parse(text: &str) -> Self {
        let file: Value = serde_json::from_str(text).expect("JSON");
        let word = |key: &str| file[key].as_str().expect(key).to_owned();
        let toolchain = Toolchain { rustc: word("rustc"), valgrind: word("valgrind"), arch: word("arch") };
        Self { toolchain, by_case: file["counts"].as_object().expect("counts").clone() }
    }

    /// These rows' in place of the old ones. All there are make it a file of this toolchain's, and cases that are no
    /// more leave it.
    pub(crate) fn with(self, rows: &[Row], are_all: bool, here: &Toolchain) -> Self {
        let Self { toolchain, by_case } = self;
        let (toolchain, mut by_case) =
            if are_all { (here.clone(), Map::new()) } else { (toolchain, by_case) };
        for row in rows {
            by_case.insert(row.case.to_owned(), json!((row.count * 10.0).round() / 10.0));
        }
        Self { toolchain, by_case }
    }

    pub(crate) fn text(&self) -> String {
        let Toolchain { rustc, valgrind, arch } = &self.toolchain;
        let file = json!({ "rustc": rustc, "valgrind": valgrind, "arch": arch, "counts": self.by_case });
        format!("{file:#}\n")
    }
}

impl Row {
    pub(crate) fn new(case: &'static str, count: f64, budget: Option<f64>) -> Self {
        Self { case, count, kept: None, budget }
    }

    pub(crate) fn beside(self, kept: &Counts) -> Self {
        Self { kept: kept.by_case.get(self.case).and_then(Value::as_f64), ..self }
    }

    /// What is wrong with the count.
    pub(crate) fn complaint(&self) -> Option<Complaint> {
        let &Self { case, count, kept, budget } = self;
        match (budget, kept) {
            (Some(budget), _) if count > budget => Some(Complaint::Above { case, count, budget }),
            (_, None) => Some(Complaint::New { case, count }),
            (_, Some(kept)) if (count - kept).abs() > kept * TOLERANCE => {
                Some(Complaint::Changed { case, count, kept })
            }
            _ => None,
        }
    }
}

/// Why a count fails.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(crate) enum Complaint {
    /// Only better code helps.
    #[error("{case}: {count:.1} instructions, above the budget of {budget}")]
    Above { case: &'static str, count: f64, budget: f64 },
    /// To be accepted.
    #[error("{case}: {count:.1} instructions, and none are kept to compare with")]
    New { case: &'static str, count: f64 },
    /// To be accepted, if it is meant.
    #[error("{case}: {count:.1} instructions, {kept} before ({:+.1} %)", 100.0 * (count - kept) / kept)]
    Changed { case: &'static str, count: f64, kept: f64 },
}

impl Complaint {
    /// Whether keeping the count settles it.
    pub(crate) fn can_be_accepted(&self) -> bool {
        !matches!(self, Self::Above { .. })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<36} {:>8.1}", self.case, self.count)?;
        if let Some(kept) = self.kept {
            write!(f, "   kept {kept:>8.1}")?;
        }
        if let Some(budget) = self.budget {
            write!(f, "   of {budget}")?;
        }
        Ok(())
    }
}
