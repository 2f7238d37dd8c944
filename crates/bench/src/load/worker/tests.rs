//! A request of a load that goes on allocates nothing, in whatever way it is made.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use io::engine::NetKind;
use io::probe::Probe;

use super::{Watch, Window, Worker};
use crate::load::outcome::Tally;
use crate::load::plan::{Length, Plan, Reuse};
use crate::load::target::Target;

/// Adds up what a worker counts.
struct Counter(Tally);

impl Watch for Counter {
    fn counted(&mut self, tally: &Tally, _is_warm_up: bool) {
        self.0.add(tally);
    }

    fn boundary(&mut self, _engine: &dyn io::Engine) {}

    fn is_stopped(&self) -> bool {
        false
    }
}

/// Answers every request of a connection, one after the other, with a head that is never twice the same.
fn serve(mut stream: TcpStream) {
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    let mut number = 0_u64;
    loop {
        while let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            received.drain(..end + 4);
            number += 1;
            let answer = format!("HTTP/1.1 200 OK\r\nX-Number: {number}\r\nContent-Length: 3\r\n\r\nabc");
            if stream.write_all(answer.as_bytes()).is_err() {
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

#[test]
fn a_request_allocates_nothing() {
    let mut engines = vec![NetKind::Epoll];
    engines.extend(Probe::run().uring_refusal().is_none().then_some(NetKind::Uring));
    for net in engines {
        for depth in [1, 4] {
            let plan = Plan {
                connections: 4,
                reuse: Reuse::KeepAlive { depth },
                length: Length::Requests(1000),
                stop: Arc::default(),
                ..Plan::new(vec![Target::parse(&server()).unwrap()])
            };
            let mut worker = Worker::new(&plan, net, (0, 1)).unwrap();
            worker.connect().unwrap();
            let mut counter = Counter(Tally::new());
            let now = || Window { start: Instant::now(), counted_from: Instant::now(), end: None };
            // Until every table, queue and buffer has its size.
            worker.run(now(), &mut counter).unwrap();
            let counted = allocation_counter::measure(|| worker.run(now(), &mut counter).unwrap());
            assert_eq!((counter.0.answers, counter.0.errors.total()), (2000, 0));
            // Not one in a hundred requests: the engine's own tables may still grow once.
            let count = counted.count_total;
            assert!(count <= 10, "{count} allocations in 1000 requests, {net:?}, {depth} at once");
        }
    }
}
