//! `oidc`: logins at a provider, the attacks that must fail, and providers that misbehave.

mod provider;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use rustix::process::Signal;
use serde_json::json;
use testkit::origin::Reply;
use testkit::{Client, Deadline, Server, Setup};

use crate::common::tls::Authority;
use crate::common::{BINARY, ours_only};
use provider::{Browser, Idp, Signing, arguments};

/// Returns a configuration with a provider that has these further rows.
fn conf(idp: &Idp, rows: &str, http: &str, server: &str) -> String {
    format!(
        "worker_processes 2; error_log logs/error.log debug; events {{ }}
         http {{ access_log off; {http}
           oidc_provider idp {{ issuer {}; client_id 'client one'; client_secret 's/ecret:'; {rows} }}
           server {{ listen 127.0.0.1:0; auth_oidc idp; root html; error_page 404 = @shown; {server}
             location @shown {{ return 200 \"$oidc_claim_sub|$oidc_claim_email|$request_uri\"; }} }} }}",
        idp.issuer()
    )
}

fn serve(idp: &Idp, rows: &str) -> Server {
    Server::builder(BINARY).conf(&conf(idp, rows, "", "")).start()
}

/// A provider, and a server in front of which clients log in there; `None` if the tests run against nginx.
fn site(rows: &str) -> Option<(Idp, Server)> {
    ours_only("auth_oidc").then(|| {
        let idp = Idp::start();
        let server = serve(&idp, rows);
        (idp, server)
    })
}

/// Asserts that the log has this text, and no secret.
#[track_caller]
fn assert_logged(server: &Server, text: &str) {
    server.wait_for_log(text, Deadline::default());
    let log = server.error_log();
    for secret in ["s/ecret", "s%2Fecret", "access1", "refresh1", "eyJ", "code1"] {
        let is_in_request_line = |line: &str| secret == "code1" && line.contains("/oidc_callback");
        let found = log.lines().find(|line| line.contains(secret) && !is_in_request_line(line));
        assert_eq!(found, None, "{secret}");
    }
}

#[test]
fn a_client_logs_in_and_gets_the_requested_page() {
    let Some((idp, server)) =
        site("scope openid email; extra_auth_args 'display=page&prompt=login'; userinfo on;")
    else {
        return;
    };
    let mut browser = Browser::of(&server);
    let location = browser.begin("/page?q=1%20//x");
    let query = arguments(location.split_once('?').expect("a query").1);
    for (name, expected) in [
        ("client_id", "client one"),
        ("scope", "openid email"),
        ("display", "page"),
        ("prompt", "login"),
        ("redirect_uri", "http://localhost/oidc_callback"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(query[name], expected, "{name}");
    }
    let response = browser.get(&idp.log_in(&location));
    assert_eq!((response.status, response.field("Cache-Control")), (302, Some("no-store")));
    assert_eq!(response.field("Location"), Some("http://localhost/page?q=1%20//x"));
    assert_eq!(response.field("Referrer-Policy"), Some("no-referrer"));
    assert_eq!(browser.cookies.len(), 1, "the cookie of the login is removed: {:?}", browser.cookies);
    assert_eq!(browser.session().map(String::len), Some(43));
    let page = browser.get("/page?q=1%20//x");
    assert_eq!((page.status, page.text().as_str()), (200, "someone|someone@example.com|/page?q=1%20//x"));
    // The documents are fetched once.
    let stats = idp.origin.stats();
    assert_eq!(
        (stats.of("/.well-known/openid-configuration"), stats.of("/keys"), stats.of("/token")),
        (1, 1, 1)
    );
    assert_eq!(Browser::of(&server).get("/page").status, 302);
    assert!(idp.state().faults.is_empty());
    assert_logged(&server, "end with status 200");
}

#[test]
fn a_callback_belongs_to_one_browser_and_is_used_once() {
    let Some((idp, server)) = site("") else { return };
    let mut browser = Browser::of(&server);
    let location = browser.begin("/a");
    let target = idp.log_in(&location);
    // A victim that follows the link of an attacker has no cookie of this login: no login as the attacker.
    assert_eq!(Browser::of(&server).get(&target).status, 400);
    // A victim with a login of its own has another state.
    let mut victim = Browser::of(&server);
    victim.begin("/b");
    assert_eq!(victim.get(&target).status, 400);
    assert_eq!(victim.session(), None);
    let (path, state) = target.split_once("&state=").expect("a state");
    for wrong in [
        format!("{path}&state="),
        path.to_owned(),
        format!("{target}x"),
        format!("{path}&state={}", &state[1..]),
        format!("{path}&state=9{}", &state[1..]),
        format!("{target}&state={state}"),
        format!("{target}&code=x"),
        format!("{path}&state=%00{state}"),
    ] {
        let mut other = browser.clone();
        assert_eq!(other.get(&wrong).status, 400, "{wrong}");
        assert_eq!(other.session(), None);
    }
    assert_eq!(browser.clone().request("POST", &target, &[]).status, 405);
    let before = browser.clone();
    assert_eq!(browser.get(&target).status, 302);
    assert_eq!(browser.get("/a").status, 200);
    // Replayed: without the cookie, and with a stolen one, whose code the provider refuses.
    assert_eq!(browser.get(&target).status, 400);
    assert_eq!(before.clone().get(&target).status, 400);
    assert_eq!(browser.get("/a").status, 200, "the session has not ended");
    assert_logged(&server, "no login of this browser has this state");
}

/// A client that makes a login itself, or repeats one, causes no requests to the provider.
#[test]
fn forged_and_repeated_callbacks_cause_no_request_to_the_provider() {
    let Some((idp, server)) = site("") else { return };
    // The form of a genuine login; the secret of the client derives all values that it can.
    let mut browser = Browser::of(&server);
    let target = idp.log_in(&browser.begin("/a"));
    let (name, value) = browser.cookies.iter().next().expect("a cookie of the login");
    let (name, ends) = (name.clone(), value.split('.').nth(1).expect("a time").to_owned());
    let secret = [7; 32];
    let uri = provider::base64url(b"/a");
    let context = ["idp", &idp.issuer(), "client one"].join("\0");
    let text = provider::base64url(&secret);
    for about in [format!("{context}\0{ends}\0/a"), format!("{context}\0{ends}\0{text}\0/a")] {
        // Before the end of the login there is the number of the cookie.
        let about = about.replacen(&format!("\0{ends}"), &format!("\0{}\0{ends}", &name[10..11]), 1);
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let state = hmac::sign(&key, format!("state\0{about}").as_bytes());
        let mut forger = Browser::of(&server);
        forger.cookies.insert(name.clone(), format!("{text}.{ends}.{uri}"));
        let state = format!("{}{}", &name[10..11], provider::base64url(state.as_ref()));
        assert_eq!(forger.get(&format!("/oidc_callback?code=x&state={state}")).status, 400);
    }
    assert_eq!(idp.origin.stats().of("/token"), 0);
    // One login, with many codes.
    let repeated = browser.clone();
    let state = target.split_once("&state=").expect("a state").1;
    for number in 0..5 {
        let target = format!("/oidc_callback?code=guess{number}&state={state}");
        assert_eq!(repeated.clone().get(&target).status, 400);
    }
    assert_eq!(idp.origin.stats().of("/token"), 1, "the first one might be genuine");
    server.wait_for_log("the login has ended before", Deadline::default());
    assert_eq!(browser.get(&target).status, 400);
    assert_eq!(browser.log_in(&idp, "/a").status, 302);
}

/// The key that authenticates logins is that of the master: another worker process accepts them.
#[test]
fn a_login_may_end_at_another_worker_process() {
    let Some((idp, mut server)) = site("") else { return };
    let mut browser = Browser::of(&server);
    let location = browser.begin("/b");
    let before = server.workers();
    let text = conf(&idp, "", "", "").replace("worker_processes 2;", "worker_processes 1;");
    server.rewrite_conf(&text);
    server.reload();
    let is_new = || server.is_replaced(&before).then_some(());
    testkit::wait::until("another worker", Deadline::default(), is_new).expect("it is started");
    let response = browser.get(&idp.log_in(&location));
    assert_eq!((response.status, response.field("Location")), (302, Some("http://localhost/b")));
    assert_eq!(browser.get("/b").status, 200);
}

/// The state file has sessions, but nothing that could be used as one.
#[test]
fn sessions_with_a_state_file_survive_a_restart() {
    if !ours_only("auth_oidc") {
        return;
    }
    let idp = Idp::start();
    let zone = "keyval_zone zone=kept:1m state=@DATA@/state/sessions.json;";
    let setup = Setup::new(&conf(&idp, "session_store kept;", zone, ""));
    let folder = setup.data().join("state");
    std::fs::create_dir(&folder).expect("a new directory");
    // The worker may have another user.
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).expect("it is ours");
    let mut server = setup.builder(BINARY).start();
    let mut browser = Browser::of(&server);
    browser.log_in(&idp, "/a");
    assert_eq!(browser.get("/a").status, 200);
    let mut begun = Browser::of(&server);
    let location = begun.begin("/b");
    // The response does not wait for the write.
    let read = || std::fs::read_to_string(folder.join("sessions.json")).ok();
    let stored = testkit::wait::until("the state file", Deadline::default(), read).expect("it is written");
    let session = browser.session().expect("a session").clone();
    for secret in [session.as_str(), "eyJ", "access1", "someone"] {
        assert!(!stored.contains(secret), "{secret}: {stored}");
    }
    server.signal(Signal::QUIT);
    server.wait_until_ended(Deadline::default());
    let server = setup.builder(BINARY).start();
    let mut browser = browser.at(&server);
    assert_eq!(browser.get("/a").text(), "someone||/a");
    assert_eq!(idp.origin.stats().of("/token"), 1, "without another login");
    // A key of the state file is no identifier.
    let pairs: serde_json::Value = serde_json::from_str(&stored).expect("JSON");
    for key in pairs.as_object().expect("an object").keys() {
        let mut thief = Browser::of(&server);
        thief.cookies.insert("NGX_OIDC_SESSION".to_owned(), key.clone());
        assert_eq!(thief.get("/a").status, 302, "{key}");
    }
    // A login that has begun before the restart begins again.
    let mut begun = begun.at(&server);
    assert_eq!(begun.get(&idp.log_in(&location)).status, 400);
    assert_eq!(begun.log_in(&idp, "/b").status, 302);
}

#[test]
fn with_satisfy_any_one_of_the_modules_is_sufficient() {
    if !ours_only("auth_oidc") {
        return;
    }
    let idp = Idp::start();
    let locations = "
        location /open { satisfy any; allow 127.0.0.1; deny all; }
        location /login { satisfy any; deny all; }
        location /both { allow 127.0.0.1; deny 127.0.0.2; }
        location /closed { deny all; }
        location /password { satisfy any; auth_basic x; auth_basic_user_file users; }";
    // The callback is in no location of its own.
    for of_server in ["", "satisfy any; deny all;"] {
        let mut builder = Server::builder(BINARY)
            .conf(&conf(&idp, "", "", &format!("{of_server} {locations}")))
            .text("conf/users", "anna:{PLAIN}secret\n");
        for name in ["open", "login", "both", "closed", "password"] {
            builder = builder.text(&format!("html/{name}"), name);
        }
        let server = builder.start();
        let mut browser = Browser::of(&server);
        let password = testkit::client::basic("anna:secret");
        let password = [("Authorization", password.as_str())];
        assert_eq!(browser.get("/open").text(), "open");
        assert_eq!(browser.request("GET", "/password", &password).text(), "password");
        let response = browser.get("/password");
        // A browser that gets a challenge asks for a password instead of following the redirect.
        assert_eq!((response.status, response.field("WWW-Authenticate")), (302, None));
        let without_session = |target: &str| Browser::of(&server).get(target).status;
        assert_eq!(without_session("/login"), 302);
        // Both modules are necessary, unless the server says otherwise.
        assert_eq!(without_session("/both"), if of_server.is_empty() { 302 } else { 200 });
        let expected = if of_server.is_empty() { 403 } else { 302 };
        assert_eq!(without_session("/closed"), expected);
        browser.cookies.clear();
        assert_eq!(browser.log_in(&idp, "/login").status, 302, "{}", server.error_log());
        for (name, is_allowed) in
            [("open", true), ("login", true), ("both", true), ("password", true), ("closed", expected != 403)]
        {
            let status = if is_allowed { 200 } else { 403 };
            assert_eq!(browser.get(&format!("/{name}")).status, status, "{name}, {of_server}");
        }
    }
}

#[test]
fn a_revoked_certificate_of_the_provider_is_refused() {
    if !ours_only("auth_oidc") {
        return;
    }
    let authority = Authority::new("root");
    let (certificate, key) = authority.numbered("127.0.0.1", 7);
    let idp = Idp::start();
    let front = format!(
        "events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:0 ssl; ssl_certificate a.pem; ssl_certificate_key a.key;
           location / {{ proxy_pass http://{}; proxy_set_header Host $http_host; }} }} }}",
        idp.origin.addr()
    );
    let front =
        Server::builder(BINARY).conf(&front).text("conf/a.pem", &certificate).text("conf/a.key", &key);
    let front = front.start();
    idp.state().front = Some(format!("https://{}", front.addr(0)));
    for (revoked, trusted, expected) in [
        (Some(&[8][..]), &authority, 302),
        (None, &authority, 302),
        (Some(&[8, 7]), &authority, 502),
        (None, &Authority::new("other"), 502),
    ] {
        let row = revoked.map_or("", |_| "ssl_crl crl.pem;");
        let rows = format!("ssl_trusted_certificate ca.pem; {row}");
        let server = Server::builder(BINARY)
            .conf(&conf(&idp, &rows, "", ""))
            .text("conf/ca.pem", &trusted.pem)
            .text("conf/crl.pem", &authority.crl(revoked.unwrap_or_default()))
            .start();
        let mut browser = Browser::of(&server);
        assert_eq!(browser.get("/a").status, expected, "{revoked:?}: {}", server.error_log());
        match expected {
            302 => assert_eq!(browser.log_in(&idp, "/a").status, 302, "{}", server.error_log()),
            _ => drop(server.wait_for_log("certificate", Deadline::default())),
        }
        if revoked.is_some() && expected == 502 {
            server.wait_for_log("revoked", Deadline::default());
        }
    }
}

#[test]
fn id_tokens_that_are_not_for_this_login_are_refused() {
    let Some((idp, server)) = site("") else { return };
    let now = provider::now();
    for (claims, reason) in [
        (json!({"iss": "http://evil.example"}), "\"iss\""),
        (json!({"iss": null}), "\"iss\""),
        (json!({"aud": "other"}), "\"aud\""),
        (json!({"aud": null}), "\"aud\""),
        (json!({"aud": ["client one", "other"]}), "\"azp\""),
        (json!({"aud": ["client one", "other"], "azp": "other"}), "\"azp\""),
        (json!({"azp": "other"}), "\"azp\""),
        (json!({"nonce": "other"}), "\"nonce\""),
        (json!({"nonce": null}), "\"nonce\""),
        (json!({"exp": now - 60}), "it has expired"),
        (json!({"exp": null}), "\"exp\""),
        (json!({"exp": "x"}), "its claims are invalid"),
        (json!({"iat": now + 600}), "\"iat\""),
        (json!({"iat": null}), "\"iat\""),
        (json!({"nbf": now + 600}), "it is not valid yet"),
        (json!({"sub": null}), "\"sub\""),
        (json!({"sub": ""}), "\"sub\""),
        (json!({"at_hash": "AAAA"}), "\"at_hash\""),
    ] {
        idp.state().claims = claims.clone();
        let mut browser = Browser::of(&server);
        assert_eq!(browser.log_in(&idp, "/a").status, 502, "{claims}");
        assert_eq!(browser.session(), None, "{claims}");
        assert_logged(&server, &format!("the ID token is refused: {}", reason_text(reason)));
    }
    idp.state().claims = json!({"aud": ["client one", "other"], "azp": "client one"});
    assert_eq!(Browser::of(&server).log_in(&idp, "/a").status, 302);
}

/// Returns the message about a claim.
fn reason_text(reason: &str) -> String {
    match reason.starts_with('"') {
        true => format!("its claim {reason} is missing or wrong"),
        false => reason.to_owned(),
    }
}

#[test]
fn signatures_are_verified_by_the_keys_and_algorithms_of_the_provider() {
    let Some((idp, server)) = site("") else { return };
    for (signing, reason) in [
        (Signing::None, "its algorithm"),
        (Signing::PublicKeyAsSecret, "its algorithm"),
        (Signing::OtherKey, "its signature"),
        (Signing::Damaged, "its signature"),
    ] {
        idp.state().signing = signing;
        let mut browser = Browser::of(&server);
        assert_eq!(browser.log_in(&idp, "/a").status, 502, "{signing:?}");
        assert_eq!(browser.session(), None);
        server.wait_for_log(reason, Deadline::default());
    }
}

#[test]
fn a_rotated_key_is_fetched_and_an_unknown_one_is_not_fetched_again_and_again() {
    let Some((idp, server)) = site("") else { return };
    assert_eq!(Browser::of(&server).log_in(&idp, "/a").status, 302);
    idp.rotate();
    testkit::wait::let_pass(Duration::from_millis(1100));
    assert_eq!(Browser::of(&server).log_in(&idp, "/a").status, 302);
    assert_eq!(idp.origin.stats().of("/keys"), 2);
    idp.state().signing = Signing::OtherKey;
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(Browser::of(&server).log_in(&idp, "/a").status, 502);
    }
    let fetches = idp.origin.stats().of("/keys") - 2;
    assert!(fetches <= begun.elapsed().as_secs() + 1, "{fetches}");
}

#[test]
fn only_paths_of_this_server_are_restored() {
    let Some((idp, server)) = site("") else { return };
    let long = format!("/{}", "x".repeat(2000));
    for (target, expected) in [
        ("//evil.example/x", "/"),
        ("/\\evil.example", "/"),
        (long.as_str(), "/"),
        ("/%2F%2Fevil.example", "/%2F%2Fevil.example"),
    ] {
        let mut browser = Browser::of(&server);
        let response = browser.log_in(&idp, target);
        let expected = format!("http://localhost{expected}");
        assert_eq!(response.field("Location"), Some(expected.as_str()), "{target}");
    }
    // A cookie with another URI does not belong to the state.
    let mut browser = Browser::of(&server);
    let location = browser.begin("/a");
    let target = idp.log_in(&location);
    let (name, value) = browser.cookies.pop_first().expect("a cookie");
    let (start, _) = value.rsplit_once('.').expect("parts");
    browser.cookies.insert(name, format!("{start}.{}", provider::base64url(b"//evil.example")));
    assert_eq!(browser.get(&target).status, 400);
}

#[test]
fn hostile_cookies_have_no_effect() {
    let Some((idp, server)) = site("") else { return };
    let mut browser = Browser::of(&server);
    browser.log_in(&idp, "/a");
    let session = browser.session().expect("a session").clone();
    let with = |cookie: &str| {
        let mut client = Client::connect(server.addr(0));
        client.request("GET", "/a", &[("Cookie", cookie)]).status
    };
    assert_eq!(with(&format!("x=y; NGX_OIDC_SESSION={session}")), 200);
    assert_eq!(with(&format!("NGX_OIDC_SESSION={session}; NGX_OIDC_SESSION={session}")), 200);
    let other = "A".repeat(43);
    for cookie in [
        // Two values: another site of the domain has set one of them.
        format!("NGX_OIDC_SESSION={session}; NGX_OIDC_SESSION={other}"),
        format!("NGX_OIDC_SESSION={other}; NGX_OIDC_SESSION={session}"),
        format!("ngx_oidc_session={session}"),
        format!("NGX_OIDC_SESSION={}", &session[..42]),
        format!("NGX_OIDC_SESSION={session}="),
        format!("NGX_OIDC_SESSION=\"{session}\""),
        format!("NGX_OIDC_SESSION={}", "A".repeat(6000)),
        "NGX_OIDC_SESSION=".to_owned(),
        "NGX_OIDC_SESSION=%0d%0aSet-Cookie:x=y".to_owned(),
        "; ;=;".to_owned(),
    ] {
        assert_eq!(with(&cookie), 302, "{cookie}");
    }
    // A session is not fixed by an attacker: the login has another identifier, and the known one ends.
    browser.cookies.clear();
    browser.cookies.insert("NGX_OIDC_SESSION".to_owned(), session.clone());
    let mut second = browser.clone();
    second.cookies.insert("NGX_OIDC_SESSION".to_owned(), other);
    second.log_in(&idp, "/a");
    assert_ne!(second.session(), Some(&"A".repeat(43)));
    assert_eq!(second.get("/a").status, 200);
    assert_eq!(browser.get("/a").status, 200, "the session of another browser remains");
}

#[test]
fn claims_with_line_breaks_add_no_fields() {
    if !ours_only("auth_oidc") {
        return;
    }
    let idp = Idp::start();
    let backend = testkit::Origin::start(|_| Reply::text("ok"));
    let proxied = format!(
        "location /up {{ proxy_pass http://{}; proxy_set_header X-User $oidc_claim_name; add_header X-Name $oidc_claim_name; }}",
        backend.addr()
    );
    let server = Server::builder(BINARY).conf(&conf(&idp, "", "", &proxied)).start();
    idp.state().claims = json!({"name": "a\r\nX-Admin: yes"});
    let mut browser = Browser::of(&server);
    browser.log_in(&idp, "/up");
    let response = browser.get("/up");
    assert_eq!(response.field("X-Admin"), None);
    assert!(backend.requests().iter().all(|request| request.header("X-Admin").is_none()));
}

#[test]
fn a_provider_that_misbehaves_fails_only_its_clients() {
    let Some((idp, server)) = site("") else { return };
    let mut user = Browser::of(&server);
    user.log_in(&idp, "/a");
    for (reply, reason) in [
        (Reply::new(500), "status 500"),
        (Reply::text("garbage"), "the response is no JSON object"),
        (Reply::close(), ""),
        (Reply::text("x".repeat(200 << 10)), "has more than 131072 bytes"),
        (Reply::new(302).header("Location", "http://evil.example/"), "status 302"),
    ] {
        idp.state().replies.insert("/token", reply);
        let mut browser = Browser::of(&server);
        assert_eq!(browser.log_in(&idp, "/a").status, 502, "{reason}");
        assert_eq!(user.get("/a").status, 200);
        if !reason.is_empty() {
            assert_logged(&server, reason);
        }
    }
    // A provider that is slow: other requests do not wait.
    idp.state().replies.insert("/token", Reply::never());
    let mut browser = Browser::of(&server);
    let location = browser.begin("/a");
    let target = idp.log_in(&location);
    let slow = std::thread::spawn(move || browser.get(&target).status);
    idp.origin.wait_for("the request", |stats| stats.of("/token") >= 7);
    let begun = Instant::now();
    assert_eq!(user.get("/a").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(slow.join().expect("it ends"), 504);
    assert_logged(&server, "no complete response in 10 s");
    let _ = idp.origin.take_faults();
}

#[test]
fn metadata_that_are_not_the_providers_are_refused() {
    if !ours_only("auth_oidc") {
        return;
    }
    for (metadata, reason) in [
        (json!({"issuer": "http://evil.example"}), "the metadata has another issuer"),
        (json!({"issuer": null}), "the metadata has another issuer"),
        (json!({"token_endpoint": null}), "the metadata has no \"token_endpoint\""),
        (json!({"jwks_uri": "file:///etc/passwd"}), "no \"https://\" in \"jwks_uri\""),
        (
            json!({"authorization_endpoint": "http://a\r\nX: y/"}),
            "an invalid character in \"authorization_endpoint\"",
        ),
    ] {
        let idp = Idp::start();
        idp.state().metadata = metadata;
        let server = serve(&idp, "");
        assert_eq!(Browser::of(&server).get("/a").status, 502, "{reason}");
        assert_logged(&server, reason);
    }
}

#[test]
fn concurrent_requests_share_the_fetch_of_the_metadata() {
    let Some((idp, server)) = site("") else { return };
    let gate = testkit::Gate::new();
    let held = Reply::new(503).wait_first(&gate);
    idp.state().replies.insert("/.well-known", held);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let mut browser = Browser::of(&server);
            std::thread::spawn(move || browser.get("/a").status)
        })
        .collect();
    gate.wait_reached();
    gate.open();
    let statuses: Vec<u16> = clients.into_iter().map(|client| client.join().expect("it ends")).collect();
    assert_eq!(statuses, [502; 8]);
    let fetches = idp.origin.stats().of("/.well-known/openid-configuration");
    assert!(fetches <= 2, "{fetches}");
    // Later the provider is available.
    idp.state().replies.clear();
    testkit::wait::let_pass(Duration::from_millis(1100));
    assert_eq!(Browser::of(&server).get("/a").status, 302);
}

#[test]
fn a_session_ends_after_its_time_and_tokens_are_refreshed_before() {
    let Some((idp, server)) = site("session_timeout 2s;") else { return };
    let mut browser = Browser::of(&server);
    browser.log_in(&idp, "/a");
    assert_eq!(browser.get("/a").status, 200);
    testkit::wait::let_pass(Duration::from_millis(2200));
    assert_eq!(browser.get("/a").status, 302);
}

#[test]
fn tokens_are_refreshed_once_and_a_refused_refresh_ends_the_session() {
    let Some((idp, server)) = site("") else { return };
    idp.state().tokens = json!({"refresh_token": "yes", "expires_in": 1});
    let mut browser = Browser::of(&server);
    browser.log_in(&idp, "/a");
    assert_eq!(browser.get("/a").status, 200);
    assert_eq!(idp.origin.stats().of("/token"), 1);
    // The minimum time between refreshes.
    testkit::wait::let_pass(Duration::from_millis(10_200));
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let mut browser = browser.clone();
            std::thread::spawn(move || browser.get("/a").status)
        })
        .collect();
    let statuses: Vec<u16> = clients.into_iter().map(|client| client.join().expect("it ends")).collect();
    assert_eq!(statuses, [200; 6]);
    assert_eq!(idp.origin.stats().of("/token"), 2);
    idp.state().refresh_token.clear();
    testkit::wait::let_pass(Duration::from_millis(10_200));
    assert_eq!(browser.get("/a").status, 302);
    assert_logged(&server, "tokens were not refreshed");
}

#[test]
fn a_logout_ends_the_session_here_and_at_the_provider() {
    let rows =
        "logout_uri /logout; post_logout_uri /bye; logout_token_hint on; frontchannel_logout_uri /front;";
    if !ours_only("auth_oidc") {
        return;
    }
    let idp = Idp::start();
    let bye = "location = /bye { auth_oidc off; return 200 bye; }";
    let server = Server::builder(BINARY).conf(&conf(&idp, rows, "", bye)).start();
    let mut browser = Browser::of(&server);
    browser.log_in(&idp, "/a");
    let stolen = browser.clone();
    let response = browser.get("/logout");
    assert_eq!((response.status, browser.session()), (302, None));
    let location = response.field("Location").expect("a location").to_owned();
    let (url, query) = location.split_once('?').expect("a query");
    assert_eq!(url, format!("{}/end", idp.issuer()));
    let query = arguments(query);
    assert_eq!(query["client_id"], "client one");
    assert_eq!(query["post_logout_redirect_uri"], "http://localhost/bye");
    assert_eq!(query["id_token_hint"].split('.').count(), 3);
    assert_eq!(stolen.clone().get("/a").status, 302, "the cookie of before has no session");
    assert_eq!(browser.get("/bye").text(), "bye");
    // The provider ends the sessions of its own session.
    idp.state().claims = json!({"sid": "s1"});
    let mut browser = Browser::of(&server);
    browser.log_in(&idp, "/a");
    let front = |query: &str| Client::connect(server.addr(0)).get(&format!("/front?{query}")).status;
    let issuer = idp.issuer().replace(':', "%3A");
    assert_eq!(front("iss=http%3A%2F%2Fevil.example&sid=s1"), 400);
    assert_eq!(front("sid=s1"), 400);
    assert_eq!(front(&format!("iss={issuer}&sid=s2")), 200);
    assert_eq!(browser.get("/a").status, 200);
    assert_eq!(front(&format!("iss={issuer}&sid=s1")), 200);
    assert_eq!(browser.get("/a").status, 302);
}

#[test]
fn a_reload_between_redirect_and_callback_changes_nothing_and_keeps_sessions() {
    let Some((idp, mut server)) = site("") else { return };
    let mut browser = Browser::of(&server);
    let mut second = Browser::of(&server);
    browser.log_in(&idp, "/a");
    let location = second.begin("/b");
    let text = conf(&idp, "", "", "").replace("access_log off;", "access_log off; keepalive_timeout 60s;");
    server.rewrite_conf(&text);
    server.reload();
    server.wait_for_log("reconfig", Deadline::default());
    assert_eq!(browser.get("/a").status, 200);
    let response = second.get(&idp.log_in(&location));
    assert_eq!((response.status, response.field("Location")), (302, Some("http://localhost/b")));
    assert_eq!(second.get("/b").status, 200);
}

#[test]
fn several_providers_do_not_accept_each_others_logins_and_sessions() {
    if !ours_only("auth_oidc") {
        return;
    }
    let (one, two) = (Idp::start(), Idp::start());
    let provider = |name: &str, idp: &Idp, path: &str| {
        format!(
            "oidc_provider {name} {{ issuer {}; client_id 'client one'; client_secret 's/ecret:'; session_store shared;
             redirect_uri {path}; }}",
            idp.issuer()
        )
    };
    let text = format!(
        "worker_processes 2; error_log logs/error.log debug; events {{ }} http {{ access_log off;
         keyval_zone zone=shared:1m; {} {}
         server {{ listen 127.0.0.1:0; root html; error_page 404 = @shown;
           location /one {{ auth_oidc one; }} location /two {{ auth_oidc two; }}
           location /any {{ auth_oidc $arg_p; }}
           location @shown {{ return 200 shown; }} }} }}",
        provider("one", &one, "/cb1"),
        provider("two", &two, "/cb2"),
    );
    let server = Server::builder(BINARY).conf(&text).start();
    let mut browser = Browser::of(&server);
    browser.log_in(&one, "/one");
    assert_eq!((browser.get("/one").status, browser.get("/two").status), (200, 302));
    // Mix-up: the code of one provider at the callback of the other.
    let mut browser = Browser::of(&server);
    let location = browser.begin("/one");
    let target = one.log_in(&location);
    assert_eq!(browser.clone().get(&target.replace("/cb1", "/cb2")).status, 400);
    assert_eq!(browser.clone().get(&format!("{target}&iss=http%3A%2F%2Fevil.example")).status, 400);
    assert_eq!(two.origin.stats().of("/token"), 0);
    let issuer = one.issuer().replace(':', "%3A");
    assert_eq!(browser.get(&format!("{target}&iss={issuer}")).status, 302);
    assert_eq!(browser.get("/any?p=one").status, 200);
    assert_eq!((browser.get("/any?p=off").status, browser.get("/any?p=none").status), (200, 500));
}

