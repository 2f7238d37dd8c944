//! Groups of servers: the choice of the next server, failures, and names of groups from variables.

use crate::support::{Upstream, closed_address, connect, read_all, serve};
use testkit::Deadline;

/// Returns the names that this many sessions get.
fn names(server: &testkit::Server, count: usize) -> Vec<String> {
    let name = |_| String::from_utf8(read_all(&mut connect(server.addr(0).tcp()))).expect("a name");
    (0..count).map(name).collect()
}

#[test]
fn servers_are_chosen_by_weight_and_failed_ones_are_skipped() {
    let (one, two) = (Upstream::named("one"), Upstream::named("two"));
    let server = serve(&format!(
        "upstream group {{ server {} weight=2; server {}; server {} max_fails=1; }}
         log_format tries '$upstream_addr'; access_log logs/tries.log tries;
         server {{ listen 127.0.0.1:0; proxy_pass group; }}",
        one.address,
        two.address,
        closed_address()
    ));
    let found = names(&server, 9);
    let ones = found.iter().filter(|name| *name == "one").count();
    assert!((5..=7).contains(&ones) && found.iter().all(|name| !name.is_empty()), "{found:?}");
    server.wait_for_log(
        "upstream server temporarily disabled while connecting to upstream",
        Deadline::default(),
    );
}

#[test]
fn a_backup_is_used_if_all_others_fail_and_without_one_there_is_no_live_upstream() {
    let backup = Upstream::named("backup");
    let server = serve(&format!(
        "upstream group {{ server {}; server {} backup; }}
         server {{ listen 127.0.0.1:0; proxy_pass group; }}",
        closed_address(),
        backup.address
    ));
    assert_eq!(names(&server, 2), ["backup", "backup"]);
    let (one, two) = (closed_address(), closed_address());
    let server = serve(&format!(
        "upstream group {{ server {one}; server {two}; }} server {{ listen 127.0.0.1:0; proxy_pass group; }}"
    ));
    assert_eq!(names(&server, 2), ["", ""]);
    let errors = server.wait_for_log("no live upstreams", Deadline::default());
    let expected = "no live upstreams while connecting to upstream, client: 127.0.0.1, server: 127.0.0.1:0, \
                    upstream: \"group\", bytes from/to client:0/0, bytes from/to upstream:0/0";
    assert!(errors.contains(expected), "{errors}");
}

#[test]
fn next_upstream_can_be_turned_off() {
    let other = Upstream::named("other");
    let server = serve(&format!(
        "upstream group {{ server {} weight=100; server {}; }}
         server {{ listen 127.0.0.1:0; proxy_next_upstream off; proxy_pass group; }}",
        closed_address(),
        other.address
    ));
    assert_eq!(names(&server, 1), [""]);
    assert!(server.wait_for_access_log(1, Deadline::default()).starts_with("502 "));
}

#[test]
fn every_method_of_choice_reaches_a_server() {
    let one = Upstream::named("one");
    for method in
        ["least_conn;", "random;", "random two;", "hash $remote_addr;", "hash $remote_addr consistent;"]
    {
        let server = serve(&format!(
            "upstream group {{ {method} zone z 64k; server {}; }} server {{ listen 127.0.0.1:0; proxy_pass group; }}",
            one.address
        ));
        assert_eq!(names(&server, 2), ["one", "one"], "{method}");
    }
}

#[test]
fn a_variable_selects_a_group_or_an_address() {
    let (one, two) = (Upstream::named("one"), Upstream::named("two"));
    let server = serve(&format!(
        "upstream first {{ server {}; }}
         map $server_port $target {{ default first; }}
         map $remote_addr $direct {{ default {}; }}
         server {{ listen 127.0.0.1:0; proxy_pass $target; }}
         server {{ listen 127.0.0.2:0; proxy_pass $direct; }}",
        one.address, two.address
    ));
    assert_eq!(read_all(&mut connect(server.addr(0).tcp())), b"one");
    assert_eq!(read_all(&mut connect(server.addr(1).tcp())), b"two");
}
