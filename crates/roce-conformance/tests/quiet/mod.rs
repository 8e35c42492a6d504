//! A process that may do nothing but what is listed: it ends at the first other system call, allocation, or look at the
//! clock, and says which.
//!
//! The kernel sees to the system calls, by a filter on all threads. The clock is usually read without one, so it is made
//! one here.

pub(crate) mod trips;

use std::alloc::{GlobalAlloc, Layout, System};
use std::env;
use std::ffi::{c_int, c_long, c_void};
use std::fs;
use std::io::Write;
use std::process::{Command, Output};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libc::{clockid_t, siginfo_t, sock_filter, timespec};

/// The variable that names the test which a process is there for.
const ALONE: &str = "ROCE_QUIET_TEST";

/// What the process says when all went well.
const QUIET: &str = "quiet to the end";

/// Round trips before it has to be quiet, and in all.
pub(crate) const WARM_UP: u32 = 100;
const TRIPS: u32 = 600;

/// A process may take so long, in seconds, on a machine that is very busy.
const CEILING: u32 = 120;

/// Since when the process has to be quiet.
static HELD: AtomicBool = AtomicBool::new(false);

/// System calls that are no breach.
#[derive(Debug, Clone, Default)]
pub(crate) struct Allowed {
    pub(crate) calls: Vec<c_long>,
    /// With that file as the first argument.
    pub(crate) on_files: Vec<(c_long, c_int)>,
}

impl Allowed {
    /// Threads that wait may give their CPU away.
    pub(crate) fn and_yields(mut self) -> Self {
        self.calls.push(libc::SYS_sched_yield);
        self
    }
}

/// Makes round trips, which may do only what is allowed once they have run a while.
///
/// # Panics
/// Where they do something else.
pub(crate) fn assert_quiet<T: FnMut(u32)>(name: &str, prepare: impl FnOnce() -> (T, Allowed)) {
    let Output { status, stderr, .. } = apart(name, prepare);
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success() && said.contains(QUIET), "{name} ended ({status}):\n{said}");
}

/// As [`assert_quiet`], of trips that are not quiet.
///
/// # Panics
/// Where it is not found that they do `breach`.
#[allow(dead_code)] // one of the test programs tests this
pub(crate) fn assert_found<T: FnMut(u32)>(name: &str, breach: &str, prepare: impl FnOnce() -> (T, Allowed)) {
    let Output { status, stderr, .. } = apart(name, prepare);
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.code() == Some(1) && said.contains(breach), "{name} ended ({status}):\n{said}");
}

/// What became of the trips in a process of their own: this test program again, with that test alone.
fn apart<T: FnMut(u32)>(name: &str, prepare: impl FnOnce() -> (T, Allowed)) -> Output {
    if env::var_os(ALONE).is_some_and(|alone| alone == name) {
        let (mut trip, allowed) = prepare();
        (0..WARM_UP).for_each(&mut trip);
        while !are_settled() {
            thread::yield_now();
        }
        hold(&allowed);
        (WARM_UP..TRIPS).for_each(&mut trip);
        end(0, QUIET)
    }
    Command::new(env::current_exe().expect("a test program has a path"))
        .args(["--exact", name, "--include-ignored", "--test-threads=1", "--nocapture"])
        .env(ALONE, name)
        .output()
        .expect("this test program starts again")
}

/// Whether all threads but this one sleep, or move messages, as their names say. One that still starts another could
/// not even say what it did.
fn are_settled() -> bool {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    // SAFETY: it only asks for a number.
    let this = unsafe { libc::gettid() }.to_string();
    let others = tasks.filter_map(Result::ok).filter(|task| task.file_name() != *this);
    let is_settled = |stat: String| {
        let (name, state) = stat.split_once(" (").and_then(|(_, rest)| rest.rsplit_once(") ")).expect("both");
        name.starts_with("roce-") || state.starts_with('S')
    };
    others.map(|task| fs::read_to_string(task.path().join("stat"))).all(|stat| stat.is_ok_and(is_settled))
}

