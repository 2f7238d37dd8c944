//! Tests over a socket the variables that the configuration defines, and rewrites, conditions and maps. The settings of
//! the directives, and the errors of invalid ones, are tested in each module.

use crate::support::Site;

#[test]
fn maps_match_strings_patterns_and_host_names() {
    let site = Site::start(
        "map",
        r#"access_log off;
         map $arg_a $plain { default "none of $arg_a"; x ex; Y "why $arg_b"; ~^p(?<rest>.*)$ "rest $rest"; "" empty;
           ~*^Q(.)(.) "$2$1"; \default word; \~tilde "a tilde"; \hostnames names; }
         map $arg_a $bare { x 1; }
         map $arg_h $host_of { hostnames; default no; *.example.com head; www.example.* tail;
           exact.example.com exact; ~^re\. pattern; }
         map "$arg_a:$arg_b" $pair { x:y both; }
         server { listen 127.0.0.1:PORT;
           location / { return 200 "$plain|$bare|$pair"; }
           location /host { return 200 "$host_of"; }
           location /named { return 200 "$plain $rest"; } }"#,
    );
    for (query, expected) in [
        ("a=x&b=y", "ex|1|both"),
        ("a=X&b=Y", "ex|1|both"),
        ("a=y&b=z", "why z||"),
        ("a=pqr", "rest qr||"),
        ("a=Pqr", "none of Pqr||"),
        ("a=qab", "ba||"),
        ("a=", "empty||"),
        ("", "empty||"),
        ("a=default", "word||"),
        ("a=~tilde", "a tilde||"),
        ("a=hostnames", "names||"),
    ] {
        assert_eq!(site.text(&format!("/?{query}")), expected, "{query}");
    }
    for (host, expected) in [
        ("a.example.com", "head"),
        ("A.Example.COM", "head"),
        ("a.example.com.", "head"),
        ("example.com", "no"),
        ("exact.example.com", "exact"),
        ("www.example.org", "tail"),
        ("re.org", "pattern"),
        ("", "no"),
    ] {
        assert_eq!(site.text(&format!("/host?h={host}")), expected, "{host}");
    }
    assert_eq!(site.text("/named?a=pqr"), "rest qr qr");
}

/// A server behind a proxy that ends TLS can take the values from header fields.
#[test]
fn variables_of_tls_can_be_redefined_and_set() {
    let site = Site::start(
        "tls-variables",
        r#"access_log off; add_header X-Before $ssl_client_verify;
         map $http_x_verify $ssl_client_verify { default NONE; ok SUCCESS; }
         server { listen 127.0.0.1:PORT; set $ssl_protocol "by $arg_a";
           location / { return 200 "$ssl_client_verify|$ssl_protocol|$ssl_cipher"; }
           location /set { set $ssl_client_verify set; return 200 "$ssl_client_verify"; } }"#,
    );
    assert_eq!(site.text("/"), "NONE|by |");
    let response = site.client().request("GET", "/?a=proxy", &[("Host", "a"), ("X-Verify", "ok")]);
    assert_eq!(response.text(), "SUCCESS|by proxy|");
    // A statement above the map uses the same variable.
    assert_eq!(response.field("X-Before"), Some("SUCCESS"));
    assert_eq!(site.text("/set"), "set");
}

#[test]
fn maps_are_computed_once_unless_they_are_volatile() {
    let site = Site::start(
        "volatile",
        r#"access_log off;
         map $x $kept { default "kept $x"; } map $x $fresh { volatile; default "fresh $x"; }
         map $arg_a $assigned { default computed; }
         server { listen 127.0.0.1:PORT; set $x 1; set $first "$kept $fresh"; set $x 2;
           location / { return 200 "$first|$kept|$fresh"; }
           location /assigned { set $assigned "set over $assigned"; return 200 $assigned; } }"#,
    );
    assert_eq!(site.text("/"), "kept 1 fresh 1|kept 1|fresh 2");
    assert_eq!(site.text("/assigned"), "set over computed");
}

