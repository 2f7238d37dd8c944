//! The processing of a request and its response: phases, filters, error pages, subrequests. This crate has no sockets and no
//! names of modules: `frontend` implements [`transport`], [`client`] and `Outlet` for a protocol, the crates of modules declare
//! a [`module`].
//!
//! Seven files import each other: `request`, `response`, `thread`, `module`, `session`, `body_filter` and `trace`.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `tls`, `telemetry`, `transfer`, `site`.
//!
//! | module | content |
//! |---|---|
//! | [`module`] | a module as data: its declaration, and its functions for requests: variables, handlers, a filter, its state on each thread |
//! | [`phases`], [`course`], [`locate`] | the phases of HTTP and the decisions of handlers; the execution of the phases for a request; the search for its location |
//! | [`request`], [`response`], [`client`] | a request; its response; the interface to the connection of the client |
//! | [`field_list`] | the header fields of a response, which responses of one cache entry share |
//! | [`pump`], [`transport`], [`cut_off`] | the loop that processes a request from its parsed header section to its end, for all protocols; the interface that a protocol implements; the end of requests in flight after `worker_shutdown_timeout` |
//! | [`credentials`], [`accept_encoding`] | name and password of a request; the codings that its client accepts |
//! | [`error_page`], [`prepare`], [`charset`], [`response_head`], [`effect`] | errors; filters, and bodies in memory; the charset and the header section of a response; effective settings of one request |
//! | [`sending`] | sends a body that is not in memory; `filter` sends bodies that modules change |
//! | [`streaming`] | sends a body that arrives in pieces, then its trailer fields: from `BodySource::trailers` (`transfer/body/source.rs`) by `Response::sent_trailers` to `Outlet::poll_end` (`transfer/body/outlet.rs`) |
//! | [`splicing`] | passes a body on by splice(2) |
//! | [`request_body`] | the result of reading the body of a request |
//! | [`body_filter`], [`filter`] | the trait for a stage that changes a body; passes a body and its trailer fields through the stages, with the responses of subrequests |
//! | [`tls`], [`tls_arguments`], [`certificates`], [`secured`] | TLS settings of a server block; arguments of directives of TLS, for clients and upstreams; certificates with variables in their names; results of handshakes |
//! | [`acme`] | challenges, and certificates that are issued while the server runs |
//! | [`session`] | a session of `stream`, its phases |
//! | [`http2`], [`http3`], [`takeover`] | settings of HTTP/2 and HTTP/3; connections that switch to another protocol (101) |
//! | [`ocsp`] | certificate status by OCSP: `client` (checked before the first request), `staple` (stapled responses), `cache` |
//! | [`subrequest`], [`shared`], [`facts`], [`marks`] | internal requests; state that a request shares with them; cached results of modules for a request; the times at which waits of a request ended |
//! | [`files`], [`stored_file`] | maps a URI to an open file; a file that is renamed when it is complete. `files/changes` is a path for changes, by the same rules as an open |
//! | [`rehearsal`], [`mod@rehearse`] | notes about a request that passes its real course without effects, for `ringroad explain`; its run |
//! | [`saved_pairs`] | the function that writes the state file of a zone of pairs |
//! | [`thread`], [`capacity`], [`reclaim`], [`disk_space`] | state of a thread; limits on connections, descriptors, buffers and bodies over HTTP/2; connections that are closed at a limit; space on a full file system |
//! | [`error_log`], [`trace`], [`refusals`] | lines of the error log for a request or for the process; the messages of the level `debug`; lines about paths and ports that the sandbox refuses |
#![forbid(unsafe_code)]

pub mod accept_encoding;
pub mod acme;
mod body_filter;
pub mod capacity;
pub mod certificates;
pub mod charset;
pub mod client;
pub mod course;
pub mod credentials;
pub mod cut_off;
pub mod disk_space;
pub mod effect;
pub mod error_log;
pub mod error_page;
pub mod facts;
pub mod field_list;
pub mod files;
pub mod filter;
pub mod http2;
pub mod http3;
mod locate;
pub mod marks;
pub mod module;
pub mod ocsp;
pub mod phases;
pub mod prepare;
pub mod pump;
pub mod reclaim;
pub mod refusals;
pub mod rehearsal;
pub mod rehearse;
pub mod request;
pub mod request_body;
pub mod response;
pub mod response_head;
pub mod saved_pairs;
pub mod secured;
pub mod sending;
pub mod session;
mod shared;
mod splicing;
pub mod stored_file;
pub mod streaming;
pub mod subrequest;
pub mod takeover;
pub mod thread;
pub mod tls;
pub mod tls_arguments;
mod trace;
pub mod transport;
