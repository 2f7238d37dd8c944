//! WebDAV classes 1 and 2: properties, locks, and the requests of rclone, Windows and macOS.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use crate::common::BINARY;
use testkit::{Client, Server, TempDir};

const CONF: &str = "worker_processes 1; error_log logs/error.log info; events {}
http {
    access_log off;
    client_body_temp_path @DATA@/temp;
    dav_ext_lock_zone zone=locks:64k timeout=100s;
    server {
        listen 127.0.0.1:0;
        root @DATA@/site;
        location / {
            dav_methods PUT DELETE MKCOL COPY MOVE;
            dav_ext_methods OPTIONS PROPFIND PROPPATCH LOCK UNLOCK;
            dav_ext_lock zone=locks;
            @RULE@
        }
        location /plain/ { dav_methods PUT; }
    }
}";

struct Site {
    server: Server,
    site: PathBuf,
    _data: TempDir,
}

/// A status, the response's text, and its lock token.
struct Answer(u16, String, String);

impl Site {
    fn start(rule: &str) -> Site {
        let data = TempDir::new("webdav");
        let site = data.dir("site");
        fs::create_dir(site.join("dir")).expect("a directory");
        fs::create_dir(site.join("dir/sub")).expect("a directory");
        for (name, text) in [("a.txt", "alpha"), ("dir/b.txt", "beta"), ("dir/sub/c & d.txt", "gamma")] {
            fs::write(site.join(name), text).expect("a file");
        }
        for directory in ["", "dir", "dir/sub"] {
            let all = fs::Permissions::from_mode(0o777);
            fs::set_permissions(site.join(directory), all).expect("its permissions");
        }
        let conf = CONF.replace("@RULE@", rule).replace("@DATA@", &data.path().display().to_string());
        Site { server: Server::start(BINARY, &conf), site, _data: data }
    }

