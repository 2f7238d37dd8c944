//! WebDAV: the same requests to this server and to nginx, each with a separate directory tree that is recreated for
//! every request. Statuses, `Location`, and the resulting trees must be equal: names, kinds, permissions, contents,
//! link targets, and times except those of the test run.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use crate::common::BINARY;
use testkit::{Client, Deadline, Server, TempDir, nginx};

const CONF: &str = r#"user root root;
worker_processes 1; error_log logs/error.log info;
events {}
http {
    server_tokens off;
    access_log off;
    client_max_body_size 100m;
    client_body_temp_path @DATA@/temp;
    dav_methods PUT DELETE MKCOL COPY MOVE;
    server {
        listen 127.0.0.1:0;
        root @SITE@;
        location / { }
        location /full/ { create_full_put_path on; dav_access group:rw all:r; }
        location /deep/ { min_delete_depth 3; alias @SITE@/; }
        location /al/ { alias @SITE@/dir/; dav_access user:rw group:r; }
        location /only/ { dav_methods put; alias @SITE@/; }
        location /off/ { dav_methods off; }
        location /page/ { alias @SITE@/; error_page 404 409 = @page; }
        location @page { return 207 "page\n"; }
        location /small/ { client_max_body_size 4; alias @SITE@/; }
    }
}
"#;

/// A time long before any test run, in seconds.
const OLD_S: u64 = 800_000_000;

/// Creates the files and directories for a request. The root remains the same directory: for another one the server would start a
/// new worker, which `replaced_paths` of suite `program` tests.
fn plant(site: &Path) {
    fs::create_dir_all(site).expect("a directory");
    for entry in fs::read_dir(site).expect("it exists").map(|entry| entry.expect("an entry").path()) {
        let removed = if entry.is_dir() && !entry.is_symlink() {
            fs::remove_dir_all(&entry)
        } else {
            fs::remove_file(&entry)
        };
        removed.expect("it is ours");
    }
    for folder in ["dir/sub/deeper", "empty", "other/sub", "full"] {
        fs::create_dir_all(site.join(folder)).expect("a directory");
    }
    for (name, text, mode) in [
        ("a.txt", "alpha", 0o644),
        ("b.txt", "beta", 0o600),
        ("sp ace.txt", "space", 0o640),
        ("dir/one.txt", "one", 0o644),
        ("dir/two.txt", "two", 0o755),
        ("dir/sub/three.txt", "three", 0o444),
        ("dir/sub/deeper/four.txt", "four", 0o644),
        ("other/x.txt", "x", 0o644),
        ("other/one.txt", "another", 0o644),
    ] {
        let path = site.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its permissions");
        age(&path);
    }
    for (name, target) in
        [("link", "a.txt"), ("dirlink", "dir"), ("dangling", "nowhere"), ("dir/inner", "../a.txt")]
    {
        symlink(target, site.join(name)).expect("a link");
    }
    for folder in ["dir/sub/deeper", "dir/sub", "dir", "empty", "other/sub", "other", "full"] {
        let path = site.join(folder);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its permissions");
        age(&path);
    }
}

fn age(path: &Path) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(OLD_S);
    File::open(path).and_then(|file| file.set_modified(time)).expect("its time");
}

/// Returns the tree as text.
fn shown(site: &Path) -> String {
    let (mut lines, mut left) = (Vec::new(), vec![site.to_owned()]);
    while let Some(path) = left.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let name = path.strip_prefix(site).expect("it lies below").display().to_string();
        let time = match meta.mtime() as u64 {
            time @ ..1_500_000_000 => time.to_string(),
            _ => "now".to_owned(),
        };
        let mode = meta.mode() & 0o7777;
        lines.push(if meta.is_symlink() {
            format!("{name} -> {}", fs::read_link(&path).expect("a link").display())
        } else if meta.is_dir() {
            left.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("one").path()));
            format!("{name}/ {mode:o} {time}")
        } else {
            format!("{name} {mode:o} {time} {:?}", fs::read_to_string(&path).expect("a text"))
        });
    }
    lines.sort();
    lines.join("\n")
}

