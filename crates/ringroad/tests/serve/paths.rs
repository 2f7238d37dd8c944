//! Paths: no name, however encoded, accesses a file outside the root; links are followed unless `root_beneath` forbids
//! it.

use crate::common;
use std::os::unix::fs::symlink;

use crate::common::{client, one_server, ours_only, refused, serve_with};
use testkit::Server;
use testkit::server::ServerBuilder;

const SECRET: &str = "secret outside the root";

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn files(builder: ServerBuilder) -> ServerBuilder {
    let builder = builder
        .text("secret.txt", SECRET)
        .text("html/a.txt", "inside")
        .text("html/d/b.txt", "deeper")
        .text("html/with space", "space")
        .text("html/per%cent", "cent")
        .text("html/back\\slash", "backslash")
        .text("html/q?uestion", "question")
        .text("html/\u{fc}ber", "umlaut");
    let link = |to: &str, name: &str| {
        symlink(to, builder.dir().join("html").join(name)).expect("a fresh directory");
    };
    link("../secret.txt", "out.txt");
    link("..", "up");
    link("a.txt", "in.txt");
    link("d", "folder");
    link("loop", "loop");
    link("nowhere", "dangling");
    let absolute = builder.dir().join("secret.txt");
    link(absolute.to_str().expect("temporary names are text"), "absolute.txt");
    builder
}

fn site(directives: &str) -> Server {
    serve_with(&one_server("", &format!("root html; {directives}")), files)
}

#[test]
fn file_names_are_percent_decoded_once() {
    let server = site("");
    let mut client = client(&server);
    for (target, wanted) in [
        ("/a.txt", "inside"),
        ("/%61%2Etxt", "inside"),
        ("//d///b.txt", "deeper"),
        ("/d/./b.txt", "deeper"),
        ("/d/../a.txt", "inside"),
        ("/d/%2e%2e/a.txt", "inside"),
        ("/d/%2E./a.txt", "inside"),
        ("/nothing/../a.txt", "inside"),
        ("/with%20space", "space"),
        ("/per%25cent", "cent"),
        ("/back%5Cslash", "backslash"),
        ("/back\\slash", "backslash"),
        ("/q%3Fuestion", "question"),
        ("/%C3%BCber", "umlaut"),
        ("/d%2Fb.txt", "deeper"),
        ("/a.txt#fragment", "inside"),
    ] {
        assert_eq!(client.get(target).text(), wanted, "{target}");
    }
    assert_eq!(client.get("/per%2525cent").status, 404, "decoded once, not twice");
}

#[test]
fn paths_above_the_root_are_refused() {
    let server = site("");
    for target in [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/.%2e/secret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%2fsecret.txt",
        "/d/../../secret.txt",
        "/d/%2e%2e/%2e%2e/secret.txt",
        "/d//../../../secret.txt",
        "/d/..%2f..%2fsecret.txt",
        "/./../secret.txt",
        "/../html/a.txt",
        "/..",
        "/d/../..",
        "/%2e%2e",
    ] {
        assert_eq!(refused(&server, get(target)), 400, "{target}");
    }
    let mut client = client(&server);
    for target in
        ["/...", "/..a", "/..%5csecret.txt", "/.../secret.txt", "/%252e%252e/secret.txt", "/..;/secret.txt"]
    {
        let response = client.get(target);
        assert_eq!(response.status, 404, "{target}");
        assert!(!response.text().contains(SECRET), "{target}");
    }
}

#[test]
fn paths_above_an_alias_are_refused() {
    let server = site("location /i/ { alias html/d/; } location /x { alias html/d; }");
    let mut client = client(&server);
    assert_eq!(client.get("/i/b.txt").text(), "deeper");
    for target in ["/i/../secret.txt", "/i/%2e%2e/secret.txt", "/i/..%2fsecret.txt"] {
        assert_eq!(client.get(target).status, 404, "{target}: no such file in the root");
    }
    assert_eq!(refused(&server, get("/i/../../secret.txt")), 400);
    // The well-known misconfiguration of a prefix without its slash: /x../ would be html/d../. It names a sibling, not
    // the parent, as the text after the prefix is appended to the alias without a slash.
    assert_eq!(client.get("/x../a.txt").status, 404);
}

