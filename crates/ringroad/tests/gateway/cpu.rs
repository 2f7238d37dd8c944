//! CPU time per request through FastCGI, compared with nginx: a measurement without assertions.
//!
//! Both servers have one worker, the same configuration, and the same scripted application server with keep-alive
//! connections. `wrk` loads them alternately. The CPU time is that of the worker's threads
//! (`/proc/PID/task/*/schedstat`, proc(5)). `RINGROAD_MEASURED` names the measured binary, a release build;
//! `RINGROAD_REPORT` a file for the table.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use crate::common::BINARY;
use testkit::fastcgi::{END_REQUEST, FastCgi, Reply, STDOUT, record};
use testkit::{Server, Setup};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log notice;
events { worker_connections 1024; }
http {
  access_log off;
  fastcgi_temp_path @DATA@/temp;
  keepalive_requests 1000000;
  upstream app { server @APP@; keepalive 64; keepalive_requests 1000000; }
  fastcgi_param REQUEST_METHOD $request_method;
  fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
  fastcgi_param SCRIPT_NAME $fastcgi_script_name;
  fastcgi_param QUERY_STRING $query_string;
  fastcgi_param REQUEST_URI $request_uri;
  fastcgi_param DOCUMENT_ROOT $document_root;
  fastcgi_param SERVER_PROTOCOL $server_protocol;
  fastcgi_param REMOTE_ADDR $remote_addr;
  fastcgi_param SERVER_NAME $server_name;
  fastcgi_buffers 32 8k;
  server {
    listen 127.0.0.1:0;
    location / { fastcgi_keep_conn on; fastcgi_pass app; }
  }
}
"#;

const ROUNDS: usize = 7;
const SECONDS: u64 = 3;
const CLIENTS: u64 = 16;

/// Returns the CPU time of a process and of its children, in nanoseconds.
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

/// Loads a server; returns the CPU time per request in nanoseconds, and the requests per second.
fn measure(server: &Server, target: &str) -> Option<(f64, f64)> {
    let url = format!("http://{}{target}", server.addr(0).tcp());
    let before = cpu_ns(server);
    let output =
        Command::new("wrk").args(["-t1", &format!("-c{CLIENTS}"), &format!("-d{SECONDS}s"), &url]).output();
    let Ok(output) = output else {
        testkit::skip("wrk is not installed (apt-get install wrk)");
        return None;
    };
    let used = cpu_ns(server) - before;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
    let count = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    let count: u64 = count.and_then(|(count, _)| count.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    Some((used as f64 / count as f64, count as f64 / SECONDS as f64))
}

fn median(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

#[test]
#[ignore = "a measurement of a minute and a half, of a release"]
fn cpu_of_a_request_through_fastcgi() {
    // Created once: the application server must not use most of the time.
    let response = |len: usize| {
        let text = format!("Content-Type: text/plain\r\n\r\n{}", "x".repeat(len)).into_bytes();
        let parts = text.chunks(u16::MAX.into()).map(|part| record(STDOUT, part));
        parts.chain([record(STDOUT, b""), record(END_REQUEST, &[0; 8])]).collect::<Vec<_>>().concat()
    };
    let (small, large) = (response(1 << 10), response(100 << 10));
    let app = FastCgi::start(move |request| {
        let is_large = request.param("REQUEST_URI") == Some("/large");
        Reply::raw(if is_large { large.clone() } else { small.clone() }, !request.keeps)
    });
    let setup = Setup::new(CONF).value("APP", &app.address().to_string());
    let binary = std::env::var_os("RINGROAD_MEASURED").map_or_else(|| PathBuf::from(BINARY), PathBuf::from);
    let ours = setup.start(binary);
    let Some(nginx) = setup.start_nginx() else { return };
    let mut table = String::from("response\tserver\tround\tus_per_request\trequests_per_second\n");
    let mut summary = String::new();
    for (target, name) in [("/small", "1 KiB"), ("/large", "100 KiB")] {
        let (mut mine, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Each server is measured first in every second round, so that a warming machine favours neither.
            let order = [(&ours, "ringroad"), (&nginx, "nginx")];
            let order = if round % 2 == 0 { order } else { [order[1], order[0]] };
            let mut found = [0.0; 2];
            for (server, label) in order {
                let Some((ns, rate)) = measure(server, target) else { return };
                let _ = writeln!(table, "{name}\t{label}\t{round}\t{:.2}\t{rate:.0}", ns / 1e3);
                found[usize::from(label == "nginx")] = ns;
            }
            mine.push(found[0] / 1e3);
            theirs.push(found[1] / 1e3);
            ratios.push(found[0] / found[1]);
        }
        let ((a, b, c), (d, e, f), (g, h, i)) = (median(&mut mine), median(&mut theirs), median(&mut ratios));
        let _ = writeln!(
            summary,
            "# {name}: ringroad {b:.2} us ({a:.2} to {c:.2}), nginx {e:.2} us ({d:.2} to {f:.2}), ratio {h:.3} ({g:.3} to {i:.3})"
        );
    }
    println!("{table}{summary}");
    if let Some(path) = std::env::var_os("RINGROAD_REPORT") {
        std::fs::write(path, format!("{table}{summary}")).expect("the report can be written");
    }
}
