//! Tests over a socket how files are found, listed and cached. The settings of the directives, and the errors of
//! invalid ones, are tested in each module.
#![expect(clippy::disallowed_methods, reason = "a test may wait")]

use crate::support::Site;
use rustix::fs::{AtFlags, CWD, Gid, Uid};

fn link(site: &Site, target: &str, name: &str) {
    rustix::fs::symlink(target, site.folder.path().join(name)).expect("a link is made");
}

/// Replaces a file by rename, as an editor or a deployment does.
fn replace(site: &Site, name: &str, text: &str) {
    let new = site.folder.write("new", text);
    rustix::fs::rename(new, site.folder.path().join(name)).expect("it is renamed");
}

fn remove(site: &Site, name: &str) {
    rustix::fs::unlink(site.folder.path().join(name)).expect("it is removed");
}

/// The usual atomic deployment: the root is a symbolic link that is replaced.
#[test]
fn realpath_root_follows_a_switched_link() {
    let site = Site::start(
        "realpath",
        "access_log off; root current;
         server { listen 127.0.0.1:PORT; location / { return 200 $realpath_root; }
           location /variable { root $arg_root; return 200 $realpath_root; } }",
    );
    let (first, second) = (site.folder.dir("first"), site.folder.dir("second"));
    let [first, second] =
        [first, second].map(|path| path.canonicalize().expect("it is there").display().to_string());
    assert_eq!(site.text("/"), "");
    let failed = site.lines("error.log", 1).join("\n");
    assert!(
        failed.contains("[crit]") && failed.contains("current\" failed (2: No such file or directory)"),
        "{failed}"
    );
    for (name, expected) in [("first", &first), ("second", &second)] {
        link(&site, name, "new");
        let switched = rustix::fs::rename(site.folder.path().join("new"), site.folder.path().join("current"));
        switched.expect("it is renamed");
        let found = || (site.text("/") == *expected).then_some(());
        testkit::wait::until("the switched root", testkit::Deadline::default(), found)
            .expect("it is resolved again");
    }
    let root = site.folder.path().join("current");
    assert_eq!(site.text(&format!("/variable?root={}", root.display())), second);
    assert_eq!(site.text("/variable?root=/"), "/");
}

#[test]
fn directories_are_listed_in_each_format() {
    let site = Site::start(
        "autoindex",
        "access_log off; root .; autoindex on;
         server { listen 127.0.0.1:PORT; location /json/ { autoindex_format json; alias list/; }
           location /jsonp/ { autoindex_format jsonp; alias list/; } location /xml/ { autoindex_format xml; alias list/; }
           location /rough/ { autoindex_exact_size off; alias list/; } location /off/ { autoindex off; alias list/; }
           location /utf8/ { charset utf-8; alias wide/; } location /bytes/ { alias wide/; }
           location ~ ^/pattern/(.*) { alias $1; } }",
    );
    site.folder.write("list/b <&> c", "12345");
    site.folder.write("list/a", vec![b'x'; 20_000]);
    site.folder.write("list/.hidden", "");
    site.folder.dir("list/folder");
    link(&site, "a", "list/link");
    link(&site, "nowhere", "list/broken");
    let response = site.get("/list/");
    assert_eq!(response.field("Content-Type"), Some("text/html"));
    let text = response.text();
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("<a href=\"")).collect();
    let hrefs: Vec<&str> = names.iter().filter_map(|line| line.split('"').next()).collect();
    assert_eq!(hrefs, ["folder/", "a", "b%20%3C%26%3E%20c", "broken", "link"]);
    assert!(text.starts_with("<html>\r\n<head><title>Index of /list/</title></head>\r\n<body>\r\n<h1>Index of /list/</h1><hr><pre><a href=\"../\">../</a>\r\n"), "{text}");
    assert!(text.ends_with("</pre><hr></body>\r\n</html>\r\n"), "{text}");
    assert!(text.contains(">b &lt;&amp;&gt; c</a>") && text.contains("               20000\r\n"), "{text}");
    assert!(site.text("/rough/").contains("    20K\r\n"));
    site.folder.write(&format!("wide/{}", "\u{e9}".repeat(51)), "");
    let response = site.get("/utf8/");
    assert_eq!(response.field("Content-Type"), Some("text/html; charset=utf-8"));
    assert!(
        response.text().contains(&format!(">{}..&gt;</a>", "\u{e9}".repeat(47))),
        "columns are characters"
    );
    assert!(site.get("/bytes/").body.windows(13).any(|bytes| bytes == b"\xa9\xc3..&gt;</a> "), "or bytes");
    let response = site.get("/json/");
    assert_eq!(response.field("Content-Type"), Some("application/json"));
    let text = response.text();
    assert!(text.starts_with("[\r\n{ \"name\":\"folder\", \"type\":\"directory\", \"mtime\":\""), "{text}");
    assert!(
        text.contains("\"name\":\"link\", \"type\":\"file\"") && text.contains("\"type\":\"other\""),
        "{text}"
    );
    assert!(text.ends_with(", \"size\":20000 }\r\n]"), "{text}");
    assert_eq!(site.text("/jsonp/"), text, "without a function it is plain");
    let response = site.get("/jsonp/?callback=my.f_1");
    assert_eq!(response.field("Content-Type"), Some("application/javascript"));
    assert_eq!(response.text(), format!("/* callback */\r\nmy.f_1({text});"));
    assert_eq!(site.status("/jsonp/?callback=a-b"), 400);
    assert_eq!(site.status(&format!("/jsonp/?callback={}", "a".repeat(129))), 400);
    let response = site.get("/xml/");
    assert_eq!(response.field("Content-Type"), Some("text/xml; charset=utf-8"));
    let text = response.text();
    assert!(text.starts_with("<?xml version=\"1.0\"?>\r\n<list>\r\n<directory mtime=\""), "{text}");
    assert!(text.contains("\" size=\"5\">b &lt;&amp;&gt; c</file>\r\n"), "{text}");
    assert_eq!((site.status("/off/"), site.status("/none/"), site.status("/list/a/")), (403, 404, 404));
    assert!(site.text("/pattern/list/").contains("folder/"));
    let mut client = site.client();
    client.send("HEAD /list/ HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.response_to_head();
    assert_eq!((head.head.status, head.field("Content-Type")), (200, Some("text/html")));
    assert_eq!(client.request("POST", "/list/", &[("Host", "a"), ("Content-Length", "0")]).head.status, 403);
    site.folder.write("list/index.html", "the index");
    assert_eq!(site.text("/list/"), "the index", "a folder with an index is not listed");
}

