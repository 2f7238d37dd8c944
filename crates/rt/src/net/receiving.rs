//! The operation in flight of a socket that receives or accepts.

use io::op::Interest;
use io::{Fd, NetOp, Op};

use crate::op_table::{OpHandle, UNLIMITED};
use crate::reactor::Reactor;

/// The operation in flight. It belongs to the socket, not to the future that waits for its result.
#[derive(Clone, Copy, Debug)]
pub(super) enum Receiving {
    /// No operation.
    Idle,
    /// A receive or an accept.
    Armed(OpHandle),
    /// A poll for readiness, after the engine reported `EAGAIN`.
    Polling(OpHandle),
}

impl Receiving {
    /// Starts a poll for readiness.
    pub(super) fn poll(reactor: &Reactor, fd: &Fd) -> Receiving {
        let op = Op::Net(NetOp::Poll { fd: fd.clone(), interest: Interest::Readable });
        Receiving::Polling(reactor.start(op, UNLIMITED))
    }

    /// Closes the descriptor, after the operation has ended.
    pub(super) fn close(self, reactor: &Reactor, fd: &Fd) {
        match self {
            Receiving::Idle => reactor.close(fd.clone()),
            Receiving::Armed(wait) | Receiving::Polling(wait) => reactor.close_after(wait, fd.clone()),
        }
    }
}
