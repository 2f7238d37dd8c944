//! Clients: accepted connections and their protocols. This crate depends on no module and no upstream.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `tls`, `telemetry`, `transfer`, `site`, `exchange`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`accept`] | accepts connections from the listening sockets |
//! | [`serve`] | a connection from its accept to its end: `opening`, then `h1` or `h2`; or `stream` |
//! | [`h1`] | a connection of HTTP/1: `input` reads header sections, `body` request bodies; `head`, `respond` and `outlet` write, and `departure` notices a client that leaves during a pause; `rest` discards unread bodies and ends the connection. `transport` and `client` are the interfaces for `exchange` |
//! | [`h2`] | a connection of HTTP/2: its task in `mod`, the state that it shares with its streams in `shared`, a request in `stream`, requests that a client with many cancellations has to wait for in `held`; `head` as in `h1`, `link` for `streams` |
//! | [`h3`] | a connection of HTTP/3, as in `h2`: its task in `mod`, the common state in `shared`, a request in `stream`, `link` for `streams` |
//! | [`quic`] | UDP sockets and connections of QUIC, over `quinn-proto`: `connection`, `ids` of connections, `congestion` control, the `choose` of a server |
//! | [`streams`] | requests of connections with concurrent streams, of HTTP/2 and HTTP/3: `transport`, `outlet`, `body`, `client`, `duplex` as in `h1`, over the trait `Link`; the task of a request in `run`, received bytes in `inbox` |
//! | [`stream`] | a connection of `stream`, from its accept to its end |
//! | [`udp`] | sessions of UDP in `stream` |
//! | [`datagrams`] | receives from the sockets of UDP and QUIC |
//! | [`opening`] | from an accepted connection to its protocol: `proxy` reads the PROXY protocol, `secure` makes handshakes, `choice` waits for the first bytes and detects HTTP/2. The result is `Opened`: the wire, the facts of the connection, the bytes received early, the protocol |
//! | [`input`] | bytes that were received and not yet used |
//! | [`wire`] | all operations on the socket of a client |
//! | [`listen_socket`] | state that the connections of a listening socket share |
//!
//! A further protocol over a stream of bytes needs a variant of `Protocol` in [`opening`], and implementations of `Transport`,
//! `Outlet` and `Client` for its requests (decision 0041).
#![forbid(unsafe_code)]

pub mod accept;
mod datagrams;
pub mod h1;
pub mod h2;
mod h3;
pub mod input;
pub mod listen_socket;
pub mod opening;
pub mod quic;
pub mod serve;
mod stream;
mod streams;
mod udp;
pub mod wire;
