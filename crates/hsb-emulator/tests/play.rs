//! Windows out and answers back, over real packets between two addresses of this machine.

mod support;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use hsb_emulator::{Config, Failure, FailureKind, PassError, Personality};
use roce_rendezvous::hsb::RoceConfig;
use roce_rendezvous::hsb::regs::{self, LoopStats, Player, Vp};
use support::{
    Bridge, CEILING, Host, REQUEST, RESPONSE, Running, id_of, increment, message, own_ip, word_of,
};

with_both!(
    a_pass_goes_round_the_pages_and_is_captured,
    long_answers_take_a_sample_per_beat_and_are_cut_to_the_window,
    windows_are_cut_to_the_page,
    a_loop_goes_on_after_a_capture_without_a_reload,
    late_double_and_foreign_answers_are_paired_with_nothing,
    a_window_without_an_answer_costs_one_timeout_and_poisons_nothing,
    failed_answers_are_told_apart,
    forwarded_requests_are_answers_where_they_are_expected,
    another_host_takes_over_between_passes,
    one_ring_is_reconfigured_between_passes,
    a_start_waits_for_the_whole_ring,
    the_hosts_address_may_be_given,
    passes_that_cannot_be_played_are_told_of,
    a_run_can_be_stopped_while_a_window_is_in_flight,
    a_window_nobody_wants_any_more_is_given_up,
    a_capture_takes_nothing_from_the_pass_before,
);

/// No answer comes so late on any machine; a test that waits for a timeout takes a shorter one.
fn patient(personality: Personality) -> Config {
    Config { personality, response_timeout: CEILING, ..Config::default() }
}

fn messages(count: u32) -> Vec<Vec<u8>> {
    let payload = |m: u32| (0..8).map(|j| (m + j).to_le_bytes()[0]).collect::<Vec<u8>>();
    (0..count).map(|m| message(REQUEST, 0x191b_6322, m, &payload(m))).collect()
}

/// The pages that frames go to, of which `before` went to the same number of pages before the last configuration.
fn pages_of(personality: Personality, before: u32, pages: u32, count: u32) -> Vec<u32> {
    let first = match personality {
        Personality::Fpga => before,
        Personality::Lenient => 1,
    };
    (first..first + count).map(|page| page % pages).collect()
}

fn bridge(emulator: &Running, service: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Bridge {
    Bridge::start(own_ip(), (4, 384), (emulator.qpn, emulator.ip()), service)
}

fn a_pass_goes_round_the_pages_and_is_captured(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let bridge = bridge(&emulator, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(10), 1);
    let samples = host.capture_pass();

    let arrivals = bridge.finish();
    assert_eq!(arrivals.iter().map(|a| a.0).collect::<Vec<_>>(), pages_of(personality, 0, 4, 10));
    assert_eq!(samples.len(), 10);
    let mut last_sent = (0, 0);
    for ((m, sample), (_, request)) in (0..).zip(&samples).zip(&arrivals) {
        assert_eq!((request.len(), &request[..16]), (64, &messages(10)[m as usize][..16]));
        assert!(sample.valid && sample.last && u32::from(sample.write_count) == m);
        assert_eq!((word_of(&sample.data, 0), id_of(&sample.data)), (RESPONSE, m));
        let expected: Vec<u8> = (0..8).map(|j| (m + j + 1).to_le_bytes()[0]).collect();
        assert_eq!((&sample.data[24..32], &sample.data[32..]), (&expected[..], &[0; 32][..]));
        let sent = (word_of(&sample.data, 20), word_of(&sample.data, 16));
        assert!(last_sent < sent && sent <= (sample.seconds, sample.nanoseconds), "clock");
        last_sent = sent;
    }
    let summary = emulator.finish();
    assert!(summary.is_success(), "{summary:?}");
    assert_eq!((summary.windows, summary.responses, summary.round_trips.count()), (10, 10, 10));
}

fn long_answers_take_a_sample_per_beat_and_are_cut_to_the_window(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let lengths = [100, 30, 200];
    let bridge = bridge(&emulator, move |request| {
        let mut answer = increment(request);
        answer.resize(lengths[id_of(request) as usize], 0xA5);
        answer[8..12].fill(0);
        vec![answer]
    });
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(3), 2);
    let samples = host.capture_pass();
    let seen: Vec<_> = samples.iter().map(|s| (s.valid, s.last, s.data[24], s.data[63])).collect();
    let expected = [
        (true, false, 1, 0xA5),
        (true, true, 0xA5, 0),
        (true, true, 2, 0),
        (false, false, 0, 0),
        (true, false, 3, 0xA5),
        (true, false, 0xA5, 0xA5),
    ];
    assert_eq!(seen, expected);
    assert!(bridge.finish().iter().all(|arrival| arrival.1.len() == 128));
    assert!(emulator.finish().is_success());
}

