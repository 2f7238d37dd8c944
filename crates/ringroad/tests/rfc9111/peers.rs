//! Installed servers that run the same cases for comparison: nginx, Apache Traffic Server and Squid, each with a cache
//! in front of the origin and otherwise its defaults.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::origin::Origin;
use testkit::ports::free_port;
use testkit::{Deadline, ListenAddr, Program, TempDir, wait};

use super::Site;

/// A server to compare with.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// Environment variable that names its binary, and the default path.
    variable: &'static str,
    binary: &'static str,
    /// Writes its configuration into a directory, and returns the command.
    prepare: fn(&Path, &Path, u16, &Origin) -> Command,
}

/// All servers to compare with.
pub(crate) const PEERS: &[Peer] = &[
    Peer { name: "nginx", variable: "RINGROAD_PEER_NGINX", binary: "/usr/sbin/nginx", prepare: nginx },
    Peer {
        name: "ATS",
        variable: "RINGROAD_PEER_ATS",
        binary: "/usr/bin/traffic_server",
        prepare: traffic_server,
    },
    Peer { name: "Squid", variable: "RINGROAD_PEER_SQUID", binary: "/usr/sbin/squid", prepare: squid },
];

impl Peer {
    /// Starts it; returns `None` if it is not installed.
    pub(crate) fn start(&self) -> Option<Site> {
        let binary =
            std::env::var_os(self.variable).map_or_else(|| PathBuf::from(self.binary), PathBuf::from);
        if !binary.exists() {
            testkit::skip(format_args!(
                "{} is not installed; {} may name it",
                binary.display(),
                self.variable
            ));
            return None;
        }
        // Some never respond.
        Site::start(Duration::from_secs(5), |origin| {
            let folder = TempDir::new("peer");
            open(folder.path());
            let port = free_port();
            let command = (self.prepare)(&binary, folder.path(), port, origin);
            let program = Program::spawn(command, folder.path());
            let address = ListenAddr::Tcp(([127, 0, 0, 1], port).into());
            let is_up = || std::net::TcpStream::connect(address.tcp()).ok().map(drop);
            wait::until("a peer to listen", Deadline::default(), is_up).unwrap_or_else(|late| {
                panic!("{}: {late}\n{}\n{}", self.name, program.stdout(), program.stderr())
            });
            Some(((program, folder), address))
        })
    }
}

/// Servers started by root drop root's privileges.
fn open(folder: &Path) {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a folder");
    std::fs::write(path, text).expect("a file");
}

/// Returns a configuration for nginx and for this server; `own` has directives that only this server knows.
pub(crate) fn nginx_conf(own: &str, listen: &str, folder: &str, origin: &str) -> String {
    format!(
        "worker_processes 1; error_log logs/error.log info;
events {{ }}
http {{
  access_log off;
  proxy_temp_path {folder}/temp;
  proxy_cache_path {folder}/cache keys_zone=z:1m use_temp_path=off;
  server {{
    listen {listen};
    location / {{
      proxy_pass http://{origin};
      proxy_http_version 1.1;
      proxy_cache z;
      proxy_cache_key $uri$is_args$args;
      proxy_cache_revalidate on;
      proxy_cache_background_update on;
      {own}
    }}
  }}
}}
"
    )
}

fn nginx(binary: &Path, folder: &Path, port: u16, origin: &Origin) -> Command {
    let place = folder.display().to_string();
    let text = nginx_conf("early_hints 1;", &format!("127.0.0.1:{port}"), &place, &origin.addr().to_string());
    write(folder, "conf/nginx.conf", &format!("daemon off; pid nginx.pid;\n{text}"));
    write(folder, "logs/error.log", "");
    let mut command = Command::new(binary);
    command.arg("-p").arg(folder).args(["-c", "conf/nginx.conf", "-e", "logs/error.log"]);
    command
}

fn squid(binary: &Path, folder: &Path, port: u16, origin: &Origin) -> Command {
    let place = folder.display();
    let text = format!(
        "http_port 127.0.0.1:{port} accel defaultsite=localhost
cache_peer 127.0.0.1 parent {} 0 no-query originserver
http_access allow all
cache_mem 64 MB
cache_log {place}/cache.log
access_log none
pid_filename {place}/squid.pid
coredump_dir {place}
visible_hostname localhost
shutdown_lifetime 0 seconds
",
        origin.port()
    );
    write(folder, "squid.conf", &text);
    let mut command = Command::new(binary);
    command.arg("-N").arg("-f").arg(folder.join("squid.conf"));
    command
}

fn traffic_server(binary: &Path, folder: &Path, port: u16, origin: &Origin) -> Command {
    let place = folder.display();
    let mut layout = format!("prefix: {place}\nexec_prefix: {place}\n");
    for (name, below) in [
        ("sysconfdir", "etc"),
        ("datadir", "share"),
        ("libexecdir", "modules"),
        ("localstatedir", "var"),
        ("runtimedir", "run"),
        ("logdir", "log"),
        ("cachedir", "cache"),
    ] {
        std::fs::create_dir_all(folder.join(below)).expect("a folder");
        open(&folder.join(below));
        layout.push_str(&format!("{name}: {place}/{below}\n"));
    }
    let system = Path::new("/etc/trafficserver");
    for entry in std::fs::read_dir(system).into_iter().flatten().flatten() {
        let _ = std::fs::copy(entry.path(), folder.join("etc").join(entry.file_name()));
    }
    write(folder, "runroot.yaml", &layout);
    write(folder, "etc/storage.config", &format!("{place}/cache 64M\n"));
    write(folder, "etc/remap.config", &format!("map / http://127.0.0.1:{}/\n", origin.port()));
    let records = folder.join("etc/records.config");
    let own = format!(
        "CONFIG proxy.config.http.server_ports STRING {port}:ip-in=127.0.0.1
CONFIG proxy.config.http.insert_age_in_response INT 1
CONFIG proxy.config.http.wait_for_cache INT 1
CONFIG proxy.config.http.cache.ignore_client_cc_max_age INT 0
"
    );
    let defaults = std::fs::read_to_string(&records).unwrap_or_default();
    let kept = defaults.lines().filter(|line| !line.contains("server_ports"));
    let text = kept.collect::<Vec<_>>().join("\n");
    write(folder, "etc/records.config", &format!("{text}\n{own}"));
    let mut command = Command::new(binary);
    command.env("TS_RUNROOT", folder.join("runroot.yaml"));
    command
}
