//! Handles for C: numbers in a pointer's clothes, looked up and never dereferenced.
//!
//! A call on the message path should cost one frame of the stack, whatever the type of what it drives. So a place in
//! the table also has *entries*: functions that were made for the type of the port in it. They are read without any
//! protection, may be those of a port that has just gone, and find that out themselves.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use crate::Biased;
use crate::biased::Inside;

/// Handles that may be in use at once.
const CAPACITY: usize = 256;

/// Bits of a handle: 16 of the table's tag, 32 of the place's generation, 16 of the place. The tag lies where no
/// pointer of a program has these bits.
const TAG_SHIFT: u32 = 48;
const GENERATION_SHIFT: u32 = 16;
const PLACE_MASK: usize = 0xFFFF;

const _: () =
    assert!(CAPACITY <= PLACE_MASK + 1 && (PLACE_MASK + 1).is_multiple_of(CAPACITY) && usize::BITS == 64);

/// A handle that stands for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHandle {
    /// NULL.
    #[error("the handle is NULL")]
    Null,
    /// Not made by this table.
    #[error("{0:#x} is no handle of this library")]
    Foreign(usize),
    /// Its object is gone.
    #[error("the handle {0:#x} was destroyed before")]
    Stale(usize),
}

/// What goes with the type of a port: functions that were made for it.
pub trait Entries: Sync + 'static {
    /// Those of a place that has had no port yet.
    const NOBODYS: &'static Self;
}

impl Entries for () {
    const NOBODYS: &'static Self = &();
}

/// A table of objects `T` that C programs know by handle, each with a place for a port `P` that one thread drives,
/// and entries `E` that go with the type of the port.
///
/// No handle is given out twice.
pub struct Handles<T, P, E: 'static = ()> {
    tag: u16,
    /// Where the next object is looked a place for. A place favours only so many threads ever, so all are used in turn.
    next: AtomicUsize,
    places: [CachePadded<Place<T, P, E>>; CAPACITY],
}

/// Room for one object and its port.
pub struct Place<T, P, E: 'static> {
    port: Biased<Port<P>>,
    /// Always a `&'static E`.
    entries: AtomicPtr<E>,
    object: Mutex<Object<T>>,
}

/// What the polling thread needs.
#[derive(Debug)]
struct Port<P> {
    /// Whose; 0: nobody's.
    handle: usize,
    port: Option<P>,
}

struct Object<T> {
    /// Rises with every object; 0 before the first.
    generation: u32,
    object: Option<Arc<T>>,
}

impl<T, P, E: Entries> Handles<T, P, E> {
    /// An empty table. `tag` tells its handles from those of others.
    ///
    /// # Panics
    ///
    /// When the top bits of a pointer could be equal to `tag`: for 0 and 0xFFFF.
    pub const fn new(tag: u16) -> Self {
        assert!(tag != 0 && tag != 0xFFFF);
        Self { tag, next: AtomicUsize::new(0), places: [const { CachePadded::new(Place::new()) }; CAPACITY] }
    }

    /// Takes an object in and gives its handle; `None` when the table is full.
    pub fn insert(&self, object: T) -> Option<*mut c_void> {
        let first = self.next.load(Ordering::Relaxed);
        for at in (first..CAPACITY).chain(0..first) {
            let place = &self.places[at];
            let mut entry = place.lock();
            // A place whose generations are used up stays empty.
            if entry.object.is_none() && entry.generation < u32::MAX {
                entry.generation += 1;
                let handle = self.encode(at, entry.generation);
                entry.object = Some(Arc::new(object));
                place.port.with_lock(|p| *p = Port { handle, port: None });
                self.next.store((at + 1) % CAPACITY, Ordering::Relaxed);
                return Some(ptr::without_provenance_mut(handle));
            }
        }
        None
    }

    /// The object of a handle.
    pub fn get(&self, handle: *mut c_void) -> Result<Arc<T>, BadHandle> {
        let entry = self.entry(handle)?;
        entry.object.clone().ok_or(BadHandle::Stale(handle.addr()))
    }