#[test]
fn a_large_directory_is_listed_completely_and_in_order() {
    let site = Site::start(
        "large",
        "access_log off; root .; autoindex on; autoindex_format json; server { listen 127.0.0.1:PORT; }",
    );
    site.folder.dir("large");
    // More entries than one operation returns.
    let mut expected: Vec<String> = (0..5000).map(|number| format!("file number {number}")).collect();
    for name in &expected {
        site.folder.write(&format!("large/{name}"), "");
    }
    expected.sort();
    let text = site.text("/large/");
    let names: Vec<&str> =
        text.split("\"name\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(names, expected);
}

#[test]
fn random_index_serves_any_file_of_a_directory() {
    let site = Site::start(
        "random",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; location / { random_index on; } location /off/ { random_index off; alias many/; }
           location /many/ { random_index on;  } }",
    );
    for name in ["a", "b", ".hidden", "sub/c"] {
        site.folder.write(&format!("many/{name}"), name);
    }
    link(&site, "a", "many/link");
    link(&site, "many/a", "onlylink");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        seen.insert(site.text("/many/"));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a", "b"], "no hidden file, no folder, no link");
    assert_eq!((site.status("/off/"), site.status("/none/")), (403, 404));
    site.folder.write("indexed/folder/x", "");
    assert_eq!(site.status("/indexed/"), 403, "without files the next module handles the request");
}

#[test]
fn empty_gif_serves_one_pixel() {
    let site = Site::start(
        "gif",
        "access_log off; server { listen 127.0.0.1:PORT; location /gif { empty_gif; if ($arg_a) { } location /gif/file { } } }",
    );
    let response = site.get("/gif");
    assert_eq!(response.field("Content-Type"), Some("image/gif"));
    assert_eq!(response.field("Last-Modified"), Some("Mon, 28 Sep 1970 06:00:00 GMT"));
    assert_eq!((response.field("ETag"), response.field("Accept-Ranges")), (None, None));
    assert_eq!(response.body.len(), 43);
    assert!(response.body.starts_with(b"GIF89a\x01\0\x01\0") && response.body.ends_with(b";"));
    let fields = [("Host", "a"), ("If-Modified-Since", "Mon, 28 Sep 1970 06:00:00 GMT")];
    assert_eq!(site.client().request("GET", "/gif/x", &fields).head.status, 304);
    assert_eq!(
        site.client().request("POST", "/gif", &[("Host", "a"), ("Content-Length", "0")]).head.status,
        405
    );
    assert_eq!(site.status("/gif/file"), 404, "a location inside is its own");
    assert_eq!(site.get("/gif?a=1").body.len(), 43, "an `if` keeps it");
}

