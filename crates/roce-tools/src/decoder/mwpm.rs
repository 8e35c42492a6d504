//! The decoder: detection events in, observable flips out.

use std::fmt;

use fusion_blossom::mwpm_solver::{PrimalDualSolver, SolverSerial};
use fusion_blossom::util::{SolverInitializer, SyndromePattern};
use roce_dispatch::rpc::HandlerError;

use super::graph::MatchingGraph;
use super::set_bits;

/// The RPC function: one BIT_PACKED argument of detection events, one UINT8 result of observable flips.
pub const MWPM_DECODE: &str = "mwpm_decode";

/// Detection events that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Not one bit per detector, rounded up to bytes.
    #[error("{got} bytes of detection events; the model's {detectors} detectors take {}", detectors.div_ceil(8))]
    Length {
        /// Bytes given.
        got: usize,
        /// Detectors of the model.
        detectors: usize,
    },
    /// A spare bit is set.
    #[error("detection event {index} is set; the model has {detectors} detectors")]
    SpareBit {
        /// The bit.
        index: usize,
        /// Detectors of the model.
        detectors: usize,
    },
    /// No set of the model's errors explains the events.
    #[error("no combination of the model's errors flips exactly these detectors (near D{detector})")]
    Unmatchable {
        /// One of the detectors that no error connects to a partner or the boundary.
        detector: usize,
    },
}

impl DecodeError {
    /// What [`MWPM_DECODE`] answers with: 1 length, 2 spare bit, 3 unmatchable.
    pub fn handler_error(&self) -> HandlerError {
        let code = match self {
            Self::Length { .. } => 1,
            Self::SpareBit { .. } => 2,
            Self::Unmatchable { .. } => 3,
        };
        HandlerError::new(code).expect("positive")
    }
}

/// A minimum-weight perfect matching decoder for one detector error model.
pub struct Mwpm {
    solver: SolverSerial,
    islands: Islands,
    observables: Vec<u8>,
    num_detectors: usize,
}

impl fmt::Debug for Mwpm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mwpm")
            .field("detectors", &self.num_detectors)
            .field("edges", &self.observables.len())
            .finish_non_exhaustive()
    }
}

impl Mwpm {
    /// Prepares a solver for the graph.
    pub fn new(graph: &MatchingGraph) -> Self {
        let mut vertices = graph.num_detectors;
        // Each boundary edge ends in a vertex of its own: a path between two detectors never crosses one.
        let mut boundary_vertex = || {
            vertices += 1;
            vertices - 1
        };
        let weighted_edges = graph
            .edges
            .iter()
            .map(|e| (e.detector, e.other.unwrap_or_else(&mut boundary_vertex), e.weight()))
            .collect();
        let initializer = SolverInitializer {
            vertex_num: vertices,
            weighted_edges,
            virtual_vertices: (graph.num_detectors..vertices).collect(),
        };
        Self {
            solver: SolverSerial::new(&initializer),
            islands: Islands::new(graph),
            observables: graph.edges.iter().map(|e| e.observables).collect(),
            num_detectors: graph.num_detectors,
        }
    }

    /// Detectors of the model.
    pub fn num_detectors(&self) -> usize {
        self.num_detectors
    }

    /// Decodes one shot: `ceil(detectors / 8)` bytes of detection events, LSB first. Bit `i` of the result:
    /// observable `i` was flipped, most probably.
    pub fn decode(&mut self, events: &[u8]) -> Result<u8, DecodeError> {
        let detectors = self.num_detectors;
        if events.len() != detectors.div_ceil(8) {
            return Err(DecodeError::Length { got: events.len(), detectors });
        }
        let defects: Vec<usize> = set_bits(events).collect();
        if let Some(&index) = defects.last().filter(|last| **last >= detectors) {
            return Err(DecodeError::SpareBit { index, detectors });
        }
        self.islands.check(&defects)?;
        Ok(self.matched(defects))
    }

