//! Plays a workload through an FPGA: loads the requests, lets the player send them, reads back what was
//! captured, and judges every answer.
//!
//! The playback memory holds a limited number of windows, so a long workload takes several passes.

mod fpga;
mod report;
mod round_trips;
mod verify;

use std::net::SocketAddrV4;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use roce_core::PeerEndpoint;
use roce_rendezvous::hsb::regs::{self, CAPTURE_RAM, PLAYBACK_RAM};
use roce_rendezvous::hsb::sample::BEAT_BYTES;
use roce_rendezvous::hsb::{Mac, Place, RoceConfig, StartOptions};

use crate::Error;
use crate::hsb::port_mask;
use crate::workload::Workload;
use fpga::{Fpga, Progress, Windows};
use verify::Tally;

pub use fpga::LoopReport;
pub use report::{Report, Verdict};
pub use round_trips::{Histogram, RoundTrip, Rtt, write_csv};
pub use verify::Expect;

/// From one look at the capture to the next.
const POLL: Duration = Duration::from_millis(2);
/// A device that cannot say that it is done is done when nothing has come for so long after its last window.
const QUIET: Duration = Duration::from_secs(1);
/// A software FPGA that leaves its loop publishes what it counted within this time; it may be waiting for an answer.
const LOOP_END: Duration = Duration::from_secs(15);
const MAX_PAGES: u32 = 4096;

/// How a workload is played.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The FPGA's control plane.
    pub fpga: SocketAddrV4,
    /// How to start the board, which it needs once after it was switched on.
    pub start: Option<StartOptions>,
    /// Whether the board takes block requests; those that do not are slower.
    pub block_access: bool,
    /// It is the software FPGA: it waits for each answer and says when a pass is over.
    pub emulator: bool,
    /// Its virtual port's registers.
    pub vp_address: u32,
    /// Its host interface's registers.
    pub hif_address: u32,
    /// The bridge's end. Its rkey must be there.
    pub bridge: PeerEndpoint,
    /// The Ethernet address of the bridge's port; a software FPGA needs none.
    pub bridge_mac: Mac,
    /// Where the bridge's ring begins, as the peer addresses it.
    pub bridge_buffer: u64,
    /// Bytes from slot to slot of the bridge's ring: a multiple of 128.
    pub page_size: u32,
    /// Slots of the bridge's ring: a power of two, at most 4096.
    pub num_pages: u32,
    /// What the bridge does with the requests.
    pub expect: Expect,
    /// Compare payloads; otherwise answers are only counted.
    pub verify: bool,
    /// From one window to the next.
    pub spacing: Duration,
    /// The most that the whole run may take. A loop ends then.
    pub timeout: Duration,
    /// After the passes, play the last one over and over.
    pub endless: bool,
}

impl Plan {
    /// Whether the workload fits the ring, the playback memory and the capture. The error is
    /// [`Error::Options`] and says what to change.
    pub fn check(&self, workload: &Workload) -> Result<(), Error> {
        let Self { num_pages, page_size, .. } = *self;
        let refuse = |reason: String| Err(Error::Options(reason));
        if !num_pages.is_power_of_two() || num_pages > MAX_PAGES {
            return refuse(format!(
                "--num-pages {num_pages} is no power of two up to {MAX_PAGES}; take the bridge's, such as 64"
            ));
        }
        if page_size == 0 || !page_size.is_multiple_of(regs::PAGE_UNIT) {
            let unit = regs::PAGE_UNIT;
            return refuse(format!(
                "--page-size {page_size} is no multiple of {unit} bytes; take the bridge's"
            ));
        }
        let frame = workload.frame_len();
        let window = frame.next_multiple_of(BEAT_BYTES);
        if window > page_size as usize {
            return refuse(format!(
                "a frame of {frame} bytes (24 of header, {} of payload) takes a window of {window} bytes, which does \
                 not fit --page-size {page_size}; lower --payload-size, or raise the page size here and at the bridge",
                workload.payload_len()
            ));
        }
        if window > PLAYBACK_RAM.words as usize * BEAT_BYTES {
            return refuse(format!(
                "a frame of {frame} bytes exceeds the playback memory and the capture, {} bytes for one frame; lower \
                 --payload-size",
                PLAYBACK_RAM.words as usize * BEAT_BYTES
            ));
        }
        Ok(())
    }

    /// Windows that one pass can play. The software FPGA cuts an answer to its window; another device captures
    /// whole ones, up to a page each, and all must fit.
    fn windows_per_pass(&self, beats: u32) -> u32 {
        let playable = PLAYBACK_RAM.words / beats;
        let page_beats = self.page_size.div_ceil(beats_to_bytes(1));
        let capturable = if self.emulator { playable } else { CAPTURE_RAM.words / page_beats };
        playable.min(capturable).max(1)
    }

