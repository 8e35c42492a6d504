//! Reads detector error models in Stim's text format.
//!
//! Understood: `error`, `detector`, `logical_observable`, `shift_detectors` and `repeat` blocks, with tags,
//! arguments and comments. Coordinates are checked for form and then dropped: matching does not need them.

use super::DemError;

/// Instructions a model may unroll to; a `repeat` with a mistyped count stops here instead of eating the memory.
const MAX_INSTRUCTIONS: usize = 2_000_000;
/// The detectors a model may have.
const MAX_DETECTORS: u64 = 1 << 24;
/// How deep `repeat` blocks may nest.
const MAX_DEPTH: usize = 32;

/// One way in which the circuit fails: with some probability it flips all of its components.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorMechanism {
    /// Where the model says so, counted from 1.
    pub line: usize,
    /// How likely, from 0 to 1.
    pub probability: f64,
    /// The suggested decomposition: the parts between `^`.
    pub components: Vec<Component>,
}

/// The symptoms of one part of an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Component {
    /// Detectors flipped, ascending, each once.
    pub detectors: Vec<usize>,
    /// Observables flipped, ascending, each once.
    pub observables: Vec<usize>,
}

/// A model with its `repeat` blocks unrolled.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectorErrorModel {
    /// Detectors: one more than the highest number used.
    pub num_detectors: usize,
    /// Observables: one more than the highest number used.
    pub num_observables: usize,
    /// The errors, in the model's order.
    pub errors: Vec<ErrorMechanism>,
}

impl DetectorErrorModel {
    /// Parses the text of a `.dem` file. The error names the line.
    pub fn parse(text: &str) -> Result<Self, DemError> {
        let program = parse_block(text)?;
        let mut unrolled = Unrolled::default();
        unrolled.run(&program)?;
        Ok(unrolled.into_model())
    }
}

enum Instruction {
    Error { line: usize, probability: f64, targets: Vec<Target> },
    Declare { line: usize, targets: Vec<Target> },
    Shift { line: usize, by: u64 },
    Repeat { line: usize, count: u64, body: Vec<Self> },
}

#[derive(Clone, Copy)]
enum Target {
    Detector(u64),
    Observable(u64),
    Separator,
}

/// An open `repeat` block: where it began, how often it runs, what came before it.
struct OpenBlock {
    line: usize,
    count: u64,
    before: Vec<Instruction>,
}

fn parse_block(text: &str) -> Result<Vec<Instruction>, DemError> {
    let mut open: Vec<OpenBlock> = Vec::new();
    let mut current = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let line = index + 1;
        let code = raw.split('#').next().unwrap_or_default().trim();
        if code == "}" {
            let block = open.pop().ok_or_else(|| DemError::new(line, "`}` closes no block"))?;
            let body = std::mem::replace(&mut current, block.before);
            current.push(Instruction::Repeat { line: block.line, count: block.count, body });
        } else if let Some(count) = repeat_count(code, line)? {
            if open.len() == MAX_DEPTH {
                return Err(DemError::new(line, format!("repeat blocks nest deeper than {MAX_DEPTH}")));
            }
            open.push(OpenBlock { line, count, before: std::mem::take(&mut current) });
        } else if !code.is_empty() {
            current.push(parse_instruction(code, line)?);
        }
    }
    match open.pop() {
        Some(block) => Err(DemError::new(block.line, "this repeat block is never closed with `}`")),
        None => Ok(current),
    }
}

fn repeat_count(code: &str, line: usize) -> Result<Option<u64>, DemError> {
    let head = Head::split(code, line)?;
    if head.name != "repeat" {
        return Ok(None);
    }
    let count = head
        .rest
        .strip_suffix('{')
        .and_then(|n| n.trim().parse().ok())
        .ok_or_else(|| DemError::new(line, "a repeat block reads `repeat COUNT {`"))?;
    Ok(Some(count))
}

fn parse_instruction(code: &str, line: usize) -> Result<Instruction, DemError> {
    let head = Head::split(code, line)?;
    match head.name.as_str() {
        "error" => Ok(Instruction::Error {
            line,
            probability: head.probability(line)?,
            targets: targets(head.rest, line)?,
        }),
        "detector" => declaration(&head, line, "detector", |t| matches!(t, Target::Detector(_))),
        "logical_observable" => {
            declaration(&head, line, "logical_observable", |t| matches!(t, Target::Observable(_)))
        }
        "shift_detectors" => {
            let by = head.rest.parse().map_err(|_| {
                DemError::new(
                    line,
                    "shift_detectors takes one count of detectors, as in `shift_detectors(0, 1) 8`",
                )
            })?;
            Ok(Instruction::Shift { line, by })
        }
        other => Err(DemError::new(line, format!("`{other}` is no instruction of a detector error model"))),
    }
}