/// A request: method, target, fields, and an optional body.
#[derive(Clone, Debug)]
struct Case {
    method: &'static str,
    target: String,
    fields: Vec<(&'static str, String)>,
    body: Option<&'static str>,
}

fn case(method: &'static str, target: &str) -> Case {
    Case { method, target: target.to_owned(), fields: Vec::new(), body: None }
}

/// Returns the tree without the times of directories.
fn without_times(shown: &str) -> String {
    shown
        .lines()
        .map(|line| {
            line.strip_suffix(" now").unwrap_or(line).trim_end_matches(" 800000000").to_owned() + "\n"
        })
        .collect()
}

impl Case {
    /// Returns whether a file is replaced, which changes its directory's time; nginx writes to the old file.
    fn replaces(&self) -> bool {
        self.method == "COPY" && !self.target.ends_with('/')
    }

    fn field(mut self, name: &'static str, value: &str) -> Case {
        self.fields.push((name, value.to_owned()));
        self
    }

    fn body(self, body: &'static str) -> Case {
        Case { body: Some(body), ..self }
    }

    fn send(&self, server: &Server) -> String {
        let mut client = Client::connect(server.addr(0));
        let mut fields = vec![("Host", "example.org"), ("Connection", "close")];
        fields.extend(self.fields.iter().map(|(name, value)| (*name, value.as_str())));
        let length = self.body.map(|body| body.len().to_string());
        if let Some(length) = &length {
            fields.push(("Content-Length", length));
        }
        let head = testkit::client::request_bytes(self.method, &self.target, &fields);
        client.send([head, self.body.unwrap_or_default().into()].concat());
        let response = client.response();
        let text = if response.status == 207 { response.text() } else { String::new() };
        format!("{} {:?} {text}", response.status, response.field("Location"))
    }
}

/// A server with its tree.
struct Side {
    server: Server,
    site: PathBuf,
    _data: TempDir,
}

impl Side {
    fn start(name: &str, start: impl Fn(&str) -> Option<Server>) -> Option<Side> {
        let data = TempDir::new(name);
        let site = data.path().join("site");
        plant(&site);
        let conf = CONF
            .replace("@SITE@", &site.display().to_string())
            .replace("@DATA@", &data.path().display().to_string());
        Some(Side { server: start(&conf)?, site, _data: data })
    }

