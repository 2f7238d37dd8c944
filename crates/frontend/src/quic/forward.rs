//! Datagrams for other threads. The kernel may join successive datagrams of one sender (UDP_GRO, udp(7)) and passes them to the thread of the first
//! one. If a client uses one socket for several connections, the others may belong to other threads, to which this file passes them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io::sys::Datagrams;
use rt::mailbox::{self, Receiver, Sender};
use site::settings::listen::ListenAddr;

/// Maximum number of datagrams that wait for a thread. Further ones are lost, as in a full receive buffer.
const WAITING_MAX: usize = 256;

/// The mailboxes of all endpoints of a process.
#[derive(Default)]
pub struct Forwards(Mutex<HashMap<(ListenAddr, u16), Sender<Forwarded>>>);

/// A datagram that another thread has received.
pub(super) struct Forwarded {
    pub(super) facts: Datagrams,
    pub(super) bytes: Vec<u8>,
}

impl Forwards {
    /// Creates the mailbox of a thread for an address.
    pub(super) fn mailbox(&self, address: &ListenAddr, thread: u16) -> Receiver<Forwarded> {
        let (sender, receiver) = mailbox::channel(WAITING_MAX);
        self.senders().insert((address.clone(), thread), sender);
        receiver
    }

    /// Passes a datagram to its thread. It is lost if the thread does not serve the address, or has not processed many others.
    pub(super) fn send(&self, address: &ListenAddr, thread: u16, forwarded: Forwarded) {
        let sender = self.senders().get(&(address.clone(), thread)).cloned();
        if let Some(sender) = sender {
            let _ = sender.send(forwarded);
        }
    }

    fn senders(&self) -> MutexGuard<'_, HashMap<(ListenAddr, u16), Sender<Forwarded>>> {
        // No code can panic while it holds the lock, except for a failed allocation.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