fn windows_are_cut_to_the_page(personality: Personality) {
    for (config, page_size, len) in
        [(Config { page_size: 100, ..patient(personality) }, 384, 100), (patient(personality), 128, 128)]
    {
        let emulator = Running::start(config);
        let peer = (emulator.qpn, emulator.ip());
        let bridge = Bridge::start(own_ip(), (4, page_size), peer, |request| vec![increment(request)]);
        let mut host = Host::connect(&emulator);
        host.client.configure_roce(&bridge.config()).expect("configured");
        host.load(&messages(5), 3);
        host.capture_pass();
        assert_eq!(bridge.finish().iter().map(|arrival| arrival.1.len()).collect::<Vec<_>>(), [len; 5]);
        assert!(emulator.finish().is_success());
    }
}

fn a_loop_goes_on_after_a_capture_without_a_reload(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let bridge = bridge(&emulator, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(3), 1);
    assert_eq!(host.capture_pass().len(), 3);
    for _ in 0..2 {
        let before = bridge.served.load(Ordering::Relaxed);
        let stats = host.loop_until(|| bridge.wait_for_messages(before + 21));
        assert_eq!(stats[0], regs::LOOP_MAGIC);
        let [windows, responses] = [stats[2], stats[4]];
        assert!(windows >= 20 && windows == responses, "{stats:?}");
        assert_eq!((stats[3], stats[5], &stats[6..]), (0, 0, &[0; 4][..]));
        host.write(&[(LoopStats::Ack.address(), regs::LOOP_MAGIC)]);
        assert_eq!(host.read(LoopStats::Ack.address()), regs::LOOP_MAGIC);
    }
    let summary = emulator.finish();
    assert!(summary.is_success(), "{summary:?}");
    assert_eq!(bridge.finish().len() as u64, summary.windows);
}

fn late_double_and_foreign_answers_are_paired_with_nothing(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let mut previous: Option<Vec<u8>> = None;
    let bridge = bridge(&emulator, move |request| {
        let answer = increment(request);
        // The same id as this window's, sent in another round.
        let mut other_round = answer.clone();
        other_round[16] ^= 1;
        let foreign = message(RESPONSE, 0, 999, &[]);
        let late = previous.replace(answer.clone()).unwrap_or_else(|| foreign.clone());
        vec![late, other_round, foreign, vec![7], answer.clone(), answer]
    });
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(6), 1);
    for _ in 0..2 {
        let samples = host.capture_pass();
        assert_eq!(samples.iter().map(|s| id_of(&s.data)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!((0..).zip(&samples).all(|(m, s)| s.data[24] == m + 1));
    }
    drop(bridge.finish());
    let summary = emulator.finish();
    assert!(summary.is_success(), "{summary:?}");
    // The very last one may come after the end.
    assert!((12 * 5 - 1..=12 * 5).contains(&summary.late), "{summary:?}");
}

fn a_window_without_an_answer_costs_one_timeout_and_poisons_nothing(personality: Personality) {
    let emulator =
        Running::start(Config { response_timeout: Duration::from_secs(3), ..patient(personality) });
    let mut kept = Vec::new();
    let bridge = bridge(&emulator, move |request| match id_of(request) {
        1 => {
            kept.push(increment(request));
            vec![]
        }
        // The one that was kept comes now, too late.
        2 => kept.drain(..).chain([increment(request)]).collect(),
        _ => vec![increment(request)],
    });
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(4), 1);
    let samples = host.capture_pass();
    let seen: Vec<_> = samples.iter().map(|s| (s.valid, id_of(&s.data))).collect();
    assert_eq!(seen, [(true, 0), (false, 0), (true, 2), (true, 3)]);
    let summary = emulator.finish();
    assert!(!summary.is_success());
    assert_eq!(
        (summary.timeouts.first(), summary.windows, summary.responses, summary.late),
        (&[1][..], 4, 3, 1)
    );
}