    /// Takes an object out: the handle is stale from here. Its port is dropped.
    pub fn remove(&self, handle: *mut c_void) -> Result<Arc<T>, BadHandle> {
        let object = self.entry(handle)?.object.take().ok_or(BadHandle::Stale(handle.addr()))?;
        let place = self.place(handle.addr()).ok_or(BadHandle::Foreign(handle.addr()))?;
        // Whoever got the place meanwhile has its own handle in there.
        let old = place
            .port
            .with_lock(|p| (p.handle == handle.addr()).then(|| std::mem::replace(p, Port::NOBODYS)));
        drop(old);
        Ok(object)
    }

    /// Runs `f` on the port of a handle; `None` where it has none, or is no handle. For one thread at a time;
    /// another waits.
    pub fn port<R>(&'static self, handle: *mut c_void, f: impl FnOnce(&mut P) -> R) -> Option<R> {
        let port = &self.place_of(handle).port;
        port.with(|p| if p.handle == handle.addr() { p.port.as_mut().map(f) } else { None })
    }

    /// The place that a handle names: there is one for any number, and of all numbers only a live handle is equal to
    /// the one kept there.
    #[inline]
    pub fn place_of(&self, handle: *mut c_void) -> &Place<T, P, E> {
        &self.places[handle.addr() % CAPACITY]
    }

    /// Gives the handle a port and its entries, unless it has a port. Whether it has one now.
    pub fn attach(&self, handle: *mut c_void, make: impl FnOnce() -> Option<(P, &'static E)>) -> bool {
        let Some(place) = self.place(handle.addr()) else { return false };
        place.port.with_lock(|p| {
            if p.handle != handle.addr() {
                return false;
            }
            if p.port.is_none()
                && let Some((port, entries)) = make()
            {
                p.port = Some(port);
                place.entries.store(ptr::from_ref(entries).cast_mut(), Ordering::Release); // pairs with `entries`
            }
            p.port.is_some()
        })
    }

    /// Takes the port away, once the thread in it has left.
    pub fn detach(&self, handle: *mut c_void) -> Option<P> {
        let place = self.place(handle.addr())?;
        place.port.with_lock(|p| if p.handle == handle.addr() { p.port.take() } else { None })
    }

    /// The entry of the place that a handle names, if it is of this generation or an earlier one.
    fn entry(&self, handle: *mut c_void) -> Result<MutexGuard<'_, Object<T>>, BadHandle> {
        let value = handle.addr();
        if handle.is_null() {
            return Err(BadHandle::Null);
        }
        let place = self.place(value).ok_or(BadHandle::Foreign(value))?;
        let entry = place.lock();
        let generation = (value >> GENERATION_SHIFT) & u32::MAX as usize;
        let newest = entry.generation as usize;
        if generation == 0 || generation > newest {
            return Err(BadHandle::Foreign(value));
        }
        if generation < newest { Err(BadHandle::Stale(value)) } else { Ok(entry) }
    }

    fn place(&self, handle: usize) -> Option<&Place<T, P, E>> {
        if handle >> TAG_SHIFT != self.tag as usize {
            return None;
        }
        self.places.get(handle & PLACE_MASK).map(|place| &**place)
    }

    fn encode(&self, place: usize, generation: u32) -> usize {
        (self.tag as usize) << TAG_SHIFT | (generation as usize) << GENERATION_SHIFT | place
    }
}

impl<T, P, E: Entries> Place<T, P, E> {
    /// The entries that came with the last port here: functions to be tried with the handle.
    #[inline]
    pub fn entries(&self) -> &'static E {
        let entries = self.entries.load(Ordering::Acquire); // pairs with `attach`
        // SAFETY: from the `&'static E` of `NOBODYS`, or from one that `attach` was given; nothing else is stored there.
        unsafe { &*entries }
    }

    /// The port of the handle, for the thread that uses it all the time; `None` for others, for which
    /// [`Handles::port`] finds out the rest.
    ///
    /// Entries that the thread has read here since it last called [`Handles::port`] are then those of this very port:
    /// in that call at the latest it became the favourite, and a port that comes or goes takes the favour away.
    ///
    /// # Safety
    ///
    /// This is the place of the handle, from [`Handles::place_of`].
    #[inline]
    pub unsafe fn favourite(&self, handle: *mut c_void) -> Option<Favourite<'_, P>> {
        // All numbers that name a place have their lowest bits in common, so none is the complement of another.
        self.port.enter(handle.addr()).map(Favourite)
    }
}