    fn send(&self, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> Answer {
        let mut client = Client::connect(self.server.addr(0));
        let length = body.len().to_string();
        let mut all = vec![("Host", "example.org"), ("Connection", "close")];
        all.extend_from_slice(fields);
        if !body.is_empty() || method == "PUT" {
            all.push(("Content-Length", &length));
        }
        let head = testkit::client::request_bytes(method, target, &all);
        client.send([head, body.into()].concat());
        let response = client.response();
        let token = response.field("Lock-Token").unwrap_or_default().to_owned();
        Answer(response.status, response.text(), token)
    }

    fn status(&self, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> u16 {
        self.send(method, target, fields, body).0
    }

    /// Locks a resource; returns the token in its angle brackets.
    fn lock(&self, target: &str, depth: &str) -> String {
        let Answer(status, _, token) = self.send("LOCK", target, &[("Depth", depth)], LOCK);
        assert!(matches!(status, 200 | 201), "{target}: {status}");
        token
    }
}

const LOCK: &str = "<?xml version=\"1.0\"?><D:lockinfo xmlns:D=\"DAV:\"><D:lockscope><D:exclusive/></D:lockscope>\
    <D:locktype><D:write/></D:locktype><D:owner><D:href>me &amp; you</D:href></D:owner></D:lockinfo>";

#[test]
fn propfind_lists_a_resource_its_members_or_all_below() {
    let site = Site::start("");
    for (target, depth, count) in [
        ("/", "0", 1),
        ("/", "1", 3),
        ("/", "infinity", 6),
        ("/dir", "1", 3),
        ("/a.txt", "1", 1),
        ("/a.txt", "infinity", 1),
    ] {
        let Answer(status, text, _) = site.send("PROPFIND", target, &[("Depth", depth)], "");
        assert_eq!((status, text.matches("<D:response>").count()), (207, count), "{target} {depth}: {text}");
    }
    let Answer(_, text, _) = site.send("PROPFIND", "/dir", &[], "");
    assert!(text.contains("<D:href>/dir/sub/c%20&amp;%20d.txt</D:href>"), "{text}");
    assert!(text.contains("<D:getcontentlength>5</D:getcontentlength>"), "{text}");
    assert_eq!(site.status("PROPFIND", "/missing", &[("Depth", "0")], ""), 404);
    assert_eq!(site.status("PROPFIND", "/", &[("Depth", "2")], ""), 400);
    assert_eq!(site.status("PROPFIND", "/plain/", &[("Depth", "0")], ""), 405);
}

#[test]
fn propfind_returns_the_entity_tag_of_get_and_names_missing_properties() {
    let site = Site::start("");
    let mut client = Client::connect(site.server.addr(0));
    let etag = client.request("GET", "/a.txt", &[]).field("ETag").expect("a tag").to_owned();
    let body =
        "<propfind xmlns=\"DAV:\"><prop><getetag/><x xmlns=\"urn:y\"/><quota-used-bytes/></prop></propfind>";
    let Answer(status, text, _) = site.send("PROPFIND", "/a.txt", &[("Depth", "0")], body);
    assert_eq!(status, 207);
    assert!(text.contains(&etag.replace('"', "&quot;")), "{text}");
    let (found, missing) = text.split_once("200 OK").expect("both states");
    assert!(found.contains("getetag") && !found.contains("quota"), "{text}");
    assert!(missing.contains("<x xmlns=\"urn:y\"/>") && missing.contains("404 Not Found"), "{text}");
    let body = "<propfind xmlns=\"DAV:\"><propname/></propfind>";
    let Answer(_, text, _) = site.send("PROPFIND", "/dir/", &[("Depth", "0")], body);
    assert!(text.contains("<D:resourcetype/>") && !text.contains("getcontentlength"), "{text}");
}

#[test]
fn hostile_xml_bodies_are_refused() {
    let site = Site::start("");
    let laughs = "<!DOCTYPE x [<!ENTITY a \"aaaaaaaa\"><!ENTITY b \"&a;&a;&a;\">]><propfind xmlns=\"DAV:\">&b;</propfind>";
    let external =
        "<!DOCTYPE x [<!ENTITY a SYSTEM \"file:///etc/passwd\">]><propfind xmlns=\"DAV:\">&a;</propfind>";
    let deep = "<a>".repeat(5000);
    let wide = format!("<propfind xmlns=\"DAV:\"><prop>{}</prop></propfind>", "<x/>".repeat(3000));
    let large = format!("<propfind xmlns=\"DAV:\">{}</propfind>", " ".repeat(70_000));
    for (body, expected) in [
        (laughs, 400),
        (external, 400),
        (&*deep, 413),
        (&*wide, 413),
        (&*large, 413),
        ("<a", 400),
        ("\u{0}", 400),
    ] {
        for method in ["PROPFIND", "PROPPATCH", "LOCK"] {
            let status = site.status(method, "/a.txt", &[("Depth", "0")], body);
            assert_eq!(status, expected, "{method} {body:.60}");
        }
    }
}

#[test]
fn a_propfind_of_many_properties_cannot_fill_the_memory() {
    let site = Site::start("");
    (0..700).for_each(|number| fs::write(site.site.join(format!("dir/f{number}")), "").expect("a file"));
    let name = "n".repeat(52);
    let names: String = (0..990).map(|number| format!("<{name}{number}/>")).collect();
    let body = format!("<propfind xmlns=\"DAV:\"><prop>{names}</prop></propfind>");
    assert_eq!(site.status("PROPFIND", "/dir/", &[("Depth", "1")], &body), 507);
    assert_eq!(site.status("PROPFIND", "/dir/b.txt", &[("Depth", "0")], &body), 207);
    // Each name of the response would repeat this namespace.
    let namespace = "u".repeat(20_000);
    let body = format!("<propfind xmlns=\"DAV:\" xmlns:x=\"{namespace}\"><prop><x:a/></prop></propfind>");
    assert_eq!(site.status("PROPFIND", "/dir/b.txt", &[("Depth", "0")], &body), 413);
}

#[test]
fn propfind_does_not_list_links_out_of_the_root() {
    for rule in ["root_beneath on;", "disable_symlinks on;"] {
        let site = Site::start(rule);
        symlink("/etc", site.site.join("dir/out")).expect("a link");
        symlink("/etc/passwd", site.site.join("dir/leak")).expect("a link");
        let Answer(status, text, _) = site.send("PROPFIND", "/dir/", &[("Depth", "infinity")], "");
        assert_eq!(status, 207);
        assert!(!text.contains("/dir/out") && !text.contains("/dir/leak"), "{rule}: {text}");
        for target in ["/dir/out", "/dir/out/", "/dir/leak", "/dir/out/passwd"] {
            let status = site.status("PROPFIND", target, &[("Depth", "1")], "");
            assert!(matches!(status, 403 | 404), "{rule} {target}: {status}");
        }
    }
}

#[test]
fn a_lock_refuses_changes_without_its_token() {
    let site = Site::start("");
    let token = site.lock("/a.txt", "0");
    assert_eq!(site.status("LOCK", "/a.txt", &[], LOCK), 423);
    let to_a = [("Destination", "/a.txt")];
    let to_new = [("Destination", "/new")];
    for (method, target, fields) in [
        ("PUT", "/a.txt", &[][..]),
        ("DELETE", "/a.txt", &[]),
        ("MOVE", "/a.txt", &to_new),
        ("COPY", "/dir/b.txt", &to_a),
        ("MOVE", "/dir/b.txt", &to_a),
        ("DELETE", "/", &[]),
    ] {
        assert_eq!(site.status(method, target, fields, ""), 423, "{method} {target}");
    }
    let patch = "<propertyupdate xmlns=\"DAV:\"><set><prop><x/></prop></set></propertyupdate>";
    assert_eq!(site.status("PROPPATCH", "/a.txt", &[], patch), 423);
    assert_eq!(fs::read_to_string(site.site.join("a.txt")).expect("it is unchanged"), "alpha");
    // Reading is permitted, and so is a copy from the locked resource.
    assert_eq!(site.status("COPY", "/a.txt", &to_new, ""), 204);
    let sent = format!("({token})");
    assert_eq!(site.status("PUT", "/a.txt", &[("If", &sent)], "new"), 204);
    assert_eq!(site.status("PUT", "/a.txt", &[("If", "(<urn:uuid:other>)")], "new"), 412);
    // The token is that of another resource, and the condition on the entity tag holds.
    let tagged = format!("<http://example.org/a.txt> ({token})");
    assert_eq!(site.status("DELETE", "/a.txt", &[("If", &tagged)], ""), 204);
    // The lock has ended with its resource.
    assert_eq!(site.status("PUT", "/a.txt", &[], "again"), 201);
}

#[test]
fn a_lock_that_is_taken_during_an_upload_refuses_the_upload() {
    let site = Site::start("");
    let mut client = Client::connect(site.server.addr(0));
    client.send(
        "PUT /a.txt HTTP/1.1\r\nHost: example.org\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n",
    );
    // The request has been checked when the server asks for its body.
    assert_eq!(client.response().status, 100);
    client.send("old");
    let token = site.lock("/a.txt", "0");
    client.send("est");
    assert_eq!(client.response().status, 423);
    assert_eq!(fs::read_to_string(site.site.join("a.txt")).expect("it is unchanged"), "alpha");
    assert_eq!(site.status("PUT", "/a.txt", &[("If", &format!("({token})"))], "new"), 204);
    let temps = fs::read_dir(site.site.parent().expect("a parent").join("temp")).expect("the directory");
    assert_eq!(temps.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_file())).count(), 0);
}

