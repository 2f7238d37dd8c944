//! The sandbox of workers, as operators see it: which files of a configuration it allows, and the lines about those that it
//! refuses. The restrictions themselves are tested in crate `sandbox`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::common::BINARY;
use testkit::wait::{Deadline, until};
use testkit::{Client, Server};

/// Starts a server with `sandbox on` and these directives in the main context and in the server. `html` is the root, and
/// `mirror` is a directory beside it.
fn serve(main: &str, server: &str, prepare: impl FnOnce(&Path)) -> Server {
    serve_in("on", main, server, prepare)
}

/// As [`serve`], with another mode of the sandbox.
fn serve_in(mode: &str, main: &str, server: &str, prepare: impl FnOnce(&Path)) -> Server {
    let text = format!(
        "sandbox {mode}; {main}\nevents {{ }}\nhttp {{ server {{ listen 127.0.0.1:0; root html; {server} }} }}\n"
    );
    let builder =
        Server::builder(BINARY).conf(&text).text("html/a.txt", "inside").text("mirror/b.txt", "mirrored");
    prepare(builder.dir());
    builder.start()
}

fn link(target: impl AsRef<Path>, at: impl AsRef<Path>) {
    symlink(target, at).expect("a fresh directory");
}

fn real(path: &Path) -> String {
    fs::canonicalize(path).expect("the directory exists").display().to_string()
}

#[test]
fn a_link_out_of_the_root_is_refused_with_the_directive_that_allows_it() {
    let with_link = |dir: &Path| link(dir.join("mirror"), dir.join("html/out"));
    let server = serve("", "", with_link);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/a.txt").text(), "inside");
    assert_eq!(client.get("/out/b.txt").status, 403);
    let dir = server.dir().display();
    let expected = format!(
        "the sandbox refuses \"{dir}/html/out/b.txt\", because the symbolic link \"{dir}/html/out\" leads out of the allowed \
         paths: \"sandbox_path {}/mirror;\" allows it, client: 127.0.0.1",
        real(server.dir())
    );
    server.wait_for_log(&expected, Deadline::default());
    // The client gets the response of nginx for a missing permission, and its line is logged too.
    server.wait_for_log("failed (13: Permission denied)", Deadline::default());

    let server = serve("sandbox_path mirror;", "", with_link);
    assert_eq!(Client::connect(server.addr(0)).get("/out/b.txt").text(), "mirrored");
    assert!(!server.error_log().contains("the sandbox refuses"), "{}", server.error_log());
}

/// A flood of refused requests does not fill the disk.
#[test]
fn refusals_are_logged_at_most_once_per_second_and_thread() {
    let server = serve("", "", |dir| link(dir.join("mirror"), dir.join("html/out")));
    let mut client = Client::connect(server.addr(0));
    for _ in 0..200 {
        assert_eq!(client.get("/out/b.txt").status, 403);
    }
    server.wait_for_log("the sandbox refuses", Deadline::default());
    server.wait_for_log_count("failed (13: Permission denied)", 200, Deadline::default());
    let log = server.error_log();
    let (refused, lines) = (log.matches("failed (13").count(), log.matches("the sandbox refuses").count());
    assert!(refused >= 100 && lines < 20, "{refused} refused, {lines} lines");
}

#[test]
fn a_missing_permission_is_not_attributed_to_the_sandbox() {
    let server = serve("", "", |dir| {
        fs::set_permissions(dir.join("html/a.txt"), fs::Permissions::from_mode(0o000)).expect("our file");
    });
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/a.txt").status, 403);
    server.wait_for_log("failed (13: Permission denied)", Deadline::default());
    assert!(!server.error_log().contains("the sandbox refuses"), "{}", server.error_log());
}

#[test]
fn a_path_that_only_a_request_determines_needs_sandbox_path() {
    let location = "location /v { alias $arg_dir/b.txt; }";
    let server = serve("", location, |_| ());
    let target = format!("/v?dir={}", server.path("mirror").display());
    assert_eq!(Client::connect(server.addr(0)).get(&target).status, 403);
    let log = server.wait_for_log("the sandbox refuses", Deadline::default());
    let expected =
        format!("no directive names a directory above it: \"sandbox_path {}/mirror;\"", real(server.dir()));
    assert!(log.contains(&expected), "{expected}\n{log}");
    let server = serve("sandbox_path mirror;", location, |_| ());
    let target = format!("/v?dir={}", server.path("mirror").display());
    assert_eq!(Client::connect(server.addr(0)).get(&target).text(), "mirrored");
}

