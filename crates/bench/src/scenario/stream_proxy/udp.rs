//! The clients of UDP: each sends a datagram, waits for its echo, and repeats.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::load::{histogram, percentile_us};
use crate::method::disturbance::Watch;
use crate::method::pin;
use crate::peers::server::Server;
use crate::report::model::Run;
use crate::scenario::measurements::without;

/// Time after which a datagram or its response is lost.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Clients that run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clients {
    pub(super) count: u32,
    /// Size of each datagram.
    pub(super) bytes: usize,
    pub(super) cpu: Option<usize>,
    pub(super) length: Duration,
}

/// What one client has measured.
struct Echoes {
    times: Vec<Duration>,
    lost: u64,
}

/// Runs the clients, and measures the server. More than one lost datagram of a thousand is a failure.
pub(super) fn measure(server: &mut Server, clients: Clients) -> Result<Run, Failure> {
    server.check_running()?;
    let (address, watch, cpu) = (server.address(), Watch::start(), server.child.cpu_time());
    let started = Instant::now();
    let threads: Vec<_> =
        (0..clients.count).map(|_| thread::spawn(move || echo(address, clients, started))).collect();
    let (mut times, mut lost) = (histogram(), 0);
    for thread in threads {
        let echoes = thread.join().map_err(|_| Failure::Other("a client panicked".to_owned()))?;
        let echoes = echoes.map_err(Failure::other)?;
        echoes.times.iter().for_each(|time| times.saturating_record(time.as_nanos() as u64));
        lost += echoes.lost;
    }
    let (seconds, cpu_after, disturbed) =
        (started.elapsed().as_secs_f64(), server.child.cpu_time(), watch.end());
    server.check_running()?;
    if times.is_empty() || lost * 1000 > times.len() {
        return Err(Failure::Other(format!("{lost} datagrams were lost, {} echoed", times.len())));
    }
    let mut run = Run::of([
        ("requests", times.len() as f64),
        ("seconds", seconds),
        ("requests_per_second", times.len() as f64 / seconds),
        ("errors", lost as f64),
        ("p50_us", percentile_us(&times, 50.0)),
        ("p99_us", percentile_us(&times, 99.0)),
    ]);
    run.disturbed = disturbed;
    match cpu.until(&cpu_after) {
        Some(seconds) => run.set("server_cpu_seconds", seconds),
        None => {
            run.labels.insert(without("server_cpu_seconds"), "a process of the server ended".to_owned());
        }
    }
    Ok(run)
}

/// Sends and receives until the time is over.
fn echo(server: SocketAddr, clients: Clients, started: Instant) -> io::Result<Echoes> {
    let _ = clients.cpu.map(pin::this_thread);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let mut message = vec![b'm'; clients.bytes];
    let mut response = vec![0; clients.bytes + 1];
    let mut echoes = Echoes { times: Vec::new(), lost: 0 };
    let mut number = 0_u64;
    // Each client sends at least one, also if it starts late on a busy machine.
    while number == 0 || started.elapsed() < clients.length {
        number += 1;
        message[..8].copy_from_slice(&number.to_le_bytes());
        let sent = Instant::now();
        socket.send(&message)?;
        loop {
            match socket.recv(&mut response) {
                Ok(count) if response[..count] == message => {
                    echoes.times.push(sent.elapsed());
                    break;
                }
                // The late response to a datagram that was counted as lost.
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    echoes.lost += 1;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(echoes)
}
