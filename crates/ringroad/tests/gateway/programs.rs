//! Real application servers: uWSGI, fcgiwrap, flup's SCGI, and the examples for PHP and Python. A test prints a line if
//! a program is not installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::BINARY;
use crate::gateways::programs;
use testkit::client::request_bytes;
use testkit::{Client, Deadline, Response, Server, Setup};

/// A WSGI application without a framework.
const WSGI: &str = r#"import hashlib, sys

def application(env, start):
    path = env['PATH_INFO']
    text = [('Content-Type', 'text/plain')]
    if path == '/stream':
        start('200 OK', text)
        return (b'%d\n' % n for n in range(3))
    if path == '/status':
        start('418 Tea pot', text + [('Set-Cookie', 'a=b'), ('Set-Cookie', 'c=d')])
        return [b'short and stout']
    if path == '/none':
        start('204 No Content', [])
        return []
    if path == '/broken':
        raise RuntimeError('words for the log')
    size = int(env.get('CONTENT_LENGTH') or 0)
    # flup returns text where there is nothing to read.
    body = env['wsgi.input'].read(size) if size else b''
    start('200 OK', text)
    shown = [env['REQUEST_METHOD'], path, env.get('QUERY_STRING', ''), env.get('HTTP_X_A', '-'), str(len(body)),
             hashlib.md5(body).hexdigest()]
    return [' '.join(shown).encode()]
"#;

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events { }
http {
  access_log off;
  client_max_body_size 20m;
  client_body_temp_path @DATA@/body;
  @P@_temp_path @DATA@/temp;
  @P@_cache_path @CACHE@ keys_zone=c:1m;
  @P@_param REQUEST_METHOD $request_method;
  @P@_param REQUEST_URI $request_uri;
  @P@_param PATH_INFO $document_uri;
  @P@_param SCRIPT_NAME "";
  @P@_param QUERY_STRING $query_string;
  @P@_param CONTENT_TYPE $content_type;
  @P@_param CONTENT_LENGTH $content_length;
  @P@_param SERVER_NAME $server_name;
  @P@_param SERVER_PORT $server_port;
  @P@_param SERVER_PROTOCOL $server_protocol;
  server {
    listen 127.0.0.1:0;
    location / { @P@_pass unix:@DATA@/app.sock; }
    location /stream { @P@_buffering off; @P@_pass unix:@DATA@/app.sock; }
    location /direct { @P@_request_buffering off; @P@_pass unix:@DATA@/app.sock; }
    location /cached { @P@_cache c; @P@_cache_key $uri; @P@_cache_valid 1h; add_header X-Cache $upstream_cache_status;
                       @P@_pass unix:@DATA@/app.sock; }
  }
}
"#;

/// Checks the responses of the [`WSGI`] application.
fn check_wsgi(server: &Server) {
    let mut client = Client::connect(server.addr(0));
    let empty = "0 d41d8cd98f00b204e9800998ecf8427e";
    let mut get = |target: &str| client.request("GET", target, &[("X-A", "of the client")]);
    assert_eq!(get("/a%20b?x=y&z").text(), format!("GET /a b x=y&z of the client {empty}"));
    let status = get("/status");
    assert_eq!((status.status, status.text().as_str()), (418, "short and stout"));
    assert_eq!(status.head.all("Set-Cookie").collect::<Vec<_>>(), ["a=b", "c=d"]);
    assert_eq!(get("/stream").text(), "0\n1\n2\n");
    assert_eq!(get("/none").status, 204);
    assert_eq!(get("/cached").field("X-Cache"), Some("MISS"));
    assert_eq!(get("/cached").field("X-Cache"), Some("HIT"));
    let upload: Vec<u8> = (0..10 << 20).map(|index: u32| (index % 251) as u8).collect();
    for target in ["/upload", "/direct"] {
        let length = upload.len().to_string();
        client.send(request_bytes("POST", target, &[("Content-Length", &length)]));
        client.send(&upload);
        let text = client.response().text();
        assert!(text.starts_with(&format!("POST {target}  - 10485760 ")), "{text}");
    }
    client.send("PUT /chunks HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(client.response().text(), "PUT /chunks  - 3 900150983cd24fb0d6963f7d28e17f72");
    // The application's server closes the connection without a response, or sends a 500.
    assert!(matches!(client.get("/broken").status, 500 | 502));
}

/// Creates a directory with the application, accessible to all users.
fn wsgi_setup(prefix: &str) -> Setup {
    let setup = Setup::new(CONF).value("P", prefix);
    fs::write(setup.data().join("application.py"), WSGI).expect("the directory is writable");
    setup
}

#[test]
fn uwsgi_runs_an_application() {
    let setup = wsgi_setup("uwsgi");
    let socket = setup.data().join("app.sock");
    let Some(app) = programs::uwsgi(setup.data(), "application:application", &socket) else { return };
    check_wsgi(&setup.start(BINARY));
    assert!(app.output().contains("words for the log"), "{}", app.output());
}

#[test]
fn flup_runs_an_application_by_scgi() {
    let mut setup = wsgi_setup("scgi");
    // SCGI always sends the length.
    setup.set_text(&CONF.replace("@P@_param CONTENT_LENGTH $content_length;", ""));
    let socket = setup.data().join("app.sock");
    let Some(_app) = programs::flup(setup.data(), "application", &socket) else { return };
    check_wsgi(&setup.start(BINARY));
}

const CGI: &str = r#"#!/bin/sh
case "$QUERY_STRING" in
  code) printf 'Status: 404 Not there\r\n';;
  log) echo 'words for the log' >&2;;
  moved) printf 'Location: http://example.org/elsewhere\r\n\r\n'; exit;;
  silent) exit;;