#[test]
fn open_files_are_reused() {
    let site = Site::start(
        "cache",
        "access_log off; root .; open_file_cache max=100 inactive=1h;
         server { listen 127.0.0.1:PORT; location /off/ { open_file_cache off; }
           location /checked/ { open_file_cache_valid 0; } location /often/ { open_file_cache_min_uses 2; }
           location /errors/ { open_file_cache_errors on; } location /two/ { open_file_cache max=2; }
           location /try/ { try_files $uri $uri/ /off/fallback; } }",
    );
    for name in
        ["kept", "off/a", "checked/a", "often/a", "two/a", "two/b", "two/c", "off/fallback", "errors/x"]
    {
        site.folder.write(name, format!("old {name}"));
    }
    site.folder.dir("folder");
    let change = |name: &str| {
        let before = site.text(&format!("/{name}"));
        replace(&site, name, "new");
        assert_eq!(before, format!("old {name}"));
        site.text(&format!("/{name}"))
    };
    assert_eq!(change("kept"), "old kept", "for open_file_cache_valid the old file is served");
    assert_eq!((change("off/a"), change("checked/a")), ("new".to_owned(), "new".to_owned()));
    assert_eq!(change("often/a"), "new", "the first use does not keep it open");
    replace(&site, "often/a", "newer");
    assert_eq!(site.text("/often/a"), "new", "the second one does");
    remove(&site, "kept");
    assert_eq!(site.text("/kept"), "old kept");
    // Directories, and missing files.
    assert_eq!(site.status("/folder"), 301);
    rustix::fs::rmdir(site.folder.path().join("folder")).expect("it is empty");
    assert_eq!(site.status("/folder"), 301);
    assert_eq!((site.status("/errors/a"), site.status("/none")), (404, 404));
    site.folder.write("errors/a", "there now");
    site.folder.write("none", "there now");
    assert_eq!((site.status("/errors/a"), site.status("/none")), (404, 200));
    // The least recently used file is evicted.
    assert_eq!((site.text("/two/a"), site.text("/two/b")), ("old two/a".to_owned(), "old two/b".to_owned()));
    for name in ["two/a", "two/b"] {
        replace(&site, name, "new");
    }
    assert_eq!(site.text("/two/a"), "old two/a");
    assert_eq!(site.text("/two/c"), "old two/c");
    assert_eq!((site.text("/two/a"), site.text("/two/b")), ("old two/a".to_owned(), "new".to_owned()));
    // The modules that check files use the same cache.
    site.folder.write("try/index.html", "index");
    assert_eq!(site.text("/try/"), "index");
    remove(&site, "try/index.html");
    assert_eq!(site.text("/try/"), "index");
}

/// Whether this process, which is also the server, has a file of that name open, deleted or not.
fn is_open(site: &Site, name: &str) -> bool {
    let path = site.folder.path().join(name).into_os_string().into_string().expect("a path of text");
    let open = rustix::fs::Dir::read_from(
        rustix::fs::open(
            "/proc/self/fd",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .expect("the list of descriptors"),
    );
    open.expect("a folder").flatten().any(|entry| {
        let number = entry.file_name().to_string_lossy().into_owned();
        let target = rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new());
        target.is_ok_and(|target| target.to_string_lossy().starts_with(&path))
    })
}

#[test]
fn a_briefly_open_file_is_served_with_its_current_content() {
    let site = Site::start(
        "held",
        "access_log off; root .; server { listen 127.0.0.1:PORT; location /off/ { open_file_cache off; } }",
    );
    for name in ["a", "b", "off/a", "dir/a"] {
        site.folder.write(name, "old");
        assert_eq!(
            (site.text(&format!("/{name}")), site.text(&format!("/{name}"))),
            ("old".into(), "old".into())
        );
    }
    // A slow machine may need longer for these requests than the server holds a file.
    let held = || {
        assert_eq!(site.text("/a"), "old");
        is_open(&site, "a").then_some(())
    };
    let is_held = testkit::wait::until("an open file", testkit::Deadline::default(), held);
    is_held.expect("further requests do not open it");
    assert!(!is_open(&site, "off/a"), "this location has open_file_cache off");
    replace(&site, "a", "new");
    assert_eq!(site.text("/a"), "new", "another file of that name");
    site.folder.write("a", "longer than before");
    assert_eq!(site.text("/a"), "longer than before", "the same file with other content");
    remove(&site, "b");
    assert_eq!(site.status("/b"), 404);
    let folder = |name: &str| site.folder.path().join(name);
    rustix::fs::rename(folder("dir"), folder("moved")).expect("it is renamed");
    assert_eq!((site.status("/dir/a"), site.text("/moved/a")), (404, "old".to_owned()));
    // Soon neither a deleted file nor a mount is held open.
    let none = || (!["a", "b", "dir/a", "moved/a"].iter().any(|name| is_open(&site, name))).then_some(());
    let deadline = testkit::Deadline::default();
    testkit::wait::until("files to be closed", deadline, none).expect("all of them are closed");
}

