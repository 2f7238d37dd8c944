//! Directories that are replaced while a worker with `sandbox on` runs: its rules belong to the old ones, so the master replaces the
//! worker.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use crate::control::BINARY;
use testkit::wait::until;
use testkit::{Client, Content, Deadline, Server};

/// Starts a server with this root, in a directory with `site` and `next`, and a symbolic link out of the root that the sandbox
/// refuses. Returns `None` if the kernel has no Landlock.
fn serve(root: &str, more: &str, prepare: impl FnOnce(&Path)) -> Option<Server> {
    serve_with("", root, more, prepare)
}

fn serve_with(main: &str, root: &str, more: &str, prepare: impl FnOnce(&Path)) -> Option<Server> {
    let conf = format!(
        "{main} sandbox on; events {{}} http {{ proxy_cache_path cache keys_zone=z:1m;
         server {{ listen 127.0.0.1:0; root {root}; location /html/ {{ alias html/; }} {more} }} }}"
    );
    let builder = Server::builder(BINARY).conf(&conf).text("out/b.txt", "out").text("html/a.txt", "html");
    let builder = builder.text("site/a.txt", "old").text("next/a.txt", "new");
    symlink(builder.dir().join("out/b.txt"), builder.dir().join("html/link")).expect("a new name");
    prepare(builder.dir());
    let server = builder.start();
    if get(&server, "/html/link").0 == 200 {
        testkit::skip("the kernel has no Landlock");
        return None;
    }
    Some(server)
}

fn get(server: &Server, path: &str) -> (u16, String) {
    let response = Client::connect(server.addr(0)).get(path);
    (response.status, response.text().to_owned())
}

/// Creates a directory that the user of the worker may write to.
fn create_for_all(path: &Path) {
    fs::create_dir_all(path).expect("a new directory");
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("our own directory");
}

/// Waits: what must not happen has no event.
fn pause(time_ms: u64) {
    testkit::wait::let_pass(Duration::from_millis(time_ms));
}

fn rename(server: &Server, from: &str, to: &str) {
    fs::rename(server.path(from), server.path(to)).expect("both are in the same directory");
}

/// Requests a path until the response has this text. Until then the response is 403.
fn wait_for_text(server: &Server, path: &str, text: &str) {
    let is_served = || match get(server, path) {
        (200, found) if found == text => Some(()),
        (403, _) => None,
        other => panic!("{other:?}\n{}", server.error_log()),
    };
    until("the new directory is served", Deadline::default(), is_served).unwrap_or_else(|late| {
        panic!("{late}\n{}", server.error_log());
    });
}

fn wait_for_new_worker(server: &Server, before: &[i32]) {
    let is_alone = || server.is_replaced(before).then_some(());
    until("the new worker serves alone", Deadline::default(), is_alone)
        .unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
}

