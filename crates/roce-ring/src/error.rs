//! Why a ring has no memory.

use std::io;

/// A ring that could not be allocated or locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel gave no memory.
    #[error("mmap of {len} bytes failed: {source}")]
    Map {
        /// Bytes asked for.
        len: usize,
        /// Why.
        source: io::Error,
    },
    /// The kernel gave no huge pages.
    #[error(
        "mmap of {len} bytes in huge pages failed: {source}; reserve {pages} more pages of 2 MiB \
         (raise vm.nr_hugepages with sysctl; HugePages_Free in /proc/meminfo says how many there are), \
         or allocate without huge pages"
    )]
    HugePages {
        /// Bytes asked for.
        len: usize,
        /// The same in pages of 2 MiB.
        pages: usize,
        /// Why.
        source: io::Error,
    },
    /// The memory can be swapped out. The ring works all the same, with page faults now and then.
    #[error(
        "mlock of {len} bytes failed: {source}; RLIMIT_MEMLOCK is {}; raise it (ulimit -l, memlock in \
         /etc/security/limits.conf, LimitMEMLOCK= of a systemd unit) or grant CAP_IPC_LOCK",
        in_words(*limit)
    )]
    Lock {
        /// Bytes to lock.
        len: usize,
        /// The soft limit in bytes; `None` when there is none or it could not be read.
        limit: Option<u64>,
        /// Why.
        source: io::Error,
    },
}

fn in_words(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes"))
}
