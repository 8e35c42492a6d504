//! What playback sends, and what must come back.
//!
//! A workload is a function and a number of messages. Message `m` is the request with id `m`.

use std::fs;
use std::path::{Path, PathBuf};

use roce_dispatch::rpc::{HEADER_LEN, Request, function_id};

use crate::Error;
use crate::decoder::{DecodeError, DetectorErrorModel, MWPM_DECODE, MatchingGraph, Mwpm};
use crate::handlers::RPC_INCREMENT;

/// Messages and their answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// Bytes that come back one higher.
    Increment(Increment),
    /// Detection events that come back decoded.
    SurfaceCode(SurfaceCode),
}

/// Byte `j` of message `m` is `m + j`, mod 256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Increment {
    /// How many messages.
    pub messages: u32,
    /// Bytes of arguments in each.
    pub payload_len: usize,
}

/// The shots of a memory experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurfaceCode {
    shots: Vec<Shot>,
    row: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Shot {
    events: Vec<u8>,
    truth: u8,
    reference: Option<u8>,
    decoded: u8,
}

/// Where the shots are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurfaceCodeFiles {
    /// The detector error model, Stim's text format.
    pub dem: PathBuf,
    /// Detection events: a row of `ceil(detectors / 8)` bytes a shot, bits LSB first.
    pub dets: PathBuf,
    /// The true observable flips: a row of `ceil(observables / 8)` bytes a shot.
    pub obs: PathBuf,
    /// What another decoder predicts, in rows as of `obs`.
    pub pred: Option<PathBuf>,
}

impl Workload {
    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Increment(_) => "increment",
            Self::SurfaceCode(_) => "surface-code",
        }
    }

    /// The function that it calls.
    pub fn function(&self) -> &'static str {
        match self {
            Self::Increment(_) => RPC_INCREMENT,
            Self::SurfaceCode(_) => MWPM_DECODE,
        }
    }

    /// How many messages.
    pub fn messages(&self) -> u32 {
        match self {
            Self::Increment(increment) => increment.messages,
            Self::SurfaceCode(code) => u32::try_from(code.shots.len()).unwrap_or(u32::MAX),
        }
    }

    /// Bytes of arguments in each message.
    pub fn payload_len(&self) -> usize {
        match self {
            Self::Increment(increment) => increment.payload_len,
            Self::SurfaceCode(code) => code.row,
        }
    }

    /// Bytes of each message: the header and the arguments.
    pub fn frame_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    /// Message `id`, which is below [`messages`](Self::messages): header and arguments.
    pub fn request(&self, id: u32) -> Vec<u8> {
        let arguments = self.arguments(id);
        let header = Request {
            function_id: function_id(self.function()),
            // Bounded by the page, whose size has 32 bits.
            arg_len: u32::try_from(arguments.len()).unwrap_or(u32::MAX),
            request_id: id,
            ptp_timestamp: 0,
        };
        let mut frame = vec![0; HEADER_LEN];
        header.emit(&mut frame);
        frame.extend(arguments);
        frame
    }

    /// The arguments of message `id`.
    pub fn arguments(&self, id: u32) -> Vec<u8> {
        match self {
            Self::Increment(increment) => increment.arguments(id),
            Self::SurfaceCode(code) => code.shots[id as usize].events.clone(),
        }
    }

    /// The result that must come back for message `id`.
    pub fn answer(&self, id: u32) -> Vec<u8> {
        match self {
            Self::Increment(increment) => increment.arguments(id).iter().map(|b| b.wrapping_add(1)).collect(),
            Self::SurfaceCode(code) => vec![code.shots[id as usize].decoded],
        }
    }

    /// The observable flips that message `id` really had; `None` where nothing is decoded.
    pub fn truth(&self, id: u32) -> Option<u8> {
        match self {
            Self::Increment(_) => None,
            Self::SurfaceCode(code) => Some(code.shots[id as usize].truth),
        }
    }

    /// The observable flips that another decoder predicts for message `id`; `None` where there is no prediction.
    pub fn reference(&self, id: u32) -> Option<u8> {
        match self {
            Self::Increment(_) => None,
            Self::SurfaceCode(code) => code.shots[id as usize].reference,
        }
    }
}

