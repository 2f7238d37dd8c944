//! `allow` and `deny`: access by the client's address.

use conf::{Args, Contexts, Error, Spec};

use crate::{Declaration, Directive, Module};
use exchange::module::SessionHooks;
use exchange::phases::{Phase, Step};
use exchange::request::{Address, Request};
use exchange::session::{SessionPhase, SessionStep};
use site::config::{Cx, Layered, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::network::Network;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        // Locations without rules skip the module.
        if !scope.of::<Conf>().rules.items().is_empty() {
            plan.now(Phase::Access, scope.shared::<Conf>(), run);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_access")
    })
};

/// The same directives in `stream`.
pub(crate) static STREAM: Module = Module {
    session: SessionHooks {
        add_to_plan: |_, scope, plan| {
            if scope.of::<Conf>().has_rules() {
                plan.now(SessionPhase::Access, scope.shared::<Conf>(), |conf, session| {
                    match conf.judge(session.client()) {
                        Some(false) => {
                            session.log(Level::Error, format_args!("access forbidden by rule"));
                            SessionStep::End(403)
                        }
                        _ => SessionStep::Next,
                    }
                });
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        twin: Some(&[]),
        ..Declaration::named("stream_access")
    })
};

/// Includes `limit_except`.
const CONTEXTS: Contexts = LEVELS.or(Contexts::LIMIT_EXCEPT);

const DIRECTIVES: &[Directive] = &[
    // Without any rule all clients are allowed.
    Directive::scope(
        Spec::new(
            "http_access",
            "allow",
            CONTEXTS,
            Args::Exactly(1),
            "Allows access for clients of this address or network, or for `all`.",
        )
        .many(),
        |scope, cx| add_rule(scope, cx, true),
    ),
    Directive::scope(
        Spec::new(
            "http_access",
            "deny",
            CONTEXTS,
            Args::Exactly(1),
            "Denies access for clients of this address or network, or for `all`.",
        )
        .many(),
        |scope, cx| add_rule(scope, cx, false),
    ),
];

/// The rules of a block; the first that matches decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    rules: Layered<Rule>,
}

impl Settings for Conf {}

impl Conf {
    /// Whether the block has any rules.
    pub(crate) fn has_rules(&self) -> bool {
        !self.rules.items().is_empty()
    }
}

/// An `allow` or `deny` directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    clients: Clients,
    allow: bool,
}

/// The clients that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    /// All clients, from any address.
    All,
    /// The addresses of a network.
    Network(Network),
}

/// Adds a rule. The rules are in file order, with `allow` and `deny` mixed.
fn add_rule(scope: &mut Scope, cx: &mut Cx<'_>, allow: bool) -> Result<(), Error> {
    // Host names are not supported: their addresses may change at any time, so each request would have to wait for a
    // resolver.
    let text = cx.arg(0);
    let clients = match text {
        "all" => Clients::All,
        _ => {
            let network = Network::read(text, cx);
            Clients::Network(network.ok_or_else(|| cx.error(format_args!("invalid parameter \"{text}\"")))?)
        }
    };
    scope.make_mut::<Conf>().rules.make_mut(cx.block).push(Rule { clients, allow });
    Ok(())
}

impl Clients {
    /// Whether the rule applies to a client.
    fn includes(self, client: &Address) -> bool {
        match self {
            Clients::All => true,
            Clients::Network(network) => network.includes(client),
        }
    }

    /// Whether the rule can apply to clients with IPv4.
    fn concern_ipv4(self) -> bool {
        matches!(self, Clients::All | Clients::Network(Network::V4(..)))
    }
}

impl Conf {
    /// Returns whether the rules allow a client; `None` if no rule matches.
    fn judge(&self, peer: &Address) -> Option<bool> {
        let rules = self.rules.items();
        let mapped = match peer {
            Address::Inet(address) if address.ip() != address.ip().to_canonical() => Some(address.ip()),
            _ => None,
        };
        // As in nginx, an IPv4-mapped address is compared with rules for IPv6 only if no rule is for IPv4.
        let as_ipv6 = mapped.filter(|_| !rules.iter().any(|rule| rule.clients.concern_ipv4()));
        let matches = |clients: Clients| match (clients, as_ipv6) {
            (Clients::Network(network), Some(ip)) => network.includes_ip(ip),
            _ => clients.includes(peer),
        };
        rules.iter().find(|rule| matches(rule.clients)).map(|rule| rule.allow)
    }
}

