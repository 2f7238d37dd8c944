//! The directives of TLS in `http` and `server`. There is no TLS to set up: `listen … ssl` is an error of its
//! own. Without such an address they have no effect in nginx either, and many configurations have some of them
//! for all servers, so they are accepted with a warning.

use conf::{Args, Spec, State};

use crate::http_core::SERVER_LEVELS;
use crate::{Directive, Module};
use exchange::variables::Variable;

/// The module.
pub(crate) static MODULE: Module =
    Module { directives: &[DIRECTIVES], variables: VARIABLES, ..Module::named("http_ssl") };

/// What most of them take. Arguments are counted and not read: files need not be there.
const ONE: Args = Args::Exactly(1);

// A certificate for each kind of key, and commands of the library, may be several; all others are written once.
const DIRECTIVES: &[Directive] = &[
    row("ssl_buffer_size", ONE, "Bytes of a record."),
    several("ssl_certificate", ONE, "The file with the server's certificate."),
    row("ssl_certificate_cache", Args::Between(1, 3), "How long certificates with variables are cached."),
    row("ssl_certificate_compression", Args::Flag, "Whether certificates are sent compressed."),
    several("ssl_certificate_key", ONE, "The file with the secret key."),
    row("ssl_ciphers", ONE, "The ciphers that may be used."),
    row("ssl_client_certificate", ONE, "CA certificates for clients, sent to them."),
    several("ssl_conf_command", Args::Exactly(2), "A command for the library."),
    row("ssl_crl", ONE, "The file with certificates that are revoked."),
    row("ssl_dhparam", ONE, "The file with parameters of DHE ciphers."),
    row("ssl_early_data", Args::Flag, "Whether requests may come with the first flight."),
    row("ssl_ecdh_curve", ONE, "Curves of ECDHE ciphers."),
    several("ssl_ech_file", ONE, "The file with a key of Encrypted Client Hello."),
    row("ssl_ocsp", ONE, "Whether clients' certificates are checked by OCSP."),
    row("ssl_ocsp_cache", ONE, "The cache of OCSP responses."),
    row("ssl_ocsp_responder", ONE, "The OCSP responder."),
    row("ssl_password_file", ONE, "The file with passphrases of secret keys."),
    row("ssl_prefer_server_ciphers", Args::Flag, "Whether the server's order of ciphers counts."),
    row("ssl_protocols", Args::AtLeast(1), "Versions of the protocol."),
    row("ssl_reject_handshake", Args::Flag, "Whether connections are refused."),
    several("ssl_session_cache", Args::Between(1, 2), "The cache of sessions."),
    several("ssl_session_ticket_key", ONE, "The file with a key of tickets."),
    row("ssl_session_tickets", Args::Flag, "Whether sessions are kept by clients."),
    row("ssl_session_timeout", ONE, "How long a session may be taken up again."),
    row("ssl_stapling", Args::Flag, "Whether an answer about the certificate is sent with it."),
    row("ssl_stapling_file", ONE, "The file with the stapled OCSP response."),
    row("ssl_stapling_responder", ONE, "The OCSP responder for stapling."),
    row("ssl_stapling_verify", Args::Flag, "Whether that answer is verified."),
    row("ssl_trusted_certificate", ONE, "CA certificates for clients, not sent to them."),
    row("ssl_verify_client", ONE, "Whether clients show a certificate."),
    row("ssl_verify_depth", ONE, "Length of a chain of certificates."),
];

