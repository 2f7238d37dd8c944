//! What the master expects from a worker: each message of a worker is the response to a message of the master, with three exceptions
//! (`Retired`, `Addresses`, `Replaced`) that have limits of their own.
//!
//! A worker reads bytes from the network, so an attacker may control it. The master therefore believes no number in a message. A
//! response has to repeat the number of a message that this worker has received and has not answered yet. So a worker cannot answer
//! for another one, twice, or for a configuration that it was not sent, and the number of its messages is limited by that of the
//! master's. A message that was not expected ends the worker.
//!
//! ```text
//! Start ----------------> Ready, or Failed and no further message
//! Reload G -------------> Reloaded G or ReloadFailed G, in order
//!                         Retired G', once for each configuration that a Reloaded has replaced
//! Acme N ---------------> AcmeDone N, in order
//! Ping N ---------------> Pong N; one Pong may answer several pings
//!                         Addresses, Replaced: each within a `Budget`
//! ```

use std::collections::VecDeque;
use std::time::Instant;

use super::budget::Budget;
use super::message::{ToMaster, ToWorker};

/// The messages that a worker may send now.
#[derive(Debug)]
pub(crate) struct Expected {
    start: StartState,
    /// The number of the configuration that the worker serves.
    generation: u64,
    /// The numbers of configurations that the worker was sent and has neither accepted nor refused, in the order of sending.
    reloads: VecDeque<u64>,
    /// The numbers of configurations that were replaced in place and may still have requests.
    replaced: Vec<u64>,
    /// The numbers of unconfirmed changes of certificates and challenges, in the order of sending.
    acme: VecDeque<u64>,
    /// The numbers of unanswered pings.
    pings: Vec<u64>,
    addresses: Budget,
    replaced_paths: Budget,
}

/// The stage of the start, by the messages of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartState {
    Starting,
    Ready,
    Failed,
}

impl Expected {
    /// Creates the state for a new worker, which will be sent the configuration with this number.
    pub(crate) fn new(generation: u64) -> Expected {
        Expected {
            start: StartState::Starting,
            generation,
            reloads: VecDeque::new(),
            replaced: Vec::new(),
            acme: VecDeque::new(),
            pings: Vec::new(),
            addresses: Budget::new(Instant::now()),
            replaced_paths: Budget::new(Instant::now()),
        }
    }

    /// Notes a message to the worker that it must answer.
    pub(crate) fn note(&mut self, message: &ToWorker) {
        match message {
            ToWorker::Reload(bundle) => self.reloads.push_back(bundle.generation),
            ToWorker::Acme(number, _) => self.acme.push_back(*number),
            ToWorker::Ping(number) => self.pings.push(*number),
            _ => {}
        }
    }

