//! A cache in front of a scripted origin, for tests with faults: its configuration, requests whose responses verify
//! themselves, and access to the files of the entries.

use std::path::PathBuf;

use testkit::origin::{self, Object, Objects, Origin};
use testkit::{Client, Deadline, Response, Server, Setup, wait};

use super::BINARY;

/// Configuration with one cache. `@FAULTS@` is inserted into `events`, `@PATH@` at the end of `proxy_cache_path`, `@SERVER@` into
/// the server block.
const CONF: &str = "worker_processes @THREADS@; error_log logs/error.log info;
events { use @NET@; try_cached off; @FAULTS@ }
http {
  access_log off;
  proxy_cache_path @CACHE@ levels=1:2 keys_zone=one:1m use_temp_path=off @PATH@;
  proxy_temp_path @DATA@/proxy_temp;
  server {
    listen 127.0.0.1:0;
    proxy_cache one;
    proxy_cache_key $uri;
    add_header X-Cache $upstream_cache_status always;
    @SERVER@
    location / { proxy_pass http://@ORIGIN@; }
  }
}
";

/// Returns a configuration with one thread, the network engine that exists everywhere, and no faults; `parts` are the
/// values that differ, which may contain placeholders of [`Setup`].
pub(crate) fn setup(origin: &Origin, parts: &[(&str, &str)]) -> Setup {
    let defaults = [("THREADS", "1"), ("NET", "epoll"), ("FAULTS", ""), ("PATH", ""), ("SERVER", "")];
    let fill = |text: String, (name, value): &(&str, &str)| text.replace(&format!("@{name}@"), value);
    let text = parts.iter().chain(&defaults).fold(CONF.to_owned(), fill);
    Setup::new(&text).origin(origin)
}

/// Returns an object with a lifetime of an hour.
pub(crate) fn object(size: u64) -> Object {
    Object::new(size).cache_control("max-age=3600")
}

/// Returns an origin whose targets end with their objects' sizes (`/a-4096`), with a lifetime of an hour.
pub(crate) fn sized_objects() -> (Objects, Origin) {
    let objects = Objects::new();
    objects.rule(|target| Some(object(target.rsplit_once('-')?.1.parse().ok()?)));
    let origin = Origin::objects(&objects);
    (objects, origin)
}

/// Makes a request; checks that the response is complete and of one version, and returns the cache status.
#[track_caller]
pub(crate) fn get(server: &Server, target: &str) -> String {
    let response = Client::connect(server.addr(0)).get(target);
    checked(target, &response)
}

/// Checks a response; returns its cache status.
#[track_caller]
pub(crate) fn checked(target: &str, response: &Response) -> String {
    if let Err(wrong) = origin::objects::check(target, response) {
        panic!("{target}: {wrong}\n{:?}", response.head);
    }
    response.field("X-Cache").unwrap_or("none").to_owned()
}

/// Repeats a request until it has this cache status; every response in between must be correct too.
#[track_caller]
pub(crate) fn get_until(server: &Server, target: &str, status: &str) {
    let hit = || (get(server, target) == status).then_some(());
    let what = format!("{status} for {target}");
    wait::until(&what, Deadline::default(), hit)
        .unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
}

/// Returns the files of entries: their names are 32 hexadecimal digits.
pub(crate) fn entries(setup: &Setup) -> Vec<PathBuf> {
    let is_entry = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    setup.cache_files().into_iter().filter(is_entry).collect()
}

/// Waits until this number of entries exists: a client has the complete body before the entry's file has its final
/// name.
#[track_caller]
pub(crate) fn wait_for_entries(setup: &Setup, count: usize) -> Vec<PathBuf> {
    let look = || Some(entries(setup)).filter(|found| found.len() == count);
    wait::until(&format!("{count} entries"), Deadline::default(), look)
        .unwrap_or_else(|late| panic!("{late}: {:?}", setup.cache_files()))
}

/// Starts the binary.
#[track_caller]
pub(crate) fn start(setup: &Setup) -> Server {
    setup.start(BINARY)
}

/// Waits until no temporary files of fills remain: those of aborted fills are removed shortly after.
#[track_caller]
pub(crate) fn wait_for_no_leftovers(setup: &Setup) {
    let folder = setup.cache().join("ringroad.tmp");
    let is_empty = || (std::fs::read_dir(&folder).map_or(0, Iterator::count) == 0).then_some(());
    wait::until("no temporary files", Deadline::default(), is_empty)
        .unwrap_or_else(|late| panic!("{late}: {:?}", setup.cache_files()));
}
