//! Settings of the HTTP core for sending bodies to clients, with their defaults.

use std::time::Duration;

/// `aio`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aio {
    /// Not set: the best engine.
    #[default]
    Unset,
    /// `off`: blocking reads.
    Off,
    /// `on`: io_uring, else libaio, else threads.
    On,
    /// `io_uring`
    Uring,
    /// `libaio`
    Libaio,
    /// `threads[=pool]`, with the pool's number.
    Threads(u8),
}

/// Settings for sending response bodies.
#[derive(Clone, Debug)]
pub struct Sending {
    /// `sendfile`; `None` decides by the size of the file.
    pub sendfile: Option<bool>,
    /// `sendfile_max_chunk`, in bytes; 0 means no limit.
    pub sendfile_max_chunk: u64,
    /// `aio`
    pub aio: Aio,
    /// `aio_sendfile`: chunk size in bytes of the shared-memory mover.
    pub aio_sendfile: Option<u64>,
    /// `directio`: files of at least this many bytes are read with O_DIRECT.
    pub directio: Option<u64>,
    /// `output_buffers`: count, and size in bytes; `None` lets the mover choose.
    pub output_buffers: Option<(u64, u64)>,
    /// `read_ahead`; 0 leaves it to the kernel.
    pub read_ahead: u64,
    /// `tcp_nopush`
    pub tcp_nopush: bool,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
    /// `send_timeout`: maximum time between two successful sends, not for the complete response.
    pub send_timeout: Duration,
    /// `postpone_output`: number of bytes that are collected before a send, while a page waits for a subrequest.
    pub postpone_output: usize,
    /// `send_lowat`, which has no effect on Linux.
    pub send_lowat: u64,
}

impl Default for Sending {
    fn default() -> Sending {
        Sending {
            sendfile: None,
            sendfile_max_chunk: 2 << 20,
            aio: Aio::Unset,
            aio_sendfile: None,
            directio: None,
            output_buffers: None,
            read_ahead: 0,
            tcp_nopush: false,
            tcp_nodelay: true,
            send_timeout: Duration::from_secs(60),
            postpone_output: 0,
            send_lowat: 0,
        }
    }
}

/// The settings of a location that the body from a file needs.
#[derive(Clone, Copy, Debug)]
pub struct FileRules {
    /// `aio`
    pub aio: Aio,
    /// Whether any directive specifies how files are read or sent.
    pub is_written: bool,
    /// Whether `read_ahead` is on.
    pub read_ahead: bool,
    /// `send_timeout`
    pub send_timeout: Duration,
}

impl From<&Sending> for FileRules {
    fn from(rules: &Sending) -> FileRules {
        FileRules {
            aio: rules.aio,
            is_written: !rules.names_no_reader() || rules.sendfile.is_some(),
            read_ahead: rules.read_ahead > 0,
            send_timeout: rules.send_timeout,
        }
    }
}

impl Sending {
    /// Whether no directive specifies how files are read.
    pub fn names_no_reader(&self) -> bool {
        self.aio == Aio::Unset && self.directio.is_none()
    }
}
