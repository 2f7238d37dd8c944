//! Tests of worker threads: set-up on the thread, and the report to the starting thread.

use std::io::Read;
use std::time::Duration;

use io::{Drained, Engine};
use rustix::fs::{Mode, OFlags};

use super::fake::Fake;
use crate::mailbox;
use crate::thread::{Setup, StartError, start};

const DRAIN: Duration = Duration::from_secs(5);

fn setup() -> Setup {
    Setup { name: "some worker".into(), cpus: vec![0], panic_hook: None }
}

fn engine() -> Result<Box<dyn Engine>, String> {
    Ok(Box::new(Fake::new()))
}

/// Returns a line of the calling thread's /proc status.
fn status(name: &str) -> String {
    let fd = rustix::fs::open("/proc/thread-self/status", OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut text = String::new();
    std::fs::File::from(fd).read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

#[test]
fn a_worker_has_its_name_its_affinity_and_no_signals() {
    let facts = |_| async { (status("Name"), status("Cpus_allowed_list"), status("SigBlk")) };
    let worker = start(setup(), DRAIN, engine, facts).unwrap();
    let ((name, cpus, blocked), drained) = worker.join().unwrap();
    assert_eq!((name.as_str(), cpus.as_str()), ("some worker", "0"));
    // KILL and STOP (9 and 19) cannot be blocked, the C library reserves 32 and 33, and SYS (31) reports refused calls.
    let blocked = u64::from_str_radix(&blocked, 16).unwrap();
    let unblocked = [9, 19, 31, 32, 33].iter().fold(0, |bits, number| bits | 1 << (number - 1));
    assert_eq!(blocked | unblocked, u64::MAX, "{blocked:x}");
    assert_eq!(blocked & 1 << (31 - 1), 0, "{blocked:x}");
    assert_eq!(drained, Drained::Clean);
}

#[test]
fn a_failed_set_up_is_reported() {
    let failed = start(setup(), DRAIN, || Err("no engine today".to_owned()), |_| async {});
    let Err(error) = failed else { panic!("there was no engine") };
    assert_eq!(error.to_string(), "no engine today");
    let panics = || -> Result<Box<dyn Engine>, String> { panic!("thrown while the engine is made") };
    let panicked = start(setup(), DRAIN, panics, |_| async {});
    assert!(matches!(panicked, Err(StartError::Panicked)));
}

#[test]
fn a_worker_runs_without_the_affinity_that_cannot_be_set() {
    let nowhere = Setup { cpus: vec![crate::thread::CPU_MAX - 1], ..setup() };
    let worker = start(nowhere, DRAIN, engine, |refusal| async move { refusal }).unwrap();
    assert_eq!(worker.join().unwrap().0, Some(io::Errno::INVAL));
}

#[test]
fn a_worker_can_be_woken_and_ends_with_its_future() {
    let (sender, mut receiver) = mailbox::channel::<u32>(1);
    let worker = start(setup(), DRAIN, engine, |_| async move {
        let mut sum = 0;
        while let Some(number) = receiver.recv().await {
            sum += number;
        }
        sum
    })
    .unwrap();
    sender.send(7).unwrap();
    worker.handle().wake();
    drop(sender);
    assert_eq!(worker.join().unwrap(), (7, Drained::Clean));
}

#[test]
fn a_panic_of_the_main_future_is_returned_by_join() {
    let worker = start(setup(), DRAIN, engine, |_| async { panic!("thrown in a worker") });
    assert!(worker.unwrap().join().is_err());
}