#[test]
fn cycles_of_variables_are_logged_and_have_no_value() {
    let site = Site::start(
        "cycle",
        r#"access_log off;
         map $b $a { default "a$b"; } map $a $b { default "b$a"; } map x $own { volatile; default "<$own>"; }
         server { listen 127.0.0.1:PORT; location /a { return 200 $a; } location /own { return 200 $own; }
           location /root { root /r$request_filename; return 200 $request_filename; } }"#,
    );
    assert_eq!(site.text("/a"), "ab");
    assert!(site.lines("error.log", 1)[0].contains("[error]"));
    assert!(
        site.lines("error.log", 1)[0].contains("cycle while evaluating variable \"a\", client: 127.0.0.1")
    );
    assert_eq!(site.text("/own"), "<>");
    assert!(site.text("/root").starts_with("/r/r/r"));
}

#[test]
fn long_chains_of_variables_do_not_overflow_the_stack() {
    let maps: String =
        (1..150).map(|link| format!("map $v{} $v{link} {{ ~^(.*)$ \"$1.\"; }}\n", link - 1)).collect();
    let conf = format!(
        "access_log off; {maps}
         server {{ listen 127.0.0.1:PORT; set $v0 start; location / {{ return 200 $v149; }}
           location /short {{ return 200 $v99; }} }}"
    );
    let site = Site::start("chain", &conf);
    assert_eq!(site.text("/short"), format!("start{}", ".".repeat(99)));
    assert_eq!(site.text("/"), "");
    assert!(site.lines("error.log", 1)[0].contains("cycle while evaluating variable \"v49\", client: "));
}

#[test]
fn variables_may_be_assigned_after_their_use() {
    let site = Site::start(
        "families",
        r#"log_format own "$http_x"; access_log own.log own;
         server { listen 127.0.0.1:PORT; error_log error.log warn; location /set { set $http_x changed; return 200 $http_x; }
           location /kept { return 200 "$http_x $cookie_b"; }
           location /unset { return 200 "<$never>"; location /unset/off { uninitialized_variable_warn off;
             return 200 "<$never>"; } location /unset/set { set $never x; return 204; } } }"#,
    );
    let fields = [("Host", "a"), ("X", "one"), ("X", "two"), ("Cookie", "a=1; b=2 ;c=3")];
    let text = |target| site.client().request("GET", target, &fields).text();
    assert_eq!((text("/set"), text("/kept")), ("changed".to_owned(), "one, two 2 ".to_owned()));
    assert_eq!(site.lines("own.log", 2), ["changed", "one, two"]);
    assert_eq!((site.text("/unset"), site.text("/unset/off")), ("<>".to_owned(), "<>".to_owned()));
    let lines = site.lines("error.log", 1);
    assert!(lines[0].contains("[warn]") && lines.len() == 1, "{lines:?}");
    assert!(lines[0].contains("using uninitialized \"never\" variable, client: 127.0.0.1"), "{lines:?}");
}

#[test]
fn geo_uses_the_client_address() {
    let site = Site::start(
        "geo",
        r#"access_log off; set_real_ip_from 127.0.0.0/8;
         geo $client { default no; 127.0.0.0/8 local; 10.0.0.0/8 "ten of $uri"; delete 10.0.0.0/8; 10.1.0.0/16 ten; }
         geo $arg_ip $fresh { volatile; 1.0.0.0/8 one; 2.0.0.0/8 two; }
         server { listen 127.0.0.1:PORT; location / { return 200 $client; }
           location /fresh { set $first $fresh; set $args ip=2.2.2.2; return 200 "$first $fresh"; } }"#,
    );
    assert_eq!(site.text("/"), "local");
    for (ip, expected) in [("10.1.2.3", "ten"), ("10.2.2.3", "no"), ("::1", "no")] {
        assert_eq!(site.client().request("GET", "/", &[("Host", "a"), ("X-Real-IP", ip)]).text(), expected);
    }
    assert_eq!(site.text("/fresh?ip=1.1.1.1"), "one two");
}