/// From now on no thread of this process may do what is not allowed. There is no way back.
fn hold(allowed: &Allowed) {
    let filter = filter(allowed).leak(); // to give it back is no longer allowed
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a short list"),
        filter: filter.as_ptr().cast_mut(),
    };
    let action = libc::sigaction {
        sa_sigaction: breach as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize,
        sa_flags: libc::SA_SIGINFO,
        // SAFETY: all zero is an empty set of signals, and no restorer.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: the handler is of the kind that the flags say, and does only what a handler may; the program and its
    // filter outlive the calls, which copy them.
    unsafe {
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()), 0);
        libc::alarm(CEILING);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        HELD.store(true, Ordering::Relaxed);
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        let held = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        if held != 0 {
            end(2, "the kernel takes no filter of system calls");
        }
    }
}

/// The offsets of what the kernel shows a filter.
const NUMBER: u32 = 0;
const FIRST_ARGUMENT: u32 = 16; // its low half, in little-endian order
const SECOND_WORD: u32 = if cfg!(target_endian = "little") { 0 } else { 4 };

fn filter(allowed: &Allowed) -> Vec<sock_filter> {
    let op = |parts: &[u32]| u16::try_from(parts.iter().sum::<u32>()).expect("an operation has 16 bits");
    let load = |offset| sock_filter {
        code: op(&[libc::BPF_LD, libc::BPF_W, libc::BPF_ABS]),
        jt: 0,
        jf: 0,
        k: offset,
    };
    let unless_skip =
        |k, jf| sock_filter { code: op(&[libc::BPF_JMP, libc::BPF_JEQ, libc::BPF_K]), jt: 0, jf, k };
    let answer = |k| sock_filter { code: op(&[libc::BPF_RET, libc::BPF_K]), jt: 0, jf: 0, k };
    let number = |call: c_long| u32::try_from(call).expect("calls are few");
    let mut filter = vec![load(NUMBER)];
    for &call in allowed.calls.iter().chain(&[libc::SYS_exit_group]) {
        filter.extend([unless_skip(number(call), 1), answer(libc::SECCOMP_RET_ALLOW)]);
    }
    for &(call, file) in allowed.on_files.iter().chain(&[(libc::SYS_write, libc::STDERR_FILENO)]) {
        filter.extend([
            load(NUMBER),
            unless_skip(number(call), 3),
            load(FIRST_ARGUMENT + SECOND_WORD),
            unless_skip(file.cast_unsigned(), 1),
            answer(libc::SECCOMP_RET_ALLOW),
        ]);
    }
    filter.push(answer(libc::SECCOMP_RET_TRAP));
    filter
}

extern "C" fn breach(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    /// Behind signal, error, code, padding and the address of the call.
    const CALL: usize = 6;
    // SAFETY: the kernel gives each handler of this kind its information, which for SIGSYS has the call's number there.
    let call = unsafe { info.cast::<c_int>().add(CALL).read() };
    end(1, format_args!("a system call: number {call}"))
}

/// Ends the process with a last word, without a system call that is not allowed.
fn end(code: c_int, word: impl std::fmt::Display) -> ! {
    HELD.store(false, Ordering::Relaxed);
    let mut line = [0; 128];
    let mut rest = &mut line[..];
    // What does not fit is left out.
    let _ = writeln!(rest, "{word}");
    let len = 128 - rest.len();
    // SAFETY: the bytes are there, and nothing of this process is needed any more.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len);
        libc::_exit(code)
    }
}

/// The system's allocator, of which a process that is held may have nothing.
struct Watched;

// SAFETY: every call is passed to the system's allocator unchanged, or the process ends.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if HELD.load(Ordering::Relaxed) {
            end(1, format_args!("an allocation of {} bytes", layout.size()));
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if HELD.load(Ordering::Relaxed) {
            end(1, format_args!("a deallocation of {} bytes", layout.size()));
        }
        // SAFETY: `ptr` came from `alloc` above with this `layout`, so from the system's allocator.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// In place of libc's: the clock as a system call.
///
/// # Safety
/// As of libc's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller's promise about `time` is passed on.
    let status = unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), time) };
    c_int::from(status != 0).wrapping_neg()
}
