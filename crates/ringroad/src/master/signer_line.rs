//! The sockets of a worker to the signing process, as the master counts them.

/// Number of sockets for each thread of a worker: one for the thread, and one for the helper thread that makes its RSA signatures.
const SOCKETS_PER_THREAD: usize = 2;

/// The sockets of a worker.
#[derive(Debug)]
pub(super) struct SignerLine {
    /// Number of threads of the worker.
    threads: u32,
    /// The number of the message that brought the sockets to the signing process; `None` if that process does not serve them.
    pub(super) number: Option<u64>,
    /// Whether the log has a line about a refusal.
    pub(super) is_reported: bool,
}

impl SignerLine {
    /// Returns the sockets of a worker with this number of threads, which are not served yet.
    pub(super) fn new(threads: u32) -> SignerLine {
        SignerLine { threads, number: None, is_reported: false }
    }

    /// Returns the number of sockets.
    pub(super) fn sockets(&self) -> usize {
        self.threads as usize * SOCKETS_PER_THREAD
    }
}
