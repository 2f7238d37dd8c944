//! The transfer of bytes: bodies, files, codings. This crate knows neither requests nor directives nor framing.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `telemetry`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`body`] | bodies of responses: `rules` (settings); `choose` selects the method; `read`, `sendfile` and `shared` are the methods; `page_cache_bypass` and `small_files` decide on direct reads; `read_quota` and `buffer_turns` share memory between bodies; `outlet` is the interface to the protocol of the client; `pace` limits the rate; `source` is a body that arrives in pieces, `ranged` a body that can be read from any offset |
//! | [`files`] | open files by path, and the roots that they are opened below; `cache` is `open_file_cache` |
//! | [`received`], [`incoming`] | the body of a request: when it is complete, and while it arrives |
//! | [`replaced_file`] | files that workers replace atomically, such as those of `state` |
//! | [`temp_directory`] | directories of temporary files, with the helper threads that create files in them |
//! | [`duplex`] | a connection after an upgrade to another protocol |
//! | [`datagrams`] | a client that sends datagrams |
//! | [`datagram_memory`] | the memory of waiting datagrams, which the clients of a thread share |
//! | [`coding`] | gzip, brotli, zstd: pooled encoders (`pool`), the limit on the memory of encoders in use (`budget`), bodies that continue without one (`stored`) |
//! | [`recency`] | values ordered by last use |
#![forbid(unsafe_code)]

pub mod body;
pub mod coding;
pub mod datagram_memory;
pub mod datagrams;
pub mod duplex;
pub mod files;
pub mod incoming;
pub mod received;
pub mod recency;
pub mod replaced_file;
pub mod temp_directory;
