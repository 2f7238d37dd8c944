//! Hints of `-t` about configurations that were written for other servers or modules.

use testkit::Server;

use crate::common::BINARY;

/// Returns whether a configuration is accepted, and the messages of `-t`.
fn check(http: &str) -> (bool, String) {
    let conf = format!("events {{}} http {{ {http}\nserver {{ listen 127.0.0.1:0; }} }}");
    let (ended, said) = Server::builder(BINARY).conf(&conf).arg("-t").run_to_end();
    (ended.success(), said)
}

#[test]
fn a_log_format_may_contain_http3() {
    let (is_valid, said) = check("log_format a '$http3'; access_log logs/a.log a;");
    assert!(is_valid, "{said}");
}

#[test]
fn variables_and_directives_of_third_party_modules_name_their_module() {
    for (text, expected) in [
        ("log_format a '$vod_suburi';", "unknown \"vod_suburi\" variable"),
        ("map $secure_token $x { }", "the third-party module http_secure_token has it"),
        ("map $vod_suburi $x { }", "the third-party module http_vod has it"),
        ("map $vts_request_counter $x { }", "the third-party module http_vhost_traffic_status has it"),
        ("map $geoip2_data_country_code $x { }", "the \"geoip2\" block that defines it is missing"),
        ("vod_mode local;", "the third-party module http_vod has it"),
        ("vod hls;", "the third-party module http_vod has it"),
        ("secure_token $x;", "the third-party module http_secure_token has it"),
        ("js_filter x;", "the third-party module http_js has it"),
        ("set_escape_uri $x $y;", "the third-party module http_set_misc has it"),
        ("opentelemetry on;", "the third-party module http_opentelemetry has it"),
        ("more_set_header X;", "did you mean \"more_set_headers\""),
        ("resolver local=on;", "write the addresses of the name servers in /etc/resolv.conf instead"),
    ] {
        let (is_valid, said) = check(&format!("{text} access_log logs/a.log;"));
        assert!(!is_valid && said.contains(expected), "{text}: {said}");
    }
    let (_, said) = check("log_format a '$vod_suburi'; access_log logs/a.log a;");
    assert!(said.contains("the third-party module http_vod has it"), "{said}");
}