#[test]
fn missing_directories_are_not_created_in_a_locked_collection() {
    let site = Site::start("create_full_put_path on;");
    let token = site.lock("/dir/", "0");
    assert_eq!(site.status("PUT", "/dir/new/er/x", &[], "x"), 423);
    assert_eq!(site.status("MOVE", "/a.txt", &[("Destination", "/dir/new/er/x")], ""), 423);
    assert!(!site.site.join("dir/new").exists());
    // The collection above and the members of another one are not locked.
    assert_eq!(site.status("PUT", "/dir/sub/new/x", &[], "x"), 201);
    assert_eq!(site.status("PUT", "/new/er/x", &[], "x"), 201);
    let tagged = format!("<http://example.org/dir/> ({token})");
    assert_eq!(site.status("PUT", "/dir/new/er/x", &[("If", &tagged)], "x"), 201);
}

#[test]
fn a_tagged_list_names_a_resource_by_an_ipv6_address() {
    let site = Site::start("");
    let token = site.lock("/a.txt", "0");
    let mut client = Client::connect(site.server.addr(0));
    for (tag, expected) in [
        ("http://[::1]:80/a.txt", 204),
        ("http://[::1]/a.txt", 204),
        ("http://[::1]x/a.txt", 412),
        ("http://[::2]/a.txt", 412),
    ] {
        client.send(format!(
            "PUT /a.txt HTTP/1.1\r\nHost: [::1]:80\r\nIf: <{tag}> ({token})\r\nContent-Length: 0\r\n\r\n"
        ));
        assert_eq!(client.response().status, expected, "{tag}");
    }
}

