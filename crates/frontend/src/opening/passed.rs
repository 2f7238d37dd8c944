//! A connection that `pass` of `stream` hands to another listening address.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use crate::input::Input;
use crate::listen_socket::{DefaultServer, ListenSocket};
use crate::opening::Opening;
use crate::wire::Wire;
use exchange::request::{Address, ConnInfo, ThreadConfig};
use site::config::Section;
use site::settings::listen::ListenAddr;

/// The reason why a connection cannot continue at another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassFault {
    /// The configuration does not listen on the address.
    NotFound,
    /// The connection uses TLS, and the address requires a handshake.
    IsTls,
}

impl fmt::Display for PassFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PassFault::NotFound => "port not found",
            PassFault::IsTls => "connection uses TLS already, no \"ssl\" is possible",
        })
    }
}

/// A connection that continues at another address.
pub(crate) struct Passed {
    /// The connection, as if the address had accepted it.
    pub(crate) opening: Opening,
    /// The index of the address in `stream`; `None` if the address is one of `http`.
    pub(crate) stream_index: Option<usize>,
}

impl Opening {
    /// Hands the connection to a listening address of the configuration in use, with the address of its client and the bytes that it has
    /// already sent.
    pub(crate) fn pass(
        self,
        to: &ListenAddr,
        client: Address,
        early: Vec<u8>,
    ) -> Result<Passed, (Box<Opening>, PassFault)> {
        let thread_config = self.thread.thread_config();
        let Some((section, index)) = find(&thread_config, to) else {
            return Err((Box::new(self), PassFault::NotFound));
        };
        let listen = &thread_config.config.section(section).listens[index];
        let local = match to {
            ListenAddr::Unix(path) => Address::Unix(path.as_os_str().as_bytes().to_vec()),
            ListenAddr::Tcp(address) | ListenAddr::Quic(address) | ListenAddr::Udp(address) => {
                Address::Inet(*address)
            }
        };
        let (is_tls, is_proxied) = (listen.is_tls(&local), listen.expects_proxy_protocol(&local));
        if is_tls && matches!(self.wire, Wire::Tls(_)) {
            return Err((Box::new(self), PassFault::IsTls));
        }
        let listen_socket = Rc::new(ListenSocket::new(listen.spec.addr.clone(), local.clone()));
        let before = &self.info;
        let info = Rc::new(ConnInfo {
            opened: before.opened,
            number: before.number,
            // The address gets a header of its own.
            proxy: if is_proxied { Default::default() } else { before.proxy.clone() },
            secured: before.secured.clone(),
            passes: before.passes + 1,
            is_tls,
            is_proxied,
            ..ConnInfo::new(&self.thread, client, local)
        });
        let default = DefaultServer::of(section, thread_config, &listen_socket, &info);
        let early = if early.is_empty() { Input::default() } else { Input::from(early) };
        let opening = Opening { listen_socket, info, default, early, ..self };
        Ok(Passed { opening, stream_index: (section == Section::Stream).then_some(index) })
    }
}

/// Returns the block and the index of the listening address that accepts connections to an address.
fn find(thread_config: &ThreadConfig, to: &ListenAddr) -> Option<(Section, usize)> {
    let at = |wanted: &dyn Fn(&ListenAddr) -> bool| {
        [Section::Http, Section::Stream].into_iter().find_map(|section| {
            let listens = &thread_config.config.section(section).listens;
            let index = listens.iter().position(|listen| wanted(&listen.spec.addr))?;
            Some((section, index))
        })
    };
    at(&|address| address == to).or_else(|| at(&|address| address.is_wildcard_for(to)))
}
