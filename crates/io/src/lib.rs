//! I/O engines behind one completion contract.
//!
//! Callers submit operations ([`Op`]) and receive completions ([`Completion`]); the trait [`Engine`] is the contract. A
//! network backend (io_uring or epoll) and several disk backends (io_uring, libaio, thread pool, blocking calls) are
//! combined into one engine per worker thread. This crate contains no futures, no HTTP and no configuration text.
//!
//! Order of calls: [`Engine::submit`] any number of times, then [`Engine::turn`], then process the batch; at the end
//! [`Engine::drain`].

pub mod buf;
mod composite;
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
pub mod slab;
mod slot;
pub mod sys;
mod uring;

pub use buf::{Buf, Pool};
pub use composite::{BuildError, build};
pub use engine::{Drained, Engine, Note, Wait};
pub use op::{Completion, DiskVia, Fd, Op, OpId, Payload, Segments};
pub use rustix::io::Errno;
pub use shared_bytes::SharedBytes;
pub use uring::{Refusal, SetupError, Stage, flags as setup_flags};