fn declaration(
    head: &Head<'_>,
    line: usize,
    name: &str,
    fits: impl Fn(&Target) -> bool,
) -> Result<Instruction, DemError> {
    let targets = targets(head.rest, line)?;
    if targets.is_empty() || !targets.iter().all(fits) {
        let what =
            if name == "detector" { "detectors, as in `detector(0, 1) D5`" } else { "observables (L…)" };
        return Err(DemError::new(line, format!("`{name}` takes {what}")));
    }
    Ok(Instruction::Declare { line, targets })
}

/// The parts of an instruction: `name[tag](arguments) rest`.
struct Head<'a> {
    name: String,
    arguments: Vec<f64>,
    rest: &'a str,
}

impl<'a> Head<'a> {
    fn split(code: &'a str, line: usize) -> Result<Self, DemError> {
        let end = code.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(code.len());
        let (name, mut rest) = code.split_at(end);
        if let Some(after) = rest.strip_prefix('[') {
            let close =
                after.find(']').ok_or_else(|| DemError::new(line, "a tag is never closed with `]`"))?;
            rest = &after[close + 1..];
        }
        let mut arguments = Vec::new();
        if let Some(after) = rest.strip_prefix('(') {
            let close = after
                .find(')')
                .ok_or_else(|| DemError::new(line, "the arguments are never closed with `)`"))?;
            arguments = parse_arguments(&after[..close], line)?;
            rest = &after[close + 1..];
        }
        Ok(Self { name: name.to_ascii_lowercase(), arguments, rest: rest.trim() })
    }

    fn probability(&self, line: usize) -> Result<f64, DemError> {
        match self.arguments[..] {
            [p] if (0.0..=1.0).contains(&p) => Ok(p),
            [p] => Err(DemError::new(line, format!("{p} is no probability; it lies between 0 and 1"))),
            _ => Err(DemError::new(line, "an error takes one probability, as in `error(0.01) D0 D1`")),
        }
    }
}

fn parse_arguments(list: &str, line: usize) -> Result<Vec<f64>, DemError> {
    let number = |text: &str| {
        text.trim().parse().map_err(|_| DemError::new(line, format!("`{}` is no number", text.trim())))
    };
    if list.trim().is_empty() { Ok(Vec::new()) } else { list.split(',').map(number).collect() }
}

fn targets(list: &str, line: usize) -> Result<Vec<Target>, DemError> {
    list.split_whitespace().map(|word| target(word, line)).collect()
}

fn target(word: &str, line: usize) -> Result<Target, DemError> {
    let number = |digits: &str| digits.parse::<u64>().ok();
    let parsed = match word.split_at_checked(1) {
        Some(("^", "")) => Some(Target::Separator),
        Some(("D" | "d", n)) => number(n).map(Target::Detector),
        Some(("L" | "l", n)) => number(n).map(Target::Observable),
        _ => None,
    };
    parsed.ok_or_else(|| DemError::new(line, format!("`{word}` is no target; take D<n>, L<n> or ^")))
}

#[derive(Default)]
struct Unrolled {
    shift: u64,
    num_detectors: u64,
    num_observables: u64,
    errors: Vec<ErrorMechanism>,
    steps: usize,
}

impl Unrolled {
    fn run(&mut self, block: &[Instruction]) -> Result<(), DemError> {
        for instruction in block {
            match instruction {
                Instruction::Error { line, probability, targets } => {
                    self.error(*line, *probability, targets)?
                }
                Instruction::Declare { line, targets } => {
                    self.count(*line)?;
                    self.component(*line, targets)?;
                }
                Instruction::Shift { line, by } => {
                    self.count(*line)?;
                    self.shift = self.detector(*line, *by)?;
                }
                Instruction::Repeat { line, count, body } => (0..*count).try_for_each(|_| {
                    self.count(*line)?;
                    self.run(body)
                })?,
            }
        }
        Ok(())
    }

    fn count(&mut self, line: usize) -> Result<(), DemError> {
        self.steps += 1;
        if self.steps > MAX_INSTRUCTIONS {
            return Err(DemError::new(
                line,
                format!(
                    "the model unrolls to more than {MAX_INSTRUCTIONS} instructions; lower its repeat counts"
                ),
            ));
        }
        Ok(())
    }

    fn error(&mut self, line: usize, probability: f64, targets: &[Target]) -> Result<(), DemError> {
        self.count(line)?;
        let parts = targets.split(|t| matches!(t, Target::Separator));
        let components = parts.map(|part| self.component(line, part)).collect::<Result<Vec<_>, _>>()?;
        self.errors.push(ErrorMechanism { line, probability, components });
        Ok(())
    }