#[test]
fn cached_open_files_are_closed_when_descriptors_run_out() {
    // Each second open fails with EMFILE.
    let site = Site::start_with_events(
        "room",
        "engine_fault \"open error=EMFILE every=2\";",
        "access_log off; root .; server { listen 127.0.0.1:PORT;
           location /kept/ { open_file_cache max=10; } location / { } }",
    );
    for name in ["kept/a", "kept/b", "plain"] {
        site.folder.write(name, name);
    }
    assert_eq!(site.text("/kept/a"), "kept/a");
    assert_eq!(site.text("/kept/b"), "kept/b", "the cached open file is closed");
    assert_eq!(site.text("/kept/a"), "kept/a");
    assert_eq!(site.text("/plain"), "plain", "files of other locations too");
    assert_eq!(site.status("/plain"), 500, "no further file can be closed");
    let lines = site.lines("error.log", 1);
    assert!(
        lines[0].contains("failed (24: Too many open files)") && lines[0].contains("[crit]"),
        "{}",
        lines[0]
    );
}

#[test]
fn symlinks_are_refused_as_configured() {
    let site = Site::start(
        "links",
        "access_log off; server { listen 127.0.0.1:PORT; root site; disable_symlinks on from=$document_root;
           location /owner/ { alias site/; disable_symlinks if_not_owner from=$document_root; }
           location /off/ { alias site/; disable_symlinks off; }
           location /whole/ { alias site/; disable_symlinks on; }
           location /cached/ { alias site/; open_file_cache max=10; open_file_cache_errors on; } }",
    );
    site.folder.write("real/folder/a", "content");
    site.folder.write("real/b", "b");
    link(&site, "real", "site");
    link(&site, "folder/a", "real/link");
    link(&site, "folder", "real/folder link");
    link(&site, "nowhere", "real/broken");
    link(&site, "b", "real/foreign");
    let foreign = site.folder.path().join("real/foreign");
    if rustix::process::getuid().is_root() {
        let (user, group) = (Some(Uid::from_raw(1)), Some(Gid::from_raw(1)));
        rustix::fs::chownat(CWD, &foreign, user, group, AtFlags::SYMLINK_NOFOLLOW).expect("root may");
    } else {
        rustix::fs::unlink(&foreign).expect("it is there");
        rustix::fs::symlink("/proc/version", &foreign).expect("a link is made");
    }
    // The root itself is a symbolic link, which `from` allows.
    assert_eq!((site.text("/folder/a"), site.text("/b")), ("content".to_owned(), "b".to_owned()));
    assert_eq!(
        (site.status("/link"), site.status("/broken"), site.status("/folder%20link")),
        (403, 403, 403)
    );
    assert_eq!(site.status("/folder%20link/a"), 404, "as nginx: the link is not opened as a directory");
    assert_eq!((site.status("/folder%20link/"), site.status("/none")), (404, 404));
    let lines = site.lines("error.log", 1);
    assert!(
        lines[0].contains("openat() \"")
            && lines[0].contains("/site/link\" failed (40: Too many levels of symbolic links)"),
        "{}",
        lines[0]
    );
    for path in ["link", "folder%20link/a", "b"] {
        assert_eq!(site.status(&format!("/owner/{path}")), 200, "{path}");
    }
    assert_eq!((site.status("/owner/foreign"), site.status("/owner/broken")), (403, 404));
    assert_eq!((site.status("/off/foreign"), site.status("/off/link")), (200, 200));
    assert_eq!(site.status("/whole/b"), 404, "without `from` a link in the root counts");
    for _ in 0..2 {
        assert_eq!((site.status("/cached/b"), site.status("/cached/link")), (200, 403));
    }
}

