//! I/O engines behind one completion contract.
//!
//! Operations go in ([`Op`]), completions come out ([`Completion`]); [`Engine`] is the contract between
//! the two. A network backend (io_uring or epoll) and several disk backends (io_uring, libaio, thread
//! pool, blocking calls) are joined into one engine for each worker thread. This crate knows no futures,
//! no HTTP and no configuration text.
//!
//! Order of calls: [`Engine::submit`] any number of times, then [`Engine::turn`], then look at the batch;
//! at the end [`Engine::drain`].

pub mod buf;
mod composite;
mod device;
pub mod disk;
mod doorbell;
pub mod engine;
mod epoll;
mod facts;
pub mod fault;
mod fd;
pub mod op;
pub mod page_cache;
pub mod probe;
mod segments;
mod shared_bytes;
pub mod shm;
mod slot;
pub mod sys;
mod uring;
mod wake;

pub use buf::{Buf, Pool};
pub use composite::{BuildError, build};
pub use engine::{Drained, Engine, Note, Wait};
pub use op::{Completion, DiskVia, Fd, Op, OpId, Payload, Segments};
pub use rustix::io::Errno;
pub use shared_bytes::SharedBytes;
pub use uring::{Refusal, SetupError, Stage, flags as setup_flags};
