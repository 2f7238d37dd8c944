//! A proxy under test, Ringroad or nginx: a configuration with placeholders, and the directory that survives restarts.
//!
//! [`Setup`] inserts the values of `@ORIGIN@`, `@CACHE@`, `@DATA@` and other names into a test's configuration. It
//! starts any number of servers with it, one after the other, on the same cache directory: for tests of a restart, a
//! `kill -9` or a changed configuration. `:0` in a `listen` is a free port for either server.
//!
//! To compare two servers, create a setup and an origin with the same objects for each: the servers must not share
//! directories, and an origin must count only the requests of one server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::conf_text::{with_http_default, with_values};
use crate::nginx;
use crate::origin::Origin;
use crate::server::{ListenAddr, Server, ServerBuilder};
use crate::tempdir::TempDir;

/// A configuration with its values and its directory.
#[derive(Debug)]
pub struct Setup {
    text: String,
    values: Vec<(String, String)>,
    /// Shared with the servers, which may outlive the setup.
    data: Arc<TempDir>,
    cache: PathBuf,
}

impl Setup {
    /// Creates a setup from a configuration with placeholders: names in capital letters between two `@`.
    pub fn new(text: &str) -> Setup {
        let data = Arc::new(TempDir::new("setup"));
        open_to_all(data.path());
        let cache = data.path().join("cache");
        Setup { text: text.to_owned(), values: Vec::new(), data, cache }
    }

    /// Sets `@ORIGIN@` to the origin's address, in the form that `server` accepts, and `proxy_pass` after `http://`.
    pub fn origin(self, origin: &Origin) -> Setup {
        self.upstream("ORIGIN", origin.addr())
    }

    /// Like [`Setup::origin`], under another name, for a second origin or for nginx as an origin.
    pub fn upstream(self, name: &str, address: &ListenAddr) -> Setup {
        self.value(name, &address.to_string())
    }

    /// Sets a placeholder, replacing an older value.
    pub fn value(mut self, name: &str, value: &str) -> Setup {
        self.values.retain(|(known, _)| known != name);
        self.values.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Moves the cache to another directory, e.g. on a separate file system.
    pub fn cache_in(mut self, folder: &Path) -> Setup {
        self.cache = folder.join("cache");
        self
    }

    /// Replaces the configuration for servers that are started later.
    pub fn set_text(&mut self, text: &str) {
        self.text = text.to_owned();
    }

    /// Returns the directory of `@CACHE@`, which the server creates.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Returns the directory of `@DATA@`, to which all users may write.
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Returns all files in the cache directory, recursively, sorted.
    pub fn cache_files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.cache.clone()];
        while let Some(folder) = folders.pop() {
            // A directory may be removed while it is read.
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    Ok(kind) if kind.is_file() => files.push(entry.path()),
                    _ => {}
                }
            }
        }
        files.sort();
        files
    }

    /// Returns the configuration with its values. Panics if a placeholder has none.
    #[track_caller]
    pub fn text(&self) -> String {
        let own = [("CACHE", self.cache.display().to_string()), ("DATA", self.data().display().to_string())];
        let mut values: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
        values.extend(self.values.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        with_values(&self.text, &values).unwrap_or_else(|name| panic!("@{name}@ has no value"))
    }

    /// Starts the binary under test.
    #[track_caller]
    pub fn start(&self, binary: impl Into<PathBuf>) -> Server {
        let binary = binary.into();
        crate::server::start_with_memory(|| self.builder(&binary).try_start())
    }

    /// Returns a builder for the binary under test, for further settings.
    #[track_caller]
    pub fn builder(&self, binary: impl Into<PathBuf>) -> ServerBuilder {
        Server::builder(binary).conf(&self.text()).keep(&self.data)
    }

    /// Starts Debian's nginx, or reports that it is skipped and returns `None` ([`nginx::start`]).
    #[track_caller]
    pub fn start_nginx(&self) -> Option<Server> {
        // Only root and www-data may write to Debian's default directory.
        let temp = self.data().join("nginx-temp").display().to_string();
        let mut server = nginx::start(&with_http_default(&self.text(), "proxy_temp_path", &temp))?;
        server.keep(&self.data);
        Some(server)
    }
}

/// Starts nginx as an origin of the files in a directory; returns `None` if it is not installed. Under `/` responses
/// are fresh for an hour, under `/second/` for a second, under `/never/` never, and under `/silent/` they have no
/// explicit lifetime.
#[track_caller]
pub fn nginx_origin(folder: &Path) -> Option<Server> {
    const TEXT: &str = "worker_processes 1;
events { worker_connections 4096; }
http {
    types { }
    default_type application/octet-stream;
    server {
        listen 127.0.0.1:0;
        root @FOLDER@;
        add_header Cache-Control max-age=3600;
        location /second/ { alias @FOLDER@/; add_header Cache-Control max-age=1; }
        location /never/ { alias @FOLDER@/; add_header Cache-Control no-store; }
        location /silent/ { alias @FOLDER@/; add_header X-Silent yes; }
    }
}
";
    let folder = folder.display().to_string();
    Setup::new(TEXT).value("FOLDER", &folder).start_nginx()
}

/// Permits writes to all users: a server started by root changes its user.
fn open_to_all(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))
        .unwrap_or_else(|error| panic!("chmod {}: {error}", folder.display()));
}
