//! A child process of the master: a worker, the process that obtains certificates, or the one that signs.
//!
//! The fuzz target of the control channel (`master::frame_tests`) replaces the processes of its thread by simulated ones, which only
//! have a process ID, an exit status and the other end of their channel.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A child process.
#[derive(Debug)]
pub(super) enum ChildProcess {
    /// A process of the system.
    Real(Child),
    #[cfg(test)]
    Simulated(simulated::Simulated),
}

impl ChildProcess {
    /// Starts a process with a channel as its standard input. This process then has no copy of the channel's end: with it, the exit
    /// of the child would not close the channel.
    pub(super) fn spawn(mut command: Command, channel: OwnedFd) -> io::Result<ChildProcess> {
        #[cfg(test)]
        let channel = match simulated::start(channel) {
            Ok(simulated) => return Ok(ChildProcess::Simulated(simulated)),
            Err(channel) => channel,
        };
        command.stdin(Stdio::from(channel)).spawn().map(ChildProcess::Real)
    }

    pub(super) fn id(&self) -> u32 {
        match self {
            ChildProcess::Real(child) => child.id(),
            #[cfg(test)]
            ChildProcess::Simulated(simulated) => simulated.id(),
        }
    }

    /// Sends SIGKILL. If the process has already been reaped, no signal is sent.
    pub(super) fn kill(&mut self) {
        match self {
            ChildProcess::Real(child) => drop(child.kill()),
            #[cfg(test)]
            ChildProcess::Simulated(simulated) => simulated.kill(),
        }
    }

    /// Returns the exit status if the process has exited.
    pub(super) fn try_wait(&mut self) -> Option<ExitStatus> {
        match self {
            // Waiting fails only if another thread has already waited for this process, and no other thread does.
            ChildProcess::Real(child) => child.try_wait().ok().flatten(),
            #[cfg(test)]
            ChildProcess::Simulated(simulated) => simulated.status(),
        }
    }
}

/// Processes that were killed. The kernel may wait for a disk until they have exited, and the master never waits.
#[derive(Debug, Default)]
pub(super) struct Dying(Vec<ChildProcess>);

impl Dying {
    /// Kills a process.
    pub(super) fn kill(&mut self, mut child: ChildProcess) {
        child.kill();
        self.0.push(child);
    }

    /// Forgets the processes that have exited. Returns whether the last one has exited since the preceding call.
    pub(super) fn reap(&mut self) -> bool {
        let count = self.0.len();
        self.0.retain_mut(|child| child.try_wait().is_none());
        count > 0 && self.0.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Simulated processes of a thread.
#[cfg(test)]
pub(super) mod simulated {
    use std::cell::RefCell;
    use std::os::fd::OwnedFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    /// Raw wait status of a process that SIGKILL ended, wait(2).
    const KILLED: i32 = 9;

    thread_local! {
        static PROCESSES: RefCell<Option<Processes>> = const { RefCell::new(None) };
    }

    /// The simulated processes of a thread.
    #[derive(Debug, Default)]
    struct Processes {
        last_id: u32,
        live: Vec<Process>,
    }

    /// A process that was not reaped.
    #[derive(Debug)]
    struct Process {
        id: u32,
        /// Its end of the channel, until the test takes it.
        channel: Option<OwnedFd>,
        /// The raw wait status of a process that has exited.
        status: Option<i32>,
        /// Whether the process waits for a disk, so that SIGKILL does not end it yet.
        is_stuck: bool,
    }

    /// The master's object for a simulated process.
    #[derive(Debug)]
    pub(in super::super) struct Simulated(u32);

    /// Simulates all processes that this thread starts from now on.
    pub(in super::super) fn begin() {
        PROCESSES.with_borrow_mut(|processes| *processes = Some(Processes::default()));
    }

    /// Starts a simulated process; returns the channel if this thread does not simulate processes.
    pub(super) fn start(channel: OwnedFd) -> Result<Simulated, OwnedFd> {
        PROCESSES.with_borrow_mut(|processes| match processes {
            Some(processes) => {
                processes.last_id += 1;
                let id = processes.last_id;
                processes.live.push(Process { id, channel: Some(channel), status: None, is_stuck: false });
                Ok(Simulated(id))
            }
            None => Err(channel),
        })
    }

    /// Calls a function with a process that was not reaped.
    fn with<T>(id: u32, change: impl FnOnce(&mut Process) -> Option<T>) -> Option<T> {
        PROCESSES.with_borrow_mut(|processes| {
            change(processes.as_mut()?.live.iter_mut().find(|process| process.id == id)?)
        })
    }

    /// Returns the ends of the channels of processes that were started since the last call, with their process IDs.
    pub(in super::super) fn take_channels() -> Vec<(u32, OwnedFd)> {
        PROCESSES.with_borrow_mut(|processes| {
            let live = processes.iter_mut().flat_map(|processes| &mut processes.live);
            live.filter_map(|process| Some((process.id, process.channel.take()?))).collect()
        })
    }

    /// Returns the number of processes that run or were not reaped.
    pub(in super::super) fn count() -> usize {
        PROCESSES.with_borrow(|processes| processes.as_ref().map_or(0, |processes| processes.live.len()))
    }

    /// Ends a process with an exit code.
    pub(in super::super) fn exit(id: u32, code: u8) {
        with(id, |process| Some(*process.status.get_or_insert(i32::from(code) << 8)));
    }

    /// Lets a process wait for a disk: it is ended only by [`exit`].
    pub(in super::super) fn stick(id: u32) {
        with(id, |process| Some(std::mem::replace(&mut process.is_stuck, true)));
    }

    /// Ends all processes.
    pub(in super::super) fn exit_all() {
        PROCESSES.with_borrow_mut(|processes| {
            for process in processes.iter_mut().flat_map(|processes| &mut processes.live) {
                process.status.get_or_insert(0);
            }
        });
    }

    /// Whether a process has neither exited nor been killed.
    pub(in super::super) fn is_alive(id: u32) -> bool {
        with(id, |process| process.status.is_none().then_some(())).is_some()
    }

    impl Simulated {
        pub(super) fn id(&self) -> u32 {
            self.0
        }

        pub(super) fn kill(&self) {
            with(self.0, |process| (!process.is_stuck).then(|| *process.status.get_or_insert(KILLED)));
        }

        pub(super) fn status(&self) -> Option<ExitStatus> {
            with(self.0, |process| process.status).map(ExitStatus::from_raw)
        }
    }

    impl Drop for Simulated {
        fn drop(&mut self) {
            PROCESSES.with_borrow_mut(|processes| {
                if let Some(processes) = processes {
                    processes.live.retain(|process| process.id != self.0);
                }
            });
        }
    }
}