    fn matched(&mut self, defects: Vec<usize>) -> u8 {
        // Cleared first, so that a shot which panicked leaves nothing behind for the next.
        self.solver.clear();
        self.solver.solve(&SyndromePattern::new(defects, Vec::new()));
        self.solver.subgraph().into_iter().fold(0, |flips, edge| flips ^ self.observables[edge])
    }
}

/// The connected parts of a graph. A part without boundary can only explain an even number of events, and
/// the solver would search for ever.
struct Islands {
    /// Island of each detector.
    of: Vec<usize>,
    /// By island: whether it reaches the boundary.
    has_boundary: Vec<bool>,
    /// By island: whether this shot has an odd number of events there. Reused from shot to shot.
    odd: Vec<bool>,
}

impl Islands {
    fn new(graph: &MatchingGraph) -> Self {
        let mut parent: Vec<usize> = (0..graph.num_detectors).collect();
        for edge in &graph.edges {
            if let Some(other) = edge.other {
                let (a, b) = (root(&mut parent, edge.detector), root(&mut parent, other));
                parent[a] = b;
            }
        }
        let of: Vec<usize> = (0..graph.num_detectors).map(|d| root(&mut parent, d)).collect();
        let mut has_boundary = vec![false; graph.num_detectors];
        for edge in graph.edges.iter().filter(|e| e.other.is_none()) {
            has_boundary[of[edge.detector]] = true;
        }
        Self { of, has_boundary, odd: vec![false; graph.num_detectors] }
    }

    fn check(&mut self, defects: &[usize]) -> Result<(), DecodeError> {
        for &defect in defects {
            self.odd[self.of[defect]] ^= true;
        }
        let stranded = defects.iter().find(|d| self.odd[self.of[**d]] && !self.has_boundary[self.of[**d]]);
        let result = stranded.map_or(Ok(()), |&detector| Err(DecodeError::Unmatchable { detector }));
        for &defect in defects {
            self.odd[self.of[defect]] = false;
        }
        result
    }
}

/// Root of a detector's tree, halving the path on the way.
fn root(parent: &mut [usize], mut at: usize) -> usize {
    while parent[at] != at {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::DetectorErrorModel;

    fn decoder(text: &str) -> Mwpm {
        Mwpm::new(&MatchingGraph::new(&DetectorErrorModel::parse(text).unwrap()).unwrap())
    }

    #[test]
    fn the_likelier_explanation_wins() {
        // A chain with the boundary on both ends; the left one flips the observable.
        let mut chain = decoder("error(0.1) D0 L0\nerror(0.0005) D0 D1\nerror(0.1) D1 D2\nerror(0.1) D2");
        assert_eq!(chain.decode(&[0b000]), Ok(0));
        assert_eq!(chain.decode(&[0b001]), Ok(1));
        assert_eq!(chain.decode(&[0b010]), Ok(0));
        assert_eq!(chain.decode(&[0b011]), Ok(1), "three likely errors beat a rare one");
        assert_eq!(chain.decode(&[0b110]), Ok(0));
    }

    #[test]
    fn unusual_arguments_are_refused() {
        let mut two = decoder("error(0.1) D0\nerror(0.1) D1 L1");
        assert_eq!(two.decode(&[]), Err(DecodeError::Length { got: 0, detectors: 2 }));
        assert_eq!(two.decode(&[0, 0]), Err(DecodeError::Length { got: 2, detectors: 2 }));
        assert_eq!(two.decode(&[0b100]), Err(DecodeError::SpareBit { index: 2, detectors: 2 }));
        assert_eq!(two.decode(&[0b11]), Ok(2));
    }

    #[test]
    fn an_island_without_boundary_needs_pairs() {
        let mut islands = decoder("error(0.1) D0 D1\nerror(0.1) D1 D2 L0\nerror(0.1) D3\ndetector D4");
        assert_eq!(islands.decode(&[0b0101]), Ok(1));
        assert_eq!(islands.decode(&[0b1010]), Err(DecodeError::Unmatchable { detector: 1 }));
        assert_eq!(islands.decode(&[0b1_0000]), Err(DecodeError::Unmatchable { detector: 4 }));
        assert_eq!(islands.decode(&[0b1000]), Ok(0), "a refused shot leaves nothing behind");
    }
}