#[test]
fn the_token_of_another_user_gives_no_access() {
    let site = Site::start("");
    // me:x and you:x
    let (me, you) = (("Authorization", "Basic bWU6eA=="), ("Authorization", "Basic eW91Ong="));
    let Answer(status, _, token) = site.send("LOCK", "/a.txt", &[me], LOCK);
    assert_eq!(status, 200);
    let Answer(_, text, _) = site.send("PROPFIND", "/a.txt", &[you], "");
    assert!(text.contains(token.trim_matches(['<', '>'])), "{text}");
    let sent = format!("({token})");
    for thief in [&[you][..], &[]] {
        let with = |name, value| [thief, &[(name, value)]].concat();
        assert_eq!(site.status("PUT", "/a.txt", &with("If", &sent), "stolen"), 423);
        assert_eq!(site.status("DELETE", "/a.txt", &with("If", &sent), ""), 423);
        assert_eq!(site.status("LOCK", "/a.txt", &with("If", &sent), ""), 412);
        assert_eq!(site.status("UNLOCK", "/a.txt", &with("Lock-Token", &token), ""), 409);
    }
    assert_eq!(site.status("PUT", "/a.txt", &[me, ("If", &sent)], "mine"), 204);
    assert_eq!(site.status("UNLOCK", "/a.txt", &[me, ("Lock-Token", &token)], ""), 204);
}

#[test]
fn a_deep_lock_covers_everything_below_and_a_flat_one_the_names() {
    let site = Site::start("");
    let deep = site.lock("/dir/", "infinity");
    for (method, target) in
        [("PUT", "/dir/b.txt"), ("PUT", "/dir/sub/new"), ("MKCOL", "/dir/x/"), ("LOCK", "/dir/b.txt")]
    {
        let body = if method == "LOCK" { LOCK } else { "" };
        assert_eq!(site.status(method, target, &[], body), 423, "{method} {target}");
    }
    let sent = format!("({deep})");
    assert_eq!(site.status("PUT", "/dir/sub/new", &[("If", &sent)], "x"), 201);
    assert_eq!(site.status("UNLOCK", "/dir/", &[("Lock-Token", "<urn:uuid:other>")], ""), 409);
    assert_eq!(site.status("UNLOCK", "/dir/", &[], ""), 400);
    assert_eq!(site.status("UNLOCK", "/dir/", &[("Lock-Token", &deep)], ""), 204);
    let flat = site.lock("/dir/", "0");
    assert_eq!(site.status("PUT", "/dir/new", &[], "x"), 423);
    assert_eq!(site.status("PUT", "/dir/b.txt", &[], "x"), 204);
    // Without a tag the token is a condition on the new resource, which has no lock (RFC 4918 section 10.4.10).
    assert_eq!(site.status("MKCOL", "/dir/y", &[("If", &format!("({flat})"))], ""), 412);
    let tagged = format!("<http://example.org/dir/> ({flat})");
    assert_eq!(site.status("MKCOL", "/dir/y", &[("If", &tagged)], ""), 201);
}

#[test]
fn a_lock_of_a_missing_resource_creates_an_empty_file_and_is_refreshed() {
    let site = Site::start("");
    let Answer(status, text, token) =
        site.send("LOCK", "/new.txt", &[("Timeout", "Second-50, Infinite")], LOCK);
    assert_eq!(status, 201);
    assert!(text.contains("<D:href>me &amp; you</D:href>") && text.contains("Second-"), "{text}");
    assert_eq!(fs::read(site.site.join("new.txt")).expect("it is created"), b"");
    let sent = format!("({token})");
    let Answer(status, text, _) =
        site.send("LOCK", "/new.txt", &[("If", &sent), ("Timeout", "Infinite")], "");
    assert_eq!(status, 200);
    // The zone's timeout is the maximum.
    assert!(text.contains("<D:timeout>Second-99<") || text.contains("<D:timeout>Second-100<"), "{text}");
    assert_eq!(site.status("LOCK", "/missing/new.txt", &[], LOCK), 409);
    let Answer(_, text, _) = site.send("PROPFIND", "/new.txt", &[("Depth", "0")], "");
    assert!(text.contains(token.trim_matches(['<', '>'])), "{text}");
}

