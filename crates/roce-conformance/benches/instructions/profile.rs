//! What a profile of callgrind's says of each function.

use std::collections::BTreeMap;
use std::fmt;

/// Instructions by function, those that do not count left out.
#[derive(Debug, Default)]
pub(crate) struct Profile(BTreeMap<String, f64>);

impl Profile {
    /// Sums the lines `position instructions` below each function. The line after `calls=` repeats what the called
    /// function is charged with.
    pub(crate) fn parse(text: &str) -> Self {
        let (mut function, mut is_call) = (None, false);
        let mut functions = BTreeMap::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = counts(name).then_some(name);
            } else if line.starts_with("calls=") {
                is_call = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit()) {
                if let (Some(name), false) = (function, is_call) {
                    let cost = line.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok());
                    *functions.entry(name.to_owned()).or_default() += cost.expect("a cost");
                }
                is_call = false;
            }
        }
        Self(functions)
    }

    /// What is more than in `fewer`, by message.
    pub(crate) fn per_message(mut self, fewer: &Self, messages: f64) -> Self {
        for (name, count) in &mut self.0 {
            *count = (*count - fewer.of(name)) / messages;
        }
        self
    }

    fn of(&self, function: &str) -> f64 {
        self.0.get(function).copied().unwrap_or(0.0)
    }

    pub(crate) fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// For people, the most expensive function first.
    pub(crate) fn beside<'a>(&'a self, without: Option<&'a Self>) -> impl fmt::Display + 'a {
        Functions { all: self, without }
    }
}

struct Functions<'a> {
    all: &'a Profile,
    without: Option<&'a Profile>,
}

impl fmt::Display for Functions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut functions: Vec<_> = self.all.0.iter().filter(|(_, count)| count.abs() >= 0.05).collect();
        functions.sort_by(|a, b| b.1.total_cmp(a.1));
        for (name, count) in functions {
            match self.without {
                None => writeln!(f, "{count:>10.1}  {name}")?,
                Some(without) => writeln!(f, "{count:>10.1} {:>10.1}  {name}", without.of(name))?,
            }
        }
        Ok(())
    }
}

/// Whether a function is not of this benchmark: of the library, also where it was made for one of our types, or a step.
/// What registers a function that works in place lends its name to that function.
fn counts(function: &str) -> bool {
    let name = function.trim_start_matches('<');
    let is_ours = !name.starts_with("instructions::") || name.starts_with("instructions::steps::");
    is_ours && !name.contains("register_in_place::{{closure}}")
}