impl<T, P, E> fmt::Debug for Place<T, P, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

/// A port in the hand of the thread that uses it all the time. Others wait until it is dropped.
#[derive(Debug)]
pub struct Favourite<'a, P>(Inside<'a, Port<P>>);

impl<P> Favourite<'_, P> {
    /// The port.
    #[inline]
    pub fn port(&mut self) -> &mut P {
        // SAFETY: there is a port where there is a key, and who enters with the key changes the port alone.
        unsafe { self.0.port.as_mut().unwrap_unchecked() }
    }
}

impl<P> Port<P> {
    const NOBODYS: Self = Self { handle: 0, port: None };

    /// For the thread that uses it all the time.
    fn key(&self) -> Option<usize> {
        self.port.is_some().then_some(self.handle)
    }
}

impl<T, P, E: Entries> Place<T, P, E> {
    const fn new() -> Self {
        Self {
            port: Biased::with_key(Port::NOBODYS, Port::key),
            entries: AtomicPtr::new(ptr::from_ref(E::NOBODYS).cast_mut()),
            object: Mutex::new(Object { generation: 0, object: None }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Object<T>> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, P, E> fmt::Debug for Handles<T, P, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handles").field("tag", &self.tag).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Entries for u32 {
        const NOBODYS: &'static Self = &0;
    }

    type Table = Handles<String, u32>;

    /// Static, as tables are.
    fn table() -> &'static Table {
        Box::leak(Box::new(Table::new(0xC0DE)))
    }

    /// A new object in the place that a handle had.
    fn insert_again(table: &Table, earlier: *mut c_void, object: &str) -> *mut c_void {
        loop {
            let handle = table.insert(object.into()).expect("room");
            if (handle.addr() ^ earlier.addr()) & PLACE_MASK == 0 {
                return handle;
            }
            table.remove(handle).expect("live");
        }
    }

    #[test]
    fn bad_handles_are_told_apart() {
        let table = table();
        let handle = table.insert("a".into()).expect("room");
        assert_eq!(*table.get(handle).expect("live"), "a");
        assert_eq!(table.get(ptr::null_mut()), Err(BadHandle::Null));
        let local = 0u64;
        let pointer = ptr::from_ref(&local).cast_mut().cast();
        assert_eq!(table.get(pointer), Err(BadHandle::Foreign(pointer.addr())));
        let later = ptr::without_provenance_mut(handle.addr() + (1 << GENERATION_SHIFT));
        assert_eq!(table.get(later), Err(BadHandle::Foreign(later.addr())), "never given out");
        let outside = ptr::without_provenance_mut(handle.addr() + CAPACITY);
        assert_eq!(table.get(outside), Err(BadHandle::Foreign(outside.addr())));
    }

    #[test]
    fn a_handle_is_stale_once_removed_and_after_its_place_is_used_again() {
        let table = table();
        let first = table.insert("a".into()).expect("room");
        assert_eq!(*table.remove(first).expect("live"), "a");
        assert_eq!(table.remove(first), Err(BadHandle::Stale(first.addr())));
        let second = insert_again(table, first, "b");
        assert_ne!(first, second);
        assert_eq!(table.get(first), Err(BadHandle::Stale(first.addr())));
        assert_eq!(*table.get(second).expect("live"), "b");
    }

    #[test]
    fn a_full_table_takes_again_once_something_leaves() {
        let table = table();
        let handles: Vec<_> = (0..CAPACITY).map(|i| table.insert(i.to_string()).expect("room")).collect();
        assert_eq!(table.insert("one too many".into()), None);
        table.remove(handles[17]).expect("live");
        assert!(table.insert("fits".into()).is_some());
        for (i, handle) in handles.iter().enumerate().filter(|(i, _)| *i != 17) {
            assert_eq!(*table.get(*handle).expect("live"), i.to_string());
        }
    }

    #[test]
    fn entries_come_with_the_port_and_may_outlive_it() {
        static ONE: u32 = 1;
        let table: Box<Handles<(), u32, u32>> = Box::new(Handles::new(0xC0DE));
        let handle = table.insert(()).expect("room");
        let entries = || *table.place_of(handle).entries();
        assert_eq!(entries(), 0);
        assert!(table.attach(handle, || Some((7, &ONE))));
        assert_eq!(entries(), 1);
        assert!(table.detach(handle).is_some() && entries() == 1);
    }

    #[test]
    fn a_port_knows_its_favourite_by_thread_and_handle() {
        let table = table();
        let handle = table.insert("a".into()).expect("room");
        // SAFETY: the place is that of the handle.
        let favours = |handle| unsafe { table.place_of(handle).favourite(handle) }.is_some();
        let come_often = |handle| (0..100).filter_map(|_| table.port(handle, |p| *p)).count();
        assert!(come_often(handle) == 0 && !favours(handle), "there is no port");
        assert!(table.attach(handle, || Some((1, &()))));
        assert!(!favours(handle), "it has not come yet");
        assert_eq!(come_often(handle), 100);
        assert!(favours(handle) || cfg!(not(target_os = "linux")));
        let same_place = [0, CAPACITY, handle.addr() + CAPACITY, !handle.addr()];
        assert!(!same_place.iter().any(|&number| favours(ptr::without_provenance_mut(number))));
        let address = handle.addr();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!favours(ptr::without_provenance_mut(address)), "another thread"));
        });
        assert_eq!(table.detach(handle), Some(1));
        assert!(!favours(handle) && !favours(ptr::without_provenance_mut(!address)), "the port is gone");
    }

    /// One object after the other, each with a thread of its own while the earlier ones live on.
    #[test]
    fn new_threads_become_favourites_of_new_objects() {
        let table = table();
        let over = Mutex::new(());
        std::thread::scope(|scope| {
            let hold = over.lock().expect("ours");
            for life in 0..20 {
                let handle = table.insert("a".into()).expect("room");
                assert!(table.attach(handle, || Some((1, &()))));
                let (address, (told, tell)) = (handle.addr(), std::sync::mpsc::channel());
                let over = &over;
                scope.spawn(move || {
                    let handle = ptr::without_provenance_mut(address);
                    assert_eq!((0..100).filter_map(|_| table.port(handle, |p| *p)).count(), 100);
                    // SAFETY: the place is that of the handle.
                    let favoured = unsafe { table.place_of(handle).favourite(handle) }.is_some();
                    told.send(favoured).expect("it listens");
                    drop(over.lock());
                });
                let favoured = tell.recv().expect("it tells");
                table.remove(handle).expect("live");
                assert!(favoured || cfg!(not(target_os = "linux")), "not the thread of life {life}");
            }
            drop(hold);
        });
    }

    #[test]
    fn a_port_belongs_to_its_handle_alone() {
        let table = table();
        let first = table.insert("a".into()).expect("room");
        assert_eq!(table.port(first, |p| *p), None);
        assert!(table.attach(first, || Some((1, &()))));
        assert!(table.attach(first, || unreachable!("it has one")));
        assert_eq!(table.port(first, |p| std::mem::replace(p, 2)), Some(1));
        table.remove(first).expect("live");
        assert_eq!(table.port(first, |p| *p), None);
        assert!(!table.attach(first, || Some((3, &()))), "a stale handle gets none");
        let second = insert_again(table, first, "b");
        assert_eq!(table.port(second, |p| *p), None);
        assert!(!table.attach(second, || None));
        assert!(table.attach(second, || Some((4, &()))));
        assert_eq!((table.detach(first), table.detach(second), table.detach(second)), (None, Some(4), None));
    }
}