/// Several clients share a lock: each can change the resource, others cannot.
#[test]
fn shared_locks_stand_beside_each_other_and_exclude_exclusive_ones() {
    let site = Site::start("");
    let shared = LOCK.replace("exclusive", "shared");
    let user = |name: &str| format!("Basic {}", if name == "one" { "b25lOng=" } else { "dHdvOng=" });
    let lock = |name: &str| {
        let Answer(status, text, token) =
            site.send("LOCK", "/a.txt", &[("Depth", "0"), ("Authorization", &user(name))], &shared);
        assert_eq!(status, 200, "{text}");
        assert!(text.contains("<D:shared/>") && !text.contains("<D:exclusive/>"), "{text}");
        token
    };
    let (one, two) = (lock("one"), lock("two"));
    assert_eq!(site.status("LOCK", "/a.txt", &[], LOCK), 423);
    assert_eq!(site.status("PUT", "/a.txt", &[], "x"), 423);
    for (name, token) in [("one", &one), ("two", &two)] {
        let sent = format!("({token})");
        let fields = [("If", sent.as_str()), ("Authorization", &user(name))];
        assert_eq!(site.status("PUT", "/a.txt", &fields, name), 204);
    }
    let Answer(_, text, _) = site.send("PROPFIND", "/a.txt", &[("Depth", "0")], "");
    assert_eq!(text.matches("<D:activelock>").count(), 2, "{text}");
    assert!(text.contains("<D:lockscope><D:exclusive/>") && text.contains("<D:lockscope><D:shared/>"));
    for (name, token) in [("one", &one), ("two", &two)] {
        let fields = [("Lock-Token", token.as_str()), ("Authorization", &user(name))];
        assert_eq!(site.status("UNLOCK", "/a.txt", &fields, ""), 204);
    }
    assert_eq!(site.status("LOCK", "/a.txt", &[], LOCK), 200);
    assert_eq!(site.status("LOCK", "/a.txt", &[], &shared), 423);
}

#[test]
fn a_full_zone_of_locks_refuses_further_ones() {
    let site = Site::start("");
    let results: Vec<u16> = (0..300)
        .map(|number| site.status("LOCK", &format!("/file{number}"), &[("Depth", "0")], LOCK))
        .collect();
    assert_eq!(results[0], 201);
    assert_eq!(results[299], 507);
    assert!(!site.site.join("file299").exists());
    assert_eq!(site.status("PUT", "/a.txt", &[], "x"), 204);
}

/// Windows asks for OPTIONS first, locks a new file, uploads it, and sets its times by PROPPATCH.
#[test]
fn the_requests_of_windows_copy_a_file_with_its_time() {
    let site = Site::start("");
    let mut client = Client::connect(site.server.addr(0));
    let options = client.request("OPTIONS", "/", &[("User-Agent", "Microsoft-WebDAV-MiniRedir/10.0.19045")]);
    assert_eq!((options.status, options.field("DAV")), (200, Some("1, 2")));
    assert_eq!(options.field("MS-Author-Via"), Some("DAV"));
    assert!(options.field("Allow").is_some_and(|allow| allow.contains("PROPFIND") && allow.contains("LOCK")));
    assert_eq!(site.status("PROPFIND", "/new.doc", &[("Depth", "0")], ""), 404);
    assert_eq!(site.status("PUT", "/new.doc", &[], ""), 201);
    let token = site.lock("/new.doc", "0");
    let sent = format!("({token})");
    let patch = "<?xml version=\"1.0\" encoding=\"utf-8\" ?><D:propertyupdate xmlns:D=\"DAV:\" \
        xmlns:Z=\"urn:schemas-microsoft-com:\"><D:set><D:prop>\
        <Z:Win32CreationTime>Tue, 02 Jan 2024 03:04:05 GMT</Z:Win32CreationTime>\
        <Z:Win32LastModifiedTime>Tue, 02 Jan 2024 03:04:05 GMT</Z:Win32LastModifiedTime>\
        <Z:Win32FileAttributes>00000020</Z:Win32FileAttributes></D:prop></D:set></D:propertyupdate>";
    assert_eq!(site.status("PUT", "/new.doc", &[("If", &sent)], "text"), 204);
    let Answer(status, text, _) = site.send("PROPPATCH", "/new.doc", &[("If", &sent)], patch);
    assert_eq!(status, 207);
    assert!(text.contains("200 OK") && !text.contains("403"), "{text}");
    assert_eq!(fs::metadata(site.site.join("new.doc")).expect("it exists").mtime(), 1_704_164_645);
    assert_eq!(site.status("UNLOCK", "/new.doc", &[("Lock-Token", &token)], ""), 204);
    // Other properties are not stored; all changes of a request fail together.
    let patch = "<propertyupdate xmlns=\"DAV:\"><set><prop><x xmlns=\"urn:y\">1</x>\
        <Win32FileAttributes xmlns=\"urn:schemas-microsoft-com:\">0</Win32FileAttributes></prop></set></propertyupdate>";
    let Answer(status, text, _) = site.send("PROPPATCH", "/new.doc", &[], patch);
    assert_eq!(status, 207);
    assert!(text.contains("403 Forbidden") && text.contains("424 Failed Dependency"), "{text}");
}

