//! Turns a detector error model into a matching graph.
//!
//! Every component of an error flips one or two detectors and becomes an edge, to the boundary if it flips
//! one. Independent errors with the same symptoms merge into one edge.

use std::collections::BTreeMap;

use super::DemError;
use super::dem::{Component, DetectorErrorModel, ErrorMechanism};

/// Weights are log-likelihood ratios times this, so that rounding to integers costs no accuracy that counts.
const WEIGHT_SCALE: f64 = 10_000.0;
/// A corrections byte holds this many observables.
pub(super) const MAX_OBSERVABLES: usize = 8;

/// What one error flips.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// A detector.
    pub detector: usize,
    /// The other detector, or the boundary.
    pub other: Option<usize>,
    /// How likely, above 0 and at most 1/2.
    pub probability: f64,
    /// Bit `i`: flips observable `i`.
    pub observables: u8,
}

impl Edge {
    /// ln((1 - p) / p), scaled and rounded to an even integer: half an edge must be an integer too.
    pub(super) fn weight(&self) -> isize {
        let likelihood = ((1.0 - self.probability) / self.probability).ln();
        #[allow(clippy::cast_possible_truncation)] // 700 * scale at most: p is a normal f64
        let half = (likelihood * WEIGHT_SCALE / 2.0).round() as isize;
        2 * half
    }
}

/// A graph whose vertices are detectors and whose edges are errors, at most one between two vertices.
#[derive(Debug, Clone, PartialEq)]
pub struct MatchingGraph {
    /// Detectors, edges or none.
    pub num_detectors: usize,
    /// Observables, 8 at most.
    pub num_observables: usize,
    /// Ordered by their vertices.
    pub edges: Vec<Edge>,
}

/// Probability by observables, for one pair of vertices.
type Parallel = BTreeMap<u8, f64>;

impl MatchingGraph {
    /// Builds the graph. Refused, by line: a component with three or more detectors, a probability above
    /// 1/2, more than 8 observables.
    ///
    /// Where errors with the same detectors differ in their observables, the likelier group stays: matching
    /// could never prefer the other.
    pub fn new(model: &DetectorErrorModel) -> Result<Self, DemError> {
        if model.num_observables > MAX_OBSERVABLES {
            let n = model.num_observables;
            let reason = format!("{n} observables; one byte of corrections holds {MAX_OBSERVABLES}");
            return Err(DemError::new(0, reason));
        }
        let mut pairs: BTreeMap<(usize, Option<usize>), Parallel> = BTreeMap::new();
        for error in model.errors.iter().filter(|e| e.probability > 0.0) {
            check_probability(error)?;
            for component in &error.components {
                let Some(ends) = ends(component, error.line)? else { continue };
                let p = pairs.entry(ends).or_default().entry(mask(component)).or_insert(0.0);
                *p = either(*p, error.probability);
            }
        }
        let edges = pairs.into_iter().filter_map(|((detector, other), parallel)| {
            let (observables, probability) = parallel.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
            Some(Edge { detector, other, probability, observables })
        });
        Ok(Self {
            num_detectors: model.num_detectors,
            num_observables: model.num_observables,
            edges: edges.collect(),
        })
    }
}

fn check_probability(error: &ErrorMechanism) -> Result<(), DemError> {
    let p = error.probability;
    if p <= 0.5 {
        return Ok(());
    }
    Err(DemError::new(
        error.line,
        format!("an error of probability {p} is likelier than not; matching needs at most 0.5"),
    ))
}

/// The vertices of a component; `None` if no detector sees it, so that no decoder can.
fn ends(component: &Component, line: usize) -> Result<Option<(usize, Option<usize>)>, DemError> {
    match component.detectors[..] {
        [] => Ok(None),
        [a] => Ok(Some((a, None))),
        [a, b] => Ok(Some((a, Some(b)))),
        ref many => Err(DemError::new(
            line,
            format!(
                "{} detectors without `^` are no edge of a graph; export the model with decompose_errors=True",
                many.len()
            ),
        )),
    }
}

fn mask(component: &Component) -> u8 {
    component.observables.iter().fold(0, |mask, bit| mask | 1 << bit)
}

/// The probability that exactly one of two independent errors happens.
fn either(p1: f64, p2: f64) -> f64 {
    p1 * (1.0 - p2) + p2 * (1.0 - p1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(text: &str) -> Result<MatchingGraph, DemError> {
        MatchingGraph::new(&DetectorErrorModel::parse(text).unwrap())
    }

    #[test]
    fn parallel_errors_merge_as_independent_events() {
        let g = graph("error(0.1) D0 D1 L0\nerror(0.2) D1 D0 L0 ^ D2").unwrap();
        assert_eq!(g.edges.len(), 2);
        assert_eq!((g.edges[0].detector, g.edges[0].other, g.edges[0].observables), (0, Some(1), 1));
        assert!((g.edges[0].probability - 0.26).abs() < 1e-12);
        assert_eq!((g.edges[1].detector, g.edges[1].other, g.edges[1].observables), (2, None, 0));
    }

    #[test]
    fn the_likelier_observables_win() {
        let g = graph("error(0.05) D0 L0\nerror(0.08) D0\nerror(0.05) D0 L0").unwrap();
        assert_eq!(g.edges.len(), 1);
        assert_eq!(g.edges[0].observables, 1);
        assert!((g.edges[0].probability - 0.095).abs() < 1e-12);
    }

    #[test]
    fn weights_are_even_and_zero_at_one_half() {
        let g = graph("error(0.5) D0\nerror(0.013) D1\nerror(1e-300) D2").unwrap();
        let weights: Vec<_> = g.edges.iter().map(Edge::weight).collect();
        assert_eq!(weights[0], 0);
        assert_eq!(weights[1], 43298);
        assert!(weights.iter().all(|w| w % 2 == 0 && *w >= 0));
    }

    #[test]
    fn what_is_no_edge_is_refused_or_left_out() {
        assert_eq!(graph("error(0.1) D0\nerror(0.1) D0 D1 D2").unwrap_err().line, 2);
        assert_eq!(graph("\n\nerror(0.6) D0").unwrap_err().line, 3);
        assert_eq!(graph("error(0.1) D0 L8").unwrap_err().line, 0);
        let g = graph("error(0.1) L0\nerror(0) D0 D1 D2\nerror(0.1) D1 D1").unwrap();
        assert_eq!((g.edges.len(), g.num_detectors), (0, 3));
    }
}
