//! State common to the connections of one listening socket, independent of their protocol.
//!
//! Main types: [`ListenSocket`], and [`DefaultServer`] for one connection. A reload may remove an address while connections are open, or assign other servers to it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use http::request::Policy;

use exchange::http2::Http2;
use exchange::http3::Http3;
use exchange::request::{Address, ConnInfo, ThreadConfig};
use exchange::thread::Thread;
use exchange::{effect, tls};
use site::config::{Scope, Section, ServerId};
use site::settings::core::Core;
use site::settings::listen::{Listen, ListenAddr};
use site::settings::session::SessionCore;

/// State shared by the connections of one listening socket: one object per socket and thread.
#[derive(Debug)]
pub struct ListenSocket {
    /// The address as configured, used to find it in each configuration version.
    pub address: ListenAddr,
    /// The address that was bound.
    pub bound: Address,
    /// Number of a configuration version, and the index of the address in it: in `http`, and in `stream`.
    index: Cell<(u64, usize)>,
    stream_index: Cell<(u64, usize)>,
}

impl ListenSocket {
    /// Creates the state; servers are selected by the configured and the bound address.
    pub fn new(address: ListenAddr, bound: Address) -> ListenSocket {
        ListenSocket { address, bound, index: Cell::default(), stream_index: Cell::default() }
    }

    /// Returns the servers at this address; `None` if a reload removed it.
    pub(crate) fn listen<'g>(&self, thread_config: &'g ThreadConfig) -> Option<&'g Listen> {
        thread_config.config.http.listens.get(self.http_index(thread_config))
    }

    /// Returns the index of this address in `http`; a number above all indices if a reload removed it.
    pub(crate) fn http_index(&self, thread_config: &ThreadConfig) -> usize {
        self.index_in(&thread_config.config.http.listens, thread_config.number, &self.index)
    }

    /// Returns the index of this address in `stream`; `None` if `stream` does not have it.
    pub(crate) fn stream_index(&self, thread_config: &ThreadConfig) -> Option<usize> {
        let listens = &thread_config.config.stream.listens;
        if listens.is_empty() {
            return None;
        }
        let index = self.index_in(listens, thread_config.number, &self.stream_index);
        Some(index).filter(|&index| index < listens.len())
    }

    /// Returns the servers at this address in a block.
    pub(crate) fn listen_in<'g>(
        &self,
        section: Section,
        thread_config: &'g ThreadConfig,
    ) -> Option<&'g Listen> {
        match section {
            Section::Http => self.listen(thread_config),
            Section::Stream => {
                self.stream_index(thread_config).map(|index| &thread_config.config.stream.listens[index])
            }
        }
    }

    /// Returns the index of this address among those of a block, which is stored for the configuration version. The index is invalid
    /// if the block does not have the address.
    fn index_in(&self, listens: &[Listen], number: u64, stored: &Cell<(u64, usize)>) -> usize {
        if stored.get().0 != number {
            let at = |wanted: &dyn Fn(&ListenAddr) -> bool| {
                listens.iter().position(|listen| wanted(&listen.spec.addr))
            };
            // A wildcard that a reload has added includes the address.
            let around = || at(&|wildcard| wildcard.is_wildcard_for(&self.address));
            let index = at(&|addr| *addr == self.address).or_else(around);
            stored.set((number, index.unwrap_or(usize::MAX)));
        }
        stored.get().1
    }

    /// Whether a configuration still serves this connection: a reload may have removed its address, or changed its protocols.
    pub(crate) fn serves(&self, thread_config: &ThreadConfig, info: &ConnInfo) -> bool {
        // As in nginx, client certificates are verified again, in a new handshake: the CA or the CRL may be another one.
        let verified = info.secured.get().filter(|secured| secured.verdict.is_some());
        let is_outdated = verified.is_some_and(|secured| secured.config_version != thread_config.number);
        !is_outdated && self.listen(thread_config).is_some_and(|listen| info.is_served_at(listen))
    }

    /// Returns the server used before the host is known: the one selected in the handshake, or the default server of the address.
    /// A connection whose address was removed refers to the first server until it ends; no request is served by it.
    pub(crate) fn default_server(
        &self,
        section: Section,
        thread_config: &ThreadConfig,
        info: &ConnInfo,
    ) -> ServerId {
        let Some(listen) = self.listen_in(section, thread_config) else { return ServerId(0) };
        match info.secured.get() {
            Some(secured) => tls::server_of(secured.name.as_deref(), listen, &info.local).0,
            None => listen.lookup(&info.local).0,
        }
    }

    /// Returns the policy for requests with this value of `Host`, if the server with this name accepts other field names than the
    /// `default` policy.
    pub(crate) fn named_policy(
        &self,
        thread_config: &ThreadConfig,
        local: &Address,
        host: &[u8],
        default: Policy,
    ) -> Option<Policy> {
        let config = &thread_config.config;
        let name = str::from_utf8(http::host::validate(host).ok()?.name.of(host)).ok()?;
        let (server, true) = tls::server_of(Some(name), self.listen(thread_config)?, local) else {
            return None;
        };
        let own = effect::policy(&config.location(config.server(server).root).scope.core);
        let Policy { ignore_invalid_headers, underscores_in_headers, .. } = own;
        let named = Policy { ignore_invalid_headers, underscores_in_headers, ..default };
        (named != default).then_some(named)
    }
}

