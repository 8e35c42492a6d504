//! One thread that moves the messages of many transceivers.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::{self, JoinHandle};

use roce_core::{Device, WireId};

use crate::cpu::Placement;
use crate::error::{Error, text_of};
use crate::mover::Mover;
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::{Shared, Transceiver};
use crate::wire::{InTurn, Round, Wire};

const THREAD: &str = "roce-poller";

/// How the thread of a [`SharedPoller`] runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct PollerOptions {
    /// How it waits when no member has anything to do.
    pub spin: SpinPolicy,
    /// The CPU to pin it to.
    pub cpu: Option<usize>,
    /// Its SCHED_FIFO priority, 1 to 99.
    pub rt_priority: Option<u8>,
}

/// One thread that moves the messages of many transceivers, in place of one or two threads for each.
///
/// It takes transceivers of every mode but [`Mode::Unified`](crate::Mode::Unified), whose one thread is yours: a loop
/// of yours over many [`Unified`](crate::Unified) ends is a shared poller as well.
///
/// The members get their steps in turn, of 16 messages at most in each direction, and no step waits: a member that
/// has to, for room in its send queue or under [`OverrunPolicy::Wait`](crate::OverrunPolicy::Wait), passes. One that
/// fails or is closed leaves the others alone. Where members receive from one socket, as on the userspace link those
/// of one address do, a round asks it once for all of them, so put them under one poller. What a config says of its
/// own threads, their CPUs, priority and waiting, has no effect.
///
/// While it has members it keeps its CPU busy; without any, it sleeps.
///
/// ```no_run
/// # use roce_core::PeerEndpoint;
/// # use roce_transport::{Config, Error, Mode, PollerOptions, SharedPoller, State, Transceiver};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut peers = Vec::new();
/// let poller = SharedPoller::start(PollerOptions::default())?;
/// let mut links = Vec::new();
/// for _ in 0..4 {
///     let link = Transceiver::new(Config::builder("soft:127.8.0.1").mode(Mode::Forward).build()?);
///     let ours = link.setup()?;
///     # let peer = Transceiver::new(Config::builder("soft:127.8.0.2").build()?);
///     # let theirs = peer.setup()?;
///     # peers.push((peer, ours));
///     # let exchange = |_| PeerEndpoint { qpn: theirs.qpn, rkey: Some(theirs.rkey), ip: theirs.ip };
///     link.connect(&exchange(ours))?;
///     poller.add(&link)?; // where `blocking_monitor` would take a thread
///     links.push(link);
/// }
/// links[1].close(); // one at any time
/// assert_eq!(links[0].state(), State::Running);
/// drop(poller); // the others end with it
/// assert!(matches!(links[0].error(), Some(Error::PollerGone)));
/// # Ok(())
/// # }
/// ```
pub struct SharedPoller {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl SharedPoller {
    /// Starts the thread, which has no members yet.
    ///
    /// # Errors
    /// [`Error::Thread`] where there can be no thread; [`Error::Cpu`] and [`Error::RtPriority`] where it cannot be
    /// as `options` say.
    pub fn start(options: PollerOptions) -> Result<Self, Error> {
        let desk = Arc::new(Desk::default());
        let mut rounds = Rounds::new(&desk);
        let (placed, is_placed) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
            let placement = Placement { cpu: options.cpu, rt_priority: options.rt_priority };
            let ready = placement.apply();
            let is_ready = ready.is_ok();
            // Whoever started it waits for this.
            let _ = placed.send(ready);
            if is_ready {
                rounds.serve(options.spin);
            }
        });
        let thread =
            thread.map_err(|source| Error::Thread { name: THREAD.to_owned(), source: Arc::new(source) })?;
        let poller = Self { desk, thread: Some(thread) };
        is_placed.recv().unwrap_or(Err(Error::PollerGone))?;
        Ok(poller)
    }

    /// Moves the messages of a connected transceiver from now on, in place of
    /// [`Transceiver::blocking_monitor`]. Any thread, at any time.
    ///
    /// # Errors
    /// [`Error::State`] where the transceiver is not connected, runs already, or is for unified mode;
    /// [`Error::Closed`]; [`Error::PollerGone`] after a defect.
    pub fn add<D: Device>(&self, transceiver: &Transceiver<D>) -> Result<Monitor, Error> {
        let mut list = self.desk.lock();
        if list.is_over {
            return Err(Error::PollerGone);
        }
        let movers = transceiver
            .begin("SharedPoller::add", |recv| InTurn::new(recv, |id| list.wire(id, &self.desk.round)))?
            .into_iter()
            .map(|worker| worker.mover)
            .collect();
        let shared = Arc::clone(transceiver.shared());
        list.joining.push(Member { movers, done: Vec::with_capacity(2), shared: Arc::clone(&shared) });
        self.desk.tell_news();
        Ok(Monitor { shared })
    }
}

