//! Locking against a limit. Alone in its process: the limit and the user are the process's.
#![cfg(not(roce_loom))]

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, seteuid};
use roce_ring::{Geometry, MemoryOptions, Ring, RingError};

#[test]
fn a_limit_is_reported_and_the_ring_goes_on() {
    let geometry = Geometry::new(64, 384, 256).unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    let limit = hard.min(4096);
    setrlimit(Resource::RLIMIT_MEMLOCK, limit, hard).unwrap();
    if Uid::effective().is_root() {
        seteuid(Uid::from_raw(65534)).unwrap(); // root may lock beyond any limit
    }

    let ring = Ring::allocate(geometry, MemoryOptions::default()).unwrap();
    let error = ring.lock_memory().unwrap_err();
    assert!(matches!(error, RingError::Lock { len: 24_576, limit: Some(l), .. } if l == limit), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(&format!("RLIMIT_MEMLOCK is {limit} bytes")) && text.contains("ulimit -l"),
        "{text}"
    );

    let (producer, consumer) = ring.split().unwrap();
    producer.publish(63);
    assert!(consumer.peek(63).is_some());

    let locked = MemoryOptions { lock: true, ..MemoryOptions::default() };
    let error = Ring::allocate(geometry, locked).unwrap_err();
    assert!(matches!(error, RingError::Lock { .. }), "{error:?}");

    // What fits is locked: any limit in use allows a page of data and a page of flags.
    setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard).unwrap();
    Ring::allocate(Geometry::new(1, 64, 64).unwrap(), locked).unwrap();
}