/// The Finder locks a missing file, uploads with the token and its chunked coding, and renames with the lock.
#[test]
fn the_requests_of_macos_upload_a_locked_file() {
    let site = Site::start("");
    let body = "<?xml version=\"1.0\" encoding=\"utf-8\"?><D:propfind xmlns:D=\"DAV:\"><D:prop><D:getlastmodified/>\
        <D:getcontentlength/><D:creationdate/><D:resourcetype/></D:prop></D:propfind>";
    assert_eq!(site.status("PROPFIND", "/", &[("Depth", "1")], body), 207);
    let token = site.lock("/._new.txt", "0");
    let mut client = Client::connect(site.server.addr(0));
    client.send(format!(
        "PUT /._new.txt HTTP/1.1\r\nHost: example.org\r\nIf: ({token})\r\nX-Expected-Entity-Length: 4\r\n\
         Transfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\n\r\n"
    ));
    assert_eq!(client.response().status, 204);
    let sent = format!("<http://example.org/._new.txt> ({token})");
    let fields = [("If", &*sent), ("Destination", "http://example.org/new.txt"), ("Overwrite", "F")];
    assert_eq!(site.status("MOVE", "/._new.txt", &fields, ""), 204);
    assert_eq!(fs::read_to_string(site.site.join("new.txt")).expect("it is renamed"), "text");
    // The lock does not move.
    assert_eq!(site.status("PUT", "/new.txt", &[], "x"), 204);
}

/// rclone of Debian, if installed.
#[test]
fn rclone_copies_checks_moves_and_removes_a_tree() {
    let rclone = "/usr/bin/rclone";
    if !std::path::Path::new(rclone).exists() {
        return testkit::skip("rclone is not installed (apt-get install rclone)");
    }
    let site = Site::start("");
    let source = TempDir::new("webdav-source");
    fs::create_dir_all(source.path().join("deep/er")).expect("a directory");
    for (name, text) in [("one & two.txt", "one"), ("deep/er/b", "deep")] {
        fs::write(source.path().join(name), text).expect("a file");
    }
    let url = format!("http://{}/", site.server.addr(0).tcp());
    let run = |args: &[&str]| {
        let options =
            ["--config", "/dev/null", "--retries", "1", "--webdav-vendor", "other", "--webdav-url", &url];
        let output = std::process::Command::new(rclone).args(options).args(args).output().expect("it runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let local = source.path().display().to_string();
    run(&["copy", &local, ":webdav:up"]);
    run(&["check", &local, ":webdav:up", "--download"]);
    run(&["moveto", ":webdav:up", ":webdav:moved"]);
    let listed = run(&["lsf", "-R", ":webdav:moved"]);
    assert!(listed.contains("deep/er/b") && listed.contains("one & two.txt"), "{listed}");
    run(&["purge", ":webdav:moved"]);
    assert!(!site.site.join("moved").exists() && !site.site.join("up").exists());
}