    /// Checks a message of the worker. An error is the reason why a correct worker would not send it.
    pub(crate) fn check(&mut self, message: &ToMaster) -> Result<(), &'static str> {
        let expects = |is_expected: bool, reason| if is_expected { Ok(()) } else { Err(reason) };
        match message {
            ToMaster::Ready { .. } => {
                expects(self.start == StartState::Starting, "a worker was ready before")?;
                self.start = StartState::Ready;
            }
            ToMaster::Failed(_) => {
                expects(self.start == StartState::Starting, "a failed start of a worker that had started")?;
                self.start = StartState::Failed;
            }
            _ if self.start != StartState::Ready => return Err("a message before the worker was ready"),
            ToMaster::Reloaded(generation) => {
                expects(self.reloads.pop_front() == Some(*generation), "a reload that was not requested")?;
                self.replaced.push(std::mem::replace(&mut self.generation, *generation));
            }
            ToMaster::ReloadFailed(generation, _) => {
                expects(self.reloads.pop_front() == Some(*generation), "a reload that was not requested")?;
            }
            ToMaster::Retired(generation) => {
                let index = self.replaced.iter().position(|known| known == generation);
                self.replaced.swap_remove(index.ok_or("the end of a configuration that was not replaced")?);
            }
            ToMaster::AcmeDone(number) => {
                expects(self.acme.pop_front() == Some(*number), "a change that was not requested")?;
            }
            ToMaster::Pong(number) => {
                expects(self.pings.contains(number), "a ping that was not sent")?;
                self.pings.retain(|sent| sent > number);
            }
            ToMaster::Addresses(_) => expects(self.addresses.take(Instant::now()), "too many addresses")?,
            ToMaster::Replaced => {
                expects(self.replaced_paths.take(Instant::now()), "too many reports of replaced paths")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::acme::AcmeChange;

    fn ready() -> ToMaster {
        ToMaster::Ready { method: "epoll".to_owned(), remark: None, is_outdated: false }
    }

    /// Returns the state of a worker that serves configuration 1.
    fn serving() -> Expected {
        let mut expected = Expected::new(1);
        assert_eq!(expected.check(&ready()), Ok(()));
        expected
    }

    fn change(number: u64) -> ToWorker {
        ToWorker::Acme(number, AcmeChange::Certificate { id: "a/b".to_owned(), pem: Vec::new() })
    }

    #[test]
    fn a_worker_starts_once() {
        let mut expected = Expected::new(1);
        assert!(expected.check(&ToMaster::Pong(0)).is_err(), "it is not ready");
        assert!(expected.check(&ToMaster::Addresses(String::new())).is_err());
        assert_eq!(expected.check(&ready()), Ok(()));
        assert!(expected.check(&ready()).is_err());
        assert!(expected.check(&ToMaster::Failed("late".to_owned())).is_err());
        let mut expected = Expected::new(1);
        assert_eq!(expected.check(&ToMaster::Failed("no memory".to_owned())), Ok(()));
        assert!(expected.check(&ToMaster::Failed("again".to_owned())).is_err());
        assert!(expected.check(&ready()).is_err());
    }

    #[test]
    fn changes_and_pings_are_answered_once() {
        assert!(serving().check(&ToMaster::AcmeDone(1)).is_err());
        let mut expected = serving();
        expected.note(&change(7));
        expected.note(&change(9));
        assert_eq!(expected.check(&ToMaster::AcmeDone(7)), Ok(()));
        assert_eq!(expected.check(&ToMaster::AcmeDone(9)), Ok(()));
        assert!(expected.check(&ToMaster::AcmeDone(9)).is_err());
        for number in [1, 2, 4] {
            expected.note(&ToWorker::Ping(number));
        }
        for number in [0, 3, 5] {
            assert!(expected.check(&ToMaster::Pong(number)).is_err());
        }
        assert_eq!(expected.check(&ToMaster::Pong(2)), Ok(()));
        assert!(expected.check(&ToMaster::Pong(2)).is_err() && expected.check(&ToMaster::Pong(1)).is_err());
        assert_eq!(expected.check(&ToMaster::Pong(4)), Ok(()));
    }

    #[test]
    fn a_configuration_ends_once_and_only_if_it_was_replaced() {
        let mut expected = serving();
        for message in [ToMaster::Retired(0), ToMaster::Retired(1), ToMaster::Reloaded(2)] {
            assert!(serving().check(&message).is_err(), "{message:?}");
        }
        expected.reloads.extend([2, 3, 4]);
        assert_eq!(expected.check(&ToMaster::Reloaded(2)), Ok(()));
        assert_eq!(expected.check(&ToMaster::ReloadFailed(3, String::new())), Ok(()));
        assert!(expected.check(&ToMaster::Retired(3)).is_err(), "it was refused");
        assert_eq!(expected.check(&ToMaster::Reloaded(4)), Ok(()));
        for generation in [2, 1] {
            assert_eq!(expected.check(&ToMaster::Retired(generation)), Ok(()));
            assert!(expected.check(&ToMaster::Retired(generation)).is_err());
        }
        assert!(expected.check(&ToMaster::Retired(4)).is_err(), "it is in use");
    }

    #[test]
    fn addresses_are_limited() {
        let mut expected = serving();
        let count = (0..100_000)
            .take_while(|_| expected.check(&ToMaster::Addresses("group\thost\n".to_owned())).is_ok());
        assert!((1000..10_000).contains(&count.count()));
    }

    #[test]
    fn reports_of_replaced_paths_are_limited() {
        let mut expected = serving();
        let count = (0..100_000).take_while(|_| expected.check(&ToMaster::Replaced).is_ok());
        assert!((1000..10_000).contains(&count.count()));
        assert!(Expected::new(1).check(&ToMaster::Replaced).is_err(), "it is not ready");
    }
}
