//! `cargo xtask pgo`: a release build that is optimised by the profile of a run (profile-guided optimisation). Packages of
//! it are made by `cargo xtask package --pgo`.
//!
//! ```text
//! release that counts --training on io_uring and epoll--> counts --llvm-profdata--> profile --> release
//! ```
//! The build needs a fifth fewer instructions for small responses (`docs/decisions/0020-builds-after-a-training.md`). The
//! requests of the training are sent by `ringroad bench load` and, for TLS and HTTP/2, by h2load. Both are separate programs,
//! so that the profile does not include the load generator.
//!
//! Not part of the gate, because it needs two more release builds.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, workspace};

/// Directory of the build, relative to the repository.
const DIRECTORY: &str = "target/pgo";

/// Number of requests of each kind: so many that the start of the server hardly affects the profile.
const REQUESTS: &str = "30000";

/// Maximum time for the start of a server.
const START_MAX: Duration = Duration::from_secs(10);

/// Targets in [`configuration`]: responses without a file, files by each body mover, cache misses and hits, proxying over HTTP/1 and
/// HTTP/2.
const TARGETS: [&str; 10] = [
    "/",
    "/files/1k",
    "/files/10k",
    "/files/100k",
    "/sent/1k",
    "/direct/10k",
    "/kept/1k",
    "/cached/10k?{0-99}",
    "/passed/10k",
    "/passed-2/1k",
];

/// Target of uploads.
const UPLOADS: &str = "/taken/";

/// Targets that are requested over TLS, by HTTP/1 and HTTP/2.
const TLS_TARGETS: [&str; 5] = ["/files/1k", "/files/100k", "/kept/1k", "/cached/10k", "/passed/1k"];

/// Header fields as a browser sends them.
const HEADERS: [&str; 4] = [
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Accept-Language: en-US,en;q=0.5",
    "Accept-Encoding: gzip, deflate, br, zstd",
];

/// Makes the PGO build and returns its path, `target/pgo/ringroad`. `make` adds flags and variables to both builds.
pub(crate) fn build(make: &dyn Fn(&mut Command)) -> Result<PathBuf, Failure> {
    let directory = workspace::root().join(DIRECTORY);
    let merge = profile_tool()?;
    for (tool, package) in [("h2load", "nghttp2-client"), ("openssl", "openssl")] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Err(missing(&format!("{tool} is not installed: apt-get install {package}")));
        }
    }
    let (profiles, merged) = (directory.join("profiles"), directory.join("merged.profdata"));
    // Profiles of other sources would mislead the compiler.
    let _ = std::fs::remove_dir_all(&profiles);
    let generate = format!("-Cprofile-generate={}", profiles.display());
    let counting = compile(&directory.join("counting"), &generate, make)?;
    let generator = generator(&directory.join("generator"))?;
    for engine in ["io_uring", "epoll"] {
        println!("training on {engine}");
        train(&counting, &generator, &directory.join("training"), engine)?;
    }
    workspace::run(Command::new(merge).arg("merge").arg("-o").arg(&merged).arg(&profiles))?;
    let built = compile(&directory.join("build"), &format!("-Cprofile-use={}", merged.display()), make)?;
    let place = directory.join("ringroad");
    std::fs::copy(&built, &place).map_err(|error| Failure::File { path: built, error })?;
    Ok(place)
}

fn missing(remedy: &str) -> Failure {
    Failure::Problems { task: "the PGO build", found: vec![remedy.to_owned()] }
}