esac
printf 'Content-Type: text/plain\r\n\r\n'
echo "$REQUEST_METHOD $SCRIPT_NAME $QUERY_STRING $(wc -c)"
"#;

#[test]
fn fcgiwrap_runs_cgi_scripts() {
    let conf = CONF.replace("@P@_param SCRIPT_NAME \"\";", "fastcgi_param SCRIPT_NAME $fastcgi_script_name;");
    let conf = conf.replace("http {", "http { fastcgi_param SCRIPT_FILENAME @DATA@$fastcgi_script_name;");
    let setup = Setup::new(&conf).value("P", "fastcgi");
    let script = setup.data().join("hello.cgi");
    fs::write(&script, CGI).expect("the directory is writable");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let Some(wrap) = programs::fcgiwrap(&setup.data().join("app.sock")) else { return };
    let server = setup.start(BINARY);
    let mut client = Client::connect(server.addr(0));
    assert_eq!(client.get("/hello.cgi?x").text().trim(), "GET /hello.cgi x 0");
    let code = client.get("/hello.cgi?code");
    assert_eq!((code.status, code.head.reason.as_str()), (404, "Not there"));
    let moved = client.get("/hello.cgi?moved");
    assert_eq!((moved.status, moved.field("Location")), (302, Some("http://example.org/elsewhere")));
    assert_eq!(client.get("/hello.cgi?log").status, 200);
    server.wait_for_log("FastCGI sent in stderr: \"words for the log", Deadline::default());
    assert_eq!(client.get("/hello.cgi?silent").status, 502);
    // fcgiwrap's status for a nonexistent script.
    assert_eq!(client.get("/none.cgi").status, 403);
    let body = vec![b'x'; 1 << 20];
    client.send(request_bytes("POST", "/hello.cgi", &[("Content-Length", &body.len().to_string())]));
    client.send(&body);
    assert_eq!(client.response().text().trim(), "POST /hello.cgi  1048576");
    wrap.end();
}

/// Copies a directory of `examples/` into the server's directory.
fn copy(from: &Path, to: &Path) {
    testkit::create_dir_all(to).expect("a directory of the test");
    for entry in fs::read_dir(from).expect("the directory exists") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            testkit::copy(&path, &target).expect("a file of the test");
        }
    }
}

/// Returns the setup and the configuration of an example, unchanged except that sockets replace ports.
fn example(name: &str, app: &str) -> (Setup, String) {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let setup = Setup::new("");
    let folder = setup.data().join("example");
    copy(&examples.join(name), &folder);
    for file in ["mime.types", "fastcgi_params", "uwsgi_params"] {
        testkit::copy(examples.join(file), setup.data().join(file)).expect("it is there");
    }
    for (path, mode) in [("", 0o755), ("logs", 0o777), ("cache", 0o777)] {
        let path = folder.join(path);
        if path.exists() {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        }
    }
    let conf = fs::read_to_string(folder.join("nginx.conf")).expect("the example has a configuration");
    let conf = conf.replace("listen 127.0.0.1:80", "listen 127.0.0.1:0; # 80");
    let conf = conf.replace(app, &format!("unix:{}/app.sock", setup.data().display()));
    (setup, conf)
}

