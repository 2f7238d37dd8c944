//! The settings of `events`, with their defaults. They apply to each thread.

/// Settings of the `events` context, including Ringroad's own for io_uring.
#[derive(Clone, Debug, PartialEq)]
pub struct EventsConf {
    /// `worker_connections`, for each thread.
    pub worker_connections: u32,
    /// `use`; without it the best available engine.
    pub method: Option<Method>,
    /// `worker_aio_requests`: queue depth of libaio.
    pub aio_requests: u32,
    /// `ring_entries`
    pub ring_entries: u32,
    /// `ring_recv_buffers`: count, and size in bytes.
    pub recv_buffers: (u32, u32),
    /// `ring_io_workers`: io_uring kernel workers for files, per thread.
    pub io_workers: u32,
    /// `device_share`: divisor for the share of the workers that one device may occupy.
    pub device_share: u32,
    /// `buffer_pool`: maximum bytes of buffers per thread; `None` derives it from the process's memory limit.
    pub buffer_pool: Option<usize>,
    /// `zero_copy`: sends of at least this many bytes use zero copy; `None` is off.
    pub zero_copy: Option<u64>,
    /// `splice`: minimum number of bytes that are passed from socket to socket by splice(2); `None` is off.
    pub splice: Option<u64>,
    /// `try_cached`: open and read resident files with direct system calls, bypassing the engines.
    pub try_cached: bool,
    /// `engine_fault`: the faults to inject in tests, one per line.
    pub faults: Vec<String>,
}

impl EventsConf {
    /// Whether system calls may bypass the engines. Not if faults are injected, which would not affect such calls.
    pub fn calls_directly(&self) -> bool {
        self.try_cached && self.faults.is_empty()
    }

    /// Returns the minimum number of bytes that are passed on by splice(2). Its calls bypass the engines.
    pub fn splice_from(&self) -> Option<u64> {
        self.splice.filter(|_| self.calls_directly())
    }
}

/// Minimum of `buffer_pool` in bytes: one large chunk of a body for each disk engine.
pub const BUFFER_POOL_MIN: u64 = 4 << 20;

/// The requested network engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `io_uring`
    Uring,
    /// `epoll`
    Epoll,
}

impl Default for EventsConf {
    fn default() -> EventsConf {
        EventsConf {
            worker_connections: 512,
            method: None,
            aio_requests: 32,
            ring_entries: 1024,
            recv_buffers: (1024, 4096),
            io_workers: 128,
            device_share: 4,
            buffer_pool: None,
            zero_copy: Some(16 << 10),
            splice: Some(16 << 10),
            try_cached: true,
            faults: Vec::new(),
        }
    }
}