// As in nginx none has a value for a connection without TLS. Formats of logs have them for sites with and without.
const VARIABLES: &[Variable] = &[
    variable("ssl_alpn_protocol", "The protocol that was agreed on inside of TLS."),
    variable("ssl_cipher", "The cipher of the connection."),
    variable("ssl_ciphers", "Ciphers that the client knows."),
    variable("ssl_client_cert", "The client's certificate, its lines behind tabs."),
    variable("ssl_client_escaped_cert", "The client's certificate, escaped as in URLs."),
    variable("ssl_client_fingerprint", "The SHA-1 of the client's certificate."),
    variable("ssl_client_i_dn", "Who issued the client's certificate (RFC 2253)."),
    variable("ssl_client_i_dn_legacy", "The same in the older form."),
    variable("ssl_client_raw_cert", "The client's certificate."),
    variable("ssl_client_s_dn", "Whom the client's certificate is for (RFC 2253)."),
    variable("ssl_client_s_dn_legacy", "The same in the older form."),
    variable("ssl_client_serial", "The number of the client's certificate."),
    variable("ssl_client_sigalg", "The algorithm of the client's signature."),
    variable("ssl_client_v_end", "When the client's certificate ends."),
    variable("ssl_client_v_remain", "Days until then."),
    variable("ssl_client_v_start", "When the client's certificate begins."),
    variable("ssl_client_verify", "What came of the check of the client's certificate."),
    variable("ssl_curve", "The curve of the key exchange."),
    variable("ssl_curves", "Curves that the client knows."),
    variable("ssl_early_data", "`1` for requests of the first flight."),
    variable("ssl_ech_outer_server_name", "The public name that Encrypted Client Hello came under."),
    variable("ssl_ech_status", "What came of Encrypted Client Hello."),
    variable("ssl_protocol", "The version of TLS."),
    variable("ssl_server_name", "The server's name that the client asked TLS for."),
    variable("ssl_session_id", "The identifier of the session."),
    variable("ssl_session_reused", "`r` for a session that was taken up again."),
    variable("ssl_sigalg", "The algorithm of the server's signature."),
];

/// None of them can be set.
const fn variable(name: &'static str, help: &'static str) -> Variable {
    Variable { name, get: |_, _| false, set: None, help }
}

/// Written once in a block.
const fn row(name: &'static str, args: Args, help: &'static str) -> Directive {
    with_a_warning(Spec::new("http_ssl", name, SERVER_LEVELS, args, help))
}

/// Written as often as one likes.
const fn several(name: &'static str, args: Args, help: &'static str) -> Directive {
    with_a_warning(Spec::new("http_ssl", name, SERVER_LEVELS, args, help).many())
}

/// Not silent as other directives without effect: whoever writes one may believe that the traffic is secret.
const fn with_a_warning(spec: Spec) -> Directive {
    Directive::http(spec.state(State::Accepted("there is no TLS")), |cx| {
        let name = &cx.statement.name.text;
        cx.warn(format_args!("\"{name}\" directive has no effect, there is no TLS"));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded, warnings};

    #[test]
    fn they_are_accepted_with_a_warning() {
        let found = warnings(
            "http {\nssl_protocols TLSv1.2 TLSv1.3;\nserver {\nssl_certificate a; ssl_certificate b;\n\
             ssl_stapling on; } }",
        );
        let line = |name: &str, line: u32| {
            format!("\"{name}\" directive has no effect, there is no TLS in /conf/nginx.conf:{line}")
        };
        let expected = [
            line("ssl_protocols", 2),
            line("ssl_certificate", 4),
            line("ssl_certificate", 4),
            line("ssl_stapling", 5),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn wrong_ones_are_refused() {
        for (text, expected) in [
            ("http {\nssl_protocols; }", "invalid number of arguments in \"ssl_protocols\" directive"),
            ("http {\nssl_dhparam a; ssl_dhparam b; }", "\"ssl_dhparam\" directive is duplicate"),
            (
                "http { server { location / {\nssl_ciphers x; } } }",
                "\"ssl_ciphers\" directive is not allowed here",
            ),
            (
                "http { server {\nlisten 1443 ssl; ssl_ciphers x; } }",
                "\"ssl\" in \"listen\" directive is not supported",
            ),
        ] {
            let found = error(text);
            assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
        }
    }

    #[test]
    fn each_is_refused_with_too_few_arguments_and_in_a_location() {
        for name in DIRECTIVES.iter().map(|directive| directive.spec.name) {
            let found = error(&format!("http {{ server {{\n{name}; }} }}"));
            let expected =
                format!("invalid number of arguments in \"{name}\" directive in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{found}");
            let found = error(&format!("http {{ server {{ location / {{\n{name} on x; }} }} }}"));
            let expected = format!("\"{name}\" directive is not allowed here in /conf/nginx.conf:2");
            assert!(found.starts_with(&expected), "{found}");
        }
    }

    #[test]
    fn formats_of_logs_may_have_the_variables() {
        loaded("log_format a \"$ssl_protocol $ssl_cipher $ssl_server_name $ssl_client_verify\";");
    }

    #[test]
    fn every_directive_of_the_module_is_here() {
        let nginx = conf::nginx_directives().iter().filter(|row| row.module == "http_ssl");
        let here: Vec<&str> = DIRECTIVES.iter().map(|directive| directive.spec.name).collect();
        assert_eq!(nginx.map(|row| row.name).collect::<Vec<_>>(), here);
    }
}