/// The transceivers that are left fail with [`Error::PollerGone`].
impl Drop for SharedPoller {
    fn drop(&mut self) {
        self.desk.lock().is_over = true;
        self.desk.tell_news();
        if let Some(thread) = self.thread.take() {
            // A panic of a member was caught; of any other, the members were told.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for SharedPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPoller").finish_non_exhaustive()
    }
}

/// Tells of the end of one transceiver under a [`SharedPoller`]. Nothing depends on its being kept.
#[derive(Debug, Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
}

impl Monitor {
    /// Returns when the transceiver's messages are no longer moved: `Ok` after [`Transceiver::close`], else the first
    /// error, as [`Transceiver::blocking_monitor`] does.
    ///
    /// # Errors
    /// The one that has ended it.
    pub fn wait(&self) -> Result<(), Error> {
        self.shared.ending.wait();
        self.shared.error().map_or(Ok(()), Err)
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn has_ended(&self) -> bool {
        self.shared.ending.is_told()
    }
}

/// Where transceivers join, and whoever serves them looks in.
#[derive(Default)]
struct Desk {
    /// Looked at in each round; the list only when this is set.
    has_news: AtomicBool,
    list: Mutex<List>,
    changed: Condvar,
    round: Round,
}

#[derive(Default)]
struct List {
    joining: Vec<Member>,
    is_over: bool,
    wires: Vec<(WireId, Weak<Wire>)>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_news(&self) {
        self.has_news.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// The list as it is, or for who has nothing to do: as soon as there is something.
    fn read(&self, has_nothing_to_do: bool) -> MutexGuard<'_, List> {
        let waits = |list: &mut List| has_nothing_to_do && list.joining.is_empty() && !list.is_over;
        let list = self.changed.wait_while(self.lock(), waits);
        self.has_news.store(false, Ordering::Relaxed);
        list.unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// The one wire of that name as long as a member is on it.
    fn wire(&mut self, id: WireId, round: &Round) -> Arc<Wire> {
        self.wires.retain(|(_, wire)| wire.strong_count() > 0);
        let known = self.wires.iter().find(|(known, _)| *known == id).and_then(|(_, wire)| wire.upgrade());
        known.unwrap_or_else(|| {
            let wire = Arc::new(Wire::new(round.clone()));
            self.wires.push((id, Arc::downgrade(&wire)));
            wire
        })
    }
}

/// A transceiver under the poller.
struct Member {
    movers: Vec<Box<dyn Mover>>,
    /// Those that have nothing more to do.
    done: Vec<Box<dyn Mover>>,
    shared: Arc<Shared>,
}

impl Member {
    /// A step of each of its movers. Whether one of them moved anything.
    fn step(&mut self) -> bool {
        let is_stopped = self.shared.is_stopped();
        let mut moved = false;
        let mut at = 0;
        while let Some(mover) = self.movers.get_mut(at) {
            let goes_on = if is_stopped {
                mover.finish()
            } else {
                mover.step().map(|did| {
                    moved |= did;
                    true
                })
            };
            match goes_on {
                Ok(true) => at += 1,
                Ok(false) => self.done.push(self.movers.swap_remove(at)),
                Err(e) => {
                    self.shared.fail(&e);
                    self.done.push(self.movers.swap_remove(at));
                }
            }
        }
        moved
    }

    fn is_over(&self) -> bool {
        self.movers.is_empty()
    }
}

/// However it leaves, its owner learns of it.
impl Drop for Member {
    fn drop(&mut self) {
        self.done.append(&mut self.movers);
        self.shared.ending.tell(std::mem::take(&mut self.done));
    }
}

/// The poller's thread.
struct Rounds {
    desk: Arc<Desk>,
    members: Vec<Member>,
    /// The member whose turn it is.
    at: usize,
}

impl Rounds {
    fn new(desk: &Arc<Desk>) -> Self {
        Self { desk: Arc::clone(desk), members: Vec::new(), at: 0 }
    }

    /// Until the poller is dropped and the last member has ended.
    fn serve(&mut self, spin: SpinPolicy) {
        // A member's panic is a defect of its link or of ours, and the others cannot have seen its state.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.go_round(spin))) {
            self.expel(&*panic);
        }
    }

    fn go_round(&mut self, spin: SpinPolicy) {
        let mut backoff = Backoff::new(spin);
        while self.admit() {
            if self.round() {
                backoff.reset();
            } else {
                backoff.idle();
            }
        }
    }

