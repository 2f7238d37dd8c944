//! The same requests to Debian's nginx and to this server ([`common::beside`]): directory listings, index files, stored
//! files, symbolic links, subrequests, and files whose names clients influence.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::common::BINARY;
use crate::common::beside::{self, Case, ask, get, raw};
use testkit::{Client, Deadline, Server, TempDir, nginx, wait};

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    types { text/html html; text/plain txt; }
    default_type application/octet-stream;
    map $arg_name $chosen { default ""; ~^[a-z]+$ $arg_name.txt; }
    server {
        listen 127.0.0.1:0;
        root ROOT;
        autoindex on;
        location /rounded/ { alias ROOT/; autoindex_exact_size off; autoindex_localtime on; }
        location /utf8/ { alias ROOT/; charset utf-8; }
        location /utf8rounded/ { alias ROOT/; charset utf-8; autoindex_exact_size off; }
        location /json/ { alias ROOT/; autoindex_format json; }
        location /jsonutf8/ { alias ROOT/; autoindex_format json; charset utf-8; }
        location /xml/ { alias ROOT/; autoindex_format xml; }
        location /xmlutf8/ { alias ROOT/; autoindex_format xml; charset utf-8; }
        location /jsonp/ { alias ROOT/; autoindex_format jsonp; }
        location /unlisted/ { autoindex off; alias ROOT/; }
        location /random/ { alias ROOT/; random_index on; }
        location /randomlast/ { alias ROOT/; autoindex off; random_index on; }
        location /index/ { alias ROOT/; index $chosen $arg_other.txt /index/one/only.txt; }
        location /indexlast/ { alias ROOT/; index none.txt /fallback?x; autoindex off; }
        location = /fallback { return 200 "fallback $uri $args"; }
        location /tryfolder/ { alias ROOT/; try_files $uri/ $uri =418; }
        location /tryargs/ { try_files /none /fallback?a=$arg_a&b; }
        location /trynamed/ { try_files /none @named; }
        location @named { return 200 "named $uri $args"; }
        location /trynone/ { try_files /none /none2; }
        location /kept/ { alias ROOT/; open_file_cache max=10; open_file_cache_errors on; open_file_cache_valid 1h; open_file_cache_min_uses 2; }
        location /nolinks/ { alias ROOT/; disable_symlinks on; }
        location /nolinksfrom/ { alias ROOT/; disable_symlinks on from=ROOT/linked; }
        location /nolinksroot/ { disable_symlinks on from=$document_root; alias ROOT/; }
        location /owner/ { alias ROOT/; disable_symlinks if_not_owner; }
        location /nolinkstry/ { alias ROOT/; disable_symlinks on from=ROOT; try_files $uri $uri/ =418; }
        location /nolinksindex/ { alias ROOT/; disable_symlinks on from=ROOT; index link.txt a.txt; }
        location /mirrored/ { alias ROOT/; mirror /copy; mirror /missing; mirror_request_body off; }
        location = /copy { internal; return 500; }
        location /after/ { alias ROOT/; post_action /copy; }
        location = /after/return { post_action /copy; return 201 "returned"; }
        location = /gif { empty_gif; error_page 405 =200 /a.txt; }
        location = /gifadded { empty_gif; add_header X-A $sent_http_content_type; expires 1h; }
        location /pages/ { alias ROOT/; error_page 403 404 /pages/a.txt; autoindex off; }
    }
}
"#;

/// Creates files with special characters in their names, and with sizes around rounding limits.
fn site() -> TempDir {
    let dir = TempDir::new("files");
    let long = "l".repeat(120);
    let files = [
        ("a.txt", 10),
        ("one/only.txt", 4),
        ("sizes/0", 0),
        ("sizes/1023", 1023),
        ("sizes/1024", 1024),
        ("sizes/9999", 9999),
        ("sizes/10000", 10_000),
        ("sizes/1047552", 1_047_552),
        ("sizes/1048575", 1_048_575),
        ("sizes/1048576", 1_048_576),
        ("sizes/big", 5 << 30),
        ("names/<b>&amp;'\"", 1),
        ("names/a:b?c#d%20;e+f g\\h", 2),
        ("names/\u{430}\u{44f}", 3),
        ("names/\u{1f600}", 3),
        ("names/tab\tline\u{7}", 3),
        ("names/.hidden", 1),
        ("names/50-45678901234567890123456789012345678901234567890", 5),
        ("names/51-456789012345678901234567890123456789012345678901", 5),
        ("names/UPPER", 1),
        ("names/~", 1),
    ];
    let long = format!("names/{long}");
    let cyrillic = format!("names/{}", "\u{44f}".repeat(60));
    for (name, len) in files.into_iter().chain([(long.as_str(), 7), (cyrillic.as_str(), 8)]) {
        dir.write(name, "");
        let file =
            std::fs::File::options().write(true).open(dir.path().join(name)).expect("it was just written");
        file.set_len(len).expect("a file has a length");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)).expect("it is ours");
    }
    for name in ["names/z folder", "names/Folder", "names/<f>", "empty", "onlyhidden/.sub"] {
        dir.dir(name);
    }
    for (target, name) in
        [("a.txt", "link.txt"), ("one", "linked"), ("nowhere", "broken"), ("/etc/hostname", "foreign")]
    {
        std::os::unix::fs::symlink(target, dir.path().join(name)).expect("a link is made");
    }
    for name in
        ["names/z folder", "names/Folder", "names/<f>", "onlyhidden/.sub", "names", "sizes", "one", "empty"]
    {
        let folder = std::fs::File::open(dir.path().join(name)).expect("it is there");
        folder.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890)).expect("it is ours");
    }
    dir
}

