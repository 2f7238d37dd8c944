//! `cargo xtask tuned`: the PGO build, a release build with the profile of a run.
//!
//! Three steps: a build that counts how often each piece of code is executed, a training run with typical server load,
//! and a build that lays out and inlines code by those counts. For small responses it saves a fifth of the instructions
//! (`docs/decisions/0020-builds-after-a-training.md`). The requests are made by `ringroad bench load` in a separate
//! program, so that neither the generator nor its counts are part of the PGO build.
//!
//! Not part of the gate, because it builds everything two more times.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, workspace};

/// Output directory in the repository.
const FOLDER: &str = "target/tuned";

/// Number of requests of each kind: enough to make the start of the run insignificant.
const REQUESTS: &str = "30000";

/// Timeout of a server's start.
const START_MAX: Duration = Duration::from_secs(10);

/// The requested locations of [`configuration`]: responses without a file, files by each engine, cache misses and hits,
/// proxying.
const TARGETS: [&str; 9] = [
    "/",
    "/files/1k",
    "/files/10k",
    "/files/100k",
    "/sent/1k",
    "/direct/10k",
    "/kept/1k",
    "/cached/10k?{0-99}",
    "/passed/1k",
];

/// Header fields of a browser.
const HEADERS: [&str; 4] = [
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Accept-Encoding: gzip, deflate, br, zstd",
];

/// Makes the PGO build; the program is `target/tuned/ringroad`.
pub(crate) fn build() -> Result<(), Failure> {
    let folder = workspace::root().join(FOLDER);
    let merge = profile_tool()?;
    let (profiles, merged) = (folder.join("profiles"), folder.join("merged.profdata"));
    // Counts from other sources would be misleading.
    let _ = std::fs::remove_dir_all(&profiles);
    let counting = compile(&folder.join("counting"), &format!("-Cprofile-generate={}", profiles.display()))?;
    let generator = generator(&folder.join("generator"))?;
    for engine in ["io_uring", "epoll"] {
        println!("training on {engine}");
        train(&counting, &generator, &folder.join("training"), engine)?;
    }
    workspace::run(Command::new(merge).arg("merge").arg("-o").arg(&merged).arg(&profiles))?;
    let tuned = compile(&folder.join("build"), &format!("-Cprofile-use={}", merged.display()))?;
    let place = folder.join("ringroad");
    std::fs::copy(&tuned, &place).map_err(|error| Failure::File { path: tuned, error })?;
    println!("{} is the tuned build", place.display());
    Ok(())
}