#[test]
fn a_full_store_refuses_logins_and_evicts_no_session() {
    if !ours_only("auth_oidc") {
        return;
    }
    let idp = Idp::start();
    let zone = "keyval_zone zone=small:32k;";
    let server = Server::builder(BINARY).conf(&conf(&idp, "session_store small;", zone, "")).start();
    let mut first = Browser::of(&server);
    first.log_in(&idp, "/a");
    // Requests without a session need no memory.
    (0..200).for_each(|_| assert_eq!(Browser::of(&server).get("/a").status, 302));
    let mut statuses = Vec::new();
    for number in 0..40 {
        idp.state().claims = json!({"sub": format!("user{number}")});
        statuses.push(Browser::of(&server).log_in(&idp, "/a").status);
    }
    assert_eq!((statuses[0], statuses[39]), (302, 503), "{statuses:?}");
    assert_eq!(first.get("/a").status, 200);
    assert_logged(&server, "the session is not stored, its zone is full");
}

#[test]
fn a_user_has_a_maximum_number_of_sessions() {
    let Some((idp, server)) = site("") else { return };
    let mut browsers: Vec<Browser> = (0..21).map(|_| Browser::of(&server)).collect();
    for browser in &mut browsers {
        browser.log_in(&idp, "/a");
    }
    let statuses: Vec<u16> = browsers.iter_mut().map(|browser| browser.get("/a").status).collect();
    assert_eq!((statuses[0], &statuses[1..]), (302, &[200; 20][..]));
}

