//! Tests `ssi` over a socket. The expected responses in the table are those of nginx 1.22.

use crate::support::Site;

const HTTP: &str = "access_log off; log_format plain '$uri $status'; types { text/html html; } default_type text/plain; root .; ssi on;
     server { listen 127.0.0.1:PORT; server_name here; location /ret { return 200 \"<ret $args>\"; }";

const FAILED: &str = "[an error occurred while processing the directive]";

/// A page and the expected output; `~` stands for the message of a failed directive.
const PAGES: &[(&str, &str, &str)] = &[
    (
        "echo",
        "<!--#echo var=\"uri\" -->|<!--#echo var=\"URI\"-->|<!--#echo var='nope'-->|<!--#echo var=\"nope\" default=\"d<e\"-->\
         |<!--#echo var=\"nope\" default=\"\"-->|<!--#echo var=\"arg_q\" -->|<!--#echo var=\"arg_q\" encoding=\"none\"-->\
         |<!--#echo var=\"arg_q\"-->|<!--#echo var=\"arg_q\" encoding=\"url\"-->|<!--#echo var=\"arg_q\" encoding=\"entity\"-->\
         |<!--#echo var=\"arg_q\" encoding=\"what\"-->|<!--#echo var=\"1\"-->|<!--#echo var=\"server_name\"-->",
        "/echo.html|/echo.html|(none)|d&lt;e||1&lt;2%26|1<2%26|1<2%26|1%3C2%2526|1&lt;2%26|1&lt;2%26|(none)|here",
    ),
    (
        "set",
        "<!--#set var=\"a\" value=\"x$arg_q\" --><!--#set var=\"B\" value=\"${a}y\\$z\\n\\\\\\\"\" -->\
         <!--#echo var=\"b\" encoding=\"none\"-->|<!--#set var=\"a\" value=\"\" -->[<!--#echo var=\"a\"-->]\
         |<!--#set var=\"uri\" value=\"mine\"--><!--#echo var=\"uri\"-->|<!--#set var=\"c\" value=\"$\"-->\
         |<!--#set var=\"c\" value=\"${a\"-->|<!--#set var=\"c\" value=\"${}\"-->|<!--#set var=\"c\" value=\"a$-b\"-->\
         |<!--#set var=\"c\" value=\"tail\\\\\"--><!--#echo var=\"c\"-->",
        "x1<2%26y$z\\n\\\"|[]|mine|~|~|~|~|tail\\",
    ),
    (
        "if",
        "<!--#if expr=\"$arg_q\" -->yes<!--#else -->no<!--#endif -->|<!--#if expr=\"$nope\" -->yes\
         <!--#elif expr=\"$arg_q = 1<2\" -->elif<!--#else -->no<!--#endif -->|<!--#if expr=\"$arg_q != abc\" -->ne<!--#endif -->\
         |<!--#if expr=\"$arg_p = abc\" -->eq<!--#endif -->|<!--#if expr=\"$arg_p=abc\"-->eq<!--#endif-->\
         |<!--#if expr=\"$ARG_P = abc\"-->EQ<!--#endif-->|<!--#if expr=\"$arg_p = ABC\"-->wrong<!--#else-->right<!--#endif-->",
        "yes|no|ne|eq|eq|EQ|right",
    ),
    (
        "elif",
        "<!--#if expr=\"a\"-->1<!--#elif expr=\"b\"-->2<!--#elif expr=\"c\"-->3<!--#else-->4<!--#endif-->5\
         <!--#if expr=\"\"-->1<!--#elif expr=\"\"-->2<!--#elif expr=\"c\"-->3<!--#else-->4<!--#endif-->",
        "153",
    ),
    (
        "context",
        "<!--#else-->a<!--#endif-->b<!--#elif expr=\"x\"-->c<!--#if expr=\"x\"-->d<!--#if expr=\"y\"-->e<!--#else-->f\
         <!--#else-->g<!--#elif expr=\"z\"-->h<!--#endif-->i",
        "~a~b~cd~e~~i",
    ),
    ("nested", "<!--#if expr=\"\"-->a<!--#if expr=\"x\"-->b<!--#endif-->c<!--#endif-->d", "c~d"),
    (
        "regex",
        "<!--#if expr=\"$arg_p = /^(a)(?P<rest>.+)\\$/\" -->[<!--#echo var=\"0\"-->][<!--#echo var=\"1\"-->]\
         [<!--#echo var=\"2\"-->][<!--#echo var=\"rest\"-->][<!--#echo var=\"3\"-->]<!--#else-->no<!--#endif -->\
         |<!--#set var=\"v\" value=\"$1-$2-$3\"--><!--#echo var=\"v\"-->|<!--#if expr=\"$arg_p != /x/\"-->nx<!--#endif-->\
         |<!--#if expr=\"$arg_p = /(/\"-->bad<!--#else-->in<!--#endif-->|<!--#if expr=\"$arg_p = /a$/\"-->x<!--#endif-->\
         |<!--#if expr=\"$uri = /regex\"-->x<!--#endif-->|<!--#if expr=\"$uri = \\/regex.html\"-->path<!--#endif-->\
         |<!--#if expr=\"a = //\"-->e<!--#endif-->|<!--#if expr=\"a = /\"-->f<!--#else-->g<!--#endif-->\
         |<!--#if expr=\"a ~ b\"-->h<!--#endif-->",
        "[abc][a][bc][bc][(none)]|a-bc-|nx|~bad~in~|~x~|~x~|path|e|g|~h~",
    ),
    (
        "config",
        "<!--#config errmsg=\"ERR\" --><!--#nope --><!--#config errmsg=\"\"--><!--#nope -->\
         [<!--#config timefmt=\"x%%y\"--><!--#echo var=\"date_gmt\"--><!--#echo var=\"date_local\"-->]\
         <!--#config timefmt=\"%s\"--><!--#if expr=\"$date_gmt = /^[0-9]{10}\\$/\"-->seconds<!--#endif-->",
        "ERR[x%yx%y]seconds",
    ),
    (
        "block",
        "<!--#block name=\"one\"-->text <!--#echo var=\"uri\"--> <!--#nope-->end<!--#endblock-->\
         |<!--#include virtual=\"/missing\" stub=\"one\"-->|<!--#include virtual=\"/empty.html\" stub=\"one\"-->\
         |<!--#include virtual=\"/plain.html\" stub=\"one\"-->|<!--#include virtual=\"/missing\" stub=\"two\"-->\
         |<!--#block name=\"two\"--><!--#if expr=\"x\"-->q<!--#endif--><!--#endblock-->\
         <!--#include virtual=\"/missing\" stub=\"two\"-->",
        "|text /missing end|text <!--#echo var=\"uri\" --> end|plain|~|q",
    ),
    (
        "include",
        "<!--#include virtual=\"/plain.html\" -->|<!--#include virtual=\"plain.html?x=1\"-->|<!--#include file=\"plain.html\"-->\
         |<!--#include virtual=\"/dir/inner.html\"-->|<!--#include virtual=\"/args.html?p=1&q=2\" -->\
         |<!--#include virtual=\"/ret?x\" -->|<!--#include virtual=\"/empty.html\"-->|<!--#include virtual=\"/plain.txt\"-->|",
        "plain|plain|plain|inner /dir/beside.html|{p=1&q=2|1|/include.html?q=1<2%26&p=abc|/args.html|GET}|<ret x>||<!--#echo var=\"uri\"-->|",
    ),
    (
        "faults",
        "<!--#include -->|<!--#include virtual=\"/a\" file=\"/b\"-->|<!--#include virtual=\"/a\" set=\"x\" stub=\"y\"-->\
         |<!--#include file=\"plain.html\" wait=\"yes\"-->|<!--#include virtual=\"/plain.html\" wait=\"maybe\"-->\
         |<!--#include virtual=\"../plain.html\"-->|<!--#include virtual=\"/dir/../../plain.html\"-->\
         |<!--#include virtual=\"/%2e%2e/plain.html\"-->|<!--#include virtual=\"/plain.html\" wait=\"no\"-->\
         |<!--#include virtual=\"/plain.html\" WAIT=\"no\"-->|<!--#include virtual=\"/plain.html\" virtual=\"/b\"-->|<!--#echo-->|",
        "~|~|~|~|~|~|~|~|plain|~|~|~|",
    ),
    (
        "capture",
        "[<!--#include virtual=\"/plain.html\" set=\"v\"-->][<!--#echo var=\"v\"-->]|<!--#include virtual=\"/missing\" set=\"w\"-->\
         [<!--#echo var=\"w\"-->]<!--#include virtual=\"/ret?x\" set=\"v\"-->[<!--#echo var=\"v\"-->]",
        "[][plain]|[][&lt;ret x&gt;]",
    ),
    (
        "shared",
        "<!--#set var=\"shared\" value=\"1\"--><!--#include virtual=\"/setter.html\" wait=\"yes\"-->[<!--#echo var=\"shared\"-->]",
        "(1)[2]",
    ),
    (
        "syntax",
        "a<b<!c<!-d<!--e<<!--#echo var=\"uri\"-->|<!--#echo var=uri -->|<!--#echo var=\"uri\"x -->|<!--#echo var -->\
         |<!--#echo var=\"uri\" - -->|<!--# echo var=\"uri\" -->|<!--#echo var=\"uri\"---->|<!--#ECHO var=\"uri\"-->|<!--->\
         |<!-- #echo -->|<!--#-->x",
        "a<b<!c<!-d<!--e</syntax.html|~|~|~|~|/syntax.html|~|<!--->|<!-- #echo -->|",
    ),
    ("open", "a<!--#echo var=\"uri\"", "a"),
    (
        "end",
        "<!--#block name=\"b\"-->A<!--#endblock--><!--#if expr=\"\"-->no<!--#endblock-->yes<!--#endif-->",
        "yes",
    ),
];

fn site(label: &str, more: &str) -> Site {
    let site = Site::start(label, &format!("{HTTP} {more} }}"));
    for (name, page, _) in PAGES {
        site.folder.write(&format!("{name}.html"), page);
    }
    for (name, page) in [
        ("plain.html", "plain"),
        ("plain.txt", "<!--#echo var=\"uri\"-->"),
        ("empty.html", ""),
        ("dir/inner.html", "inner <!--#include virtual=\"beside.html\"-->"),
        ("dir/beside.html", "<!--#echo var=\"uri\"-->"),
        ("dir/index.html", "index <!--#echo var=\"uri\"-->"),
        ("setter.html", "(<!--#echo var=\"shared\"--><!--#set var=\"shared\" value=\"2\"-->)"),
        (
            "args.html",
            "{<!--#echo var=\"args\" encoding=\"none\"-->|<!--#echo var=\"arg_p\"-->|<!--#echo var=\"request_uri\" -->\
             |<!--#echo var=\"document_uri\"-->|<!--#echo var=\"request_method\"-->}",
        ),
    ] {
        site.folder.write(name, page);
    }
    site
}

#[test]
fn ssi_pages_match_nginx() {
    let site = site("ssi-pages", "");
    for (name, _, expected) in PAGES {
        let expected = expected.replace('~', FAILED);
        assert_eq!(site.text(&format!("/{name}.html?q=1<2%26&p=abc")), expected, "{name}");
    }
    let log = site.lines("error.log", 40).join("\n");
    for line in [
        "invalid SSI command: \"nope\", client:",
        "invalid context of SSI command: \"endif\"",
        "the \"if\" command inside the \"if\" command",
        "invalid expression in \"a ~ b\"",
        "\"stub\"=\"two\" for \"include\" not found",
        "unsafe URI \"/../plain.html\" was detected",
        "mandatory \"var\" parameter is absent in \"echo\" SSI command",
        "duplicate \"virtual\" parameter in \"include\" SSI command",
        "unknown encoding \"what\" in the \"echo\" command",
        "open() \"",
        ", subrequest: \"/missing\"",
    ] {
        assert!(log.contains(line), "{line}");
    }
}

#[test]
fn included_errors_and_directories_are_inserted_as_served() {
    let site = site("ssi-errors", "error_page 403 /plain.html; location /no { return 403; }");
    site.folder.write("a.html", "a<!--#include virtual=\"/missing\"-->b");
    site.folder.write("b.html", "a<!--#include virtual=\"/dir\"-->b<!--#include virtual=\"/dir/\"-->c");
    site.folder.write("c.html", "a<!--#include virtual=\"/no\"-->b");
    let text = site.text("/a.html");
    assert!(text.starts_with("a<html>") && text.contains("404 Not Found") && text.ends_with("\nb"), "{text}");
    let text = site.text("/b.html");
    assert!(text.contains("301 Moved") && text.ends_with("\nbindex /dir/index.htmlc"), "{text}");
    assert_eq!(site.text("/c.html"), "aplainb");
}

#[test]
fn include_loops_and_floods_are_limited() {
    let site = site("ssi-loops", "");
    site.folder.write("loop.html", "x<!--#include virtual=\"/loop.html\"-->");
    assert_eq!(site.text("/loop.html"), format!("{}{FAILED}", "x".repeat(52)));
    let doubling = "<!--#set var=\"a\" value=\"$a$a\"-->".repeat(40);
    site.folder.write("doubling.html", format!("<!--#set var=\"a\" value=\"0123456789\"-->{doubling}"));
    let text = site.text("/doubling.html");
    assert!(!text.is_empty() && text.len() == FAILED.len() * (text.len() / FAILED.len()), "{}", text.len());
    let sets: String = (0..40).map(|n| format!("<!--#set var=\"b{n}\" value=\"$a\"-->")).collect();
    let text =
        format!("<!--#set var=\"a\" value=\"0123456789\"-->{}{sets}", &doubling[..12 * doubling.len() / 40]);
    site.folder.write("many.html", text);
    assert_eq!(site.text("/many.html").matches(FAILED).count(), 16, "a megabyte of variables");
    assert_eq!(site.text("/plain.html"), "plain");
}

#[test]
fn commands_may_be_anywhere_in_large_pages() {
    let site = site("ssi-large", "");
    let command = "<!--#echo var=\"uri\"-->";
    // Around the offsets at which a page is split into slices.
    for place in (65_536 - command.len() - 2)..65_538 {
        site.folder.write("large.html", format!("{}{command}{}", "x".repeat(place), "y".repeat(70_000)));
        let expected = format!("{}/large.html{}", "x".repeat(place), "y".repeat(70_000));
        assert!(site.text("/large.html") == expected, "{place}");
    }
    let echoes = "<!--#echo var=\"v\"-->".repeat(4000);
    site.folder.write("echoes.html", format!("<!--#set var=\"v\" value=\"{}\"-->{echoes}", "z".repeat(200)));
    assert!(site.text("/echoes.html") == "z".repeat(800_000));
}

#[test]
fn ssi_responses_have_correct_header_fields() {
    let site = site("ssi-heads", "location /dated/ { alias ./; ssi_last_modified on; }");
    let response = site.get("/echo.html");
    assert_eq!(response.field("Transfer-Encoding"), Some("chunked"));
    for name in ["Content-Length", "Last-Modified", "ETag", "Accept-Ranges"] {
        assert_eq!(response.field(name), None, "{name}");
    }
    let response = site.get("/dated/echo.html");
    assert!(response.field("Last-Modified").is_some());
    assert!(response.field("ETag").is_some_and(|etag| etag.starts_with("W/\"")));
    let head = site.client().send("HEAD /loop.html HTTP/1.1\r\nHost: a\r\n\r\n").response_to_head();
    assert_eq!(head.head.status, 404);
    let head = site.client().send("HEAD /echo.html HTTP/1.1\r\nHost: a\r\n\r\n").response_to_head();
    assert_eq!((head.head.status, head.field("Content-Length")), (200, None));
    let old = site.client().send("GET /shared.html HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").response();
    assert_eq!((old.text().as_str(), old.field("Transfer-Encoding")), ("(1)[2]", None));
    assert_eq!(old.field("Connection"), Some("close"));
    let ranged = site.client().request("GET", "/include.html", &[("Host", "a"), ("Range", "bytes=0-1")]);
    assert_eq!(ranged.head.status, 200, "a response without a length has no ranges");
    let text = site.get("/plain.txt");
    assert_eq!(
        (text.text().as_str(), text.field("Accept-Ranges")),
        ("<!--#echo var=\"uri\"-->", Some("bytes"))
    );
}

#[test]
fn ssi_settings_are_applied() {
    let site = site(
        "ssi-settings",
        "access_log main.log plain; log_subrequest on;
         location /silent/ { alias ./; ssi_silent_errors on; } location /types/ { alias ./; ssi_types text/plain; }
         location /any/ { alias ./; ssi_types *; } location /short/ { alias ./; ssi_value_length 4; }
         location /off/ { alias ./; ssi off; } location /small/ { alias ./; subrequest_output_buffer_size 4; }",
    );
    site.folder.write("bad.html", "a<!--#bad-->b<!--#echo var=\"server_name\"-->");
    site.folder.write("set.html", "<!--#include virtual=\"/small/plain.html\" set=\"v\"-->after");
    assert_eq!(site.text("/silent/bad.html"), "abhere");
    assert_eq!(site.text("/types/plain.txt"), "/types/plain.txt");
    assert_eq!(site.text("/any/plain.txt"), "/any/plain.txt");
    assert_eq!(site.text("/short/bad.html"), format!("a{FAILED}b{FAILED}"));
    assert_eq!(site.text("/off/echo.html"), PAGES[0].1);
    // As in nginx the complete response ends where a subrequest's response is too large.
    site.client().send("GET /set.html HTTP/1.1\r\nHost: a\r\n\r\n").read_to_end();
    let log = site.lines("error.log", 4).join("\n");
    assert!(log.contains("too big subrequest response: 5"), "{log}");
    assert_eq!(site.text("/shared.html"), "(1)[2]");
    let lines = site.lines("main.log", 9);
    let inner = lines.iter().position(|line| line == "/setter.html 200").expect("it is logged");
    assert_eq!(lines[inner + 1], "/shared.html 200", "the subrequest is logged before the main request");
}

#[test]
fn hostile_pages_are_harmless() {
    const PARTS: &[&str] = &[
        "<!--#",
        "-->",
        "<!--#if expr=\"",
        "<!--#elif expr=\"",
        "<!--#else-->",
        "<!--#endif-->",
        "<!--#block name=\"",
        "\"",
        "<!--#endblock-->",
        "<!--#include virtual=\"/plain.html\" ",
        "set=\"v\"",
        "stub=\"v\"",
        "<!--#echo var=\"",
        "$v",
        "${",
        "}",
        "\\",
        "/",
        "(",
        "[",
        "=",
        "!=",
        " ",
        "v",
        "'",
        "\u{e9}",
        "<!--#set var=\"v\" value=\"",
        "<!--#config timefmt=\"%",
        "<!--#include virtual=\"$uri",
    ];
    let site = site("ssi-hostile", "");
    let mut seed = 7u64;
    let mut next = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut client = site.client();
    for _ in 0..400 {
        let count = next(40);
        let page: String = (0..count).map(|_| PARTS[next(PARTS.len())]).collect();
        site.folder.write("hostile.html", &page);
        let response = client.get("/hostile.html");
        assert_eq!(response.head.status, 200, "{page}");
        assert!(response.text().len() <= page.len() * 200 + 200_000, "{page}");
    }
}