    fn ring(&self, frame_size: u32) -> RoceConfig {
        let rkey = self.bridge.rkey.unwrap_or(roce_core::Rkey::new(0));
        let (qpn, ip) = (self.bridge.qpn, self.bridge.ip);
        RoceConfig {
            vp_address: self.vp_address,
            // A software FPGA's one port may be found anywhere; it is the first then.
            vp_mask: port_mask(self.vp_address).unwrap_or(Place::FIRST.vp_mask),
            hif_address: self.hif_address,
            base: self.bridge_buffer,
            mac: self.bridge_mac,
            ..RoceConfig::new(qpn, rkey, ip, frame_size, self.page_size, self.num_pages)
        }
    }
}

/// Plays the workload and judges the answers; in the end the FPGA has forgotten the bridge. A run that began has a report, however it ended; the error is
/// that it could not begin.
pub fn play(plan: &Plan, workload: &Workload, stop: &AtomicBool) -> Result<Report, Error> {
    plan.check(workload)?;
    let beats = beats_of(workload.frame_len());
    let mut fpga = Fpga::connect(plan.fpga, plan.block_access)?;
    if let Some(start) = &plan.start {
        fpga.start(start)?;
    }
    let ring = plan.ring(beats_to_bytes(beats));
    fpga.configure(&ring)?;
    let mut run = Run {
        plan,
        workload,
        stop,
        fpga,
        beats,
        tally: Tally::new(workload, plan.expect, plan.verify, plan.emulator),
        deadline: Instant::now() + plan.timeout,
        bar: progress_bar(workload.messages()),
    };
    let end = run.all_passes();
    // An FPGA that no longer answers cannot be stopped either.
    let answers = !matches!(end, Err(End::Failed(Error::Control(_))));
    if let Err(end) = end {
        run.tally.reason(end.reason());
    }
    if answers && let Err(error) = run.fpga.stop().and_then(|()| run.fpga.unconfigure(&ring)) {
        run.tally.reason(error.to_string());
    }
    run.bar.finish_and_clear();
    Ok(run.tally.finish())
}

struct Run<'a> {
    plan: &'a Plan,
    workload: &'a Workload,
    stop: &'a AtomicBool,
    fpga: Fpga,
    beats: u32,
    tally: Tally<'a>,
    deadline: Instant,
    bar: ProgressBar,
}

/// Why a run ended early.
enum End {
    Interrupted,
    /// In which pass, counted from 1.
    TimedOut(u32),
    Failed(Error),
}

impl End {
    fn reason(&self) -> String {
        match self {
            Self::Interrupted => "interrupted by a signal".to_owned(),
            Self::TimedOut(pass) => format!(
                "pass {pass} did not end in time; is the bridge running, with the queue pair, key and address given \
                 here? If it only needs longer, raise --timeout"
            ),
            Self::Failed(error) => error.to_string(),
        }
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Run<'_> {
    fn all_passes(&mut self) -> Result<(), End> {
        let (messages, per_pass) = (self.workload.messages(), self.plan.windows_per_pass(self.beats));
        for first in (0..messages).step_by(per_pass as usize) {
            self.tally.begin_pass();
            self.pass(first..messages.min(first.saturating_add(per_pass)))?;
        }
        if self.plan.endless {
            self.play_over_and_over()?;
        }
        Ok(())
    }

    fn pass(&mut self, ids: Range<u32>) -> Result<(), End> {
        let first = ids.start;
        let windows = Windows::new(ids.map(|id| self.workload.request(id)), self.beats);
        self.fpga.load(&windows)?;
        self.fpga.play(&windows, self.plan.spacing)?;
        tracing::info!(pass = self.tally.passes(), windows = windows.count, "the player plays a pass");
        let end = self.wait_for_pass(first, windows.count);
        // What was captured counts, even where the pass did not come to its end.
        if !matches!(end, Err(End::Failed(_))) {
            self.fpga.stop()?;
            self.judge_capture()?;
            self.bar.set_position(u64::from(first + windows.count));
        }
        end
    }

    fn judge_capture(&mut self) -> Result<(), End> {
        let captured = self.fpga.progress()?.samples;
        let samples = self.fpga.samples(captured)?;
        let messages = match self.plan.emulator {
            true => verify::messages_by_window(&samples, self.beats),
            false => verify::messages_by_end(&samples),
        };
        messages.iter().for_each(|message| self.tally.take(message));
        Ok(())
    }

    /// Until the device is done with its windows.
    fn wait_for_pass(&mut self, first: u32, windows: u32) -> Result<(), End> {
        let quiet = QUIET + self.plan.spacing * windows;
        let mut last = Progress { samples: 0, done: false };
        let mut last_change = Instant::now();
        loop {
            let now = self.fpga.progress()?;
            if now != last {
                (last, last_change) = (now, Instant::now());
                self.bar.set_position(u64::from(first + now.samples.min(windows)));
            }
            if now.done || (!self.plan.emulator && last_change.elapsed() > quiet) {
                return Ok(());
            }
            self.check_time()?;
            sleep(POLL);
        }
    }

    fn check_time(&self) -> Result<(), End> {
        if self.stop.load(Ordering::Relaxed) {
            Err(End::Interrupted)
        } else if Instant::now() >= self.deadline {
            Err(End::TimedOut(self.tally.passes()))
        } else {
            Ok(())
        }
    }

    /// Until a signal or the end of the run's time; both are good ends of a loop.
    fn play_over_and_over(&mut self) -> Result<(), End> {
        self.check_time()?;
        self.fpga.start_loop(self.plan.emulator)?;
        tracing::info!("the player plays over and over");
        while self.check_time().is_ok() {
            sleep(POLL);
        }
        self.fpga.stop()?;
        if self.plan.emulator {
            let looped = self.loop_report()?;
            self.tally.take_loop(looped);
        }
        Ok(())
    }

    fn loop_report(&mut self) -> Result<Option<LoopReport>, End> {
        let until = Instant::now() + LOOP_END;
        loop {
            let report = self.fpga.loop_report()?;
            if report.is_some() || Instant::now() >= until {
                return Ok(report);
            }
            sleep(POLL);
        }
    }
}

fn beats_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BEAT_BYTES)).unwrap_or(u32::MAX)
}