#[test]
fn pkce_and_the_secret_are_sent_as_the_provider_supports_it() {
    if !ours_only("auth_oidc") {
        return;
    }
    for (rows, has_pkce, expected) in
        [("", true, true), ("", false, false), ("pkce on;", false, true), ("pkce off;", true, false)]
    {
        let idp = Idp::start();
        idp.state().metadata = json!({
            "code_challenge_methods_supported": if has_pkce { json!(["S256"]) } else { json!(["plain"]) },
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        });
        let server = serve(&idp, rows);
        let mut browser = Browser::of(&server);
        let location = browser.begin("/a");
        assert_eq!(location.contains("code_challenge="), expected, "{rows}");
        assert_eq!(browser.get(&idp.log_in(&location)).status, 302);
        let request = idp.origin.requests().into_iter().find(|request| request.target == "/token");
        assert_eq!(request.expect("a request").header("Authorization"), None);
    }
}

#[test]
fn userinfo_is_about_the_same_user() {
    let Some((idp, server)) = site("userinfo on;") else { return };
    idp.state().userinfo = json!({"sub": "admin"});
    assert_eq!(Browser::of(&server).log_in(&idp, "/a").status, 502);
    assert_logged(&server, "UserInfo is about another subject");
}

#[test]
fn requests_that_are_no_navigation_do_not_begin_a_login() {
    let Some((idp, server)) = site("") else { return };
    let mut browser = Browser::of(&server);
    let response = browser.request("GET", "/a", &[("Sec-Fetch-Mode", "cors")]);
    assert_eq!((response.status, browser.cookies.len()), (401, 0));
    assert_eq!(browser.request("GET", "/a", &[("Sec-Fetch-Mode", "navigate")]).status, 302);
    // Several windows, and a limit on their cookies.
    let locations: Vec<String> = (0..6).map(|number| browser.begin(&format!("/{number}"))).collect();
    assert_eq!(browser.cookies.len(), 3);
    let done = locations.iter().filter(|location| browser.clone().get(&idp.log_in(location)).status == 302);
    assert!(done.count() >= 2);
    // The provider's error.
    let location = browser.begin("/x");
    let target = idp.log_in(&location);
    let state = target.split_once("&state=").expect("a state").1;
    assert_eq!(browser.get(&format!("/oidc_callback?error=access_denied&state={state}")).status, 403);
}

