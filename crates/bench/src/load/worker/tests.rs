//! Tests that a request of a steady load allocates no memory on any engine, except the list of its send.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use io::engine::NetKind;
use io::probe::Probe;

use super::Worker;
use crate::load::plan::{Length, LoopKind, Plan};
use crate::load::target::Target;

fn run(worker: &mut Worker<'_>) {
    worker.run(Instant::now(), &AtomicBool::new(false)).unwrap();
}

/// Responds to every request of a connection in order, with a different head each time.
fn serve(mut stream: TcpStream) {
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    let mut number = 0_u64;
    loop {
        while let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            received.drain(..end + 4);
            number += 1;
            let response = format!("HTTP/1.1 200 OK\r\nX-Number: {number}\r\nContent-Length: 3\r\n\r\nabc");
            if stream.write_all(response.as_bytes()).is_err() {
                return;
            }
        }
        match stream.read(&mut piece) {
            Ok(count @ 1..) => received.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
}

fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    format!("http://{address}/file-{{000-999}}")
}

/// Returns the engines that this machine supports.
fn engines() -> Vec<NetKind> {
    let uring = Probe::run().uring_refusal().is_none().then_some(NetKind::Uring);
    [NetKind::Epoll].into_iter().chain(uring).collect()
}

/// Number of attempts: if the thread is not scheduled in time, all connections are busy, and every response wakes it.
/// Without grouping, each attempt fails.
const ATTEMPTS: usize = 5;

#[test]
fn requests_due_in_one_interval_are_sent_together_and_timed_from_due() {
    const GRAIN: Duration = Duration::from_millis(10);
    const REQUESTS: u64 = 1000;
    for net in engines() {
        let plan = Plan {
            connections: 64,
            loop_kind: LoopKind::Open { rate: 5_000.0 },
            grain: Some(GRAIN),
            length: Length::Requests(REQUESTS),
            stop: Arc::default(),
            ..Plan::new(vec![Target::parse(&server()).unwrap()])
        };
        let count_waits = || {
            let mut worker = Worker::new(&plan, net, (0, 1)).unwrap();
            worker.connect().unwrap();
            let connected = worker.engine.counters().kernel_entries;
            run(&mut worker);
            let entries = worker.engine.counters().kernel_entries;
            let tally = &worker.tally;
            assert_eq!((tally.responses, tally.errors.total()), (REQUESTS, 0));
            // On average a request waits for half of the grain, and its response is seen at the end of a grain at the
            // latest.
            let median = Duration::from_nanos(tally.latency.value_at_quantile(0.5));
            assert!(median >= GRAIN / 3, "{median:?} on {net:?}");
            // Without grouping, each response would need one kernel entry; epoll also sends within `submit`.
            let sends = if net == NetKind::Epoll { 2 * REQUESTS } else { 0 };
            (entries - connected).saturating_sub(sends)
        };
        let is_grouped = (0..ATTEMPTS).any(|_| count_waits() < REQUESTS / 4);
        assert!(is_grouped, "too many entries for {REQUESTS} requests on {net:?}");
    }
}

#[test]
fn a_request_allocates_only_the_list_of_its_send() {
    for net in engines() {
        let plan = Plan {
            connections: 4,
            length: Length::Requests(1000),
            stop: Arc::default(),
            ..Plan::new(vec![Target::parse(&server()).unwrap()])
        };
        let mut worker = Worker::new(&plan, net, (0, 1)).unwrap();
        worker.connect().unwrap();
        // A first run, until every table, queue and buffer has its final size.
        run(&mut worker);
        let counted = allocation_counter::measure(|| run(&mut worker));
        assert_eq!((worker.tally.responses, worker.tally.errors.total()), (1000, 0));
        // Otherwise fewer than one allocation in fifty requests: the histograms of the second run are new, a file is read
        // at its start and its end, and the engine's tables may still grow once.
        let count = counted.count_total;
        assert!(count <= 1000 + 20, "{count} allocations in 1000 requests, {net:?}");
    }
}

#[test]
fn a_load_that_is_too_short_ends_after_its_first_response() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        // A response before its request would be an error.
        let _ = stream.read(&mut [0; 4096]);
        // The delay is longer than the load, as on a busy machine.
        let late = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let _ = rustix::thread::nanosleep(&late);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read(&mut [0; 4096]);
    });
    let plan = Plan {
        connections: 1,
        cpus: crate::method::pin::available().into_iter().take(1).collect(),
        length: Length::Time(Duration::from_millis(1)),
        stop: Arc::default(),
        ..Plan::new(vec![Target::parse(&url).unwrap()])
    };
    let outcome = crate::load::run(&plan).unwrap();
    assert_eq!((outcome.tally.responses, outcome.tally.errors.total()), (1, 0));
    assert!(outcome.seconds > 0.05, "the rate is of the time that it took: {}", outcome.seconds);
}
