//! Lost requests, lost replies, repeated ones, garbage, and a second controller.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use roce_rendezvous::hsb::ecb::{Pair, Status};
use roce_rendezvous::hsb::{Client, HsbError};

use super::board::{Done, FakeBoard, Manners};
use super::connect;
use super::relay::{Fate, Relay, Way};

const BLOCK: [Pair; 3] = [Pair::new(0x1008, 3), Pair::new(0x100C, 4), Pair::new(0x1008, 5)];

#[tokio::test]
async fn a_lost_request_or_reply_is_made_good_and_no_write_is_carried_out_twice() {
    let board = FakeBoard::start(Manners::default());
    let relay = Relay::start(board.address);
    let mut client = connect(relay.address).await;
    for way in [Way::Request, Way::Reply] {
        for times in [1_usize, 3] {
            let lose = vec![Fate::Lose; times];
            let before = relay.lost();
            board.take_done();

            relay.next(way, &lose);
            client.write(0x1004, 0x1122_3344).await.unwrap();
            assert_eq!(board.take_done(), [Done::Write(0x1004, 0x1122_3344)], "{way:?} {times}");

            relay.next(way, &lose);
            client.write_pairs(&BLOCK).await.unwrap();
            assert_eq!(board.take_writes(), BLOCK.map(|pair| (pair.address, pair.data)), "{way:?} {times}");

            relay.next(way, &lose);
            assert_eq!(client.read(0x1004).await.unwrap(), 0x1122_3344);

            relay.next(way, &lose);
            assert_eq!(client.read_block(0x1004, 3).await.unwrap(), [0x1122_3344, 5, 4]);

            client.write(0x1000, 1).await.unwrap();
            assert_eq!(relay.lost() - before, 4 * u32::try_from(times).unwrap(), "each loss took place");
        }
    }
}

#[tokio::test]
async fn the_first_read_survives_losses_too() {
    let board = FakeBoard::start(Manners::default());
    let relay = Relay::start(board.address);
    relay.next(Way::Request, &[Fate::Lose, Fate::Repeat]);
    relay.next(Way::Reply, &[Fate::Lose]);
    let mut client = connect(relay.address).await;
    assert_eq!((client.version(), relay.lost()), (0x2606, 2));
    client.write(0x1000, 5).await.unwrap();
    assert_eq!(board.register(0x1000), Some(5));
}

#[derive(Debug, Clone)]
enum Step {
    Write(u32, u32),
    WriteBlock(Vec<u32>),
    Read(u32),
    ReadBlock(u32),
}

/// Registers 0x1000 to 0x101C.
fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..8_u32, any::<u32>()).prop_map(|(register, data)| Step::Write(0x1000 + 4 * register, data)),
        prop::collection::vec(any::<u32>(), 1..8).prop_map(Step::WriteBlock),
        (0..8_u32).prop_map(|register| Step::Read(0x1000 + 4 * register)),
        (1..9_u32).prop_map(Step::ReadBlock),
    ]
}

/// A repeated request whose first answer is lost cannot be told from that of a second controller, so only one way is
/// spoilt by more than loss.
fn any_fates() -> impl Strategy<Value = [Vec<Fate>; 2]> {
    let fates = |lose, repeat| {
        let fate = prop_oneof![3 => Just(Fate::Pass), lose => Just(Fate::Lose), repeat => Just(Fate::Repeat)];
        prop::collection::vec(fate, 0..40)
    };
    prop_oneof![[fates(1, 1), fates(0, 1)], [fates(1, 0), fates(1, 1)]]
}

/// Carries out the steps and returns the writes that were asked for, in order.
async fn carry_out(client: &mut Client, steps: &[Step]) -> Vec<(u32, u32)> {
    let mut asked = Vec::new();
    let mut registers = [0; 8];
    for step in steps {
        match step {
            &Step::Write(address, data) => {
                client.write(address, data).await.unwrap();
                asked.push((address, data));
            }
            Step::WriteBlock(words) => {
                let pairs: Vec<Pair> =
                    (0x1000..).step_by(4).zip(words).map(|(a, &data)| Pair::new(a, data)).collect();
                client.write_pairs(&pairs).await.unwrap();
                asked.extend(pairs.iter().map(|pair| (pair.address, pair.data)));
            }
            &Step::Read(address) => {
                let index = usize::try_from((address - 0x1000) / 4).unwrap();
                assert_eq!(client.read(address).await.unwrap(), registers[index]);
            }
            &Step::ReadBlock(count) => {
                let count = usize::try_from(count).unwrap();
                assert_eq!(client.read_block(0x1000, count).await.unwrap(), registers[..count]);
            }
        }
        for &(address, data) in &asked {
            registers[usize::try_from((address - 0x1000) / 4).unwrap()] = data;
        }
    }
    asked
}

#[test]
fn whatever_is_lost_or_repeated_each_write_is_carried_out_once_and_in_order() {
    let strategy = (prop::collection::vec(any_step(), 1..12), any_fates());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&strategy, |(steps, [requests, replies])| {
            let board = FakeBoard::start(Manners::default());
            let relay = Relay::start(board.address);
            relay.next(Way::Request, &requests);
            relay.next(Way::Reply, &replies);
            let asked = runtime.block_on(async {
                let mut client = connect(relay.address).await;
                carry_out(&mut client, &steps).await
            });
            prop_assert_eq!(board.take_writes(), asked);
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn a_second_controller_is_noticed_and_nothing_that_was_refused_is_carried_out() {
    let board = FakeBoard::start(Manners::default());
    let mut first = connect(board.address).await;
    // Both count alike, so the second's first number is the one that the first has just used.
    let mut second = connect(board.address).await;
    first.write(0x1000, 1).await.unwrap();
    let error = second.write(0x1000, 2).await.unwrap_err();
    let noticed = matches!(error, HsbError::OtherController { sequence: 0x101, latched: 0x101, .. });
    assert!(noticed && error.to_string().contains("another controller"), "{error}");
    second.write(0x1004, 3).await.unwrap();
    second.write_pairs(&BLOCK).await.unwrap();
    let error = first.read_block(0x1000, 2).await.unwrap_err();
    assert!(matches!(error, HsbError::OtherController { sequence: 0x102, .. }), "{error}");
    assert_eq!(first.read_block(0x1000, 2).await.unwrap(), [1, 3], "in step again");
    first.read(0x1000).await.unwrap();
    let error = second.write(0x1000, 4).await.unwrap_err();
    assert!(matches!(error, HsbError::OtherController { .. }), "{error}");
    let mut writes = vec![(0x1000, 1), (0x1004, 3)];
    writes.extend(BLOCK.map(|pair| (pair.address, pair.data)));
    assert_eq!(board.take_writes(), writes);
}

#[tokio::test]
async fn garbage_in_place_of_answers_is_passed_over() {
    let board = FakeBoard::start(Manners { noise: true, ..Manners::default() });
    let mut client = connect(board.address).await;
    client.write(0x1000, 1).await.unwrap();
    client.write_pairs(&BLOCK).await.unwrap();
    assert_eq!(client.read(0x1000).await.unwrap(), 1);
    assert_eq!(client.read_block(0x1008, 2).await.unwrap(), [5, 4]);
    let error = client.read(0xDEAD_0000).await.unwrap_err();
    assert!(matches!(error, HsbError::Refused { status: Status::InvalidAddress, .. }), "{error}");
    assert_eq!(board.refused(), 0);
}
