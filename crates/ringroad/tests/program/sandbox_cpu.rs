//! CPU time per request with `sandbox off`, `on` and `strict`: a measurement without assertions.
//!
//! Three servers with one worker and the same content are loaded in turns, each first in every third round. The CPU time is that of all
//! threads of the worker, and of the signing process (`/proc/PID/task/*/schedstat`, proc(5)). `RINGROAD_MEASURED` names the
//! measured binary, a release; `RINGROAD_MEASURED_MAIN` further directives, such as `worker_cpu_affinity auto;`; `RINGROAD_REPORT` a
//! file for the table.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned, version};
use testkit::{Client, Server};

use crate::common::tls::{Authority, files};
use crate::control::BINARY;

const MODES: [&str; 3] = ["off", "on", "strict"];
const ROUNDS: usize = 7;
const CLIENTS: usize = 8;

/// Number of files with 4 KiB.
const FILES: usize = 2000;

/// Number of handshakes in a round, one after the other.
const HANDSHAKES: usize = 500;

struct Measured {
    server: Server,
    handshakes: Arc<ClientConfig>,
}

impl Measured {
    fn start(mode: &str, origin: &Server, authority: &Authority) -> Measured {
        let further = std::env::var("RINGROAD_MEASURED_MAIN").unwrap_or_default();
        let conf = format!(
            "sandbox {mode}; worker_processes 1; {further} events {{}}
             http {{ access_log off; keepalive_requests 1000000;
             upstream origin {{ server {}; keepalive 16; keepalive_requests 1000000; }}
             server {{ listen 127.0.0.1:0; listen 127.0.0.2:0 ssl; root html; server_name a.test;
             ssl_certificate a.pem; ssl_certificate_key a.key;
             location /proxied {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}",
            origin.addr(0).tcp()
        );
        let mut builder = files(Server::builder(binary()).conf(&conf), "a", &authority.server("a.test"));
        for number in 0..FILES {
            builder = builder.text(&format!("html/{}/{number}", number % 50), &"x".repeat(4096));
        }
        let mut handshakes = ClientConfig::clone(&authority.clients(&[&version::TLS13], None));
        handshakes.resumption = rustls::client::Resumption::disabled();
        Measured { server: builder.start(), handshakes: Arc::new(handshakes) }
    }

    /// Returns the CPU time of the worker and of the signing process in ns.
    fn cpu_ns(&self) -> u64 {
        let log = self.server.error_log();
        let signer = log.lines().rev().find(|line| line.contains("start signing process "));
        let signer = signer.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        let processes = self.server.workers().into_iter().chain(signer);
        let tasks =
            processes.flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs"));
        tasks
            .flatten()
            .map(|task| {
                let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
                text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
            })
            .sum()
    }

    /// Removes the files from the page cache.
    fn evict(&self) {
        for number in 0..FILES {
            let file =
                File::open(self.server.path(&format!("html/{}/{number}", number % 50))).expect("a file");
            file.sync_all().expect("it is written");
            fadvise(&file, 0, None, Advice::DontNeed).expect("a regular file");
        }
    }

    /// Requests paths by several clients, `count` in total.
    fn request(&self, count: usize, path: impl Fn(usize) -> String + Sync) {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let path = &path;
                scope.spawn(move || {
                    let mut connection = Client::connect(self.server.addr(0));
                    for number in (client..count).step_by(CLIENTS) {
                        assert_eq!(connection.get(&path(number)).status, 200);
                    }
                });
            }
        });
    }

    fn shake(&self) {
        for _ in 0..HANDSHAKES {
            let name = ServerName::try_from("a.test").expect("a name");
            let session = ClientConnection::new(Arc::clone(&self.handshakes), name).expect("a session");
            let socket = TcpStream::connect(self.server.addr(1).tcp()).expect("a connection");
            let mut tls = StreamOwned::new(session, socket);
            tls.flush().expect("a handshake");
            tls.conn.complete_io(&mut tls.sock).expect("a handshake");
            tls.conn.send_close_notify();
            let _ = tls.flush();
            let _ = tls.sock.read(&mut [0; 1024]);
        }
    }
}

fn binary() -> PathBuf {
    std::env::var_os("RINGROAD_MEASURED").map_or_else(|| PathBuf::from(BINARY), PathBuf::from)
}

/// Returns the least, the median and the greatest value.
fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

#[test]
#[ignore = "a measurement of some minutes, of a release"]
fn cpu_of_a_request_with_and_without_the_sandbox() {
    let origin = Server::start(
        binary(),
        &format!(
            "sandbox off; worker_processes 1; events {{}} http {{ access_log off; keepalive_requests 1000000;
             server {{ listen 127.0.0.1:0; return 200 {}; }} }}",
            "x".repeat(1024)
        ),
    );
    let authority = Authority::new("CA");
    let measured = MODES.map(|mode| Measured::start(mode, &origin, &authority));
    type Load = fn(&Measured) -> usize;
    let loads: [(&str, Load); 4] = [
        ("cold files of 4 KiB", |measured| {
            measured.request(FILES, |number| format!("/{}/{number}", number % 50));
            FILES
        }),
        ("warm files of 4 KiB", |measured| {
            measured.request(10 * FILES, |number| format!("/{}/{}", number % 50, number % FILES));
            10 * FILES
        }),
        ("proxied, 1 KiB", |measured| {
            measured.request(5 * FILES, |_| "/proxied".to_owned());
            5 * FILES
        }),
        ("full handshakes, ECDSA P-256", |measured| {
            measured.shake();
            HANDSHAKES
        }),
    ];
    let mut report = String::from("load\tsandbox\tCPU us (least to greatest)\telapsed us\n");
    for (name, load) in loads {
        let mut found: [(Vec<f64>, Vec<f64>); 3] = Default::default();
        for round in 0..=ROUNDS {
            for turn in 0..MODES.len() {
                let index = (round + turn) % MODES.len();
                let one = &measured[index];
                if name.starts_with("cold") {
                    one.evict();
                }
                let (before, start) = (one.cpu_ns(), Instant::now());
                let count = load(one) as f64;
                let elapsed = start.elapsed().as_secs_f64() * 1e6 / count;
                let cpu = (one.cpu_ns() - before) as f64 / 1e3 / count;
                // The first round warms up.
                if round > 0 {
                    found[index].0.push(cpu);
                    found[index].1.push(elapsed);
                }
            }
        }
        for (mode, (cpu, elapsed)) in MODES.iter().zip(&mut found) {
            let ((a, b, c), (d, e, f)) = (spread(cpu), spread(elapsed));
            let _ = writeln!(report, "{name}\t{mode}\t{b:.1} ({a:.1} to {c:.1})\t{e:.0} ({d:.0} to {f:.0})");
        }
    }
    println!("{report}");
    if let Some(path) = std::env::var_os("RINGROAD_REPORT") {
        std::fs::write(path, report).expect("the report can be written");
    }
}