/// Starts an example whose files are in its setup's directory.
fn start(setup: &Setup, conf: &str) -> Server {
    let folder = setup.data().join("example").display().to_string();
    let conf = ["root ", "fastcgi_cache_path ", "access_log ", "include ../"].iter().fold(
        conf.to_owned(),
        |conf, word| {
            let (old, new) = match *word {
                "include ../" => ((*word).to_owned(), format!("include {folder}/../")),
                _ => ((*word).to_owned(), format!("{word}{folder}/")),
            };
            conf.replace(&old, &new)
        },
    );
    Server::builder(BINARY).conf(&conf).start()
}

fn get(server: &Server, target: &str, fields: &[(&str, &str)]) -> Response {
    Client::connect(server.addr(0)).request("GET", target, fields)
}

#[test]
fn the_php_example_works_as_its_readme_states() {
    let (setup, conf) = example("php-application", "127.0.0.1:9024");
    let path = setup.data().join("example/php-fpm.conf");
    let socket = setup.data().join("app.sock");
    let text = fs::read_to_string(&path).expect("the example has it");
    let listen = format!("{}\nlisten.mode = 0666", socket.display());
    fs::write(&path, text.replace("127.0.0.1:9024", &listen)).expect("it is a copy");
    let Some(app) = programs::php_fpm(&path, &socket) else { return };
    let server = start(&setup, &conf);
    // Nothing is stored until this server owns the cache's directory, which takes long on a slow disk.
    server.wait_for_log("entries known", Deadline::default());
    let first = get(&server, "/article/7", &[]);
    assert_eq!((first.status, first.field("X-Cache")), (200, Some("MISS")), "{}", app.output());
    let second = get(&server, "/article/7", &[]);
    assert_eq!((second.field("X-Cache"), second.text()), (Some("HIT"), first.text()));
    let login = get(&server, "/login", &[]);
    assert_eq!((login.status, login.head.all("Set-Cookie").count()), (303, 2));
    let member = get(&server, "/", &[("Cookie", "session=demo")]);
    assert_eq!(member.field("X-Cache"), Some("BYPASS"));
    assert!(member.text().contains("Welcome back"));
    assert!(get(&server, "/", &[]).text().contains("Hello, visitor"));
    assert_eq!(get(&server, "/style.css", &[]).field("Content-Type"), Some("text/css"));
    assert_eq!(get(&server, "/style.css/x.php", &[]).status, 404);
    assert_eq!(get(&server, "/report", &[]).text(), "line 1\nline 2\nline 3\n");
    let missing = get(&server, "/none/here", &[]);
    assert_eq!((missing.status, missing.field("X-Cache")), (404, Some("MISS")));
    assert_eq!(get(&server, "/none/here", &[]).field("X-Cache"), Some("HIT"));
    // An upload form with a file of 10 MB.
    let content = vec![b'u'; 10_000_000];
    let head = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"r.pdf\"\r\n\r\n";
    let form = [head.as_bytes(), &content, b"\r\n--x--\r\n"].concat();
    let fields =
        [("Content-Type", "multipart/form-data; boundary=x"), ("Content-Length", &form.len().to_string())];
    let mut client = Client::connect(server.addr(0));
    client.send(request_bytes("POST", "/upload", &fields));
    client.send(&form);
    let text = client.response().text();
    assert!(text.starts_with("r.pdf 10000000 "), "{text}");
}

#[test]
fn the_python_example_works_as_its_readme_states() {
    let (setup, conf) = example("python-application", "127.0.0.1:9025");
    if !programs::has_flask() {
        return;
    }
    let server = start(&setup, &conf);
    let down = get(&server, "/", &[]);
    assert_eq!((down.status, down.text().contains("The application is down")), (502, true));
    let socket = setup.data().join("app.sock");
    let Some(app) = programs::uwsgi(&setup.data().join("example"), "app:app", &socket) else { return };
    assert_eq!(get(&server, "/?name=you", &[]).text(), "Hello, you.\n", "{}", app.output());
    assert_eq!(get(&server, "/article/7", &[("X-Reader", "me")]).text(), "Article 7 for me\n");
    assert_eq!(get(&server, "/article/100", &[]).status, 404);
    let old = get(&server, "/old", &[]);
    assert_eq!((old.status, old.head.all("Set-Cookie").count()), (302, 2));
    assert!(old.field("Location").is_some_and(|to| to.ends_with("/article/7")));
    assert_eq!(get(&server, "/events", &[]).text(), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert_eq!(get(&server, "/broken", &[]).status, 500);
    assert!(get(&server, "/static/down.html", &[]).text().contains("is down"));
    let body = vec![0; 10_000_000];
    let mut client = Client::connect(server.addr(0));
    client.send(request_bytes("POST", "/upload", &[("Content-Length", &body.len().to_string())]));
    client.send(&body);
    assert!(client.response().text().starts_with("10000000 "));
}