#[test]
fn values_of_variables_in_the_configuration_are_allowed() {
    let server = serve("", "set $dir mirror; location /v/ { alias $dir/; }", |_| ());
    assert_eq!(Client::connect(server.addr(0)).get("/v/b.txt").text(), "mirrored");
}

/// A deployment creates a directory and changes a link, without a reload.
#[test]
fn a_changed_link_to_a_neighbour_needs_no_reload() {
    let server = serve("", "location /app/ { alias current/; }", |dir| {
        for release in ["releases/1", "releases/2"] {
            fs::create_dir_all(dir.join(release)).expect("a fresh directory");
            fs::write(dir.join(release).join("v.txt"), release).expect("a fresh directory");
        }
        link("releases/1", dir.join("current"));
    });
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/app/v.txt").text(), "releases/1");
    let next = server.dir().join("next");
    link("releases/2", &next);
    fs::rename(&next, server.dir().join("current")).expect("our directory");
    let served = until("the new release", Deadline::default(), || {
        let response = client.get("/app/v.txt");
        (response.text() == "releases/2").then_some(())
    });
    assert!(served.is_ok(), "{}", server.error_log());
}

/// Editors and `htpasswd` write a new file and rename it.
#[test]
fn a_replaced_password_file_needs_no_reload() {
    let users = |password: &str| format!("user:{{PLAIN}}{password}\n");
    let server = serve("", "auth_basic a; auth_basic_user_file users/list;", |dir| {
        fs::create_dir_all(dir.join("conf/users")).expect("a fresh directory");
        fs::write(dir.join("conf/users/list"), users("one")).expect("a fresh directory");
    });
    let mut client = Client::connect(server.addr(0));
    // user:one and user:two
    let mut status = |token: &str| client.request("GET", "/a.txt", &[("Authorization", token)]).status;
    assert_eq!(status("Basic dXNlcjpvbmU="), 200);
    fs::write(server.path("conf/users/new"), users("two")).expect("our directory");
    fs::rename(server.path("conf/users/new"), server.path("conf/users/list")).expect("our directory");
    assert_eq!((status("Basic dXNlcjpvbmU="), status("Basic dXNlcjp0d28=")), (401, 200));
}

/// Logs with variables, stored responses and WebDAV write; their directories are allowed, others are not.
#[test]
fn files_are_written_only_where_directives_name_a_directory() {
    let server = serve(
        "",
        "access_log logs/$arg_log.log; location /dav/ { dav_methods PUT DELETE; create_full_put_path on; }",
        |dir| {
            // The worker may have another user than this test.
            for writable in ["html/dav", "mirror", "logs"] {
                fs::create_dir_all(dir.join(writable)).expect("our directory");
                fs::set_permissions(dir.join(writable), fs::Permissions::from_mode(0o777))
                    .expect("our directory");
            }
            link(dir.join("mirror"), dir.join("html/dav/out"));
        },
    );
    let mut client = Client::connect(server.addr(0));
    let mut put = |target: &str| {
        client
            .send(format!("PUT {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"))
            .response()
            .status
    };
    assert_eq!(put("/dav/new/a?log=x"), 201);
    // As in nginx: a file that cannot be renamed is a server error.
    assert_eq!(put("/dav/out/a?log=x"), 500);
    server.wait_for_log("mirror rw;\" allows it", Deadline::default());
    assert!(!server.path("mirror/a").exists());
    let logged = until("a log", Deadline::default(), || server.path("logs/x.log").exists().then_some(()));
    assert!(logged.is_ok(), "{}", server.error_log());
}

/// A client cannot choose the port that the server connects to.
#[test]
fn strict_refuses_ports_that_no_directive_names() {
    let location = "location /p { proxy_pass http://127.0.0.1:$arg_port; }
        location /known { proxy_pass http://127.0.0.1:1; }";
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let server = serve_in("strict", "", location, |_| ());
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get(&format!("/p?port={port}")).status, 502);
    let expected =
        format!("the sandbox refuses connections to port {port}, because no directive names this port");
    server.wait_for_log(&expected, Deadline::default());
    // Nothing listens on the known port: the kernel lets the worker try.
    assert_eq!(client.get("/known").status, 502);
    server.wait_for_log("failed (111: Connection refused)", Deadline::default());
    listener.set_nonblocking(true).expect("a socket");
    assert!(listener.accept().is_err(), "the connection was made");
}
