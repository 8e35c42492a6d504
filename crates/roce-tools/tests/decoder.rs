//! The decoder against PyMatching's predictions and the true observables of real experiments.

use std::path::PathBuf;

use roce_tools::decoder::{DetectorErrorModel, MatchingGraph, Mwpm};

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

struct Outcome {
    shots: usize,
    agree: usize,
    logical_errors: usize,
}

fn decode(name: &str) -> Outcome {
    let text = String::from_utf8(data(&format!("{name}.dem"))).expect("the model is text");
    let graph = MatchingGraph::new(&DetectorErrorModel::parse(&text).expect("parses")).expect("is a graph");
    let mut decoder = Mwpm::new(&graph);
    let (events, observables, predictions) =
        (data(&format!("{name}.dets.b8")), data(&format!("{name}.obs.b8")), data(&format!("{name}.pred.b8")));
    let rows = events.chunks_exact(graph.num_detectors.div_ceil(8));
    let answers: Vec<u8> = rows.map(|row| decoder.decode(row).expect("decodes")).collect();
    let same = |reference: &[u8]| answers.iter().zip(reference).filter(|(a, b)| a == b).count();
    assert_eq!([observables.len(), predictions.len()], [answers.len(); 2]);
    Outcome {
        shots: answers.len(),
        agree: same(&predictions),
        logical_errors: answers.len() - same(&observables),
    }
}

#[test]
fn distance_5_agrees_with_pymatching() {
    let outcome = decode("surface_d5_r5");
    assert_eq!(outcome.shots, 512);
    assert!(outcome.agree >= 511, "{} of 512 agree", outcome.agree);
    assert!((33..=35).contains(&outcome.logical_errors), "{} logical errors", outcome.logical_errors);
}

#[test]
fn distance_3_agrees_with_pymatching() {
    let outcome = decode("surface_d3_r3");
    assert_eq!(outcome.shots, 512);
    assert!(outcome.agree >= 511, "{} of 512 agree", outcome.agree);
    assert!((31..=33).contains(&outcome.logical_errors), "{} logical errors", outcome.logical_errors);
}
