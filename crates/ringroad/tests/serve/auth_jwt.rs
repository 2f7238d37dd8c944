//! `auth_jwt`: tokens of other implementations, keys from files and subrequests, and requests that must not pass.

use serde_json::{Value, json};
use testkit::origin::Reply;
use testkit::server::ServerBuilder;
use testkit::{Client, Deadline, Origin, Response, Server};

use crate::common::{BINARY, ours_only};

/// Made by `make_tokens.py` beside it.
const TOKENS: &str = include_str!("../../../jose/tests/data/tokens.json");

fn all() -> Value {
    serde_json::from_str(TOKENS).expect("JSON")
}

/// Returns the token with this index in a list.
fn token(list: &str, index: usize) -> String {
    all()[list][index]["token"].as_str().expect("a token").to_owned()
}

/// Returns a signed token with this algorithm.
fn signed(alg: &str) -> String {
    let all = all();
    let tokens = all["signed"].as_array().expect("a list");
    let found = tokens.iter().find(|token| token["alg"] == alg).expect("it is in the list");
    found["token"].as_str().expect("a token").to_owned()
}

fn keys(kind: &str) -> String {
    all()[kind].to_string()
}

fn serve_with(http: &str, server: &str, prepare: impl Fn(ServerBuilder) -> ServerBuilder) -> Server {
    let conf = format!(
        "worker_processes 1; error_log logs/error.log info; events {{ }}
         http {{ {http} server {{ listen 127.0.0.1:0; large_client_header_buffers 4 128k;\n{server} }} }}"
    );
    prepare(
        Server::builder(BINARY)
            .conf(&conf)
            .text("conf/keys/private.json", &keys("private"))
            .text("conf/keys/public.json", &keys("public")),
    )
    .start()
}

fn serve(http: &str, server: &str) -> Server {
    serve_with(http, server, |builder| builder)
}

fn get(server: &Server, target: &str, token: &str) -> Response {
    let value = format!("Bearer {token}");
    Client::connect(server.addr(0)).request("GET", target, &[("Authorization", &value)])
}

fn plain(server: &Server, target: &str) -> Response {
    Client::connect(server.addr(0)).get(target)
}

fn challenge(response: &Response) -> (u16, Option<&str>) {
    (response.status, response.field("WWW-Authenticate"))
}

const REFUSED: (u16, Option<&str>) = (401, Some("Bearer realm=\"closed site\",error=\"invalid_token\""));

/// Returns a token with this header instead of its own.
fn with_header(token: &str, header: &str) -> String {
    let encoded = testkit::client::basic(header);
    let encoded =
        encoded.trim_start_matches("Basic ").trim_end_matches('=').replace('+', "-").replace('/', "_");
    let (_, rest) = token.split_once('.').expect("sections");
    format!("{encoded}.{rest}")
}

const SHOWN: &str = "return 200 \"$jwt_claim_sub|$jwt_claim_roles|$job|$jwt_header_alg|$kid\";";
const SETS: &str = "auth_jwt_claim_set $job info \"job title\"; auth_jwt_header_set $kid kid;";