/// Returns the path of the tool that merges counts; it is an optional component of the toolchain.
fn profile_tool() -> Result<PathBuf, Failure> {
    let libraries = workspace::output(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let tool = Path::new(libraries.trim()).with_file_name("bin").join("llvm-profdata");
    if tool.exists() {
        return Ok(tool);
    }
    let remedy = "llvm-profdata is not there: rustup component add llvm-tools".to_owned();
    Err(Failure::Problems { task: "the tuned build", found: vec![remedy] })
}

/// Makes a release build with these compiler flags; returns the program.
fn compile(folder: &Path, flags: &str) -> Result<PathBuf, Failure> {
    let rustc = workspace::output(Command::new("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    // With an explicit target, build scripts and macros are built without the flags.
    let build = ["build", "--release", "--locked", "-p", "ringroad", "--target", host, "--target-dir"];
    workspace::run(workspace::cargo(&build).arg(folder).env("RUSTFLAGS", flags))?;
    Ok(folder.join(host).join("release/ringroad"))
}

/// Builds the load generator: optimised, and built in a minute.
fn generator(folder: &Path) -> Result<PathBuf, Failure> {
    let build = ["build", "--profile", "instructions", "--locked", "-p", "ringroad", "--features", "bench"];
    workspace::run(workspace::cargo(&build).arg("--target-dir").arg(folder))?;
    Ok(folder.join("instructions/ringroad"))
}

/// Runs the training load on one network engine. The server writes the counts when it exits orderly; a killed program
/// writes none.
fn train(program: &Path, generator: &Path, folder: &Path, engine: &str) -> Result<(), Failure> {
    let file = |path: &Path, error| Failure::File { path: path.to_owned(), error };
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder.join("files")).map_err(|error| file(folder, error))?;
    for (name, bytes) in [("1k", 1 << 10), ("10k", 10 << 10), ("100k", 100 << 10)] {
        let path = folder.join("files").join(name);
        std::fs::write(&path, vec![b'x'; bytes]).map_err(|error| file(&path, error))?;
    }
    let port = free_port().map_err(|error| file(folder, error))?;
    let conf = folder.join("nginx.conf");
    let text = configuration(folder, engine, port).map_err(|error| file(folder, error))?;
    std::fs::write(&conf, text).map_err(|error| file(&conf, error))?;
    let mut server = Server::start(program, &conf, &folder.join("pid"))?;
    let asked = ask_for_everything(generator, folder, port);
    server.end();
    asked
}

/// Sends requests with few and with many header fields: the parser's share of a request differs.
fn ask_for_everything(generator: &Path, folder: &Path, port: u16) -> Result<(), Failure> {
    let plain: [&[&str]; 2] = [&[], &HEADERS];
    for target in TARGETS {
        for headers in plain {
            ask(generator, folder, &format!("http://127.0.0.1:{port}{target}"), headers, false)?;
        }
    }
    // A connection for each request, also with `deferred`, where the kernel delays the accept until the request has
    // arrived.
    for port in [port, port + 1] {
        for target in &TARGETS[..2] {
            ask(generator, folder, &format!("http://127.0.0.1:{port}{target}"), &[], true)?;
        }
    }
    Ok(())
}

/// Sends one request many times. The generator's measurements are ignored; only the statuses matter.
fn ask(generator: &Path, folder: &Path, url: &str, headers: &[&str], close: bool) -> Result<(), Failure> {
    let mut load = Command::new(generator);
    // In a separate network namespace it could not reach the server.
    load.args([
        "bench",
        "load",
        "--host-network",
        "--connections",
        "64",
        "--repeat",
        "1",
        "--requests",
        REQUESTS,
    ]);
    load.args(headers.iter().flat_map(|field| ["-H", field]));
    if close {
        load.arg("--close");
    }
    let report = folder.join("report");
    workspace::run(load.arg("--out").arg(report).arg(url).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Returns the first of two adjacent free ports.
fn free_port() -> std::io::Result<u16> {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return Ok(port);
        }
    }
}

/// Returns the configuration. It has one worker, whose exit is that of the program. Workers keep the user root, because
/// they could otherwise not write the counts.
fn configuration(folder: &Path, engine: &str, port: u16) -> std::io::Result<String> {
    // The started process is the one that serves, so that its exit can be awaited.
    let user = if std::fs::metadata("/proc/self")?.uid() == 0 { "user root;" } else { "" };
    let (folder, deferred) = (folder.display(), port + 1);
    Ok(format!(
        "{user} worker_processes 1; daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n\
         events {{ worker_connections 1024; use {engine}; ring_recv_buffers 256 4k; }}\n\
         http {{\n\
         types {{ text/html html; }} keepalive_requests 1000000000;\n\
         log_format main '$remote_addr [$time_local] \"$request\" $status $body_bytes_sent \"$http_user_agent\"';\n\
         access_log {folder}/access.log main buffer=64k;\n\
         proxy_cache_path {folder}/cache levels=1:2 keys_zone=training:8m max_size=1g;\n\
         server {{\n\
         listen 127.0.0.1:{port}; listen 127.0.0.1:{deferred} deferred;\n\
         location / {{ access_log off; return 200; }}\n\
         location /files/ {{ access_log off; alias {folder}/files/; }}\n\
         location /sent/ {{ alias {folder}/files/; sendfile on; }}\n\
         location /direct/ {{ alias {folder}/files/; aio on; directio 512; }}\n\
         location /kept/ {{ alias {folder}/files/; open_file_cache max=100; }}\n\
         location /cached/ {{ proxy_pass http://127.0.0.1:{port}/files/; proxy_cache training; proxy_cache_valid 1h; }}\n\
         location /passed/ {{ proxy_pass http://127.0.0.1:{port}/files/; }}\n\
         }}\n\
         }}\n"
    ))
}

/// A server that ends when the value is dropped.
struct Server(Child);

impl Server {
    /// Starts the server and waits for its pid file, which exists when it listens.
    #[expect(
        clippy::disallowed_methods,
        reason = "what it waits for is another program's, and nothing tells"
    )]
    fn start(program: &Path, conf: &Path, pid: &Path) -> Result<Server, Failure> {
        let command = format!("{} -c {}", program.display(), conf.display());
        let started = Command::new(program).arg("-c").arg(conf).spawn();
        let mut server = Server(started.map_err(|error| Failure::Start { command: command.clone(), error })?);
        let until = Instant::now() + START_MAX;
        while !pid.exists() {
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(Failure::Command { command, status });
            }
            if Instant::now() > until {
                let late = format!("{command} does not listen after {} s", START_MAX.as_secs());
                return Err(Failure::Problems { task: "the training", found: vec![late] });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Requests a graceful shutdown and waits for the exit.
    fn end(&mut self) {
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &pid]).status();
        let _ = self.0.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_location_and_every_location_a_target() {
        let text = configuration(Path::new("/training"), "epoll", 8000).expect("who runs this is known");
        let locations: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("location ")?.split(' ').next()).collect();
        let folder = |target: &'static str| &target[..=target.rfind('/').expect("a path")];
        for location in &locations {
            assert!(TARGETS.iter().any(|target| folder(target) == *location), "{location}");
        }
        assert!(TARGETS.iter().all(|target| locations.contains(&folder(target))));
        assert!(text.contains("listen 127.0.0.1:8000; listen 127.0.0.1:8001 deferred;"));
    }
}