impl Increment {
    fn arguments(&self, id: u32) -> Vec<u8> {
        let first = id.to_le_bytes()[0];
        (0..self.payload_len).map(|j| first.wrapping_add(j.to_le_bytes()[0])).collect()
    }
}

impl SurfaceCode {
    /// Reads the shots, the first `limit` of them where a limit is given, and decodes each: a bridge that
    /// decodes with the same model must come to the same answers.
    pub fn load(files: &SurfaceCodeFiles, limit: Option<u32>) -> Result<Self, Error> {
        let graph = load_graph(&files.dem)?;
        let (row, truth_row) = (graph.num_detectors.div_ceil(8), graph.num_observables.div_ceil(8));
        if row == 0 || truth_row == 0 {
            let reason = "the model needs at least one detector and one observable".to_owned();
            return Err(Error::Data { path: files.dem.clone(), reason });
        }
        let events = rows(&files.dets, row, "detectors", graph.num_detectors)?;
        let flips = |path: &Path| -> Result<Vec<u8>, Error> {
            let flips = rows(path, truth_row, "observables", graph.num_observables)?;
            if flips.len() == events.len() {
                return Ok(flips.into_iter().map(|row| row[0]).collect());
            }
            let reason = format!("{} shots, {} has {}", flips.len(), files.dets.display(), events.len());
            Err(Error::Data { path: path.to_owned(), reason })
        };
        let truths = flips(&files.obs)?;
        let references = files.pred.as_deref().map(flips).transpose()?;
        let wanted = limit.map_or(events.len(), |n| n as usize);
        if wanted > events.len() {
            let reason = format!("{} shots, {wanted} messages are asked for", events.len());
            return Err(Error::Data { path: files.dets.clone(), reason });
        }
        let mut decoder = Mwpm::new(&graph);
        let shots = events.into_iter().zip(truths).take(wanted).enumerate().map(|(at, (events, truth))| {
            let refused =
                |e: DecodeError| Error::Data { path: files.dets.clone(), reason: format!("shot {at}: {e}") };
            let decoded = decoder.decode(&events).map_err(refused)?;
            Ok(Shot { events, truth, reference: references.as_ref().map(|rows| rows[at]), decoded })
        });
        Ok(Self { shots: shots.collect::<Result<_, Error>>()?, row })
    }
}