#[test]
fn rewrite_log_logs_each_step() {
    let site = Site::start(
        "rewrite-log",
        r#"access_log off;
         server { listen 127.0.0.1:PORT; error_log error.log notice; rewrite_log on; rewrite ^/first$ /second?a=1;
           location / { if ($uri ~* "^/SEC") { rewrite ^/(s).*$ /third/$1 break; } return 200 $uri; }
           location /moved { rewrite ^ http://there/$args? permanent; }
           location /quiet { rewrite_log off; if ($uri ~ q) { rewrite ^ /third; } break; } }"#,
    );
    assert_eq!(site.status("/first?b"), 404);
    let lines = site.lines("error.log", 5);
    for (line, expected) in lines.iter().zip([
        "\"^/first$\" matches \"/first\", client: 127.0.0.1",
        "rewritten data: \"/second\", args: \"a=1&b\", client: ",
        "\"^/SEC\" matches \"/second\", client: ",
        "\"^/(s).*$\" matches \"/second\", client: ",
        "rewritten data: \"/third/s\", args: \"a=1&b\", client: ",
    ]) {
        assert!(line.contains("[notice]") && line.contains(expected), "{line}");
    }
    assert_eq!(site.get("/moved?x").field("Location"), Some("http://there/x"));
    let lines = site.lines("error.log", 9);
    assert!(lines[6].contains("\"^/first$\" does not match \"/moved\""), "{lines:?}");
    assert!(lines[8].contains("rewritten redirect: \"http://there/x\", client: "), "{lines:?}");
    let before = lines.len();
    assert_eq!(site.status("/quiet"), 404);
    // The log has the server's own rewrite, and the missing file.
    let lines = site.lines("error.log", before + 2);
    assert!(lines[before + 1].contains("open()") && lines.len() == before + 2, "{lines:?}");
}

#[test]
fn files_are_tested_at_server_level_and_in_locations() {
    let site = Site::start(
        "file-tests",
        r#"access_log off; root .;
         server { listen 127.0.0.1:PORT; if (-f $document_root/closed) { return 503 closed; }
           location / { if (!-e $request_filename) { rewrite ^/(.*)$ /front?q=$1 last; } return 200 "file $uri"; }
           location = /front { return 200 "front $arg_q"; }
           location /odd { if (-e $arg_p) { return 200 there; } return 200 "not there"; } }"#,
    );
    site.folder.write("a.html", "a");
    assert_eq!(
        (site.text("/a.html"), site.text("/b/c")),
        ("file /a.html".to_owned(), "front b/c".to_owned())
    );
    assert_eq!(site.text("/odd?p="), "not there");
    assert_eq!(site.text("/odd?p=/dev/null"), "not there");
    assert_eq!(site.text(&format!("/odd?p={}", site.folder.path().display())), "there");
    let long = format!("/odd?p=/{}", "x/".repeat(2500));
    assert_eq!(site.text(&long), "not there");
    site.folder.write("closed", "");
    assert_eq!((site.status("/a.html"), site.text("/b/c")), (503, "closed".to_owned()));
}

#[test]
fn settings_of_an_if_block_apply_if_its_condition_is_true() {
    let site = Site::start(
        "if",
        r#"access_log off; root .;
         server { listen 127.0.0.1:PORT;
           location / { add_header X-Outer yes; if ($arg_own) { add_header X-If yes; } if ($arg_empty) { }
             if ($arg_root) { root inner; } try_files /none $uri =410; }
           location /deny { deny all; if ($arg_open) { return 200 opened; } }
           location /status { stub_status; if ($arg_own) { add_header X-If yes; } } }"#,
    );
    site.folder.write("a.html", "outer");
    site.folder.write("inner/a.html", "inner");
    let fields = |target: &str| {
        let response = site.get(target);
        let field = |name: &str| response.field(name).is_some();
        (response.head.status, field("X-Outer"), field("X-If"))
    };
    assert_eq!(fields("/a.html"), (200, true, false));
    assert_eq!(fields("/a.html?own=1"), (200, false, true));
    assert_eq!(fields("/a.html?empty=1"), (200, true, false));
    assert_eq!(fields("/b.html"), (410, false, false));
    // An `if` has no `try_files`: as in nginx it is a separate location.
    assert_eq!(fields("/b.html?empty=1"), (404, false, false));
    assert_eq!((site.text("/a.html?root=1"), site.text("/a.html")), ("inner".to_owned(), "outer".to_owned()));
    assert_eq!((site.status("/deny"), site.text("/deny?open=1")), (403, "opened".to_owned()));
    assert_eq!(fields("/status?own=1"), (200, false, true));
    assert!(site.text("/status?own=1").starts_with("Active connections"));
}

#[test]
fn no_state_remains_for_the_next_request_of_a_connection() {
    let site = Site::start(
        "next",
        r#"log_format own "$uri $logged"; map $status $logged { ~^2 yes; default no; }
         access_log own.log own if=$wanted; map $arg_log $wanted { default 1; 0 0; }
         map $arg_a $mapped { ~(.) "got $1"; }
         server { listen 127.0.0.1:PORT; location / { return 200 "$mapped|$1|$own"; }
           location /set { set $own set; rewrite ^/s(e)t /other; break; return 500; } }"#,
    );
    let mut client = site.client();
    let mut text = |target: &str| client.request("GET", target, &[("Host", "a")]).text();
    assert_eq!(text("/?a=xy"), "got x|x|");
    assert!(text("/set").contains("404"));
    assert_eq!(text("/?log=0"), "||");
    assert_eq!(text("/last"), "||");
    assert_eq!(site.lines("own.log", 3), ["/ yes", "/other no", "/last yes"]);
}

#[test]
fn an_access_log_in_an_if_block_logs_its_requests() {
    let site = Site::start(
        "if-log",
        r#"log_format own $uri; access_log all.log own;
         server { listen 127.0.0.1:PORT; location / { set $x ""; if ($arg_own) { access_log own.log own; }
           return 204; } }"#,
    );
    assert_eq!((site.status("/a"), site.status("/b?own=1"), site.status("/c")), (204, 204, 204));
    assert_eq!(site.lines("own.log", 1), ["/b"]);
    assert_eq!(site.lines("all.log", 2), ["/a", "/c"]);
}

/// A regular expression that exceeds PCRE's limits on a client's text is an error and not a mismatch, so access stays
/// denied.
#[test]
fn a_pattern_beyond_the_pcre_limits_denies_access() {
    let site = Site::start(
        "too-long",
        r#"access_log off; map $arg_m $mapped { "~^(a+)+$|secret" found; default none; }
         server { listen 127.0.0.1:PORT;
           location ~ "^/(a+)+$|secret" { return 403; }
           location /if { if ($args ~ "^(a+)+$|secret") { return 403; } return 200 open; }
           location /not { if ($args !~ "^(a+)+$|secret") { return 200 open; } return 403; }
           location /rewrite { rewrite "^/rewrite/(a+)+$|hidden" /shut last; return 200 open; }
           location /map { return 200 $mapped; } location /shut { return 403; }
           location /refer { valid_referers "~^(a+)+$|secret"; return 200 "[$invalid_referer]"; }
           location / { return 200 open; } }
         server { listen 127.0.0.1:PORT; server_name "~^(a+)+$|secret"; return 403; }"#,
    );
    let long = format!("{}!", "a".repeat(40));
    for (target, expected) in [
        (format!("/{long}secret"), 500),
        ("/not-so-secret".to_owned(), 403),
        (format!("/if?{long}secret"), 500),
        (format!("/not?{long}secret"), 500),
        (format!("/rewrite/{long}hidden"), 500),
        ("/rewrite/hidden".to_owned(), 403),
        (format!("/{long}?a=1"), 500),
    ] {
        assert_eq!(site.status(&target), expected, "{target}");
    }
    assert_eq!(
        (site.text(&format!("/map?m={long}secret")), site.text("/map?m=secret")),
        ("none".to_owned(), "found".to_owned())
    );
    let referer = format!("http://{long}secret");
    let response = site.client().request("GET", "/refer", &[("Host", "b"), ("Referer", &referer)]);
    assert_eq!(response.text(), "[1]");
    let host = format!("{}-secret", "a".repeat(40));
    assert_eq!(site.client().request("GET", "/", &[("Host", &host)]).head.status, 500);
    let log = site.lines("error.log", 8).join("\n");
    assert_eq!(log.matches("[alert]").count(), 8, "{log}");
    let line = format!(
        "pcre2_match() failed: -47 on \"/{long}secret\" using \"^/(a+)+$|secret\", client: 127.0.0.1"
    );
    assert!(log.contains(&line), "{log}");
}

/// The shares follow from nginx's hash: 5.7, 26.0, 84.3 and 63.2 percent of its range.
#[test]
fn split_clients_gives_the_same_client_the_same_value() {
    let site = Site::start(
        "split",
        r#"access_log off; split_clients $arg_id $part { 5.72% none; 0.01% first; 20.27% second; * rest; }
         split_clients "${arg_id}" $half { 50% low; }
         server { listen 127.0.0.1:PORT; location / { return 200 "$part|$half"; } }"#,
    );
    for (id, expected) in [
        ("", "none|low"),
        ("user1", "first|low"),
        ("user2", "rest|low"),
        ("abcd", "second|low"),
        ("user3", "rest|"),
        ("user12", "rest|"),
    ] {
        assert_eq!(site.text(&format!("/?id={id}")), expected, "{id}");
    }
}

#[test]
fn geo_supports_ranges_proxies_and_both_families() {
    let site = Site::start(
        "geo-ranges",
        r#"access_log off;
         geo $arg_ip $range { ranges; default none; 10.0.0.0-10.255.255.255 ten; 10.1.0.0-10.1.0.9 inner;
           10.2.0.0-10.2.0.9 gone; delete 10.2.0.0-10.2.0.9; }
         geo $arg_ip $network { default none; 10.0.0.0/8 ten; 10.1.2.3 one; 2001:db8::/32 six; }
         geo $nearest { proxy 127.0.0.1; proxy 10.0.0.0/8; default far; 10.0.0.0/8 ten; 1.0.0.0/8 one; 127.0.0.1 own; }
         geo $farthest { proxy 127.0.0.1; proxy 10.0.0.0/8; proxy_recursive; default far; 10.0.0.0/8 ten; 1.0.0.0/8 one; }
         server { listen 127.0.0.1:PORT; location / { return 200 "$range|$network"; }
           location /client { return 200 "$nearest|$farthest"; } }"#,
    );
    for (ip, expected) in [
        ("9.255.255.255", "none|none"),
        ("10.0.0.0", "ten|ten"),
        ("10.1.0.9", "inner|ten"),
        ("10.1.0.10", "ten|ten"),
        ("10.2.0.5", "none|ten"),
        ("10.1.2.3", "ten|one"),
        ("2001:db8:1::1", "none|six"),
        ("2001:db9::1", "none|none"),
        ("x", "none|none"),
    ] {
        assert_eq!(site.text(&format!("/?ip={ip}")), expected, "{ip}");
    }
    for (value, expected) in
        [("1.1.1.1, 10.0.0.1", "ten|one"), ("2.2.2.2, 1.1.1.1", "one|one"), ("x", "own|far")]
    {
        let response = site.client().request("GET", "/client", &[("Host", "a"), ("X-Forwarded-For", value)]);
        assert_eq!(response.text(), expected, "{value}");
    }
}

#[test]
fn variables_of_tls_and_of_other_servers_have_no_value() {
    let site = Site::start(
        "absent",
        r#"log_format own "$upstream_addr $upstream_http_x $ssl_protocol $upstream_response_time"; access_log own.log own;
         server { listen 127.0.0.1:PORT; location / { return 200 "<$upstream_status$upstream_cookie_a$ssl_cipher>"; } }"#,
    );
    assert_eq!(site.text("/"), "<>");
    assert_eq!(site.lines("own.log", 1), ["- - - -"]);
}

/// All patterns of a thread use the same working memory, which grows with the number of groups.
#[test]
fn patterns_with_few_and_many_groups_have_their_own_groups() {
    let many: String = (1..=30).map(|number| format!("(?<g{number}>.)")).collect();
    let site = Site::start(
        "groups",
        &format!(
            "access_log off; server {{ listen 127.0.0.1:PORT;
               location ~ ^/few/(.)(?<last>.)$ {{ return 200 '$1$last'; }}
               location ~ \"^/many/{many}$\" {{ return 200 '$g1$g17$g30'; }}
               location ~ ^/optional/(x)?(?<y>y)?(?<z>z) {{ return 200 '[$1][$y][$z]'; }} }}"
        ),
    );
    let letters: String = ('a'..='z').chain('0'..='3').collect();
    for _ in 0..2 {
        assert_eq!(site.text("/few/ab"), "ab");
        assert_eq!(site.text(&format!("/many/{letters}")), "aq3");
        assert_eq!(site.text("/optional/z"), "[][][z]", "no group of an earlier pattern remains");
        assert_eq!(site.text("/optional/xyz"), "[x][y][z]");
    }
}