    fn component(&mut self, line: usize, targets: &[Target]) -> Result<Component, DemError> {
        let mut component = Component::default();
        for target in targets {
            match *target {
                Target::Detector(n) => {
                    let n = self.detector(line, n)?;
                    self.num_detectors = self.num_detectors.max(n + 1);
                    toggle(&mut component.detectors, to_index(n));
                }
                Target::Observable(n) if n >= MAX_DETECTORS => {
                    return Err(DemError::new(line, format!("observable L{n} is beyond {MAX_DETECTORS}")));
                }
                Target::Observable(n) => {
                    self.num_observables = self.num_observables.max(n + 1);
                    toggle(&mut component.observables, to_index(n));
                }
                Target::Separator => return Err(DemError::new(line, "`^` belongs in an error only")),
            }
        }
        Ok(component)
    }

    /// The absolute number of a detector named relative to the shifts so far.
    fn detector(&self, line: usize, relative: u64) -> Result<u64, DemError> {
        self.shift.checked_add(relative).filter(|n| *n < MAX_DETECTORS).ok_or_else(|| {
            DemError::new(line, format!("a detector beyond D{MAX_DETECTORS} (shifts included)"))
        })
    }

    fn into_model(self) -> DetectorErrorModel {
        DetectorErrorModel {
            num_detectors: to_index(self.num_detectors),
            num_observables: to_index(self.num_observables),
            errors: self.errors,
        }
    }
}

/// Numbers are below `MAX_DETECTORS` by now.
fn to_index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Symptoms named twice cancel.
fn toggle(set: &mut Vec<usize>, value: usize) {
    match set.binary_search(&value) {
        Ok(at) => _ = set.remove(at),
        Err(at) => set.insert(at, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(text: &str) -> usize {
        DetectorErrorModel::parse(text).expect_err("must be refused").line
    }

    fn component(detectors: &[usize], observables: &[usize]) -> Component {
        Component { detectors: detectors.to_vec(), observables: observables.to_vec() }
    }

    #[test]
    fn components_tags_case_and_comments() {
        let model = DetectorErrorModel::parse(
            "# a comment\nERROR[a tag (x)](0.25) D1 D0 ^ d3 L2 # trailing\n\ndetector(1, 2.5, -3) D7\n",
        )
        .unwrap();
        assert_eq!((model.num_detectors, model.num_observables), (8, 3));
        let error = &model.errors[0];
        assert_eq!((error.line, error.probability), (2, 0.25));
        assert_eq!(error.components, [component(&[0, 1], &[]), component(&[3], &[2])]);
    }

    #[test]
    fn a_symptom_named_twice_cancels() {
        let model = DetectorErrorModel::parse("error(0.1) D0 D1 D0 L0 L0").unwrap();
        assert_eq!(model.errors[0].components, [component(&[1], &[])]);
        assert_eq!((model.num_detectors, model.num_observables), (2, 1));
    }

    #[test]
    fn repeats_unroll_with_their_shifts() {
        let text = "repeat 2 {\n  error(0.1) D0 D1\n  repeat 3 {\n    shift_detectors(0, 1) 2\n  }\n}\nerror(0.2) D0 L0";
        let model = DetectorErrorModel::parse(text).unwrap();
        let detectors: Vec<_> = model.errors.iter().map(|e| e.components[0].detectors.clone()).collect();
        assert_eq!(detectors, [vec![0, 1], vec![6, 7], vec![12]]);
        assert_eq!(model.num_detectors, 13);
    }

    #[test]
    fn logical_observables_count_without_errors() {
        let model = DetectorErrorModel::parse("logical_observable L4\nshift_detectors 3").unwrap();
        assert_eq!((model.num_detectors, model.num_observables), (0, 5));
    }

    #[test]
    fn mistakes_name_their_line() {
        assert_eq!(line_of("error(0.1) D0\nerror(1.5) D0"), 2);
        assert_eq!(line_of("error D0"), 1);
        assert_eq!(line_of("\nerror(0.1) Q0"), 2);
        assert_eq!(line_of("error(0.1) D"), 1);
        assert_eq!(line_of("error(0.1 D0"), 1);
        assert_eq!(line_of("error(x) D0"), 1);
        assert_eq!(line_of("error(NaN) D0"), 1);
        assert_eq!(line_of("frobnicate D0"), 1);
        assert_eq!(line_of("detector L0"), 1);
        assert_eq!(line_of("shift_detectors D1"), 1);
        assert_eq!(line_of("}\n"), 1);
        assert_eq!(line_of("error(0.1) D0\nrepeat 3 {\nerror(0.1) D0"), 2);
        assert_eq!(line_of("repeat x {\n}"), 1);
    }

    #[test]
    fn hostile_sizes_are_refused_quickly() {
        assert_eq!(line_of("repeat 18446744073709551615 {\nerror(0.1) D0\n}"), 1);
        assert_eq!(line_of("error(0.1) D18446744073709551615"), 1);
        assert_eq!(line_of("shift_detectors 9999999\nshift_detectors 9999999"), 2);
        assert_eq!(line_of(&"repeat 2 {\n".repeat(40)), 33);
        assert_eq!(line_of("repeat 18446744073709551615 {\n}"), 1);
    }
}
