//! Thread pools for operations on files that would block.

/// A named pool of threads (nginx's `thread_pool`), shared by the worker threads of a process.
#[derive(Debug)]
pub struct ThreadPool {}
