//! What is measured, and for how long.

use std::collections::HashSet;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use roce_dispatch::rpc::HEADER_LEN;
use roce_transport::FaultConfig;

use super::place::Placement;
use crate::Error;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// Round trips, one at a time.
    Rtt,
    /// Round trips, many at a time.
    Throughput,
    /// Round trips at a fixed rate.
    Jitter,
    /// Through a ring to another thread, and back.
    Handoff,
    /// The dispatcher alone.
    Dispatch,
    /// The packet codec of the userspace link alone.
    Codec,
    /// Round trips to many transceivers in turn.
    Scale,
}

impl Case {
    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtt => "rtt",
            Self::Throughput => "throughput",
            Self::Jitter => "jitter",
            Self::Handoff => "handoff",
            Self::Dispatch => "dispatch",
            Self::Codec => "codec",
            Self::Scale => "scale",
        }
    }

    /// Whether it goes over a link, so that there is a service in some mode.
    pub fn is_wire(self) -> bool {
        matches!(self, Self::Rtt | Self::Throughput | Self::Jitter | Self::Scale)
    }

    /// Whether a service can work so in it.
    fn knows(self, mode: ServiceMode) -> bool {
        use ServiceMode::{Forward, Shared, Threads, Unified};
        match self {
            Self::Scale => matches!(mode, Shared | Forward),
            case => case.is_wire() && matches!(mode, Threads | Unified | Forward),
        }
    }
}

/// How the service works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceMode {
    /// Threads for receiving, dispatching and sending, rings in between.
    Threads,
    /// One thread does all of it.
    Unified,
    /// One thread sends requests back as they are.
    Forward,
    /// One thread does so for many transceivers: only in the case `scale`.
    Shared,
    /// There is no service.
    #[value(skip)]
    None,
}

impl ServiceMode {
    /// As in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Unified => "unified",
            Self::Forward => "forward",
            Self::Shared => "shared",
            Self::None => "none",
        }
    }

    /// Its threads that never sleep.
    pub(super) fn busy_threads(self) -> usize {
        match self {
            Self::Threads => 3,
            Self::Unified | Self::Forward | Self::Shared => 1,
            Self::None => 0,
        }
    }
}

/// How many transceivers, and how large their rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Many {
    /// Transceivers of the service.
    pub transceivers: u32,
    /// Slots of each ring.
    pub pages: u32,
}

impl Many {
    /// What others are compared with.
    pub(super) const SINGLE: Self = Self { transceivers: 1, pages: 64 };
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Point {
    /// What is measured.
    pub case: Case,
    /// How the service works.
    pub mode: ServiceMode,
    /// Bytes of a frame, the RPC header included; 0 where no bytes are moved.
    pub frame: u32,
    /// Requests under way at once.
    pub depth: u32,
    /// Requests per second; `None`: as fast as they go.
    pub rate: Option<u32>,
    /// In the case `scale`.
    pub many: Option<Many>,
}

impl Point {
    /// Threads that never sleep while it is measured.
    pub fn busy_threads(&self) -> usize {
        match self.case {
            Case::Handoff => 2,
            Case::Dispatch | Case::Codec => 1,
            Case::Rtt | Case::Throughput | Case::Jitter => 1 + self.mode.busy_threads(),
            Case::Scale if self.mode == ServiceMode::Shared => 2,
            Case::Scale => 1 + self.many.map_or(1, |many| many.transceivers as usize),
        }
    }

    /// For people: `rtt unified 64 B`.
    pub fn title(&self) -> String {
        let mut title = self.case.name().to_owned();
        if self.mode != ServiceMode::None {
            title += &format!(" {}", self.mode.name());
        }
        if self.frame != 0 {
            title += &format!(" {} B", self.frame);
        }
        if self.depth > 1 {
            title += &format!(" depth {}", self.depth);
        }
        if let Some(Many { transceivers, pages }) = self.many {
            title += &format!(" {transceivers}x{pages} pages");
        }
        title
    }
}

/// How long one run of a case takes. Its limit takes as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// So long, after a tenth of that to warm up.
    Time(Duration),
    /// So many messages, after a tenth of that to warm up.
    Count(u64),
}

