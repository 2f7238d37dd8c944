//! The way in: what connections of one listening socket have in common, whatever protocol they speak.
//!
//! Main type: [`Entrance`]. A reload may take an address away while connections are open, or give it other servers.

use std::cell::Cell;

use exchange::config::ServerId;
use exchange::request::{Address, ConnInfo, Generation};
use exchange::settings::listen::{Listen, ListenAddr};
use exchange::tls;

/// State that connections of one listening socket share: one per socket and thread.
#[derive(Debug)]
pub struct Entrance {
    /// The address as it was configured, by which it is found in each configuration.
    pub address: ListenAddr,
    /// The address that was bound.
    pub bound: Address,
    /// Its position in the configuration of this number.
    place: Cell<(u64, usize)>,
}

impl Entrance {
    /// Servers are selected by the configured and the bound address.
    pub fn new(address: ListenAddr, bound: Address) -> Entrance {
        Entrance { address, bound, place: Cell::new((0, 0)) }
    }

    /// The servers behind this address; `None` when a reload took it away.
    pub(crate) fn listen<'g>(&self, generation: &'g Generation) -> Option<&'g Listen> {
        let listens = &generation.config.http.listens;
        if self.place.get().0 != generation.number {
            let place = listens.iter().position(|listen| listen.spec.addr == self.address);
            self.place.set((generation.number, place.unwrap_or(usize::MAX)));
        }
        listens.get(self.place.get().1)
    }

    /// The server that answers before a host is known: the one that the handshake was made with, or the address's default.
    pub(crate) fn default_server(&self, generation: &Generation, info: &ConnInfo) -> ServerId {
        let Some(listen) = self.listen(generation) else { return ServerId(0) };
        match info.secured.get() {
            Some(secured) => tls::server_of(secured.name.as_deref(), listen, &info.local).0,
            None => listen.lookup(&info.local).0,
        }
    }
}
