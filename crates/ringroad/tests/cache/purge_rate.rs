//! Purges per second on 64 keep-alive connections, and CPU time and writes per purge: a measurement without assertions
//! about time.
//!
//! Two threads send `PURGE` on 32 connections each and then read the 32 responses. Nothing is stored under the keys. An older
//! fetch stays in flight, so that the server must retain every purge: a million after the last rounds. The CPU time is that of
//! the worker's threads (`/proc/PID/task/*/schedstat`, proc(5)), the writes are the worker's own count. `RINGROAD_MEASURED` names
//! the measured binary, a release build; `RINGROAD_PURGES` the purges per round.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use crate::common::BINARY;
use testkit::origin::{Origin, Reply};
use testkit::{Client, Gate, Server, Setup};

const CONF: &str = "worker_processes 1; error_log logs/error.log notice;
events { worker_connections 1024; }
http {
  access_log off;
  keepalive_requests 100000000;
  proxy_cache_path @CACHE@ levels=1:2 keys_zone=c:1m use_temp_path=off;
  map $request_method $is_purge { PURGE 1; default 0; }
  server {
    listen 127.0.0.1:0;
    location / { proxy_cache c; proxy_cache_purge $is_purge; proxy_pass http://@ORIGIN@; }
    location = /metrics { metrics; }
  }
}
";

const ROUNDS: u64 = 6;
/// Purges per round, without `RINGROAD_PURGES`.
const PURGES: u64 = 200_000;
const THREADS: u64 = 2;
const CONNECTIONS_OF_A_THREAD: u64 = 32;

/// Returns the CPU time of the worker's threads, in nanoseconds.
fn cpu_ns(server: &Server) -> u64 {
    let mut sum = 0;
    for pid in server.workers() {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
        for task in tasks.flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            sum += text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// Returns a metric of the cache.
fn metric(client: &mut Client, name: &str) -> u64 {
    let page = client.get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {page}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// A connection, and the length of its responses once it is known: all have the same length.
struct Purger {
    stream: TcpStream,
    response: Vec<u8>,
}

impl Purger {
    fn connect(to: SocketAddr) -> Purger {
        let stream = TcpStream::connect(to).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP connection");
        Purger { stream, response: Vec::new() }
    }

    fn send(&mut self, number: u64) {
        let request = format!("PURGE /{number:09} HTTP/1.1\r\nHost: a.test\r\n\r\n");
        self.stream.write_all(request.as_bytes()).expect("the connection is open");
    }

    fn receive(&mut self) {
        if self.response.is_empty() {
            let mut byte = [0];
            while !self.response.ends_with(b"</html>\r\n") {
                self.stream.read_exact(&mut byte).expect("a response");
                self.response.push(byte[0]);
            }
        } else {
            self.stream.read_exact(&mut self.response).expect("a response");
        }
        assert!(self.response.starts_with(b"HTTP/1.1 404 "), "{}", self.response.escape_ascii());
    }
}

/// Purges `count` keys from `first` on.
fn purge(to: SocketAddr, first: u64, count: u64) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut purgers: Vec<_> = (0..CONNECTIONS_OF_A_THREAD).map(|_| Purger::connect(to)).collect();
                let share = count / THREADS;
                let mut next = first + thread * share;
                for _ in 0..share / CONNECTIONS_OF_A_THREAD {
                    for purger in &mut purgers {
                        purger.send(next);
                        next += 1;
                    }
                    purgers.iter_mut().for_each(Purger::receive);
                }
            });
        }
    });
}

#[test]
#[ignore = "a measurement of a minute, of a release"]
fn purges_per_second_on_64_connections() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::start(move |_| Reply::text("x").wait_first(&held));
    let setup = Setup::new(CONF).origin(&origin);
    let binary = std::env::var_os("RINGROAD_MEASURED").map_or_else(|| PathBuf::from(BINARY), PathBuf::from);
    let server = setup.start(binary);
    let to = server.addr(0).tcp();
    let count = std::env::var("RINGROAD_PURGES").ok().and_then(|count| count.parse().ok()).unwrap_or(PURGES);
    let mut early = Client::connect(server.addr(0));
    early.send(testkit::client::request_bytes("GET", "/early", &[]));
    origin.wait_for("the request before all purges", |stats| stats.of("/early") == 1);
    let mut client = Client::connect(server.addr(0));
    println!("kept\tpurges_per_second\tcpu_us_per_purge\tpurges_per_write");
    for round in 0..ROUNDS {
        let (cpu, writes) = (cpu_ns(&server), metric(&mut client, "ringroad_cache_purge_writes_total{"));
        let begun = Instant::now();
        purge(to, round * count, count);
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        let cpu_us = (cpu_ns(&server) - cpu) as f64 / 1e3 / count as f64;
        let writes = metric(&mut client, "ringroad_cache_purge_writes_total{") - writes;
        let kept = metric(&mut client, "ringroad_cache_purges_kept{");
        println!("{kept}\t{rate:.0}\t{cpu_us:.2}\t{:.1}", count as f64 / writes as f64);
    }
    gate.open();
}