/// The link under the wire cases.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// The caller's device: `soft`, `soft:IP` or an RDMA device.
    pub device: String,
    /// The service's; the same one, or for `soft` another address, where there is none.
    pub peer: Option<String>,
    /// What reports call it.
    pub label: String,
    /// What spoils the packets of both ends, on `soft` links.
    pub faults: Option<FaultConfig>,
}

/// All that a run of the program measures.
#[derive(Debug, Clone)]
pub struct Plan {
    /// One after the other.
    pub points: Vec<Point>,
    /// The link.
    pub backend: Backend,
    /// How often each is measured, in turn with its limit.
    pub runs: u32,
    /// How long each time.
    pub budget: Budget,
    /// Whether limits are measured.
    pub baseline: bool,
    /// Which thread runs where, and how it waits.
    pub placement: Placement,
}

/// What the command line chooses among. What is empty was not asked for, and is as the cases have it.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Which cases.
    pub cases: Vec<Case>,
    /// Modes of the service. Empty: unified; in scale shared.
    pub modes: Vec<ServiceMode>,
    /// Bytes of a frame. Empty: 64.
    pub frames: Vec<u32>,
    /// Requests under way in the cases throughput and scale. Empty: 64; in scale 1.
    pub depths: Vec<u32>,
    /// Requests per second in the jitter case. `None`: 10,000.
    pub rate: Option<u32>,
    /// Transceivers in the case scale. Empty: 1, 4, 16 and 64.
    pub transceivers: Vec<u32>,
    /// Slots of their rings. Empty: 64, 1024 and 4096.
    pub pages: Vec<u32>,
}

/// The largest frame: one packet of the largest path MTU.
pub const MAX_FRAME: u32 = 4096;
/// More may not be under way: the sockets of an unprivileged process drop packets then.
pub const MAX_DEPTH: u32 = 256;
/// More need more descriptors and memory than a user usually has.
pub const MAX_TRANSCEIVERS: u32 = 256;

/// What is measured where nothing else is asked for.
const RATE: u32 = 10_000;
const TRANSCEIVERS: &[u32] = &[1, 4, 16, 64];
const PAGES: &[u32] = &[64, 1024, 4096];

/// What was asked for, or what it is without.
fn or<'a, T>(asked: &'a [T], usual: &'a [T]) -> &'a [T] {
    if asked.is_empty() { usual } else { asked }
}

impl Choice {
    /// Every combination that makes sense, case by case, once each.
    ///
    /// # Errors
    /// [`Error::Options`] for numbers that cannot be, and for what none of the cases has a use for.
    pub fn points(&self) -> Result<Vec<Point>, Error> {
        self.check()?;
        let mut known = HashSet::new();
        let points = self.cases.iter().flat_map(|&case| self.points_of(case));
        Ok(points.filter(|&point| known.insert(point)).collect())
    }

    fn points_of(&self, case: Case) -> Vec<Point> {
        let frames = if case == Case::Handoff { &[0] } else { or(&self.frames, &[64]) };
        let depths = match case {
            Case::Throughput => or(&self.depths, &[64]),
            Case::Scale => or(&self.depths, &[1]),
            _ => &[1],
        };
        let rate = (case == Case::Jitter).then(|| self.rate.unwrap_or(RATE));
        let many = self.many_of(case);
        let mut points = Vec::new();
        for mode in self.modes_of(case) {
            for &frame in frames {
                for &depth in depths {
                    points.extend(many.iter().map(|&many| Point { case, mode, frame, depth, rate, many }));
                }
            }
        }
        points
    }

    /// Those that the case knows.
    fn modes_of(&self, case: Case) -> Vec<ServiceMode> {
        let usual: &[ServiceMode] = match case {
            Case::Scale => &[ServiceMode::Shared],
            _ if case.is_wire() => &[ServiceMode::Unified],
            _ => return vec![ServiceMode::None],
        };
        or(&self.modes, usual).iter().copied().filter(|&mode| case.knows(mode)).collect()
    }

    fn many_of(&self, case: Case) -> Vec<Option<Many>> {
        if case != Case::Scale {
            return vec![None];
        }
        let of = |&transceivers: &u32| {
            or(&self.pages, PAGES).iter().map(move |&pages| Some(Many { transceivers, pages }))
        };
        or(&self.transceivers, TRANSCEIVERS).iter().flat_map(of).collect()
    }