/// `mv site site.old; mv next site`: nginx serves the new directory, and no response in flight is cut off.
#[test]
fn a_replaced_root_is_served_by_a_new_worker_with_the_present_configuration() {
    let body = Content::new(7, 8 << 20);
    let Some(mut server) = serve("site", "", |dir| body.write_to(&dir.join("site/large.bin"))) else {
        return;
    };
    let before = server.workers();
    assert_eq!(get(&server, "/a.txt"), (200, "old".to_owned()));
    let mut download = TcpStream::connect(server.addr(0).tcp()).expect("the server listens");
    download
        .write_all(b"GET /large.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect("a request");
    let mut received = vec![0; 1];
    download.read_exact(&mut received).expect("the response has begun");
    // A configuration that was edited and not reloaded does not come into force.
    let edited = server.conf().replace("location /html/", "location /edited { return 200; } location /html/");
    server.rewrite_conf(&edited);
    rename(&server, "site", "site.old");
    rename(&server, "next", "site");
    wait_for_text(&server, "/a.txt", "new");
    let log = server.wait_for_log("a new worker process is needed: ", Deadline::default());
    assert!(log.contains("/site\" of \"root\": it was replaced since the worker was started"), "{log}");
    assert_ne!(get(&server, "/edited").0, 200);
    download.read_to_end(&mut received).expect("the old worker finishes its response");
    let start = received.windows(4).position(|window| window == b"\r\n\r\n").expect("a header section");
    body.assert_body(&received[start + 4..]);
    drop(download);
    wait_for_new_worker(&server, &before);
    // The new worker has the same restrictions, and the edited configuration can be reloaded.
    assert_eq!(get(&server, "/html/link").0, 403);
    server.reload();
    server.wait_for_log("in place", Deadline::default());
    assert_eq!(get(&server, "/edited").0, 200);
    assert!(server.quit_and_wait().success());
}

/// The refusal is not a riddle, and causes the new worker.
#[test]
fn a_refusal_below_a_replaced_root_names_the_root() {
    let Some(server) = serve("site", "", |_| ()) else { return };
    rename(&server, "site", "site.old");
    rename(&server, "next", "site");
    wait_for_text(&server, "/a.txt", "new");
    let log = server.error_log();
    // The comparison of each second may precede the first request.
    if let Some(line) =
        log.lines().find(|line| line.contains("the sandbox refuses \"") && !line.contains("link"))
    {
        let dir = server.dir().display();
        let expected =
            format!("\"{dir}/site/a.txt\", because \"{dir}/site\" led to another file or directory");
        assert!(line.contains(&expected), "{line}");
    }
}

#[test]
fn a_root_that_is_removed_and_created_again_is_served_without_a_request_before() {
    let Some(server) = serve("site", "", |_| ()) else { return };
    let before = server.workers();
    fs::remove_dir_all(server.path("site")).expect("our directory");
    fs::create_dir(server.path("site")).expect("it was removed");
    fs::write(server.path("site/a.txt"), "again").expect("our directory");
    wait_for_new_worker(&server, &before);
    assert_eq!(get(&server, "/a.txt"), (200, "again".to_owned()));
    assert!(!server.error_log().contains("/a.txt"), "{}", server.error_log());
}

/// Deployments that switch a symbolic link to another disk.
#[test]
fn a_link_that_leads_elsewhere_is_served_by_a_new_worker() {
    let prepare = |dir: &Path| {
        fs::create_dir_all(dir.join("far/v2")).expect("a new directory");
        fs::write(dir.join("far/v2/a.txt"), "two").expect("our directory");
        fs::create_dir(dir.join("app")).expect("a new directory");
        symlink(dir.join("site"), dir.join("app/current")).expect("a new name");
    };
    let Some(server) = serve("app/current", "", prepare) else { return };
    assert_eq!(get(&server, "/a.txt"), (200, "old".to_owned()));
    symlink(server.path("far/v2"), server.path("app/next")).expect("a new name");
    rename(&server, "app/next", "app/current");
    wait_for_text(&server, "/a.txt", "two");
}

/// Neighbours such as `releases/7` and `releases/8` are all permitted from the start.
#[test]
fn a_link_to_a_neighbour_is_switched_without_a_new_worker() {
    let prepare = |dir: &Path| {
        for (release, text) in [("7", "seven"), ("8", "eight")] {
            fs::create_dir_all(dir.join("app/releases").join(release)).expect("a new directory");
            fs::write(dir.join("app/releases").join(release).join("a.txt"), text).expect("our directory");
        }
        symlink("releases/7", dir.join("app/current")).expect("a new name");
    };
    let Some(server) = serve("app/current", "", prepare) else { return };
    let before = server.workers();
    assert_eq!(get(&server, "/a.txt"), (200, "seven".to_owned()));
    symlink("releases/8", server.path("app/next")).expect("a new name");
    rename(&server, "app/next", "app/current");
    assert_eq!(get(&server, "/a.txt"), (200, "eight".to_owned()));
    // A reload compares the same paths as the master does by itself.
    server.reload();
    server.wait_for_log("in place", Deadline::default());
    assert_eq!(server.workers(), before);
}

/// A worker that was taken over replaces a directory in its cache by a link: no worker gets the target.
#[test]
fn a_directory_that_workers_may_replace_by_a_link_gives_nothing() {
    let more = "location /c/ { alias cache/site/; }";
    let prepare = |dir: &Path| fs::create_dir_all(dir.join("cache/site")).expect("a new directory");
    let Some(server) = serve("site", more, prepare) else { return };
    let before = server.workers();
    fs::remove_dir(server.path("cache/site")).expect("it is empty");
    symlink(server.path("out"), server.path("cache/site")).expect("the name is free");
    // Another replaced directory leads to a new worker, whose rules are made after the link.
    rename(&server, "site", "site.old");
    rename(&server, "next", "site");
    wait_for_new_worker(&server, &before);
    server.wait_for_log("where workers may have created it", Deadline::default());
    assert_eq!(get(&server, "/c/b.txt").0, 403);
    assert_eq!(get(&server, "/a.txt"), (200, "new".to_owned()));
}

/// While memory is scarce, the kernel gives files of /proc other inodes. They were not replaced.
#[test]
fn scarce_memory_is_no_reason_for_a_new_worker() {
    let evict = || fs::write("/proc/sys/vm/drop_caches", "2");
    if evict().is_err() {
        return testkit::skip("only root can evict inodes");
    }
    let Some(server) = serve("site", "", |_| ()) else { return };
    let before = server.workers();
    for _ in 0..5 {
        evict().expect("we are root");
        pause(100);
    }
    server.reload();
    server.wait_for_log("in place", Deadline::default());
    assert_eq!(server.workers(), before);
    assert!(!server.error_log().contains("a new worker process is needed"), "{}", server.error_log());
}

/// `mv site site.old`, a pause, `mv next site`: while the name is missing, no worker gets the directory above.
#[test]
fn a_path_that_is_missing_for_a_moment_gives_no_directory_above_it() {
    let more = "location /up/ { alias up/; } location /dav/ { alias site/; dav_methods PUT; }";
    let prepare = |dir: &Path| fs::create_dir_all(dir.join("up")).expect("a new directory");
    let Some(server) = serve("site", more, prepare) else { return };
    let before = server.workers();
    rename(&server, "site", "site.old");
    // Another replaced directory is a reason for a new worker, which is started after a while although `site` is missing.
    rename(&server, "up", "up.old");
    fs::create_dir(server.path("up")).expect("the name is free");
    fs::write(server.path("up/a.txt"), "up").expect("our directory");
    wait_for_text(&server, "/up/a.txt", "up");
    wait_for_new_worker(&server, &before);
    let between = server.workers();
    // The directory above contains the target of the refused link.
    assert_eq!(get(&server, "/html/link").0, 403, "{}", server.error_log());
    rename(&server, "next", "site");
    wait_for_text(&server, "/a.txt", "new");
    wait_for_new_worker(&server, &between);
    assert_eq!(get(&server, "/html/link").0, 403);
}

/// A comparison between two renames is not the beginning of a new worker.
#[test]
fn a_missing_path_is_no_reason_for_a_new_worker() {
    let Some(server) = serve("site", "", |_| ()) else { return };
    let before = server.workers();
    rename(&server, "site", "site.old");
    // Refusals lead to comparisons. The worker reports two of them with a pause in between.
    for _ in 0..30 {
        assert_eq!(get(&server, "/a.txt").0, 404);
        pause(100);
    }
    assert_eq!(server.workers(), before, "{}", server.error_log());
    rename(&server, "next", "site");
    wait_for_text(&server, "/a.txt", "new");
}

/// The directory above a missing path is permitted at the start. When the path exists, a new worker is permitted only the path.
#[test]
fn a_path_that_exists_later_takes_the_directory_above_away() {
    let more = "location /later/ { alias up/later/; }";
    let prepare = |dir: &Path| {
        fs::create_dir_all(dir.join("up")).expect("a new directory");
        fs::create_dir(dir.join("secret")).expect("a new directory");
        fs::write(dir.join("up/secret.txt"), "secret").expect("our directory");
        symlink(dir.join("up/secret.txt"), dir.join("site/link")).expect("a new name");
    };
    let Some(server) = serve("site", more, prepare) else { return };
    let before = server.workers();
    assert_eq!(get(&server, "/link").0, 200, "the directory above is permitted");
    fs::create_dir(server.path("up/later")).expect("the name is free");
    fs::write(server.path("up/later/a.txt"), "later").expect("our directory");
    assert_eq!(get(&server, "/later/a.txt").1, "later", "no pause");
    wait_for_new_worker(&server, &before);
    assert_eq!(get(&server, "/later/a.txt").1, "later");
    assert_eq!(get(&server, "/link").0, 403, "{}", server.error_log());
    assert!(server.error_log().contains("exists now"), "{}", server.error_log());
}

/// A worker that was taken over renames directories of the configuration inside of directories that it may write to.
#[test]
fn a_worker_cannot_cause_new_workers_by_its_own_directories() {
    let more = "location /c/ { alias cache/site/; } client_body_temp_path cache/temp;";
    let prepare = |dir: &Path| fs::create_dir_all(dir.join("cache/site")).expect("a new directory");
    let Some(server) = serve("site", more, prepare) else { return };
    let before = server.workers();
    for turn in 0..3 {
        for name in ["site", "temp"] {
            let path = server.path(&format!("cache/{name}"));
            fs::rename(&path, server.path(&format!("cache/{name}.{turn}"))).expect("it exists");
            pause(700);
            match turn {
                0 => symlink(server.path("out"), path).expect("the name is free"),
                _ => fs::create_dir(path).expect("the name is free"),
            }
            pause(700);
        }
    }
    assert_eq!(server.workers(), before, "{}", server.error_log());
    assert!(!server.error_log().contains("a new worker process is needed"), "{}", server.error_log());
}

/// The temporary directories of a new worker are created, as a reload does.
#[test]
fn directories_for_workers_are_created_for_a_new_worker() {
    let more = "client_body_temp_path app/temp; location /put/ { alias put/; dav_methods PUT; }";
    let prepare = |dir: &Path| {
        for name in ["app", "put"] {
            create_for_all(&dir.join(name));
        }
    };
    let Some(server) = serve("site", more, prepare) else { return };
    let before = server.workers();
    assert!(server.path("app/temp").is_dir());
    rename(&server, "app", "app.old");
    fs::create_dir(server.path("app")).expect("the name is free");
    rename(&server, "site", "site.old");
    rename(&server, "next", "site");
    wait_for_new_worker(&server, &before);
    assert!(server.path("app/temp").is_dir());
    let response = Client::connect(server.addr(0)).request("PUT", "/put/a", &[("Content-Length", "0")]);
    assert_eq!(response.status, 201, "{}", server.error_log());
}

/// A directory that a new worker may write to may contain its links, which the master does not follow.
#[test]
fn links_in_a_directory_that_a_new_worker_may_write_to_are_not_followed() {
    let more = "location /put/ { alias current/; dav_methods PUT; } access_log far/two/a.log;";
    // Links of other users are not followed in any case.
    let main = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let prepare = |dir: &Path| {
        // A missing directory of the cache would make the directory above one of workers.
        for name in ["near/one", "far/two", "cache"] {
            create_for_all(&dir.join(name));
        }
        symlink(dir.join("near/one"), dir.join("current")).expect("a new name");
    };
    let Some(server) = serve_with(main, "site", more, prepare) else { return };
    let before = server.workers();
    symlink(server.path("far/two"), server.path("next-link")).expect("a new name");
    rename(&server, "next-link", "current");
    wait_for_new_worker(&server, &before);
    let put = || Client::connect(server.addr(0)).request("PUT", "/put/b", &[("Content-Length", "0")]).status;
    until("the new worker may write", Deadline::default(), || (put() < 300).then_some(()))
        .unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
    // The worker replaces the log by a link.
    fs::remove_file(server.path("far/two/a.log")).expect("the log");
    symlink(server.path("out/b.txt"), server.path("far/two/a.log")).expect("the name is free");
    server.signal(rustix::process::Signal::USR1);
    let log = server.wait_for_log("far/two/a.log\" failed", Deadline::default());
    assert!(log.contains("a symbolic link in the path is followed only if"), "{log}");
    get(&server, "/a.txt");
    assert_eq!(fs::read_to_string(server.path("out/b.txt")).expect("our file"), "out");
}

/// While a worker starts, `mv site site.old; mv next site`, and back again when it serves: the worker has the rule for `site` or is replaced.
#[test]
fn a_directory_that_is_replaced_while_a_worker_starts_is_served_afterwards() {
    let many: String = (0..20_000).map(|number| format!("location /x{number}/ {{ return 204; }} ")).collect();
    let Some(mut server) = serve("site", "", |_| ()) else { return };
    let before = server.workers();
    let conf = server.conf().replace("sandbox on;", "sandbox on; env A=b;");
    server.rewrite_conf(&conf.replace("location /html/", &format!("{many} location /html/")));
    server.signal(rustix::process::Signal::HUP);
    // The master has made its rules.
    server.wait_for_log_count("start worker process ", 2, Deadline::default());
    rename(&server, "site", "site.old");
    rename(&server, "next", "site");
    wait_for_new_worker(&server, &before);
    rename(&server, "site", "next");
    rename(&server, "site.old", "site");
    wait_for_text(&server, "/a.txt", "old");
    // The worker does not need the master's comparison to find out.
    server.wait_for_log("a path was replaced while the worker process was started", Deadline::default());
}