    /// Runs a request; returns its result and the tree.
    fn run(&self, case: &Case) -> String {
        plant(&self.site);
        let port = self.server.addr(0).tcp().port().to_string();
        let said = case.send(&self.server).replace(&format!(":{port}/"), "/");
        format!("{said}\n{}", shown(&self.site))
    }
}

fn sides() -> Option<(Side, Side)> {
    let ours = Side::start("dav-ours", |conf| Some(Server::start(BINARY, conf)))?;
    // The umask of a daemon, and of the workers of Ringroad.
    let daemon = |conf: &str| nginx::start_with(conf, |builder| builder.shell("umask 0"));
    let theirs = Side::start("dav-nginx", daemon)?;
    Some((ours, theirs))
}

/// Runs all cases on both servers and lists those that differ.
fn compare(cases: &[Case]) {
    let Some((ours, theirs)) = sides() else { return };
    let mut wrong = Vec::new();
    for case in cases {
        let (mine, nginx) = (ours.run(case), theirs.run(case));
        if mine != nginx && !(case.replaces() && without_times(&mine) == without_times(&nginx)) {
            wrong.push(format!(
                "{case:?}\n--- nginx\n{}\n--- ringroad\n{}\n",
                less(&nginx, &mine),
                less(&mine, &nginx)
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} requests:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Returns the first line, and the lines that the other text lacks.
fn less(one: &str, other: &str) -> String {
    let others: Vec<&str> = other.lines().collect();
    let lines = one.lines().enumerate().filter(|(at, line)| *at == 0 || !others.contains(line));
    lines.map(|(_, line)| line).collect::<Vec<_>>().join("\n")
}

/// Returns whether nginx checks for moving a directory into itself, which it does since 1.29.
fn checks_paths() -> bool {
    let output = std::process::Command::new(nginx::binary()).arg("-v").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    !text.contains("nginx/1.2") || text.contains("nginx/1.29")
}

const PLACES: &[&str] = &[
    "/a.txt",
    "/a.txt/",
    "/a.txt/x",
    "/missing",
    "/missing/",
    "/missing/x",
    "/missing/x/",
    "/dir",
    "/dir/",
    "/dir/sub/",
    "/dir/sub",
    "/dir/one.txt",
    "/dir/new",
    "/dir/new/",
    "/empty",
    "/empty/",
    "/link",
    "/link/",
    "/dirlink",
    "/dirlink/",
    "/dirlink/one.txt",
    "/dirlink/new",
    "/dirlink/new/",
    "/dangling",
    "/dangling/",
    "/sp%20ace.txt",
    "/new%20name",
    "/",
    "/full/p/q/r.txt",
    "/full/new",
    "/full/p/",
    "/deep/dir/",
    "/deep/dir/sub/",
    "/deep/a.txt",
    "/deep/dir/one.txt",
    "/al/one.txt",
    "/al/new",
    "/al/sub/",
    "/al/",
    "/only/a.txt",
    "/off/a.txt",
    "/page/missing/x",
    "/page/a.txt",
    "/small/a.txt",
];

#[test]
fn delete_mkcol_and_put_match_nginx() {
    let mut cases = Vec::new();
    for place in PLACES {
        // For `/`, the links that nginx removes depend on their order.
        if *place != "/" {
            cases.push(case("DELETE", place));
        }
        for depth in ["0", "1", "Infinity", "2"] {
            cases.push(case("DELETE", place).field("Depth", depth));
        }
        if *place == "/dir/" {
            cases.push(case("DELETE", place).field("Depth", "infinity"));
        }
        cases.push(case("DELETE", place).body("body"));
        // Without the final slash nginx returns 409.
        if place.ends_with('/') {
            cases.push(case("MKCOL", place));
        }
        cases.push(case("MKCOL", place).body("body"));
        cases.push(case("PUT", place));
        cases.push(case("PUT", place).body(""));
        cases.push(case("PUT", place).body("content"));
        cases.push(case("PUT", place).body("abc").field("Date", "Mon, 07 Nov 1994 08:49:37 GMT"));
        cases.push(case("PUT", place).body("abc").field("Date", "yesterday"));
        cases.push(case("PUT", place).body("abc").field("Content-Range", "bytes 0-2/3"));
        cases.push(case("PROPFIND", place));
    }
    compare(&cases);
}

const SOURCES: &[&str] = &[
    "/a.txt",
    "/a.txt/",
    "/missing",
    "/missing/",
    "/dir",
    "/dir/",
    "/dir/sub/",
    "/empty/",
    "/link",
    "/dirlink",
    "/dirlink/",
    "/dangling",
    "/sp%20ace.txt",
];

const DESTINATIONS: &[&str] = &[
    "/b.txt",
    "/b.txt/",
    "/new",
    "/new/",
    "/missing/new",
    "/missing/new/",
    "/other",
    "/other/",
    "/other/one.txt",
    "/empty",
    "/empty/",
    "/other/sub/",
    "/a.txt/x",
    "/new%20name",
    "/dirlink",
    "/dirlink/",
    "/other/sub/deep/er",
];

/// Returns whether nginx opens the target of a link and writes to it, where this server replaces the link by a file; or
/// whether nginx empties the destination before it detects that the source is not a file.
fn writes_through(source: &str, destination: &str) -> bool {
    source == "/dirlink" || destination == "/dirlink" && !source.ends_with('/')
}

/// Returns whether source and destination are equal or one contains the other.
fn is_nested(source: &str, destination: &str) -> bool {
    let (source, destination) = (source.trim_end_matches('/'), destination.trim_end_matches('/'));
    let (short, long) =
        if source.len() < destination.len() { (source, destination) } else { (destination, source) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[test]
fn copy_and_move_match_nginx() {
    let mut cases = Vec::new();
    for method in ["COPY", "MOVE"] {
        for source in SOURCES {
            for destination in DESTINATIONS {
                // nginx copies the directory and empties it, because `rename` does not follow the link.
                if method == "MOVE" && *source == "/dirlink/"
                    || method == "COPY" && writes_through(source, destination)
                    || is_nested(source, destination) && !checks_paths()
                {
                    continue;
                }
                let one = case(method, source).field("Destination", destination);
                cases.push(one.clone().field("Overwrite", "F"));
                cases.push(one);
            }
        }
    }
    // nginx copies as many bytes as the link's path has, with the permissions and the time of the link.
    cases.retain(|case| (case.method, &*case.target) != ("COPY", "/link"));
    compare(&cases);
}

#[test]
fn the_fields_of_copy_and_move_match_nginx() {
    let mut cases = Vec::new();
    for method in ["COPY", "MOVE"] {
        for (source, path) in [("/a.txt", "/new"), ("/dir/", "/new/"), ("/a.txt", "/new/"), ("/dir/", "/new")]
        {
            cases.push(case(method, source));
            for start in [
                "",
                "http://example.org",
                "http://example.org:80",
                "http://other.org",
                "example.org",
                "http://",
                "//",
            ] {
                cases.push(case(method, source).field("Destination", &format!("{start}{path}")));
            }
            for destination in [
                "",
                "http://example.org",
                "/..%2fx",
                "/../x",
                "/%00",
                "/new?a=b",
                "/n%65w",
                "/x/./new",
                "/x//new",
                "/new#x",
            ] {
                cases.push(case(method, source).field("Destination", destination));
            }
            let to = case(method, source).field("Destination", path);
            for overwrite in ["T", "t", "F", "f", "", "TT", "yes"] {
                cases.push(to.clone().field("Overwrite", overwrite));
            }
            for depth in ["0", "1", "infinity", "INFINITY", "", "00"] {
                cases.push(to.clone().field("Depth", depth));
            }
            cases.push(to.body("body"));
        }
        for (source, destination) in [
            ("/al/one.txt", "/al/new"),
            ("/al/one.txt", "/al/sub/new"),
            ("/al/one.txt", "/x"),
            ("/al/sub/", "/al/new/"),
        ] {
            cases.push(case(method, source).field("Destination", destination));
        }
        if checks_paths() {
            for source in ["/a.txt", "/dir", "/dir/", "/dir/sub/", "/dir/one.txt"] {
                for destination in
                    ["/a.txt", "/dir/", "/dir/sub/", "/dir/sub/x/", "/dir/one.txt", "/dir/x", "//dir//", "/"]
                {
                    assert!(is_nested("/dir/", "/dir/sub/x/"));
                    cases.push(case(method, source).field("Destination", destination));
                }
            }
        }
    }
    compare(&cases);
}

#[test]
fn a_copy_of_a_link_has_all_bytes_of_its_file() {
    let ours = Side::start("dav-link", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    plant(&ours.site);
    let text = "longer than the path of the link";
    fs::write(ours.site.join("a.txt"), text).expect("it is ours");
    assert!(case("COPY", "/link").field("Destination", "/new").send(&ours.server).starts_with("204"));
    assert_eq!(fs::read_to_string(ours.site.join("new")).expect("it was copied"), text);
    let mode = |name: &str| fs::metadata(ours.site.join(name)).expect("it is there").permissions();
    assert_eq!(mode("new"), mode("a.txt"));
}

#[test]
fn a_move_that_cannot_be_complete_preserves_the_source() {
    let other = TempDir::on_other_filesystem("dav-other");
    let permitted = other.as_ref().map(|other| format!("{} rw", other.path().display()));
    let start = |conf: &str| {
        let builder = Server::builder(BINARY).conf(conf);
        Some(permitted.iter().fold(builder, |builder, path| builder.sandbox_path(path)).start())
    };
    let ours = Side::start("dav-source", start).expect("it starts");
    let run = |from: &str, to: &str| case("MOVE", from).field("Destination", to).send(&ours.server);
    // The destination is inside the source through a link.
    plant(&ours.site);
    let site = shown(&ours.site);
    assert!(run("/dir/", "/dirlink/in/").starts_with("403"));
    assert!(run("/dirlink/", "/new/").starts_with("404"));
    assert!(run("/dirlink/", "/other/").starts_with("404"));
    assert_eq!(shown(&ours.site), site, "the source and an existing destination");
    let Some(other) = other else { return };
    symlink(other.path(), ours.site.join("far")).expect("a link");
    fs::create_dir(other.path().join("new")).expect("a directory");
    fs::write(other.path().join("new/old.txt"), "old").expect("a file");
    let (site, far) = (shown(&ours.site), shown(other.path()));
    // `copy_tree` omits links to directories.
    symlink("sub", ours.site.join("dir/omitted")).expect("a link");
    assert!(run("/dir/", "/far/new/").starts_with("500"));
    fs::remove_file(ours.site.join("dir/omitted")).expect("it is preserved");
    age(&ours.site.join("dir"));
    assert_eq!((shown(&ours.site), shown(other.path())), (site, far));
    assert!(run("/dir/", "/far/new/").starts_with("201"));
    assert!(!ours.site.join("dir").exists() && !other.path().join("new/old.txt").exists());
    assert_eq!(fs::read_dir(other.path()).expect("a directory").count(), 1, "no temporary names");
    let leaf = other.path().join("new/sub/deeper/four.txt");
    assert_eq!(fs::read_to_string(leaf).expect("it is moved"), "four");
}

#[test]
fn a_link_is_moved_to_another_file_system_as_its_file() {
    let Some(other) = TempDir::on_other_filesystem("dav-other-link") else { return };
    let permitted = format!("{} rw", other.path().display());
    let start = |conf: &str| Some(Server::builder(BINARY).conf(conf).sandbox_path(&permitted).start());
    let ours = Side::start("dav-far-link", start).expect("it starts");
    plant(&ours.site);
    symlink(other.path(), ours.site.join("far")).expect("a link");
    assert!(case("MOVE", "/link").field("Destination", "/far/new").send(&ours.server).starts_with("204"));
    let new = other.path().join("new");
    assert_eq!(fs::read_to_string(&new).expect("it is moved"), "alpha");
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions();
    assert_eq!(mode(&new), mode(&ours.site.join("a.txt")));
    assert!(fs::symlink_metadata(ours.site.join("link")).is_err());
}

#[test]
fn collections_that_overlap_through_a_link_are_preserved() {
    let ours = Side::start("dav-links", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    plant(&ours.site);
    symlink(".", ours.site.join("here")).expect("a link");
    let site = shown(&ours.site);
    for method in ["COPY", "MOVE"] {
        // The same directory, a directory that contains the source, and one inside of it.
        for (from, to) in [("/dir/", "/here/dir/"), ("/here/dir/sub/", "/dir/"), ("/dir/", "/here/dir/sub/")]
        {
            let said = case(method, from).field("Destination", to).send(&ours.server);
            assert!(said.starts_with("403"), "{method} {from} {to}: {said}");
            assert_eq!(shown(&ours.site), site, "{method} {from} {to}");
        }
    }
}

#[test]
fn a_destination_outside_the_alias_is_refused() {
    let ours = Side::start("dav-alias", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    plant(&ours.site);
    let site = shown(&ours.site);
    for destination in ["/xx/../new", "/xxx../new", "/other/new", "/al"] {
        for method in ["COPY", "MOVE"] {
            let said = case(method, "/al/one.txt").field("Destination", destination).send(&ours.server);
            assert!(said.starts_with("400"), "{method} {destination}: {said}");
        }
    }
    assert_eq!(shown(&ours.site), site);
}

#[test]
fn an_upload_is_published_atomically() {
    let ours = Side::start("dav-whole", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    plant(&ours.site);
    let site = shown(&ours.site);
    let mut client = Client::connect(ours.server.addr(0));
    client.send("PUT /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    client.send("x".repeat(500_000));
    // The first half is in the temporary file, and the target file still has the old content.
    let temp = ours.site.parent().expect("it lies in one").join("temp");
    let written = || {
        fs::read_dir(&temp).ok()?.find_map(|entry| entry.ok()?.metadata().ok().filter(|meta| meta.len() > 0))
    };
    testkit::wait::until("the temporary file", Deadline::default(), written).expect("it is written");
    assert_eq!(shown(&ours.site), site);
    // The client disconnects: no temporary file remains.
    drop(client);
    let is_gone = || fs::read_dir(&temp).is_ok_and(|mut entries| entries.next().is_none()).then_some(());
    testkit::wait::until("the end of the temporary file", Deadline::default(), is_gone)
        .expect("it is removed");
    assert_eq!(shown(&ours.site), site);
    // A complete upload, larger than any buffer, in chunks.
    let mut client = Client::connect(ours.server.addr(0));
    client.send("PUT /big.bin HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..30 {
        client.send(format!("{:x}\r\n{}\r\n", 100_000, "0123456789".repeat(10_000)));
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.response().status, 201);
    assert_eq!(
        fs::read(ours.site.join("big.bin")).expect("it is there"),
        "0123456789".repeat(300_000).as_bytes()
    );
    // The connection stays usable.
    client.send("GET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=5-9\r\n\r\n");
    assert_eq!(client.response().text(), "56789");
}

#[test]
fn deep_and_wide_trees_are_copied_moved_and_removed() {
    let ours = Side::start("dav-trees", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    plant(&ours.site);
    let deep = ours.site.join("tree").join(["d"; 300].join("/"));
    fs::create_dir_all(&deep).expect("a deep directory");
    fs::write(deep.join("leaf"), "leaf").expect("a file");
    for number in 0..2000 {
        fs::create_dir_all(ours.site.join(format!("tree/wide/{number}"))).expect("a directory");
    }
    let run =
        |method, target: &str, to: &str| case(method, target).field("Destination", to).send(&ours.server);
    assert!(run("COPY", "/tree/", "/copy/").starts_with("201"));
    let leaf = |top: &str| ours.site.join(top).join(["d"; 300].join("/")).join("leaf");
    assert_eq!(fs::read_to_string(leaf("copy")).expect("it is copied"), "leaf");
    assert_eq!(fs::read_dir(ours.site.join("copy/wide")).expect("it is copied").count(), 2000);
    assert!(run("MOVE", "/copy/", "/moved/").starts_with("201"));
    assert!(leaf("moved").exists() && !ours.site.join("copy").exists());
    // The destination is inside the source through a link: the copy excludes it.
    symlink("moved/wide", ours.site.join("way")).expect("a link");
    assert!(run("COPY", "/moved/", "/way/in/").starts_with("201"));
    assert!(
        ours.site.join("moved/wide/in/wide").exists() && !ours.site.join("moved/wide/in/wide/in").exists()
    );
    assert!(case("DELETE", "/moved/").send(&ours.server).starts_with("204"));
    assert!(!ours.site.join("moved").exists());
}

#[test]
fn symlinks_out_of_the_root_are_refused_where_configured() {
    for rule in ["root_beneath on;", "disable_symlinks on from=@SITE@;"] {
        let data = TempDir::new("dav-beneath");
        let site = data.path().join("site");
        plant(&site);
        let outside = data.path().join("outside");
        fs::create_dir_all(&outside).expect("a directory");
        symlink(&outside, site.join("out")).expect("a link");
        let conf = CONF
            .replace("location / { }", &format!("location / {{ {rule} create_full_put_path on; }}"))
            .replace("@SITE@", &site.display().to_string())
            .replace("@DATA@", &data.path().display().to_string());
        let server = Server::start(BINARY, &conf);
        for case in [
            case("PUT", "/out/new").body("x"),
            case("PUT", "/out/a/b").body("x"),
            case("MKCOL", "/out/new/"),
            case("COPY", "/a.txt").field("Destination", "/out/new"),
            case("MOVE", "/a.txt").field("Destination", "/out/new"),
        ] {
            let said = case.send(&server);
            assert!(said.starts_with("403") || said.starts_with("404"), "{rule} {case:?}: {said}");
        }
        assert_eq!(fs::read_dir(&outside).expect("it is there").count(), 0, "{rule}");
        assert!(case("PUT", "/dir/new").body("x").send(&server).starts_with("201"), "{rule}");
        assert!(case("PUT", "/p/q/new").body("x").send(&server).starts_with("201"), "{rule}");
    }
}

/// Requests for a tree with links out of the root, and the statuses that refuse them.
const ESCAPES: &[(&str, &str, &str)] = &[
    ("DELETE", "/dav/out/", ""),
    ("COPY", "/dav/out/", "/dav/cp/"),
    ("MOVE", "/dav/out/", "/dav/mv/"),
    ("COPY", "/dav/sub/", "/dav/out/new/"),
    ("MOVE", "/dav/sub/", "/dav/out/new/"),
    ("COPY", "/dav/out/secret", "/dav/cp"),
    ("COPY", "/dav/leak", "/dav/cp"),
    ("DELETE", "/dav/out/secret", ""),
    ("MKCOL", "/dav/out/new/", ""),
    ("PUT", "/dav/out/new", ""),
];

#[test]
fn a_trailing_slash_does_not_lead_out_of_the_root_through_a_link() {
    for rule in ["root_beneath on;", "disable_symlinks on from=@DATA@/dav;", "disable_symlinks on;"] {
        let data = TempDir::new("dav-escape");
        let (site, outside) = (data.dir("dav"), data.dir("outside"));
        fs::create_dir(site.join("sub")).expect("a directory");
        fs::create_dir(outside.join("deep")).expect("a directory");
        for path in [site.join("sub/a"), outside.join("secret"), outside.join("deep/b")] {
            fs::write(path, "text").expect("a file");
        }
        symlink(&outside, site.join("out")).expect("a link");
        symlink(outside.join("secret"), site.join("leak")).expect("a link");
        symlink(&outside, site.join("sub/out")).expect("a link");
        let conf = CONF
            .replace(
                "location / { }",
                &format!("location /dav/ {{ alias @DATA@/dav/; create_full_put_path on; {rule} }}"),
            )
            .replace("@SITE@", &site.display().to_string())
            .replace("@DATA@", &data.path().display().to_string());
        let server = Server::start(BINARY, &conf);
        let (inside, before) = (shown(&site), shown(&outside));
        for (method, target, destination) in ESCAPES {
            let mut case = case(method, target);
            if !destination.is_empty() {
                case = case.field("Destination", destination);
            }
            let said = if *method == "PUT" { case.body("x") } else { case }.send(&server);
            let refused = ["403", "404", "409"].iter().any(|status| said.starts_with(status));
            assert!(refused, "{rule} {method} {target} {destination}: {said}");
            assert_eq!(shown(&outside), before, "{rule} {method} {target} {destination}");
            assert_eq!(shown(&site), inside, "{rule} {method} {target} {destination}");
        }
        // Links inside a tree are copied as nothing, and removed without their targets.
        let copy = case("COPY", "/dav/sub/").field("Destination", "/dav/copy/").send(&server);
        assert!(copy.starts_with("201"), "{rule}: {copy}");
        assert!(site.join("copy/a").exists() && !site.join("copy/out").exists(), "{rule}");
        assert!(case("DELETE", "/dav/sub/").send(&server).starts_with("204"), "{rule}");
        assert_eq!(shown(&outside), before, "{rule}");
        // The directory in which the rules begin to apply remains.
        if rule == "disable_symlinks on;" {
            continue;
        }
        let said = case("DELETE", "/dav/").send(&server);
        assert!(said.starts_with("403"), "{rule}: {said}");
        assert!(site.join("copy/a").exists(), "{rule}");
    }
}

#[test]
fn a_copy_and_a_move_of_a_file_that_is_being_replaced_are_complete() {
    let ours = Side::start("dav-torn", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    let other = TempDir::on_other_filesystem("dav-torn-other");
    if let Some(other) = &other {
        symlink(other.path(), ours.site.join("far")).expect("a link");
    }
    let is_over = AtomicBool::new(false);
    let (small, large) = ("s".repeat(100), "l".repeat(50_000));
    let put = |text: &str| {
        let mut client = Client::connect(ours.server.addr(0));
        for number in 1.. {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            // `keepalive_requests` ends a connection after 1000 requests.
            if number % 1000 == 0 {
                client = Client::connect(ours.server.addr(0));
            }
            client.send(format!(
                "PUT /torn HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            ));
            assert!(matches!(client.response().status, 201 | 204));
        }
    };
    let whole = |path: &Path| {
        let text = fs::read_to_string(path).expect("it is complete");
        assert!(text == small || text == large, "{} of {}", text.len(), path.display());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| put(&small));
        scope.spawn(|| put(&large));
        let _over = Over(&is_over);
        testkit::wait::until("the file", Deadline::default(), || {
            ours.site.join("torn").exists().then_some(())
        })
        .expect("it is written");
        for number in 0..300 {
            let said = case("COPY", "/torn").field("Destination", "/copied").send(&ours.server);
            assert!(said.starts_with("204"), "{number}: {said}");
            whole(&ours.site.join("copied"));
        }
        let Some(other) = &other else { return };
        for number in 0..300 {
            let said = case("MOVE", "/torn").field("Destination", "/far/moved").send(&ours.server);
            // Between two uploads the file does not exist.
            if said.starts_with("404") {
                continue;
            }
            assert!(said.starts_with("204") || said.starts_with("500"), "{number}: {said}");
            if said.starts_with("204") {
                whole(&other.path().join("moved"));
            }
        }
    });
    let names = |path: &Path| fs::read_dir(path).expect("a directory").count();
    assert!(other.is_none_or(|other| names(other.path()) <= 1), "no temporary names");
}

/// Ends the uploads of a test, also when an assertion fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_full_file_system_is_reported_by_507() {
    let data = TempDir::new("dav-full");
    let site = data.path().join("site");
    plant(&site);
    let conf = CONF
        .replace("events {}", "events { engine_fault write error=ENOSPC path=@DATA@/; }")
        .replace("@SITE@", &site.display().to_string())
        .replace("@DATA@", &data.path().display().to_string());
    let server = Server::start(BINARY, &conf);
    assert!(case("PUT", "/new").body("text").send(&server).starts_with("507"));
    assert!(case("COPY", "/a.txt").field("Destination", "/new").send(&server).starts_with("507"));
    assert!(!site.join("new").exists());
}

#[test]
fn a_destination_of_a_client_behind_a_tls_terminator_is_accepted() {
    let ours = Side::start("dav-scheme", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    for (destination, status) in [
        ("https://example.org/new", "204"),
        ("HTTPS://Example.ORG:443/new", "204"),
        ("https://example.org.evil/new", "400"),
        ("https://other.org/new", "400"),
        ("ftp://example.org/new", "400"),
    ] {
        plant(&ours.site);
        let said = case("MOVE", "/a.txt").field("Destination", destination).send(&ours.server);
        assert!(said.starts_with(status), "{destination}: {said}");
        assert_eq!(ours.site.join("new").exists(), status == "204", "{destination}");
    }
}

#[test]
fn mkcol_creates_a_collection_without_the_final_slash() {
    let ours = Side::start("dav-slash", |conf| Some(Server::start(BINARY, conf))).expect("it starts");
    let make = |target: &str| case("MKCOL", target).send(&ours.server);
    assert!(make("/fresh").starts_with("201"));
    assert!(ours.site.join("fresh").is_dir());
    assert!(make("/fresh").starts_with("405"));
    assert!(make("/a.txt").starts_with("405"));
    assert!(make("/missing/x").starts_with("409"));
}