#[test]
fn try_files_and_alias_work_in_regex_locations() {
    let site = Site::start(
        "pattern",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; location ~ ^/te/(.*)$ { alias real/; try_files $1 sub/$1 =404; }
           location ~ ^/tf/(.*)$ { alias $1; index b a.txt; }
           location /static/ { alias real/; try_files none /static/a.txt a.txt =404; }
           location /last/ { alias real/; try_files none $uri; } location = /a.txt { return 200 \"last resort\"; }
           location /relative/ { set $folder real; root $folder; try_files /a.txt =404; } }",
    );
    site.folder.write("real/a.txt", "a");
    site.folder.write("real/sub/b", "b");
    assert_eq!(
        (site.text("/te/a.txt"), site.text("/te/b"), site.status("/te/c")),
        ("a".into(), "b".into(), 404)
    );
    assert_eq!((site.text("/tf/real/"), site.text("/tf/real/sub/")), ("a".to_owned(), "b".to_owned()));
    // nginx removes the location's prefix only for aliases with variables.
    assert_eq!(site.text("/static/x"), "a");
    assert_eq!(site.status("/last/a.txt"), 404);
    assert_eq!(site.text("/relative/x"), "a", "a root that begins with a variable is below the prefix");
}

#[test]
fn cached_open_files_are_closed_for_connections() {
    // Each second accept fails with EMFILE.
    let site = Site::start_with_events(
        "room for connections",
        "engine_fault \"accept error=EMFILE every=2; accept end\";",
        "access_log off; root .; open_file_cache max=10; server { listen 127.0.0.1:PORT; }",
    );
    site.folder.write("a", "old");
    assert_eq!(site.text("/a"), "old");
    replace(&site, "a", "new");
    assert_eq!(site.text("/a"), "new", "the old file was closed for the connection");
}

#[test]
fn an_unreadable_directory_is_an_error() {
    let site = Site::start_with_events(
        "unreadable",
        "engine_fault \"readdir error=EIO path=/; open delay=1ms\";",
        "access_log off; root .; autoindex on; server { listen 127.0.0.1:PORT; }",
    );
    site.folder.write("folder/a", "a");
    assert_eq!(site.status("/folder/"), 500);
    let lines = site.lines("error.log", 1);
    assert!(
        lines[0].contains("readdir() \"") && lines[0].contains("/folder\" failed (5: Input/output error)"),
        "{}",
        lines[0]
    );
}

/// Files for direct reads are opened with O_DIRECT. Files below the size of `directio` are read through the page cache,
/// including their unaligned tail.
#[test]
fn small_files_and_directories_are_served_with_directio() {
    let site = Site::start(
        "direct",
        "access_log off; root .; server { listen 127.0.0.1:PORT; location / { directio 4k; } }",
    );
    let contents = [1, 10, 4095, 4096, 4097, 20_000].map(|size| (size, "x".repeat(size)));
    for (size, content) in &contents {
        site.folder.write(&format!("dir/{size}"), content);
    }
    for _ in 0..2 {
        for (size, content) in &contents {
            assert!(site.text(&format!("/dir/{size}")) == *content, "{size}");
        }
        assert_eq!(site.status("/dir"), 301, "a folder cannot be opened in that way");
        assert_eq!(site.status("/dir/none"), 404);
    }
}

/// On a file system without O_DIRECT files are opened without it.
#[test]
fn a_refused_direct_open_falls_back_to_a_normal_open() {
    let site = Site::start_with_events(
        "refused",
        "engine_fault \"open error=EINVAL every=2\";",
        "access_log off; root .; server { listen 127.0.0.1:PORT; location / { directio 4k; } }",
    );
    let long = "x".repeat(9000);
    site.folder.write("long", &long);
    assert_eq!(site.status("/none"), 404, "the first open has no fault");
    assert!(site.text("/long") == long);
}

/// A small file is sent after a single read; if that is short, the remaining bytes are read before any are sent.
#[test]
fn partial_reads_of_small_files_are_continued() {
    for fault in ["read short every=1", "read short every=2"] {
        let site = Site::start_with_events(
            "short",
            &format!("engine_fault \"{fault}\";"),
            "access_log off; root .; server { listen 127.0.0.1:PORT;
               location /direct/ { directio 1; } location / { sendfile off; } }",
        );
        for name in ["direct/a", "direct/b", "a", "b"] {
            let content = name.repeat(2500);
            site.folder.write(name, &content);
            assert!(site.text(&format!("/{name}")) == content, "{fault}: {name}");
        }
    }
}
