//! The settings of `events`, with their defaults. They apply to each thread.

/// Settings of the `events` context, ours for the ring among them.
#[derive(Clone, Debug, PartialEq)]
pub struct EventsConf {
    /// `worker_connections`, for each thread.
    pub worker_connections: u32,
    /// `use`; without it the best there is.
    pub method: Option<Method>,
    /// `worker_aio_requests`: depth of libaio.
    pub aio_requests: u32,
    /// `ring_entries`
    pub ring_entries: u32,
    /// `ring_recv_buffers`: count and bytes.
    pub recv_buffers: (u32, u32),
    /// `ring_io_workers`: kernel workers for files, for each thread.
    pub io_workers: u32,
    /// `device_share`: one device may hold one in this many workers.
    pub device_share: u32,
    /// `buffer_pool`: most bytes of buffers for each thread; `None` goes by the memory that the process may have.
    pub buffer_pool: Option<usize>,
    /// `zero_copy`: sends of at least this many bytes go without a copy; `None` is off.
    pub zero_copy: Option<u64>,
    /// `try_cached`: open and read resident files at once, beside the engines.
    pub try_cached: bool,
    /// `engine_fault`: faults to inject, for tests; the lines of the plan.
    pub faults: Vec<String>,
}

impl EventsConf {
    /// Whether calls may be made beside the engines: not where faults are injected, which such calls would not meet.
    pub fn calls_directly(&self) -> bool {
        self.try_cached && self.faults.is_empty()
    }
}

/// Less could not hold one large chunk of a body for each disk engine.
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
            try_cached: true,
            faults: Vec::new(),
        }
    }
}
