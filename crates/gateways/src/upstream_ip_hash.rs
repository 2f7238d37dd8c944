//! `ip_hash`: a client's requests are sent to the same server of a group.

use conf::{Args, Contexts, Spec};

use crate::upstream_block::set_method;
use crate::{Declaration, Directive, Module};
use peers::lines::{Draft, Method};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_upstream_ip_hash") });

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_upstream_ip_hash",
        "ip_hash",
        Contexts::UPSTREAM,
        Args::None,
        "Requests of the same network (three bytes of IPv4, all of IPv6) are sent to the same server.",
    )
    .many(),
    |scope, cx| {
        let draft = scope.make_mut::<Draft>();
        set_method(draft, cx, Method::IpHash);
        Ok(())
    },
)];
