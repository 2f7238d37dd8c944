//! The phases of a session, the decisions of their handlers, and the execution of one phase.

use std::rc::Rc;

use super::Session;
use site::phases::PhasePosition;
use site::settings::listen::ListenAddr;

/// The phase in which a handler runs, in nginx's order. The TLS handshake follows [`SessionPhase::Access`] and belongs to no module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionPhase {
    /// Right after the accept, or after the header of the PROXY protocol.
    PostAccept,
    /// Limits.
    Preaccess,
    /// Access checks.
    Access,
    /// The first bytes of the client are examined.
    Preread,
    /// The connection may continue at another listening address, without a content handler.
    Pass,
    /// The session itself; one handler for a server.
    Content,
}

impl From<SessionPhase> for usize {
    fn from(phase: SessionPhase) -> usize {
        phase as usize
    }
}

/// The decision of a handler.
#[derive(Debug)]
pub enum SessionStep {
    /// The next handler continues.
    Next,
    /// In the phase [`SessionPhase::Preread`]: receive more bytes, then call the phase again.
    NeedBytes,
    /// The session ends with this status.
    End(u16),
    /// The connection continues at another listening address.
    Pass(ListenAddr),
}

/// The result of a phase.
#[derive(Debug)]
pub enum PhaseEnd {
    /// All handlers have run.
    Completed,
    /// More bytes of the client are needed.
    NeedBytes,
    /// The session ends with this status.
    End(u16),
    /// The connection continues at another listening address.
    Pass(ListenAddr),
}

impl Session {
    /// Runs the handlers of a phase.
    pub async fn run_phase(&mut self, phase: SessionPhase) -> PhaseEnd {
        let thread_config = Rc::clone(&self.thread_config);
        let plans = &thread_config.session_plans;
        let mut position = PhasePosition::start(self.location(), phase);
        while let Some(handler) = position.handler(plans) {
            let step = match handler.now(self) {
                Some(step) => step,
                None => handler.later(self).await,
            };
            match step {
                SessionStep::Next => {}
                SessionStep::NeedBytes => return PhaseEnd::NeedBytes,
                SessionStep::End(status) => return PhaseEnd::End(status),
                SessionStep::Pass(address) => return PhaseEnd::Pass(address),
            }
            position = position.next();
        }
        PhaseEnd::Completed
    }

    /// Whether the server has handlers in a phase.
    pub fn has_phase(&self, phase: SessionPhase) -> bool {
        self.plan().count(phase) > 0
    }
}