    fn check(&self) -> Result<(), Error> {
        let smallest = u32::try_from(HEADER_LEN).unwrap_or(u32::MAX);
        if let Some(frame) = self.frames.iter().find(|frame| !(smallest..=MAX_FRAME).contains(frame)) {
            return Err(Error::Options(format!(
                "--frame {frame}: a frame has {smallest} bytes of header at least, and {MAX_FRAME} bytes at most"
            )));
        }
        if let Some(depth) = self.depths.iter().find(|depth| !(1..=MAX_DEPTH).contains(depth)) {
            return Err(Error::Options(format!("--depth {depth}: take 1 to {MAX_DEPTH}")));
        }
        if let Some(count) = self.transceivers.iter().find(|count| !(1..=MAX_TRANSCEIVERS).contains(*count)) {
            return Err(Error::Options(format!("--transceivers {count}: take 1 to {MAX_TRANSCEIVERS}")));
        }
        // A slot has one request at a time.
        let least = self.depths.iter().copied().max().unwrap_or(1);
        let has_room = |pages: u32| !self.cases.contains(&Case::Scale) || pages >= least;
        if let Some(pages) = self.pages.iter().find(|pages| !pages.is_power_of_two() || !has_room(**pages)) {
            return Err(Error::Options(format!(
                "--pages {pages}: take powers of two, and as many pages as --depth at least"
            )));
        }
        if self.rate == Some(0) {
            return Err(Error::Options("--rate 0: nothing would ever be sent".to_owned()));
        }
        self.check_modes()?;
        self.check_uses()
    }

    /// Each mode has a case, and each case that has a service a mode.
    fn check_modes(&self) -> Result<(), Error> {
        let knows_none = |case: &&Case| case.is_wire() && !self.modes.iter().any(|&mode| case.knows(mode));
        let stray = |mode: &&ServiceMode| !self.cases.iter().any(|case| case.knows(**mode));
        let case = self.cases.iter().find(knows_none).filter(|_| !self.modes.is_empty());
        let mode = self.modes.iter().find(stray).filter(|_| self.cases.iter().any(|case| case.is_wire()));
        let what = match (case, mode) {
            (Some(case), _) => format!("{} has none of these modes", case.name()),
            (None, Some(mode)) => format!("none of the cases has the mode {}", mode.name()),
            (None, None) => return Ok(()),
        };
        let known = "scale has shared and forward, other cases have threads, unified and forward";
        Err(Error::Options(format!("--mode: {what}; {known}")))
    }

    /// Nothing is asked for in vain.
    fn check_uses(&self) -> Result<(), Error> {
        let has = |cases: &[Case]| self.cases.iter().any(|case| cases.contains(case));
        let streams = has(&[Case::Throughput, Case::Scale]);
        let asked = [
            (
                !self.modes.is_empty(),
                self.cases.iter().any(|case| case.is_wire()),
                "mode",
                "cases with a service",
            ),
            (
                !self.frames.is_empty(),
                self.cases.iter().any(|&case| case != Case::Handoff),
                "frame",
                "cases with bytes",
            ),
            (!self.depths.is_empty(), streams, "depth", "throughput and scale"),
            (self.rate.is_some(), has(&[Case::Jitter]), "rate", "jitter"),
            (!self.transceivers.is_empty(), has(&[Case::Scale]), "transceivers", "scale"),
            (!self.pages.is_empty(), has(&[Case::Scale]), "pages", "scale"),
        ];
        match asked.iter().find(|(is_asked, has_use, ..)| *is_asked && !has_use) {
            Some((.., name, cases)) => {
                Err(Error::Options(format!("--{name}: is for {cases}; leave it out, or name such a case")))
            }
            None => Ok(()),
        }
    }
}

/// The main cases.
pub fn quick_points() -> Vec<Point> {
    let wire = |case, mode, depth| Point { case, mode, frame: 64, depth, rate: None, many: None };
    let alone =
        |case, frame| Point { case, mode: ServiceMode::None, frame, depth: 1, rate: None, many: None };
    vec![
        wire(Case::Rtt, ServiceMode::Unified, 1),
        wire(Case::Rtt, ServiceMode::Threads, 1),
        wire(Case::Rtt, ServiceMode::Forward, 1),
        wire(Case::Throughput, ServiceMode::Unified, 64),
        wire(Case::Throughput, ServiceMode::Forward, 64),
        alone(Case::Handoff, 0),
        alone(Case::Dispatch, 64),
        alone(Case::Codec, 64),
    ]
}