/// Returns the directory of npm's packages, if it has the provider.
fn packages() -> Option<String> {
    let found = Command::new("npm").args(["root", "-g"]).output().ok()?;
    let path = String::from_utf8(found.stdout).ok()?.trim().to_owned();
    let has = std::path::Path::new(&path).join("oidc-provider").is_dir()
        && Command::new("curl").arg("-V").output().is_ok();
    has.then_some(path)
}

/// A provider process, which ends with the test.
struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn users_log_in_at_another_implementation_of_a_provider() {
    if !ours_only("auth_oidc") {
        return;
    }
    let Some(packages) = packages() else {
        return testkit::skip("oidc-provider or curl is not installed: npm install -g oidc-provider");
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/oidc/foreign.mjs");
    let mut command = Command::new("node");
    command.args([script, &packages, "http://app.test/oidc_callback", "http://app.test/bye"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("node starts");
    let mut foreign = Foreign(child);
    let mut issuer = String::new();
    // Open until the end of the test: the provider also prints notices.
    let mut stdout = BufReader::new(foreign.0.stdout.take().expect("a pipe"));
    stdout.read_line(&mut issuer).expect("the issuer");
    let text = format!(
        "worker_processes 1; error_log logs/error.log info; events {{ }} http {{ access_log off;
         oidc_provider idp {{ issuer {}; client_id 'client one'; client_secret 's/ecret:'; scope openid email; userinfo on;
           logout_uri /logout; post_logout_uri /bye; logout_token_hint on; }}
         server {{ listen 127.0.0.1:0; auth_oidc idp; root html; error_page 404 = @shown;
           location = /bye {{ auth_oidc off; return 200 bye; }}
           location @shown {{ return 200 \"$oidc_claim_sub|$oidc_claim_email|$request_uri\"; }} }} }}",
        issuer.trim()
    );
    let server = Server::builder(BINARY).conf(&text).start();
    let jar = server.path("jar");
    let curl = |args: &[&str]| {
        let to = format!("app.test:80:{}", server.addr(0));
        let mut command = Command::new("curl");
        command
            .args(["-sL", "--noproxy", "*", "--max-time", "20", "--connect-to", &to])
            .arg("-b")
            .arg(&jar)
            .arg("-c")
            .arg(&jar);
        let output = command.args(args).output().expect("curl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let action = |page: &str| {
        let rest = page.split_once("action=\"").unwrap_or_else(|| panic!("{page}\n{}", server.error_log())).1;
        rest.split('"').next().expect("an end").to_owned()
    };
    let login = curl(&["http://app.test/page?x=1"]);
    let consent = curl(&["-d", "prompt=login&login=someone&password=x", &action(&login)]);
    let page = curl(&["-d", "prompt=consent", &action(&consent)]);
    assert_eq!(page, "someone|someone@example.com|/page?x=1", "{}", server.error_log());
    assert_eq!(curl(&["http://app.test/other"]), "someone|someone@example.com|/other");
    // The provider asks, and then returns the user.
    let question = curl(&["http://app.test/logout"]);
    let form = question.split_once("name=\"xsrf\" value=\"");
    let (_, rest) = form.unwrap_or_else(|| panic!("{question}"));
    let token = rest.split('"').next().expect("an end");
    let form = format!("xsrf={token}&logout=yes");
    assert_eq!(curl(&["-d", &form, &action(&question)]), "bye");
    assert!(curl(&["http://app.test/other"]).contains("prompt"));
}
