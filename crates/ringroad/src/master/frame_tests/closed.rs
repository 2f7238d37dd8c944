//! Processes that close their channel, or one direction of it, and continue to run.

use rustix::net::{Shutdown, shutdown};

use super::*;

/// Returns the number of lines of the log that contain a text.
fn lines(folder: &Path, text: &str) -> usize {
    let log = std::fs::read_to_string(folder.join("error.log")).expect("the log");
    log.lines().filter(|line| line.contains(text)).count()
}

/// Calls `keep` until the master has noticed the end of a channel. A process that a parallel test starts has a copy of the other end until it
/// executes its program.
fn until_noticed(arena: &mut Arena, keep: impl Fn(&mut Master), is_open: impl Fn(&Master) -> bool) {
    let keep = || {
        keep(&mut arena.master);
        (!is_open(&arena.master)).then_some(())
    };
    testkit::wait::until("the end of the channel", testkit::Deadline::default(), keep)
        .expect("it is noticed");
}

const FAULT: &str = "has closed the control channel and runs, killing the process";

#[test]
fn an_agent_that_closes_its_channel_is_replaced_after_a_pause() {
    let folder = begin("closed-agent");
    let (mut arena, _, agent) = serving(&folder);
    drop(arena.processes.remove(&agent));
    // With an open channel poll(2) would return immediately, again and again.
    until_noticed(&mut arena, Master::keep_acme, |master| master.acme.channel().is_some());
    assert_eq!(arena.master.acme.id(), Some(agent), "it may be exiting");
    assert!(arena.master.acme.deadline().is_some_and(|at| at > Instant::now()));
    arena.master.acme.skip_exit_time();
    arena.master.keep_acme();
    assert!(!simulated::is_alive(agent) && arena.master.acme.id().is_none());
    assert!(arena.master.acme.deadline().is_some_and(|at| at > Instant::now()), "there is a pause");
    // This skips the pause.
    arena.turn();
    assert!(arena.master.acme.id().is_some_and(|next| next != agent));
    assert_eq!(lines(&folder, &format!("acme process {agent} {FAULT}")), 1);
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn a_signing_process_that_closes_its_channel_is_replaced_after_a_pause() {
    let folder = begin("closed-signer");
    let mut arena = strict(&folder, "");
    let signer = arena.master.signer.id().expect("a signing process");
    drop(arena.processes.remove(&signer));
    until_noticed(&mut arena, Master::keep_signer, |master| master.signer.channel().is_some());
    assert_eq!(arena.master.signer.id(), Some(signer), "it may be exiting");
    assert!(arena.master.signer.deadline().is_some_and(|at| at > Instant::now()));
    arena.master.signer.skip_exit_time();
    arena.master.keep_signer();
    assert!(!simulated::is_alive(signer) && arena.master.signer.id().is_none());
    let pause = arena.master.signer.deadline().expect("the next start");
    assert!(pause > Instant::now(), "there is a pause");
    let next = || {
        arena.turn();
        arena.master.signer.id()
    };
    let next = testkit::wait::until("the next process", testkit::Deadline::default(), next);
    assert_ne!(next.expect("it starts"), signer);
    assert_eq!(lines(&folder, &format!("signing process {signer} {FAULT}")), 1);
    assert_eq!(lines(&folder, "signing process"), 4, "two starts, the fault, and the end");
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn a_worker_that_shuts_down_its_reading_side_is_killed() {
    let folder = begin("closed-worker");
    let (mut arena, worker, _) = serving(&folder);
    shutdown(&arena.processes[&worker].channel, Shutdown::Read).expect("it is connected");
    arena.master.workers[0].send(&ToWorker::Leave, Vec::new());
    arena.master.handle_events();
    assert!(simulated::is_alive(worker), "it may be exiting");
    assert!(arena.master.workers[0].channel_deadline().is_some_and(|at| at > Instant::now()));
    arena.master.workers[0].skip_exit_time();
    arena.master.handle_events();
    assert!(!simulated::is_alive(worker));
    assert_eq!(lines(&folder, &format!("worker process {worker} {FAULT}")), 1);
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

/// The kernel may wait for a disk before it ends a process. The master continues meanwhile.
#[test]
fn the_next_agent_starts_when_the_killed_one_has_exited() {
    let folder = begin("stuck-agent");
    let (mut arena, _, agent) = serving(&folder);
    simulated::stick(agent);
    drop(arena.processes.remove(&agent));
    arena.master.keep_acme();
    arena.master.acme.skip_exit_time();
    arena.master.keep_acme();
    assert!(simulated::is_alive(agent) && arena.master.acme.id().is_none());
    arena.turn();
    assert!(arena.master.acme.id().is_none(), "the first one may still write its state");
    simulated::exit(agent, 1);
    arena.turn();
    assert!(arena.master.acme.id().is_some_and(|next| next != agent));
    assert_eq!(lines(&folder, &format!("acme process {agent} {FAULT}")), 1);
    std::fs::remove_dir_all(&folder).expect("it was made here");
}

#[test]
fn a_worker_that_was_killed_is_not_reported_again() {
    let folder = begin("stuck-worker");
    let (mut arena, worker, _) = serving(&folder);
    simulated::stick(worker);
    arena.master.workers[0].stage = Stage::Leaving { kill_at: Some(Instant::now()) };
    arena.master.handle_events();
    drop(arena.processes.remove(&worker));
    arena.master.handle_events();
    arena.master.workers[0].skip_exit_time();
    arena.master.handle_events();
    assert_eq!(lines(&folder, "killing the process"), 1);
    assert!(arena.master.workers[0].channel_deadline().is_none(), "the master does not wake up for it");
    std::fs::remove_dir_all(&folder).expect("it was made here");
}