fn compare(cases: Vec<Case>) {
    beside::compare(CONF, &site(), cases);
}

#[test]
fn directory_listings_match_nginx() {
    let mut cases = Vec::new();
    for form in ["", "/rounded", "/utf8", "/utf8rounded", "/json", "/jsonutf8", "/xml", "/xmlutf8", "/jsonp"]
    {
        for folder in ["names", "sizes", "empty", "onlyhidden"] {
            let target = format!("{form}/{folder}/");
            cases.push(get(&target).differs_in_head("H40"));
            cases.push(ask("HEAD", &target, &[]));
        }
    }
    for query in ["callback=f", "callback=a.b_C1&x", "callback=", "x&callback=f"] {
        cases.push(get(&format!("/jsonp/sizes/?{query}")).differs_in_head("H40"));
    }
    for query in ["callback=a-b", "callback=a%20", "callback=()"] {
        cases.push(get(&format!("/jsonp/sizes/?{query}")));
    }
    cases.extend([
        get("/names/z%20folder/").differs_in_head("H40"),
        get("/names/%3Cf%3E/").differs_in_head("H40"),
        get("/linked/").differs_in_head("H40"),
        get("/names"),
        get("/a.txt/"),
        get("/none/"),
        get("/unlisted/names/"),
        ask("POST", "/names/", &[("Content-Length", "0")]),
        ask("GET", "/json/empty/", &[("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT")])
            .differs_in_head("H40"),
        ask("GET", "/json/empty/", &[("Range", "bytes=0-1")]).differs_in_head("H40"),
        raw("GET /json/empty/ HTTP/1.0\r\n\r\n").differs_in_head("H40"),
    ]);
    compare(cases);
}

#[test]
fn random_index_and_index_match_nginx() {
    compare(vec![
        get("/random/one/"),
        get("/random/onlyhidden/").differs_in_head("H40"),
        get("/randomlast/empty/"),
        get("/randomlast/none/"),
        get("/randomlast/a.txt"),
        ask("HEAD", "/random/one/", &[]),
        ask("POST", "/random/one/", &[("Content-Length", "0")]),
        get("/index/?name=a"),
        get("/index/?name=A"),
        get("/index/?other=a"),
        get("/index/one/?name=only"),
        get("/index/one/"),
        get("/indexlast/"),
        get("/indexlast/one/"),
        ask("POST", "/index/?name=a", &[("Content-Length", "0")]),
        get("/tryfolder/one"),
        get("/tryfolder/one/").differs_in_head("H40"),
        get("/tryfolder/a.txt"),
        get("/tryfolder/none"),
        get("/tryargs/?a=1%202"),
        get("/trynamed/x?y=z"),
        get("/trynone/x"),
    ]);
}

#[test]
fn open_file_cache_and_symlinks_match_nginx() {
    let mut cases = Vec::new();
    for folder in
        ["kept", "kept", "nolinks", "nolinksfrom", "nolinksroot", "owner", "nolinkstry", "nolinksindex"]
    {
        for name in ["a.txt", "link.txt", "linked/only.txt", "broken", "none", "linked", "names", "foreign/x"]
        {
            cases.push(get(&format!("/{folder}/{name}")));
        }
    }
    cases.push(get("/nolinksindex/"));
    compare(cases);
}

#[test]
fn background_subrequests_match_nginx() {
    compare(vec![
        get("/mirrored/a.txt"),
        get("/mirrored/none"),
        ask("POST", "/mirrored/a.txt", &[("Content-Length", "2")]),
        get("/after/a.txt"),
        get("/after/none"),
        get("/after/return"),
        get("/copy"),
        get("/gif"),
        get("/gif?x"),
        ask("HEAD", "/gif", &[]),
        ask("GET", "/gif", &[("Range", "bytes=0-1")]),
        ask("GET", "/gif", &[("If-None-Match", "*")]),
        ask("POST", "/gif", &[("Content-Length", "0")]),
        get("/gifadded"),
        get("/pages/none"),
        get("/pages/names/"),
        ask("HEAD", "/pages/none", &[]),
        ask("GET", "/pages/none", &[("Range", "bytes=0-1")]),
    ]);
}