/// All of them, with sweeps over frames and depths, and over numbers of transceivers: with a thread each, as many as
/// have a CPU each of `cpus`, and one at least.
pub fn full_points(cpus: usize) -> Vec<Point> {
    let choice = |case: Case, modes: &[ServiceMode], frames: &[u32], depths: &[u32]| Choice {
        cases: vec![case],
        modes: modes.to_vec(),
        frames: frames.to_vec(),
        depths: depths.to_vec(),
        ..Choice::default()
    };
    let all = |case, modes: &[ServiceMode], frames: &[u32], depths: &[u32]| {
        choice(case, modes, frames, depths).points_of(case)
    };
    let scale = |mode, depth, pages: &[u32]| {
        let choice = choice(Case::Scale, &[mode], &[64], &[depth]);
        let mut points = Choice { pages: pages.to_vec(), ..choice }.points_of(Case::Scale);
        points.retain(|point| {
            mode == Shared || point.many == Some(Many::SINGLE) || point.busy_threads() <= cpus
        });
        points
    };
    const FRAMES: &[u32] = &[32, 64, 128, 256, 512, 1024, 2048, 4096];
    const DEPTHS: &[u32] = &[1, 2, 4, 8, 16, 32, 64, 128];
    use ServiceMode::{Forward, Shared, Threads, Unified};
    [
        all(Case::Rtt, &[Unified], FRAMES, &[]),
        all(Case::Rtt, &[Threads, Forward], &[64, 1024], &[]),
        all(Case::Throughput, &[Unified, Forward], &[64], DEPTHS),
        all(Case::Throughput, &[Threads], &[64], &[64]),
        all(Case::Jitter, &[Unified], &[64], &[]),
        all(Case::Handoff, &[], &[], &[]),
        all(Case::Dispatch, &[], &[64, 1024], &[]),
        all(Case::Codec, &[], &[64, 256, 1024, 4096], &[]),
        scale(Shared, 1, PAGES),
        scale(Forward, 1, &[64]),
        scale(Shared, 64, &[64]),
        scale(Forward, 64, &[64]),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice() -> Choice {
        Choice {
            cases: vec![Case::Rtt, Case::Throughput, Case::Handoff],
            modes: vec![ServiceMode::Unified, ServiceMode::Threads],
            frames: vec![64, 128],
            depths: vec![1, 8],
            ..Choice::default()
        }
    }

    #[test]
    fn points_are_the_combinations_that_a_case_knows() {
        let points = choice().points().unwrap();
        let of = |case| points.iter().filter(|point| point.case == case).count();
        assert_eq!((of(Case::Rtt), of(Case::Throughput), of(Case::Handoff)), (4, 8, 1));
        assert!(points.iter().all(|point| point.rate.is_none()));
        assert_eq!(points[0].title(), "rtt unified 64 B");
    }

    #[test]
    fn scale_has_modes_of_its_own_and_every_number_with_every_size() {
        let of = |modes: &[ServiceMode]| {
            let (transceivers, pages) = (vec![1, 2, 4], vec![64, 128]);
            let (cases, modes) = (vec![Case::Scale], modes.to_vec());
            let choice = Choice { cases, modes, frames: vec![64], transceivers, pages, ..choice() };
            choice.points().unwrap()
        };
        let points = of(&[]);
        assert_eq!(points.len(), 2 * 3 * 2);
        assert!(points.iter().all(|point| point.mode == ServiceMode::Shared && point.busy_threads() == 2));
        assert_eq!(points[7].title(), "scale shared 64 B depth 8 1x128 pages");
        let points = of(&[ServiceMode::Forward]);
        assert_eq!((points.len(), points[0].mode, points[4].busy_threads()), (12, ServiceMode::Forward, 5));
    }

    #[test]
    fn what_is_not_asked_for_is_as_the_cases_have_it() {
        let points = |cases: &[Case]| Choice { cases: cases.to_vec(), ..Choice::default() }.points().unwrap();
        let titles = |cases| points(cases).iter().map(Point::title).collect::<Vec<_>>();
        assert_eq!(
            titles(&[Case::Rtt, Case::Throughput, Case::Handoff, Case::Codec, Case::Rtt]),
            ["rtt unified 64 B", "throughput unified 64 B depth 64", "handoff", "codec 64 B"]
        );
        assert_eq!(points(&[Case::Jitter])[0].rate, Some(10_000));
        let scale = points(&[Case::Scale]);
        assert_eq!((scale.len(), scale[11].title()), (12, "scale shared 64 B 64x4096 pages".to_owned()));
    }

    #[test]
    fn what_no_case_has_a_use_for_is_named() {
        use ServiceMode::{Forward, Shared, Threads};
        let of = |cases: &[Case]| Choice { cases: cases.to_vec(), ..Choice::default() };
        let modes = |cases: &[Case], modes: &[ServiceMode]| Choice { modes: modes.to_vec(), ..of(cases) };
        for (choice, words) in [
            (modes(&[Case::Rtt], &[Shared]), "rtt has none of these modes"),
            (modes(&[Case::Rtt, Case::Scale], &[Threads]), "scale has none of these modes"),
            (modes(&[Case::Rtt], &[Threads, Shared]), "none of the cases has the mode shared"),
            (modes(&[Case::Codec], &[Threads]), "--mode: is for"),
            (Choice { frames: vec![64], ..of(&[Case::Handoff]) }, "--frame: is for"),
            (Choice { depths: vec![1], ..of(&[Case::Rtt]) }, "--depth: is for"),
            (Choice { rate: Some(1), ..of(&[Case::Rtt]) }, "--rate: is for"),
            (Choice { transceivers: vec![1], ..of(&[Case::Rtt]) }, "--transceivers: is for"),
            (Choice { pages: vec![64], ..of(&[Case::Throughput]) }, "--pages: is for"),
        ] {
            let error = choice.points().unwrap_err().to_string();
            assert!(error.contains(words), "{choice:?}: {error}");
        }
        let both = modes(&[Case::Rtt, Case::Scale], &[Threads, Shared, Forward]).points().unwrap();
        assert_eq!(both.iter().filter(|point| point.case == Case::Rtt).count(), 2);
    }

    #[test]
    fn threads_of_their_own_need_cpus() {
        let threads = |cpus| {
            let points = full_points(cpus).into_iter();
            points.filter(|point| point.case == Case::Scale && point.mode == ServiceMode::Forward).count()
        };
        assert_eq!([2, 5, 1000].map(threads), [2, 4, 8]);
    }

    #[test]
    fn numbers_that_cannot_be_are_named() {
        let wrong = |transceivers: u32, pages: u32| {
            let cases = vec![Case::Scale];
            let modes = vec![ServiceMode::Shared];
            let choice =
                Choice { cases, modes, transceivers: vec![transceivers], pages: vec![pages], ..choice() };
            choice.points().unwrap_err().to_string()
        };
        for (transceivers, pages, name) in
            [(0, 64, "transceivers 0"), (257, 64, "transceivers 257"), (1, 48, "pages 48"), (1, 4, "pages 4")]
        {
            assert!(wrong(transceivers, pages).contains(name), "{name}");
        }
    }

    #[test]
    fn frames_and_depths_that_cannot_be_are_named() {
        for (frame, depth) in [(23, 1), (4097, 1), (64, 0), (64, 257)] {
            let choice = Choice { frames: vec![64, frame], depths: vec![1, depth], ..choice() };
            let error = choice.points().unwrap_err().to_string();
            let culprit = if frame == 64 { depth } else { frame };
            assert!(error.contains(&culprit.to_string()), "{error}");
        }
    }

    #[test]
    fn the_quick_points_have_every_main_case() {
        for case in [Case::Rtt, Case::Throughput, Case::Handoff, Case::Dispatch, Case::Codec] {
            assert!(quick_points().iter().any(|point| point.case == case));
            assert!(full_points(2).iter().any(|point| point.case == case));
        }
        for case in [Case::Jitter, Case::Scale] {
            assert!(full_points(2).iter().any(|point| point.case == case));
        }
    }
}