/// Returns the path of llvm-profdata, which an optional component of the toolchain contains.
fn profile_tool() -> Result<PathBuf, Failure> {
    let libraries = workspace::output(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let tool = Path::new(libraries.trim()).with_file_name("bin").join("llvm-profdata");
    if tool.exists() {
        return Ok(tool);
    }
    Err(missing("llvm-profdata is not installed: rustup component add llvm-tools"))
}

/// Makes a release build with these flags of the compiler; returns the program.
fn compile(directory: &Path, flags: &str, make: &dyn Fn(&mut Command)) -> Result<PathBuf, Failure> {
    let rustc = workspace::output(Command::new("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    // With an explicit target, cargo builds build scripts and macros without the flags.
    let target = ["--target", host, "--target-dir"];
    let mut cargo =
        workspace::cargo(&["rustc", "--release", "--locked", "-p", "ringroad", "--bin", "ringroad"]);
    cargo.args(target).arg(directory).env("RUSTFLAGS", flags);
    make(&mut cargo);
    workspace::run(&mut cargo)?;
    Ok(directory.join(host).join("release/ringroad"))
}

/// Builds the load generator.
fn generator(folder: &Path) -> Result<PathBuf, Failure> {
    let build = ["build", "--profile", "instructions", "--locked", "-p", "ringroad", "--features", "bench"];
    workspace::run(workspace::cargo(&build).arg("--target-dir").arg(folder))?;
    Ok(folder.join("instructions/ringroad"))
}

/// Starts the server on one network engine and requests all targets. The server writes its profile when it exits normally, but
/// not when it is killed.
fn train(program: &Path, generator: &Path, directory: &Path, engine: &str) -> Result<(), Failure> {
    let file = |path: &Path, error| Failure::File { path: path.to_owned(), error };
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory.join("files")).map_err(|error| file(directory, error))?;
    for (name, bytes) in [("1k", 1 << 10), ("10k", 10 << 10), ("16k", 16 << 10), ("100k", 100 << 10)] {
        let path = directory.join("files").join(name);
        std::fs::write(&path, vec![b'x'; bytes]).map_err(|error| file(&path, error))?;
    }
    certificate(directory)?;
    let port = free_ports().map_err(|error| file(directory, error))?;
    let conf = directory.join("nginx.conf");
    let text = configuration(directory, engine, port).map_err(|error| file(directory, error))?;
    std::fs::write(&conf, text).map_err(|error| file(&conf, error))?;
    let mut server = Server::start(program, &conf, &directory.join("pid"))?;
    let requested = request_everything(generator, directory, port);
    server.end();
    requested
}

/// Creates a self-signed certificate for the TLS listener.
fn certificate(directory: &Path) -> Result<(), Failure> {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    openssl.args(["-subj", "/CN=localhost", "-days", "1", "-keyout"]).arg(directory.join("key.pem"));
    workspace::run(openssl.arg("-out").arg(directory.join("certificate.pem")).stderr(Stdio::null()))
}

/// Requests each target with few and with many header fields, because the share of the parser differs.
fn request_everything(generator: &Path, directory: &Path, port: u16) -> Result<(), Failure> {
    let load = |port: u16, target: &str, fields: &[&str], further: &[&str]| {
        let url = format!("http://127.0.0.1:{port}{target}");
        request(generator, &url, fields, further)
    };
    let plain: [&[&str]; 2] = [&[], &HEADERS];
    for target in TARGETS {
        for fields in plain {
            load(port, target, fields, &[])?;
        }
    }
    for name in ["1k", "16k", "100k"] {
        let body = directory.join("files").join(name).display().to_string();
        load(port, UPLOADS, &HEADERS, &["--method", "POST", "--body", &body])?;
    }
    // One connection per request, also on the listener with deferred accept.
    for port in [port, port + 1] {
        for target in &TARGETS[..2] {
            load(port, target, &[], &["--close"])?;
        }
    }
    for target in TLS_TARGETS {
        let url = format!("https://127.0.0.1:{}{target}", port + 2);
        for protocol in [&["--h1", "-m1"][..], &["-m1"], &["-m100"]] {
            let mut load = Command::new("h2load");
            load.args(["-c10", "-n", REQUESTS])
                .args(protocol)
                .args(HEADERS.iter().flat_map(|field| ["-H", field]));
            workspace::run(load.arg(url.as_str()).stdout(Stdio::null()))?;
        }
    }
    Ok(())
}

/// Repeats one request. Only the status codes of the responses are checked.
fn request(generator: &Path, url: &str, fields: &[&str], further: &[&str]) -> Result<(), Failure> {
    let mut load = Command::new(generator);
    load.args(["bench", "load", "--connections", "64", "--requests", REQUESTS]);
    load.args(fields.iter().flat_map(|field| ["-H", field])).args(further);
    workspace::run(load.arg(url).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Returns the first of three adjacent free ports.
fn free_ports() -> std::io::Result<u16> {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let is_free =
            |port: Option<u16>| port.is_some_and(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
        if is_free(port.checked_add(1)) && is_free(port.checked_add(2)) {
            return Ok(port);
        }
    }
}

/// Returns the configuration for the training: one process without a master, so that [`Server::end`] waits for the process that
/// writes the profile. If root starts the server, it stays root, because another user could not write the profile.
fn configuration(directory: &Path, engine: &str, port: u16) -> std::io::Result<String> {
    let user = if std::fs::metadata("/proc/self")?.uid() == 0 { "user root;" } else { "" };
    let (directory, deferred, tls) = (directory.display(), port + 1, port + 2);
    Ok(format!(
        "{user} worker_processes 1; daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;\n\
         events {{ worker_connections 1024; use {engine}; ring_recv_buffers 256 4k; }}\n\
         http {{\n\
         types {{ text/html html; }} keepalive_requests 1000000000;\n\
         log_format main '$remote_addr [$time_local] \"$request\" $status $body_bytes_sent \"$http_user_agent\"';\n\
         access_log {directory}/access.log main buffer=64k;\n\
         proxy_cache_path {directory}/cache levels=1:2 keys_zone=training:8m max_size=1g;\n\
         server {{\n\
         listen 127.0.0.1:{port}; listen 127.0.0.1:{deferred} deferred; listen 127.0.0.1:{tls} ssl; http2 on;\n\
         ssl_certificate {directory}/certificate.pem; ssl_certificate_key {directory}/key.pem;\n\
         location / {{ access_log off; return 200; }}\n\
         location /files/ {{ access_log off; alias {directory}/files/; }}\n\
         location /sent/ {{ alias {directory}/files/; sendfile on; }}\n\
         location /direct/ {{ alias {directory}/files/; aio on; directio 512; }}\n\
         location /kept/ {{ alias {directory}/files/; open_file_cache max=100; }}\n\
         location /cached/ {{ proxy_pass http://127.0.0.1:{port}/files/; proxy_cache training; proxy_cache_valid 1h; }}\n\
         location /passed/ {{ proxy_pass http://127.0.0.1:{port}/files/; }}\n\
         location /passed-2/ {{ proxy_pass http://127.0.0.1:{port}/files/; proxy_http_version 2; }}\n\
         location /taken/ {{ proxy_pass http://127.0.0.1:{port}/; }}\n\
         }}\n\
         }}\n"
    ))
}

/// A running server, which is killed on drop.
struct Server(Child);

impl Server {
    /// Starts the server and waits for its pid file, which it writes after it has begun to listen.
    #[expect(
        clippy::disallowed_methods,
        reason = "waits for a file of another program, which sends no notification"
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

    /// Sends SIGQUIT and waits until the server has exited.
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
        let directory = |target: &'static str| &target[..=target.rfind('/').expect("a path")];
        let requested = || TARGETS.iter().chain([&UPLOADS]).map(|target| directory(target));
        for location in &locations {
            assert!(requested().any(|target| target == *location), "{location}");
        }
        assert!(requested().all(|target| locations.contains(&target)));
        assert!(TLS_TARGETS.iter().all(|target| locations.contains(&directory(target))));
        assert!(text.contains("listen 127.0.0.1:8000; listen 127.0.0.1:8001 deferred;"));
    }
}