fn failed_answers_are_told_apart(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let bridge = bridge(&emulator, |request| {
        let mut answer = increment(request);
        match id_of(request) {
            0 => answer.truncate(20),
            1 => answer[0] ^= 0xFF,
            2 => answer[4..8].copy_from_slice(&(-7_i32).to_le_bytes()),
            3 => answer.truncate(31),
            4 => answer = request.to_vec(),
            _ => {}
        }
        vec![answer]
    });
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(6), 1);
    assert_eq!(host.capture_pass().iter().filter(|s| s.valid).count(), 6);
    let summary = emulator.finish();
    let kinds = [
        FailureKind::Short { len: 20 },
        FailureKind::BadMagic { magic: RESPONSE ^ 0xFF },
        FailureKind::Status { status: -7 },
        FailureKind::Short { len: 31 },
        FailureKind::BadMagic { magic: REQUEST },
    ];
    let expected: Vec<_> = (0..).zip(kinds).map(|(request_id, kind)| Failure { request_id, kind }).collect();
    assert_eq!((summary.failures.first(), summary.responses), (&expected[..], 6));
    assert!(!summary.is_success());
}

fn forwarded_requests_are_answers_where_they_are_expected(personality: Personality) {
    let emulator = Running::start(Config { forward: true, ..patient(personality) });
    let bridge = bridge(&emulator, |request| match id_of(request) {
        3 => {
            let mut changed = request.to_vec();
            changed[27] ^= 1;
            vec![changed]
        }
        4 => vec![increment(request)],
        // A bridge sends its frame, here without the window's padding.
        _ => vec![request[..32].to_vec()],
    });
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(5), 1);
    let samples = host.capture_pass();
    assert_eq!(
        samples.iter().map(|s| word_of(&s.data, 0)).collect::<Vec<_>>(),
        [REQUEST, REQUEST, REQUEST, REQUEST, RESPONSE]
    );
    let summary = emulator.finish();
    let expected = [
        Failure { request_id: 3, kind: FailureKind::EchoDiffers { offset: 27 } },
        Failure { request_id: 4, kind: FailureKind::BadMagic { magic: RESPONSE } },
    ];
    assert_eq!(summary.failures.first(), &expected);
}

