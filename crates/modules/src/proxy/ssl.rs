//! The directives of TLS to upstreams. There is none: `proxy_pass https://…` is an error of its own. Without such an
//! address they have no effect in nginx either, and many configurations have some of them for all locations, so they
//! are accepted with a warning.

use conf::{Args, Error, Spec, State};

use crate::Directive;
use exchange::config::Cx;

/// What most of them take. Arguments are counted and not read: files need not be there.
const ONE: Args = Args::Exactly(1);

pub(super) const DIRECTIVES: &[Directive] = &[
    row("proxy_ssl_certificate", ONE, "The file with the certificate that upstreams are shown."),
    row("proxy_ssl_certificate_cache", Args::Between(1, 3), "How long certificates with variables are kept."),
    row("proxy_ssl_certificate_key", ONE, "The file with its secret key."),
    row("proxy_ssl_ciphers", ONE, "The ciphers that may be used."),
    several("proxy_ssl_conf_command", Args::Exactly(2), "A command for the library."),
    row("proxy_ssl_crl", ONE, "The file with certificates that are revoked."),
    row("proxy_ssl_name", ONE, "The name that the upstream's certificate has to have."),
    row("proxy_ssl_password_file", ONE, "The file with passphrases of secret keys."),
    several("proxy_ssl_protocols", Args::AtLeast(1), "Versions of the protocol."),
    flag("proxy_ssl_server_name", "Whether upstreams are told which name is meant."),
    flag("proxy_ssl_session_reuse", "Whether sessions are taken up again."),
    row("proxy_ssl_trusted_certificate", ONE, "Certificates that upstreams are judged by."),
    flag("proxy_ssl_verify", "Whether the upstream's certificate is judged."),
    row("proxy_ssl_verify_depth", ONE, "Length of a chain of certificates."),
];

const fn row(name: &'static str, args: Args, help: &'static str) -> Directive {
    with_a_warning(super::spec::spec(name, args, help))
}

const fn flag(name: &'static str, help: &'static str) -> Directive {
    let spec = super::spec::spec(name, Args::Flag, help).state(State::Accepted(WHY));
    Directive::http(spec, |cx| {
        cx.flag(&mut false)?;
        warn(cx)
    })
}

const fn several(name: &'static str, args: Args, help: &'static str) -> Directive {
    with_a_warning(super::spec::spec(name, args, help).many())
}

const WHY: &str = "there is no TLS to upstreams";

/// Not silent: whoever writes one may believe that the traffic is secret.
const fn with_a_warning(spec: Spec) -> Directive {
    Directive::http(spec.state(State::Accepted(WHY)), warn)
}

fn warn(cx: &mut Cx<'_>) -> Result<(), Error> {
    let name = &cx.statement.name.text;
    cx.warn(format_args!("\"{name}\" directive has no effect, there is no TLS to upstreams"));
    Ok(())
}