/// Returns the decision of this module; `satisfy` combines it with the decisions of the other access modules.
fn run(conf: &Conf, request: &mut Request) -> Step {
    match conf.judge(request.client()) {
        // No matching rule is not the same as allowed: with `satisfy any` only an `allow` rule grants access.
        None => Step::Next,
        Some(true) => Step::Allow,
        Some(false) => {
            // With `satisfy any` another module may still allow the client, so this is no error.
            if !request.scope().core.satisfy.any {
                request.log(Level::Error, format_args!("access forbidden by rule"));
            }
            Step::Status(403)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::testing::{error, loaded, warnings};

    fn judge(rules: &str, peer: &str) -> Option<bool> {
        let config = loaded(&format!("server {{ location / {{ {rules} }} }}"));
        let peer = match peer {
            "unix:" => Address::Unix(Vec::new()),
            ip => Address::Inet((ip.parse::<IpAddr>().expect("an address"), 1).into()),
        };
        config.http.locations.last().expect("there is a location").scope.of::<Conf>().judge(&peer)
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let rules =
            "deny 192.168.1.1; allow 192.168.1.0/24; allow 10.1.1.0/16; allow 2001:db8::/32; deny all;";
        for (peer, expected) in [
            ("192.168.1.1", false),
            ("192.168.1.2", true),
            ("10.1.255.1", true),
            ("10.2.0.1", false),
            ("2001:db8:1::1", true),
            ("2001:db9::1", false),
            ("::ffff:192.168.1.2", true),
            ("unix:", false),
        ] {
            assert_eq!(judge(rules, peer), Some(expected), "{peer}");
        }
        assert_eq!(judge("allow 10.0.0.0/8;", "11.0.0.1"), None);
        assert_eq!(judge("allow unix:; deny all;", "unix:"), Some(true));
        assert_eq!(judge("deny 0.0.0.0/0;", "1.2.3.4"), Some(false));
        assert_eq!(judge("deny 0.0.0.0/0;", "::1"), None);
        assert_eq!(judge("deny ::/0;", "::1"), Some(false));
    }

    #[test]
    fn rules_for_ipv6_apply_to_mapped_addresses_if_none_is_for_ipv4() {
        for (rules, peer, expected) in [
            ("deny ::/0;", "::ffff:192.0.2.1", Some(false)),
            ("allow unix:; deny ::/0;", "::ffff:192.0.2.1", Some(false)),
            ("deny ::ffff:192.0.2.0/120; allow ::/0;", "::ffff:192.0.2.1", Some(false)),
            ("deny ::ffff:192.0.2.0/120; allow ::/0;", "::ffff:192.0.3.1", Some(true)),
            ("deny 2001:db8::/32;", "::ffff:192.0.2.1", None),
            // `all` is a rule for IPv4 too.
            ("deny ::/0; allow all;", "::ffff:192.0.2.1", Some(true)),
            ("deny ::/0; allow 10.0.0.0/8;", "::ffff:192.0.2.1", None),
            ("deny ::/0; allow 10.0.0.0/8;", "::ffff:10.0.0.1", Some(true)),
            ("deny ::/0;", "192.0.2.1", None),
        ] {
            assert_eq!(judge(rules, peer), expected, "{rules} {peer}");
        }
    }

    #[test]
    fn rules_of_a_block_replace_inherited_ones() {
        let config = loaded("deny all; server { location /a {} location /b { allow all; } }");
        let peer = Address::Inet(([127, 0, 0, 1], 1).into());
        let judged = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            location.expect("it is there").scope.of::<Conf>().judge(&peer)
        };
        assert_eq!((judged("/a"), judged("/b")), (Some(false), Some(true)));
    }

    #[test]
    fn wrong_addresses_are_refused() {
        for text in ["x", "1.2.3", "::1/129", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8"] {
            let found = error(&format!("http {{\nallow {text}; }}"));
            assert_eq!(found, format!("invalid parameter \"{text}\" in /conf/nginx.conf:2"));
            let found = error(&format!("http {{ server {{ location / {{\ndeny {text}; }} }} }}"));
            assert_eq!(found, format!("invalid parameter \"{text}\" in /conf/nginx.conf:2"));
        }
        let found = warnings("http {\nallow 1.2.3.4/24; }");
        assert_eq!(found, ["low address bits of 1.2.3.4/24 are meaningless in /conf/nginx.conf:2"]);
    }
}