    /// Takes in whoever joins. Waits for somebody while there is nobody, and gives `false` when there will be nobody.
    #[inline]
    fn admit(&mut self) -> bool {
        let has_news = self.desk.has_news.load(Ordering::Relaxed);
        if self.members.is_empty() || has_news { self.read_news() } else { true }
    }

    #[cold]
    fn read_news(&mut self) -> bool {
        let mut list = self.desk.read(self.members.is_empty());
        self.members.append(&mut list.joining);
        if list.is_over {
            self.abandon();
        }
        !(list.is_over && self.members.is_empty())
    }

    /// Tells those that nobody has stopped.
    fn abandon(&self) {
        self.members
            .iter()
            .filter(|m| !m.shared.is_stopped())
            .for_each(|m| m.shared.fail(&Error::PollerGone));
    }

    /// A step of each member. Whether one of them moved anything.
    fn round(&mut self) -> bool {
        self.desk.round.next();
        let mut moved = false;
        self.at = 0;
        while let Some(member) = self.members.get_mut(self.at) {
            moved |= member.step();
            if member.is_over() {
                self.members.swap_remove(self.at);
            } else {
                self.at += 1;
            }
        }
        moved
    }

    #[cold]
    fn expel(&mut self, panic: &(dyn Any + Send)) {
        let member = self.members.swap_remove(self.at);
        member.shared.fail(&Error::Panic { name: THREAD.to_owned(), message: text_of(panic) });
    }
}

/// Nobody waits for a thread that is gone.
impl Drop for Rounds {
    fn drop(&mut self) {
        let mut list = self.desk.lock();
        list.is_over = true;
        self.members.append(&mut list.joining);
        // There are some only after a defect.
        self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use roce_core::{CompletionError, PostError, RecvCompletion, RecvWr, UcRecv};

    use super::*;
    use crate::config::Config;
    use crate::error::Outcome;

    /// Whether messages have landed, what goes wrong, how often it asked its wire, and whether it is gone.
    #[derive(Default)]
    struct Asker {
        has_landed: AtomicBool,
        fails: AtomicBool,
        panics: AtomicBool,
        asked: AtomicU32,
        is_freed: AtomicBool,
    }

    struct Recv {
        asker: Arc<Asker>,
        wire: Option<Arc<()>>,
    }

    impl Drop for Recv {
        fn drop(&mut self) {
            self.asker.is_freed.store(true, Ordering::Relaxed);
        }
    }

    impl UcRecv for Recv {
        fn post_recv(&mut self, _: RecvWr) -> Result<(), PostError> {
            Ok(())
        }

        fn poll(&mut self, _: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
            self.asker.asked.fetch_add(1, Ordering::Relaxed);
            Ok(0)
        }

        fn counts_packets(&self) -> bool {
            true
        }

        fn poll_landed(&mut self, _: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
            assert!(!self.asker.panics.load(Ordering::Relaxed), "as the test demands");
            if self.asker.fails.load(Ordering::Relaxed) {
                return Err(CompletionError { what: "receive", reason: "demanded", status: 1, vendor: 2 });
            }
            Ok(self.asker.has_landed.load(Ordering::Relaxed).into())
        }

        fn shared_wire(&self) -> Option<WireId> {
            self.wire.as_ref().map(WireId::of)
        }
    }

    impl Mover for InTurn<Recv> {
        fn step(&mut self) -> Outcome<bool> {
            Ok(self.poll(&mut [RecvCompletion::EMPTY]).map_err(|e| shared().completion(e))? > 0)
        }
    }

    fn shared() -> Shared {
        Shared::new(&Config::builder("stub").build().expect("valid"))
    }

    /// A member on that wire, or on one of its own.
    fn join(rounds: &mut Rounds, wire: Option<&Arc<()>>) -> Arc<Asker> {
        let asker = Arc::<Asker>::default();
        let recv = Recv { asker: Arc::clone(&asker), wire: wire.cloned() };
        let recv = InTurn::new(recv, |id| rounds.desk.lock().wire(id, &rounds.desk.round));
        rounds.members.push(Member {
            movers: vec![Box::new(recv)],
            done: Vec::new(),
            shared: Arc::new(shared()),
        });
        asker
    }

    #[test]
    fn each_wire_is_asked_once_in_a_round_by_who_has_nothing_at_hand() {
        let mut rounds = Rounds::new(&Arc::default());
        let wires = [Arc::new(()), Arc::new(())];
        let on = [Some(0), Some(0), None, Some(1), Some(0), Some(1)];
        let askers = on.map(|wire| join(&mut rounds, wire.map(|at: usize| &wires[at])));
        let mut ask_in_rounds = |count| {
            for _ in 0..count {
                let has_landed = askers.iter().any(|asker| asker.has_landed.load(Ordering::Relaxed));
                assert_eq!(rounds.round(), has_landed, "whether anything moved");
            }
            askers.each_ref().map(|asker| asker.asked.swap(0, Ordering::Relaxed))
        };
        assert_eq!(ask_in_rounds(100), [100, 0, 100, 100, 0, 0]);
        askers[0].has_landed.store(true, Ordering::Relaxed);
        assert_eq!(ask_in_rounds(7), [0, 7, 7, 7, 0, 0]);
        for at in [1, 4] {
            askers[at].has_landed.store(true, Ordering::Relaxed);
        }
        assert_eq!(ask_in_rounds(5), [0, 0, 5, 5, 0, 0], "nobody need ask it");
    }

    #[test]
    fn whoever_closes_frees_what_is_left_however_it_ended() {
        let wire = Arc::new(());
        let ends: [fn(&mut Rounds, &Asker); 4] = [
            |rounds, _| {
                rounds.members[1].shared.stop();
                rounds.round();
            },
            |rounds, asker| {
                asker.fails.store(true, Ordering::Relaxed);
                rounds.round();
            },
            |rounds, asker| {
                asker.panics.store(true, Ordering::Relaxed);
                let panic = catch_unwind(AssertUnwindSafe(|| rounds.round())).expect_err("it panics");
                rounds.expel(&*panic);
            },
            // As after a panic that is of no member: the thread ends.
            |rounds, _| drop(std::mem::replace(rounds, Rounds::new(&Arc::default()))),
        ];
        let errors = ends.map(|end| {
            let mut rounds = Rounds::new(&Arc::default());
            let [_, asker, _] = [(); 3].map(|()| join(&mut rounds, Some(&wire)));
            let shared = Arc::clone(&rounds.members[1].shared);
            let other = Arc::clone(&rounds.members[2].shared);
            end(&mut rounds, &asker);
            assert!(shared.ending.is_told() && shared.is_stopped());
            assert_eq!(other.is_stopped(), rounds.members.is_empty(), "the others go on if the thread does");
            assert!(!asker.is_freed.load(Ordering::Relaxed), "by the poller");
            shared.ending.collect();
            assert!(asker.is_freed.load(Ordering::Relaxed));
            shared.error()
        });
        assert!(matches!(
            errors,
            [None, Some(Error::Completion { .. }), Some(Error::Panic { .. }), Some(Error::PollerGone)]
        ));
    }

    #[test]
    fn whoever_is_closed_when_the_poller_goes_was_closed() {
        let mut rounds = Rounds::new(&Arc::default());
        let [_, _] = [(); 2].map(|()| join(&mut rounds, None));
        let shared = [0, 1].map(|at| Arc::clone(&rounds.members[at].shared));
        shared[0].stop();
        let late = rounds.members.pop().expect("two");
        rounds.desk.lock().joining.push(late);
        let desk = Arc::clone(&rounds.desk);
        drop(rounds);
        assert!(shared.iter().all(|shared| shared.ending.is_told()), "who has not joined yet as well");
        assert!(matches!(shared.map(|shared| shared.error()), [None, Some(Error::PollerGone)]));

        let poller = SharedPoller { desk, thread: None };
        let any = Transceiver::new(Config::builder("soft").build().expect("valid"));
        assert!(matches!(poller.add(&any), Err(Error::PollerGone)));
    }

    #[test]
    fn a_half_under_a_poller_says_of_itself_what_it_says_alone() {
        let wire = Arc::new(());
        let recv = Recv { asker: Arc::default(), wire: Some(Arc::clone(&wire)) };
        let recv = InTurn::new(recv, |_| Arc::new(Wire::new(Round::default())));
        assert!(recv.counts_packets());
        assert_eq!(recv.shared_wire(), Some(WireId::of(&wire)));
    }

    #[test]
    fn a_wire_is_known_as_long_as_somebody_is_on_it() {
        let mut rounds = Rounds::new(&Arc::default());
        let wire = Arc::new(());
        let known = |rounds: &Rounds| rounds.desk.lock().wires.len();
        (0..3).for_each(|_| drop(join(&mut rounds, Some(&wire))));
        assert_eq!(known(&rounds), 1);
        rounds.members.iter().for_each(|member| member.shared.stop());
        rounds.round();
        assert_eq!(rounds.members.len(), 0);
        join(&mut rounds, Some(&Arc::new(())));
        assert_eq!(known(&rounds), 1, "that of the newcomer");
    }
}