#[test]
fn signed_tokens_of_every_algorithm_are_accepted() {
    if !ours_only("auth_jwt") {
        return;
    }
    // `return` runs before the access phase, so the text is that of an error page of a location behind it.
    let server = serve(
        SETS,
        &format!(
            "location / {{ auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json; error_page 404 = @shown; }}
             location @shown {{ auth_jwt off token=$http_x; add_header X-None \"$jwt_claim_sub\" always; return 200 ok; }}
             location /shown {{ auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json; try_files /none @text; }}
             location @text {{ auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json; {SHOWN} }}"
        ),
    );
    for item in all()["signed"].as_array().expect("a list") {
        let (alg, text) = (item["alg"].as_str().expect("a name"), item["token"].as_str().expect("a token"));
        let found = get(&server, "/x", text);
        assert_eq!((found.status, found.text().as_str(), found.field("X-None")), (200, "ok", None), "{alg}");
        let shown = get(&server, "/shown", text).text();
        assert_eq!(shown, format!("someone|a,b|x|{alg}|{}", item["kid"].as_str().expect("a name")));
    }
    assert_eq!(challenge(&plain(&server, "/x")), (401, Some("Bearer realm=\"closed site\"")));
    for field in ["Basic YTpi", "Bearer", "Bearer ", "bearer", "Digest x"] {
        let response = Client::connect(server.addr(0)).request("GET", "/x", &[("Authorization", field)]);
        assert_eq!(challenge(&response), (401, Some("Bearer realm=\"closed site\"")), "{field}");
    }
    // The scheme has no case.
    let value = format!("bEARER  {}", signed("ES256"));
    let response = Client::connect(server.addr(0)).request("GET", "/x", &[("Authorization", &value)]);
    assert_eq!(response.status, 200);
    let head = {
        let mut client = Client::connect(server.addr(0));
        client.send("HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n");
        client.response_to_head()
    };
    assert_eq!(head.status, 401);
}

#[test]
fn hostile_tokens_are_refused() {
    if !ours_only("auth_jwt") {
        return;
    }
    let server = serve(
        "",
        "location / { auth_jwt \"closed site\"; auth_jwt_key_file keys/private.json; }
         location /encrypted { auth_jwt \"closed site\"; auth_jwt_type encrypted; auth_jwt_key_file keys/private.json; }",
    );
    let (mac, ec) = (signed("HS256"), signed("ES256"));
    let (unsigned, _) = ec.rsplit_once('.').expect("three sections");
    let deep = format!("{{\"alg\":\"HS256\",\"x\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let none = with_header(&ec, "{\"alg\":\"none\"}");
    let (none_without, _) = none.rsplit_once('.').expect("three sections");
    let mut hostile = vec![
        "x".to_owned(),
        "..".to_owned(),
        "....".to_owned(),
        format!("{unsigned}."),
        unsigned.to_owned(),
        none.clone(),
        format!("{none_without}."),
        with_header(&ec, "{\"alg\":\"NONE\"}"),
        with_header(&ec, "{}"),
        with_header(&ec, "null"),
        with_header(&ec, "{\"alg\":[\"ES256\"]}"),
        with_header(&ec, "{\"alg\":\"HS256\"}"),
        with_header(&ec, "{\"alg\":\"ES256\",\"alg\":\"none\"}"),
        with_header(&ec, "{\"alg\":\"ES256\",\"kid\":\"rsa\"}"),
        with_header(&ec, "{\"alg\":\"ES256\",\"kid\":\"../../../dev/null\"}"),
        with_header(&ec, "{\"alg\":\"ES256\",\"crit\":[\"exp\"]}"),
        with_header(&mac, "{\"alg\":\"HS256\",\"jwk\":{\"kty\":\"oct\",\"k\":\"AQ\"}}"),
        with_header(&mac, "{\"alg\":\"dir\",\"enc\":\"A128GCM\"}"),
        with_header(&mac, &deep),
        format!("{ec}="),
        format!("{ec}.e30"),
        ec.replace('.', " ."),
        format!("{}.{}", ec, "A".repeat(60_000)),
        "A".repeat(100_000),
        token("other", 0),
        token("other", 1),
        token("encrypted", 0),
        token("nested", 0),
    ];
    // A change in any section.
    for at in [5, ec.len() / 2, ec.len() - 5] {
        let other = if ec.as_bytes()[at] == b'A' { "B" } else { "A" };
        hostile.push(format!("{}{other}{}", &ec[..at], &ec[at + 1..]));
    }
    for text in &hostile {
        assert_eq!(challenge(&get(&server, "/x", text)), REFUSED, "{}", &text[..text.len().min(200)]);
        assert_eq!(
            challenge(&get(&server, "/encrypted", text)),
            if *text == token("encrypted", 0) { (404, None) } else { REFUSED },
            "{}",
            &text[..text.len().min(200)]
        );
    }
    assert_eq!(get(&server, "/x", &ec).status, 404);
    assert_eq!(challenge(&get(&server, "/encrypted", &ec)), REFUSED);
    server.wait_for_log("the JSON Web Token is refused: its algorithm is not supported", Deadline::default());
    server.wait_for_log("the JSON Web Token is refused: it has expired", Deadline::default());
}

#[test]
fn times_are_checked_with_leeway() {
    if !ours_only("auth_jwt") {
        return;
    }
    let server = serve(
        "auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json;",
        "location / { } location /late { auth_jwt_leeway 40000d; } location /short { auth_jwt_leeway 1d; }",
    );
    for (index, target, expected) in [
        (0, "/", 401),
        (1, "/", 401),
        (0, "/late", 404),
        (1, "/late", 404),
        (0, "/short", 401),
        (1, "/short", 401),
    ] {
        assert_eq!(get(&server, target, &token("other", index)).status, expected, "{index} {target}");
    }
}

#[test]
fn encrypted_and_nested_tokens_are_opened() {
    if !ours_only("auth_jwt") {
        return;
    }
    let server = serve(
        SETS,
        &format!(
            "auth_jwt \"closed site\"; auth_jwt_key_file keys/private.json; auth_jwt_type encrypted;
             location / {{ try_files /none @text; }} location @text {{ {SHOWN} }}
             location /payload {{ try_files /none @payload; }} location @payload {{ return 200 $jwt_payload; }}
             location /nested {{ auth_jwt_type nested; try_files /none @nested; }}
             location @nested {{ auth_jwt_type nested; return 200 \"$jwt_claim_sub|$jwt_payload\"; }}
             location /public {{ auth_jwt_key_file keys/public.json; }}"
        ),
    );
    for item in all()["encrypted"].as_array().expect("a list") {
        let (alg, text) = (item["alg"].as_str().expect("a name"), item["token"].as_str().expect("a token"));
        let found = get(&server, "/", text);
        assert_eq!(found.text(), format!("someone|a,b|x|{alg}|{}", item["kid"].as_str().expect("a name")));
    }
    let payload = get(&server, "/payload", &token("encrypted", 0)).text();
    assert_eq!(serde_json::from_str::<Value>(&payload).expect("JSON")["sub"], json!("someone"));
    let nested = get(&server, "/nested", &token("nested", 0)).text();
    assert_eq!(nested, format!("someone|{}", payload_of_nested()));
    assert_eq!(
        challenge(&get(&server, "/nested", &token("encrypted", 0))),
        REFUSED,
        "its content is not signed"
    );
    assert_eq!(challenge(&get(&server, "/", &token("nested", 0))), REFUSED, "its content is no object");
    // Public keys decrypt nothing.
    let rsa =
        all()["encrypted"].as_array().expect("a list").iter().find(|item| item["alg"] == "RSA-OAEP").cloned();
    let rsa = rsa.expect("it is in the list")["token"].as_str().expect("a token").to_owned();
    assert_eq!(challenge(&get(&server, "/public", &rsa)), REFUSED);
}

/// The nested token has a token with the claims of all others; its header and payload are known, its signature is not.
fn payload_of_nested() -> String {
    let server = serve(
        "",
        "auth_jwt x; auth_jwt_type nested; auth_jwt_key_file keys/private.json;
         location / { try_files /none @text; } location @text { return 200 $jwt_payload; }",
    );
    let inner = get(&server, "/", &token("nested", 0)).text();
    let (head, _) = inner.rsplit_once('.').expect("a token");
    let (expected, _) = {
        let signed = signed("ES256");
        let (head, signature) = signed.rsplit_once('.').expect("a token");
        (head.to_owned(), signature.to_owned())
    };
    assert_eq!(head, expected);
    inner
}

#[test]
fn the_token_may_be_in_a_variable() {
    if !ours_only("auth_jwt") {
        return;
    }
    let server = serve(
        "auth_jwt_key_file keys/public.json;",
        "location /cookie { auth_jwt \"closed site\" token=$cookie_t; }
         location /arg { auth_jwt \"closed site\" token=$arg_t; }
         location /self { auth_jwt \"closed site\" token=$jwt_claim_t; }",
    );
    let text = signed("PS256");
    let cookie = format!("a=b; t={text}");
    let response = Client::connect(server.addr(0)).request("GET", "/cookie", &[("Cookie", &cookie)]);
    assert_eq!(response.status, 404);
    assert_eq!(get(&server, "/cookie", &text).status, 401, "it is not in the cookie");
    assert_eq!(plain(&server, &format!("/arg?t={text}")).status, 404);
    assert_eq!(plain(&server, "/arg?t=").status, 401);
    // A variable that refers to itself has no value.
    assert_eq!(get(&server, "/self", &text).status, 401);
}

#[test]
fn key_files_are_read_again_after_a_change() {
    if !ours_only("auth_jwt") {
        return;
    }
    let one = |index: usize| json!({ "keys": [all()["public"]["keys"][index]] }).to_string();
    let mut server = serve_with(
        "",
        "location / { auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json; }
         location /cached { auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json; auth_jwt_key_cache 1h; }
         location /several { auth_jwt \"closed site\"; auth_jwt_key_file keys/rsa.json; auth_jwt_key_file keys/$arg_name; }
         location /named { auth_jwt \"closed site\"; auth_jwt_key_file keys/$arg_name; }",
        |builder| builder.text("conf/keys/rsa.json", &one(5)).text("conf/keys/p256.json", &one(6)).text("conf/keys/bad.json", "{}"),
    );
    let (rsa, ec) = (signed("RS256"), signed("ES256"));
    let status = |server: &Server, target: &str, text: &str| get(server, target, text).status;
    assert_eq!((status(&server, "/x", &ec), status(&server, "/cached", &ec)), (404, 404));
    assert_eq!(status(&server, "/several?name=p256.json", &rsa), 404);
    assert_eq!(status(&server, "/several?name=p256.json", &ec), 404);
    assert_eq!(status(&server, "/named?name=rsa.json", &ec), 401);
    // If one of several sources fails, no request passes.
    for name in ["none.json", "bad.json", "", "../nginx.conf"] {
        assert_eq!(status(&server, &format!("/several?name={name}"), &rsa), 500, "{name}");
        assert_eq!(status(&server, &format!("/named?name={name}"), &rsa), 500, "{name}");
    }
    // Another key, immediately; the cached set remains.
    let file = server.path("conf/keys/public.json");
    std::fs::write(&file, one(5)).expect("it is ours");
    assert_eq!(
        (status(&server, "/x", &ec), status(&server, "/x", &rsa), status(&server, "/cached", &ec)),
        (401, 404, 404)
    );
    for text in ["", "{\"keys\":[]}", "{", "{\"keys\":[{\"kty\":\"none\"}]}"] {
        std::fs::write(&file, text).expect("it is ours");
        for token in [&ec, &rsa] {
            assert_eq!(status(&server, "/x", token), 500, "{text}");
        }
    }
    server.wait_for_log("are wrong: it has no key", Deadline::default());
    std::fs::remove_file(&file).expect("it is ours");
    assert_eq!((status(&server, "/x", &rsa), status(&server, "/x", "x")), (500, 401));
    server.wait_for_log("failed (2: No such file or directory)", Deadline::default());
    // A reload with a missing or empty file is refused, and the running configuration continues.
    for text in [None, Some(""), Some("{\"keys\":[]}")] {
        if let Some(text) = text {
            std::fs::write(&file, text).expect("it is ours");
        }
        let before = server.error_log().matches("[emerg]").count();
        server.signal(rustix::process::Signal::HUP);
        server.wait_for_log_count("[emerg]", before + 1, Deadline::default());
        assert_eq!(status(&server, "/named?name=rsa.json", &rsa), 404);
        assert_eq!(status(&server, "/x", &rsa), 500);
    }
    std::fs::write(&file, one(6)).expect("it is ours");
    assert_eq!(status(&server, "/x", &ec), 404);
    let conf = server.conf().replace("/cached", "/renamed");
    server.rewrite_conf(&conf);
    server.reload();
    server.wait_for_log("in place", Deadline::default());
    assert_eq!(status(&server, "/x", &ec), 404);
}

#[test]
fn keys_are_requested_and_failures_pass_nobody() {
    if !ours_only("auth_jwt") {
        return;
    }
    let origin = Origin::start(|_| Reply::text(keys("public")));
    let server = serve(
        "",
        &format!(
            "location / {{ auth_jwt \"closed site\"; auth_jwt_key_request /jwks?set=1; }}
             location /cached {{ auth_jwt \"closed site\"; auth_jwt_key_request /jwks; auth_jwt_key_cache 1h; }}
             location /static {{ auth_jwt \"closed site\"; auth_jwt_key_request /keys.json; }}
             location /both {{ auth_jwt \"closed site\"; auth_jwt_key_request /keys.json; auth_jwt_key_request /none; }}
             location = /jwks {{ internal; proxy_pass http://{}; }}
             location = /keys.json {{ internal; alias conf/keys/public.json; gzip on; gzip_types *; gzip_min_length 1; }}",
            origin.addr()
        ),
    );
    let ec = signed("ES256");
    assert_eq!(get(&server, "/x", &ec).status, 404);
    assert_eq!(origin.last_request().target, "/jwks?set=1");
    assert_eq!((get(&server, "/cached", &ec).status, get(&server, "/cached", &ec).status), (404, 404));
    assert_eq!(origin.stats().of("/jwks"), 1, "the second request used the cache");
    assert_eq!(challenge(&get(&server, "/x", "x")), REFUSED);
    // A client that accepts gzip, or wants a range of the keys.
    for field in [("Accept-Encoding", "gzip"), ("Range", "bytes=0-1"), ("If-None-Match", "*")] {
        let value = format!("Bearer {ec}");
        let fields = [("Authorization", value.as_str()), field];
        let found = Client::connect(server.addr(0)).request("GET", "/static", &fields);
        assert_eq!(found.status, 404, "{field:?}");
    }
    assert_eq!(plain(&server, "/keys.json").status, 404, "it is internal");
    assert_eq!(get(&server, "/both", &ec).status, 500);
    let long = format!("{{\"x\":\"{}\"}}", "x".repeat(2 << 20));
    for reply in [
        Reply::new(500),
        Reply::new(404),
        Reply::new(204),
        Reply::new(302),
        Reply::text(""),
        Reply::text("{\"keys\":[]}"),
        Reply::text("<html>"),
        Reply::text(&long),
        Reply::new(401).body(keys("public")),
    ] {
        let status = reply.clone();
        origin.set_handler(move |_| status.clone());
        assert_eq!(get(&server, "/x", &ec).status, 500);
        assert_eq!(get(&server, "/cached", &ec).status, 404, "the cache is still valid");
    }
    server.wait_for_log("the keys of \"/jwks?set=1\" were not received: status 500", Deadline::default());
    drop(origin);
    assert_eq!(get(&server, "/x", &ec).status, 500);
}

#[test]
fn values_are_required() {
    if !ours_only("auth_jwt") {
        return;
    }
    let server = serve(
        "map $jwt_claim_sub $is_someone { someone 1; } map $jwt_claim_admin $is_admin { default 0; true 1; }
         auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json;",
        "location /sub { auth_jwt_require $is_someone; }
         location /admin { auth_jwt_require $is_admin error=403; }
         location /both { auth_jwt_require $is_someone; auth_jwt_require $is_admin error=403; }
         location /text { auth_jwt_require $jwt_claim_none$jwt_claim_iss; }
         location /none { auth_jwt_require $jwt_claim_none; }
         location /off { auth_jwt off; }",
    );
    let (someone, admin) = (signed("ES256"), token("other", 2));
    for (target, text, expected) in [
        ("/sub", &someone, 404),
        ("/sub", &admin, 401),
        ("/admin", &someone, 403),
        ("/admin", &admin, 404),
        ("/both", &someone, 403),
        ("/both", &admin, 401),
        ("/text", &someone, 404),
        ("/none", &someone, 401),
    ] {
        assert_eq!(get(&server, target, text).status, expected, "{target}");
    }
    assert_eq!(challenge(&get(&server, "/none", &someone)), REFUSED);
    assert_eq!(plain(&server, "/admin").status, 401, "without a token");
    assert_eq!(plain(&server, "/off").status, 404);
}

/// Values reach an upstream only if the token was verified.
#[test]
fn other_access_modules_apply_together() {
    if !ours_only("auth_jwt") {
        return;
    }
    let origin = Origin::start(|request| {
        let field = |name: &str| request.header(name).unwrap_or_else(|| "-".to_owned());
        Reply::text(format!("{}|{}", field("X-Sub"), field("X-Injected")))
    });
    let server = serve(
        &format!(
            "auth_jwt_key_file keys/public.json; upstream o {{ server {}; }} limit_req_zone $jwt_claim_sub zone=subs:64k rate=1r/m;",
            origin.addr()
        ),
        "proxy_set_header X-Sub $jwt_claim_sub;
         location /any { satisfy any; allow all; auth_jwt \"closed site\"; proxy_pass http://o; }
         location /none { satisfy any; deny all; auth_jwt \"closed site\"; proxy_pass http://o; }
         location /all { satisfy all; deny all; auth_jwt \"closed site\"; proxy_pass http://o; }
         location /allowed { allow all; auth_jwt \"closed site\"; proxy_pass http://o; }
         location /open { proxy_pass http://o; }
         location /unchecked { auth_jwt off token=$http_x_token; proxy_pass http://o; }
         location /requested { auth_jwt \"closed site\"; auth_request /decision; proxy_pass http://o; }
         location = /decision { internal; proxy_pass http://o; }
         location /limited { limit_req zone=subs; auth_jwt \"closed site\"; proxy_pass http://o; }",
    );
    let text = signed("ES256");
    let tampered = format!("{}A", &text[..text.len() - 1]);
    let tampered = if tampered == text { format!("{}Q", &text[..text.len() - 1]) } else { tampered };
    let said = |target: &str, token: &str| {
        let found = get(&server, target, token);
        (found.status, if found.status == 200 { found.text() } else { String::new() })
    };
    let passed = |sub: &str| (200, format!("{sub}|-"));
    // `allow` permits the request before the token is checked, so the token has no values.
    assert_eq!(said("/any", &text), passed("-"));
    assert_eq!(said("/any", &tampered), passed("-"));
    assert_eq!(said("/none", &text), passed("someone"));
    assert_eq!(said("/none", &tampered).0, 401);
    assert_eq!((said("/all", &text).0, said("/all", &tampered).0), (403, 403));
    assert_eq!((said("/allowed", &text), said("/allowed", &tampered).0), (passed("someone"), 401));
    assert_eq!(said("/open", &text), passed("-"));
    assert_eq!(said("/requested", &text), passed("someone"));
    assert_eq!(said("/requested", &tampered).0, 401);
    let fields = [("X-Token", token("other", 2))];
    let found = Client::connect(server.addr(0)).request("GET", "/unchecked", &[("X-Token", &fields[0].1)]);
    assert_eq!(found.text(), "another|-", "as with other variables, the operator decides whom to trust");
    // A claim cannot end a header field.
    assert_eq!(said("/allowed", &token("other", 3)), passed("line  X-Injected: 1"));
    // Before the access phase, values limit requests of their subject.
    assert_eq!((said("/limited", &text).0, said("/limited", &text).0), (200, 503));
    assert_eq!(said("/limited", &token("other", 2)).0, 200, "another subject");
}

#[test]
fn explain_does_not_request_keys() {
    if !ours_only("auth_jwt") {
        return;
    }
    let origin = Origin::start(|_| Reply::text(keys("public")));
    let server = serve(
        "",
        &format!(
            "location / {{ auth_jwt \"closed site\"; auth_jwt_key_request /jwks; root html; }}
             location /file {{ auth_jwt \"closed site\"; auth_jwt_key_file keys/public.json; root html; }}
             location = /jwks {{ proxy_pass http://{}; }}",
            origin.addr()
        ),
    );
    let explain = |arguments: &[&str]| {
        let output = std::process::Command::new(BINARY)
            .args(["explain", "-p"])
            .arg(server.dir())
            .arg("-c")
            .arg(server.path("conf/nginx.conf"))
            .args(arguments)
            .output()
            .expect("it runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let field = format!("Authorization: Bearer {}", signed("ES256"));
    let text = explain(&["-H", &field, "http://localhost:0/x"]);
    assert!(text.contains("the keys of \"auth_jwt_key_request\" are not requested"), "{text}");
    assert_eq!(origin.stats().requests, 0);
    let text = explain(&["-H", &field, "http://localhost:0/file"]);
    assert!(text.contains("404"), "the token is verified: {text}");
    let text = explain(&["-H", "Authorization: Bearer x", "http://localhost:0/file"]);
    assert!(text.contains("401"), "{text}");
}