/// Values of `Host` and of arguments that try to lead out of a directory.
const CLIMBING: [&str; 11] = [
    "a.test",
    "A.Test.",
    "..",
    "../a.test",
    "a.test/../secret",
    "a.test/",
    "a.test%2f..",
    "a.test\\..",
    "[::1]",
    "a..test",
    ".a",
];

/// Only values that nginx does not check may lead out of a directory: those of `$arg_name`, but not `$host`.
#[test]
fn files_named_by_clients_match_nginx() {
    let conf = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    default_type text/plain;
    server {
        listen 127.0.0.1:0;
        root ROOT/hosts;
        location /host/ { root ROOT/hosts/$host; }
        location /root/ { root ROOT/hosts/$arg_n; try_files /x =418; }
        location /alias/ { alias ROOT/hosts/$arg_n/; }
        location /try/ { try_files /$arg_n/x =418; }
        location /index/ { alias ROOT/hosts/; index $arg_n/x; }
        location /users/ { auth_basic r; auth_basic_user_file ROOT/hosts/$arg_n/users; try_files /none @user; }
        location @user { return 200 "for $remote_user"; }
    }
}
"#;
    let site = TempDir::new("named-by-clients");
    for name in ["hosts/a.test", "secret", "hosts"] {
        site.write(&format!("{name}/x"), name);
        site.write(&format!("{name}/host/x"), name);
        site.write(&format!("{name}/users"), "u:{PLAIN}p\n");
    }
    let mut cases = Vec::new();
    for value in CLIMBING.into_iter().chain(["../secret", "a.test\0/../../secret"]) {
        cases.push(raw(format!("GET /host/x HTTP/1.1\r\nHost: {value}\r\n\r\n")));
        for target in ["root/x", "alias/x", "try/", "index/", "users/"] {
            let fields = [("Host", "a"), ("Authorization", "Basic dTpw"), ("Connection", "close")];
            cases.push(ask("GET", &format!("/{target}?n={value}"), &fields));
        }
    }
    // "../secret" is a directory that no directive names.
    beside::compare_permitting(Some(site.path()), conf, &site, cases);
}

/// Returns the files of a directory and their lines.
fn lines(dir: &std::path::Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir).expect("it is there").map(|entry| entry.expect("it is listed"));
    let entries = entries.filter(|entry| entry.path().is_file());
    let text = |entry: &std::fs::DirEntry| std::fs::read_to_string(entry.path()).expect("it is readable");
    entries.map(|entry| (entry.file_name().display().to_string(), text(&entry))).collect()
}

#[test]
fn logs_named_by_clients_are_those_of_nginx() {
    let conf = r#"
worker_processes 1;
events {}
http {
    log_format own '$status $uri';
    server {
        listen 127.0.0.1:0;
        root ROOT/$host;
        access_log LOGS/in/$host.log own;
        location /arg/ { root ROOT; access_log LOGS/in/$arg_n.log own; return 204; }
        location /relative/ { root $arg_root; access_log LOGS/in/relative.log own; return 204; }
    }
}
"#;
    let site = TempDir::new("logs-named-by-clients");
    site.dir("a.test");
    site.dir("html/[::1]");
    let writable = |name: &str| {
        let path = site.dir(name);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, mode).expect("it is ours");
    };
    ["ours", "ours/in", "nginx", "nginx/in"].into_iter().for_each(writable);
    let conf = conf.replace("ROOT", &site.path().display().to_string());
    let conf_of = |name: &str| conf.replace("LOGS", &site.path().join(name).display().to_string());
    // "../climbed" is above the directory of logs.
    let above = format!("{} rw", site.path().join("ours").display());
    let ours = Server::builder(BINARY).conf(&conf_of("ours")).sandbox_path(&above).start();
    let Some(theirs) = nginx::start(&conf_of("nginx")) else { return };
    for server in [&ours, &theirs] {
        for value in CLIMBING.into_iter().chain(["../climbed"]) {
            for (target, host) in [
                ("/none".to_owned(), value),
                (format!("/arg/?n={value}"), "a"),
                (format!("/relative/?root={value}"), "a"),
            ] {
                let mut client = Client::connect(server.addr(0));
                client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
                client.try_response().expect("a response");
            }
        }
    }
    let all = |name: &str| ["", "in"].map(|dir| lines(&site.path().join(name).join(dir)));
    let equal = || (all("ours") == all("nginx")).then_some(());
    let is_equal = wait::until("the logs", Deadline::default(), equal).is_ok();
    assert!(is_equal, "ringroad {:#?}\nnginx {:#?}", all("ours"), all("nginx"));
    let [above, below] = all("ours");
    assert!(below.contains_key("a.test.log") && above.contains_key("climbed.log"), "{below:?} {above:?}");
}