fn beats_to_bytes(beats: u32) -> u32 {
    beats * u32::try_from(BEAT_BYTES).unwrap_or(u32::MAX)
}

/// On a terminal, and else nowhere.
fn progress_bar(messages: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} messages, {elapsed}");
    ProgressBar::new(messages.into()).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use roce_core::{Qpn, Rkey};

    use super::*;
    use crate::workload::Increment;

    fn plan(page_size: u32, num_pages: u32) -> Plan {
        Plan {
            fpga: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1),
            start: None,
            block_access: true,
            emulator: true,
            vp_address: regs::VP_ADDRESS,
            hif_address: regs::EMULATOR_HIF_ADDRESS,
            bridge: PeerEndpoint {
                qpn: Qpn::from_low_bits(1),
                rkey: Some(Rkey::new(1)),
                ip: Ipv4Addr::LOCALHOST,
            },
            bridge_mac: Mac([0; 6]),
            bridge_buffer: 0,
            page_size,
            num_pages,
            expect: Expect::Answers,
            verify: true,
            spacing: Duration::ZERO,
            timeout: Duration::from_secs(1),
            endless: false,
        }
    }

    fn check(page_size: u32, num_pages: u32, payload_len: usize) -> Result<(), String> {
        let workload = Workload::Increment(Increment { messages: 1, payload_len });
        plan(page_size, num_pages).check(&workload).map_err(|e| e.to_string())
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_way_out() {
        for good in [(384, 64, 8), (384, 128, 360), (128, 1, 104), (65536, 4096, 32768 - 24)] {
            assert_eq!(check(good.0, good.1, good.2), Ok(()), "{good:?}");
        }
        for (page, pages, payload, part) in [
            (384, 100, 8, "power of two"),
            (384, 0, 8, "power of two"),
            (384, 8192, 8, "up to 4096"),
            (200, 64, 8, "multiple of 128"),
            (0, 64, 8, "multiple of 128"),
            (384, 64, 361, "does not fit --page-size 384"),
            (65536, 64, 32768 - 23, "exceeds the playback memory"),
        ] {
            let error = check(page, pages, payload).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_port_that_is_told_the_ring_is_the_one_let_go() {
        let mask_at = |vp_address| Plan { vp_address, ..plan(384, 64) }.ring(64).vp_mask;
        assert_eq!([0x1000, 0x1040, 0x10C0, 0x17C0].map(mask_at), [1, 2, 8, 1 << 31]);
        assert_eq!([0x0900, 0x1004, 0x1800].map(mask_at), [1; 3], "a software FPGA's one port");
    }

    #[test]
    fn a_pass_fits_the_playback_memory_and_its_answers_the_capture() {
        let fpga = |page_size| Plan { emulator: false, ..plan(page_size, 64) };
        assert_eq!(fpga(384).windows_per_pass(1), 512);
        assert_eq!(fpga(384).windows_per_pass(6), 85);
        assert_eq!(fpga(1024).windows_per_pass(1), 512);
        assert_eq!(fpga(2048).windows_per_pass(1), 256);
        assert_eq!(fpga(65536).windows_per_pass(512), 1);
        assert_eq!(fpga(1 << 20).windows_per_pass(1), 1);
        assert_eq!(plan(2048, 64).windows_per_pass(1), 512);
    }
}