#[test]
fn impossible_file_names_are_refused() {
    let server = site("");
    for target in ["/a.txt%00", "/%00", "/a%00.txt", "/d/%00/../a.txt", "/a.txt%00.html"] {
        assert_eq!(refused(&server, get(target)), 400, "{target}");
    }
    for target in ["/%", "/%2", "/%zz", "/a%2gb"] {
        assert_eq!(refused(&server, get(target)), 400, "{target}");
    }
    let mut client = client(&server);
    // ENAMETOOLONG: 404, as in nginx.
    assert_eq!(client.get(&format!("/{}", "x".repeat(300))).status, 404);
    assert_eq!(client.get(&format!("/{}a.txt", "d/".repeat(2500))).status, 404);
    assert_eq!(client.get(&format!("/{}a.txt", "d/../".repeat(600))).text(), "inside");
}

#[test]
fn symlinks_are_followed_to_any_target() {
    let server = serve_with(&one_server("", "root html;"), |builder| files(builder).sandbox_path("."));
    let mut client = client(&server);
    assert_eq!(client.get("/out.txt").text(), SECRET);
    assert_eq!(client.get("/absolute.txt").text(), SECRET);
    assert_eq!(client.get("/up/secret.txt").text(), SECRET);
    assert_eq!(client.get("/in.txt").text(), "inside");
    assert_eq!(client.get("/folder/b.txt").text(), "deeper");
    assert_eq!(client.get("/dangling").status, 404);
    assert_eq!(client.get("/loop").status, 403, "nginx treats ELOOP as a forbidden link");
}

#[test]
fn root_beneath_refuses_symlinks_out_of_the_root() {
    if !ours_only("root_beneath is a directive of this project") {
        return;
    }
    for disk in ["", "aio threads;", "aio off;"] {
        let server = site(&format!("root_beneath on; {disk}"));
        let mut client = client(&server);
        for target in ["/out.txt", "/absolute.txt", "/up/secret.txt"] {
            let response = client.get(target);
            assert!(matches!(response.status, 403 | 404), "{target} with {disk:?}: {}", response.status);
            assert!(!response.text().contains(SECRET), "{target} with {disk:?}");
        }
        assert_eq!(client.get("/in.txt").text(), "inside", "{disk:?}");
        assert_eq!(client.get("/folder/b.txt").text(), "deeper", "{disk:?}");
        assert_eq!(client.get("/a.txt").text(), "inside", "{disk:?}");
        assert_eq!(client.get("/missing").status, 404, "{disk:?}");
    }
}

#[test]
fn root_beneath_opens_roots_that_are_created_later_but_none_with_variables() {
    if !ours_only("root_beneath is a directive of this project") {
        return;
    }
    let roots = "location / { root html/later; } location /site/ { root html/$arg_site; }";
    let server = serve_with(&one_server("root_beneath on;", roots), |builder| {
        let builder = builder.text("html/one/site/a.txt", "one").text("secret.txt", SECRET);
        let link = builder.dir().join("html/one/site/out.txt");
        symlink("../../../secret.txt", link).expect("a fresh directory");
        builder
    });
    let mut client = client(&server);
    assert_eq!(client.get("/a.txt").status, 404);
    let later = server.path("html/later");
    std::fs::create_dir(&later).expect("create the root");
    std::fs::write(later.join("a.txt"), "later").expect("write a file");
    assert_eq!(client.get("/a.txt").text(), "later");
    for target in ["/site/a.txt?site=one", "/site/out.txt?site=one", "/site/secret.txt?site=../.."] {
        assert_eq!(client.get(target).status, 404, "{target}");
    }
}

#[test]
fn a_root_from_a_variable_cannot_be_left() {
    let server = serve_with(&one_server("", "location / { root html/$arg_site; }"), |builder| {
        builder.text("html/one/a.txt", "one").text("html/two/a.txt", "two").text("secret.txt", SECRET)
    });
    let mut client = client(&server);
    assert_eq!(client.get("/a.txt?site=one").text(), "one");
    assert_eq!(client.get("/a.txt?site=two").text(), "two");
    assert_eq!(client.get("/a.txt?site=three").status, 404);
}

#[test]
fn file_names_are_case_and_dot_sensitive() {
    let server = site("location = /d/b.txt { return 200 exact; }");
    let mut client = client(&server);
    assert_eq!(client.get("/d//b.txt").text(), "exact", "the location is chosen by the clean path");
    assert_eq!(client.get("/D/b.txt").status, 404);
    assert_eq!(client.get("/a.txt.").status, 404);
    let unmerged = site("merge_slashes off; location = /d/b.txt { return 200 exact; }");
    assert_eq!(common::client(&unmerged).get("/d//b.txt").text(), "deeper");
}