/// The default server of a connection in one configuration version. Its settings apply before the server of a request is known.
pub(crate) struct DefaultServer {
    /// The configuration version.
    pub(crate) thread_config: Rc<ThreadConfig>,
    /// The server.
    pub(crate) id: ServerId,
    /// The block that has the server.
    pub(crate) section: Section,
}

impl DefaultServer {
    /// Returns the default server in a configuration version.
    pub(crate) fn of(
        section: Section,
        thread_config: Rc<ThreadConfig>,
        listen_socket: &ListenSocket,
        info: &ConnInfo,
    ) -> DefaultServer {
        let id = listen_socket.default_server(section, &thread_config, info);
        DefaultServer { thread_config, id, section }
    }

    /// Switches to the active configuration version; returns whether it was another one. A session of `stream` continues with the
    /// version with which it began.
    pub(crate) fn renew(&mut self, thread: &Thread, listen_socket: &ListenSocket, info: &ConnInfo) -> bool {
        let is_old = self.section == Section::Http && !thread.is_in_force(&self.thread_config);
        if is_old {
            *self = DefaultServer::of(self.section, thread.thread_config(), listen_socket, info);
        }
        is_old
    }

    /// Returns its settings.
    pub(crate) fn scope(&self) -> &Scope {
        self.thread_config.config.section(self.section).server_scope(self.id)
    }

    /// Returns its settings of the HTTP core.
    pub(crate) fn core(&self) -> &Core {
        &self.scope().core
    }

    /// Returns the time limit of reading the header of the PROXY protocol.
    pub(crate) fn proxy_header_timeout(&self) -> Duration {
        match self.section {
            Section::Http => self.core().reading.client_header_timeout,
            Section::Stream => self.scope().of::<SessionCore>().proxy_protocol_timeout,
        }
    }

    /// Returns the time limit of the TLS handshake.
    pub(crate) fn handshake_timeout(&self) -> Duration {
        match self.section {
            Section::Http => self.core().reading.client_header_timeout,
            Section::Stream => self.scope().of::<SessionCore>().handshake_timeout,
        }
    }

    /// Returns its settings of HTTP/3.
    pub(crate) fn http3(&self) -> &Http3 {
        self.scope().of::<Http3>()
    }

    /// Returns its settings of HTTP/2.
    pub(crate) fn http2(&self) -> &Http2 {
        self.scope().of::<Http2>()
    }
}