/// Reads a detector error model and makes its matching graph.
pub fn load_graph(path: &Path) -> Result<MatchingGraph, Error> {
    let read = |source| Error::File { call: "read", path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(read)?;
    let model = DetectorErrorModel::parse(&text).and_then(|model| MatchingGraph::new(&model));
    model.map_err(|source| Error::Model { path: path.to_owned(), source })
}

fn rows(path: &Path, row: usize, what: &str, count: usize) -> Result<Vec<Vec<u8>>, Error> {
    let data =
        fs::read(path).map_err(|source| Error::File { call: "read", path: path.to_owned(), source })?;
    if data.is_empty() || !data.len().is_multiple_of(row) {
        let reason = format!(
            "{} bytes are no whole number of shots; the model's {count} {what} take {row} bytes a shot",
            data.len()
        );
        return Err(Error::Data { path: path.to_owned(), reason });
    }
    Ok(data.chunks_exact(row).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    fn d3() -> SurfaceCodeFiles {
        SurfaceCodeFiles {
            dem: data("surface_d3_r3.dem"),
            dets: data("surface_d3_r3.dets.b8"),
            obs: data("surface_d3_r3.obs.b8"),
            pred: Some(data("surface_d3_r3.pred.b8")),
        }
    }

    #[test]
    fn increment_messages_and_answers() {
        let workload = Workload::Increment(Increment { messages: 600, payload_len: 4 });
        assert_eq!(workload.arguments(0x1FE), [0xFE, 0xFF, 0, 1]);
        assert_eq!(workload.answer(0x1FE), [0xFF, 0, 1, 2]);
        let frame = workload.request(0x1FE);
        assert_eq!(&frame[..16], [0x52, 0x51, 0x55, 0x43, 0x22, 0x63, 0x1b, 0x19, 4, 0, 0, 0, 0xFE, 1, 0, 0]);
        assert_eq!(&frame[16..], [0, 0, 0, 0, 0, 0, 0, 0, 0xFE, 0xFF, 0, 1]);
        assert_eq!((workload.frame_len(), workload.truth(0)), (28, None));
    }

    #[test]
    fn shots_are_the_rows_of_the_files() {
        let workload = Workload::SurfaceCode(SurfaceCode::load(&d3(), None).unwrap());
        assert_eq!((workload.messages(), workload.payload_len(), workload.frame_len()), (512, 3, 27));
        let events = fs::read(d3().dets).unwrap();
        let truths = fs::read(d3().obs).unwrap();
        let predictions = fs::read(data("surface_d3_r3.pred.b8")).unwrap();
        assert_eq!(workload.arguments(511), &events[511 * 3..]);
        assert_eq!(&workload.request(7)[24..], &events[21..24]);
        let same = (0..512).filter(|&m| workload.answer(m) == predictions[m as usize..=m as usize]).count();
        assert!(same >= 511, "{same}");
        assert!((0..512).all(|m| workload.truth(m) == Some(truths[m as usize])));
        assert!((0..512).all(|m| workload.reference(m) == Some(predictions[m as usize])));
    }

    #[test]
    fn fewer_shots_can_be_taken_but_no_more() {
        assert_eq!(SurfaceCode::load(&d3(), Some(10)).unwrap().shots.len(), 10);
        let error = SurfaceCode::load(&d3(), Some(513)).unwrap_err().to_string();
        assert!(error.contains("512 shots, 513 messages"), "{error}");
    }

    #[test]
    fn files_that_do_not_fit_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let error = |files: SurfaceCodeFiles| SurfaceCode::load(&files, None).unwrap_err().to_string();

        let missing = dir.path().join("missing.b8");
        let text = error(SurfaceCodeFiles { dets: missing.clone(), ..d3() });
        assert!(text.starts_with(&format!("read {}", missing.display())), "{text}");
        let text = error(SurfaceCodeFiles { dets: file("odd", &[0; 10]), ..d3() });
        assert!(text.contains("10 bytes") && text.contains("24 detectors take 3 bytes"), "{text}");
        let text = error(SurfaceCodeFiles { obs: file("few", &[0; 9]), ..d3() });
        assert!(text.contains("9 shots") && text.contains("has 512"), "{text}");
        let text = error(SurfaceCodeFiles { pred: Some(file("fewer", &[0; 8])), ..d3() });
        assert!(text.contains("fewer") && text.contains("8 shots") && text.contains("has 512"), "{text}");
        let text = error(SurfaceCodeFiles { pred: Some(missing.clone()), ..d3() });
        assert!(text.starts_with(&format!("read {}", missing.display())), "{text}");
        let text = error(SurfaceCodeFiles { obs: file("none", &[]), ..d3() });
        assert!(text.contains("0 bytes"), "{text}");
        let text = error(SurfaceCodeFiles { dem: file("m", b"error(0.1) D0\noops"), ..d3() });
        assert!(text.contains("line 2") && text.contains("oops"), "{text}");
        let text = error(SurfaceCodeFiles { dem: file("n", b"error(0.1) D0"), ..d3() });
        assert!(text.contains("one observable"), "{text}");
        let spare = [file("p", b"error(0.1) D0 L0"), file("q", &[2]), file("r", &[0])];
        let [dem, dets, obs] = spare;
        let text = error(SurfaceCodeFiles { dem, dets, obs, pred: None });
        assert!(text.contains("shot 0") && text.contains("detection event 1"), "{text}");
    }
}