fn another_host_takes_over_between_passes(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let host_ip = own_ip();
    let mut host = Host::connect(&emulator);
    host.load(&messages(6), 1);
    let counts = match personality {
        // It goes on with the pages where it was, so their number must stay.
        Personality::Fpga => [4; 4],
        Personality::Lenient => [4, 3, 1, 8],
    };
    for (round, pages) in (0..).zip(counts) {
        // A bridge that was started again: another queue pair and key, and it knows the number first announced.
        let bridge =
            Bridge::start(host_ip, (pages, 256), (emulator.qpn, emulator.ip()), |r| vec![increment(r)]);
        host.client.configure_roce(&bridge.config()).expect("configured");
        let samples = host.capture_pass();
        assert_eq!(samples.iter().map(|s| id_of(&s.data)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        if round % 2 == 0 {
            host.enable(regs::ENABLE_OFF);
            host.client.unconfigure_roce(&bridge.config()).expect("unconfigured");
        }
        let arrivals = bridge.finish();
        let expected = pages_of(personality, 6 * round, pages, 6);
        assert_eq!(arrivals.iter().map(|arrival| arrival.0).collect::<Vec<_>>(), expected);
    }
    let summary = emulator.finish();
    assert!(summary.is_success(), "{summary:?}");
    assert_eq!(summary.windows, 24);
}

fn one_ring_is_reconfigured_between_passes(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let bridge = bridge(&emulator, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    host.load(&messages(5), 1);
    let rings = match personality {
        Personality::Fpga => [(0, 2), (2, 2), (1, 2)],
        Personality::Lenient => [(0, 4), (2, 2), (1, 1)],
    };
    for (first, pages) in rings {
        bridge.first_page.store(first, Ordering::Relaxed);
        let config = RoceConfig { pages, ..bridge.config() };
        host.client.configure_roce(&config).expect("configured");
        assert_eq!(host.capture_pass().iter().filter(|s| s.valid).count(), 5);
    }
    assert!(emulator.finish().is_success());
    let pages: Vec<u32> = bridge.finish().iter().map(|arrival| arrival.0).collect();
    let expected =
        (0..).zip(rings).flat_map(|(round, (_, pages))| pages_of(personality, 5 * round, pages, 5));
    assert_eq!(pages, expected.collect::<Vec<_>>());
}

fn a_start_waits_for_the_whole_ring(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let bridge = bridge(&emulator, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    host.load(&messages(3), 1);
    host.enable(regs::ENABLE_SINGLE);
    host.write(&[(Vp::Qp.at(regs::VP_ADDRESS), 0x55)]);
    host.client.configure_roce(&bridge.config()).expect("configured");
    bridge.wait_for_messages(3);
    // The same order again is not another pass.
    host.enable(regs::ENABLE_SINGLE);
    assert_eq!(host.capture_pass().len(), 3);
    let summary = emulator.finish();
    assert_eq!(bridge.finish().len(), 6);
    assert!(summary.is_success() && summary.windows == 6, "{summary:?}");
}

fn the_hosts_address_may_be_given(personality: Personality) {
    let host_ip = own_ip();
    let emulator = Running::start(Config { host_ip: Some(host_ip), ..patient(personality) });
    let peer = (emulator.qpn, emulator.ip());
    let bridge = Bridge::start(host_ip, (4, 384), peer, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    let elsewhere = RoceConfig { ip: own_ip(), ..bridge.config() };
    host.client.configure_roce(&elsewhere).expect("configured");
    host.load(&messages(2), 1);
    assert_eq!(host.capture_pass().len(), 2);
    assert!(emulator.finish().is_success());
}

fn passes_that_cannot_be_played_are_told_of(personality: Personality) {
    let emulator = Running::start(patient(personality));
    let bridge = bridge(&emulator, |request| vec![increment(request)]);
    let mut host = Host::connect(&emulator);
    host.load(&messages(2), 1);
    // To a group there is no queue pair.
    let group = RoceConfig { ip: [224, 0, 0, 1].into(), ..bridge.config() };
    host.client.configure_roce(&group).expect("configured");
    host.refused_loop();
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.write(&[(Player::WindowNumber.address(), 513)]);
    host.refused_loop();
    host.write(&[(Player::WindowNumber.address(), 2)]);
    assert_eq!(host.capture_pass().len(), 2);
    let summary = emulator.finish();
    let [PassError::Connect { qpn, .. }, windows] = &summary.refused[..] else { panic!("{summary:?}") };
    assert_eq!((*qpn, windows), (bridge.qpn.get(), &PassError::Windows { windows: 513, size: 64 }));
    assert!(!summary.is_success() && summary.responses == 2);
}

fn a_run_can_be_stopped_while_a_window_is_in_flight(personality: Personality) {
    let emulator =
        Running::start(Config { response_timeout: Duration::from_secs(3600), ..patient(personality) });
    let bridge = bridge(&emulator, |_| vec![]);
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(2), 1);
    host.enable(regs::ENABLE_SINGLE);
    bridge.wait_for_messages(1);
    let summary = emulator.finish();
    assert_eq!((summary.windows, summary.responses, summary.abandoned), (1, 0, 1));
    assert!(!summary.is_success() && summary.timeouts.is_empty());
}

fn a_window_nobody_wants_any_more_is_given_up(personality: Personality) {
    let emulator =
        Running::start(Config { response_timeout: Duration::from_secs(3600), ..patient(personality) });
    let silent = bridge(&emulator, |_| vec![]);
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&silent.config()).expect("configured");
    host.load(&messages(2), 1);
    let stats = host.loop_until(|| silent.wait_for_messages(1));
    assert_eq!((stats[4], stats[7]), (0, 0));
    let bridge = Bridge::start(silent.ip, (4, 384), (emulator.qpn, emulator.ip()), |r| vec![increment(r)]);
    host.client.configure_roce(&bridge.config()).expect("configured");
    assert_eq!(host.capture_pass().len(), 2);
    let summary = emulator.finish();
    assert_eq!((summary.responses, summary.windows - summary.abandoned), (2, 2));
}

fn a_capture_takes_nothing_from_the_pass_before(personality: Personality) {
    let emulator =
        Running::start(Config { response_timeout: Duration::from_secs(3600), ..patient(personality) });
    let mut first: Option<Vec<u8>> = None;
    let (asked, again) = mpsc::channel();
    let (looked, go_on) = mpsc::channel();
    let bridge = bridge(&emulator, move |request| match &first {
        None => {
            first = Some(increment(request));
            vec![]
        }
        Some(late) => {
            asked.send(()).expect("the host waits");
            go_on.recv_timeout(CEILING).expect("the host has looked");
            vec![late.clone(), increment(request)]
        }
    });
    let mut host = Host::connect(&emulator);
    host.client.configure_roce(&bridge.config()).expect("configured");
    host.load(&messages(1), 1);
    host.enable(regs::ENABLE_SINGLE);
    bridge.wait_for_messages(1);
    host.begin_capture();
    // The pass before is over by now, and this one's window is in flight.
    again.recv_timeout(CEILING).expect("a request");
    assert!(!host.capture_is_complete());
    looked.send(()).expect("the bridge waits");
    let samples = host.end_capture();
    let arrivals = bridge.finish();
    assert_eq!((samples.len(), arrivals.len()), (1, 2));
    assert!(samples[0].valid && samples[0].data[16..24] == arrivals[1].1[16..24]);
    let summary = emulator.finish();
    assert_eq!((summary.abandoned, summary.late, summary.responses), (1, 1, 1));
}
