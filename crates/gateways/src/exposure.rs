//! Permissions that a location gives to every client, unless it restricts access: purges of a cache, tunnels to any target. Module
//! `status` warns of them when a configuration is read.

use conf::{Layered, Statement, Tree};

use crate::{Declaration, Module};
use site::config::{Inner, Scope, Settings, SettingsType};
use site::declaration::OWN;
use site::template;

/// The module, which only has settings.
pub(crate) static MODULE: Module =
    Module::of(Declaration { settings: &[SettingsType::of::<Exposure>()], ..Declaration::named(OWN) });

/// Permissions that the directives of a block give to every client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exposure {
    /// For each statement with conditions for a purge: its directive, if all clients can meet one of them.
    pub(crate) purges: Layered<Option<Box<str>>>,
    /// Whether `tunnel_pass` has no argument: the client chooses the target.
    pub(crate) tunnels: bool,
}

impl Settings for Exposure {
    fn inherit(&self, inner: Inner) -> Option<Exposure> {
        // As for any content handler, a nested location does not inherit `tunnel_pass`.
        (inner == Inner::Block).then(|| Exposure { tunnels: false, ..self.clone() })
    }
}

/// Returns the directive by which all clients can purge entries, if the location does not restrict access.
pub fn open_purge(scope: &Scope) -> Option<&str> {
    scope.of::<Exposure>().purges.items().iter().find_map(Option::as_deref)
}

/// Whether clients choose the target of a tunnel, if the location does not restrict access.
pub fn may_tunnel(scope: &Scope) -> bool {
    scope.of::<Exposure>().tunnels && scope.core.pass == "tunnel"
}

/// Maximum number of `map` blocks that are followed.
const MAPS_MAX: usize = 8;

/// Whether a condition depends only on what any client can send. A `map` of a field or an argument may compare it with a secret.
pub(crate) fn is_met_by_all(tree: &Tree, condition: &str) -> bool {
    // No client meets these.
    !matches!(condition, "" | "0") && !variables(condition).any(|name| is_checked(tree, name, 0))
}

/// Whether a variable may tell clients apart.
fn is_checked(tree: &Tree, name: &str, maps: usize) -> bool {
    match name {
        "request_method" | "request_uri" | "uri" | "document_uri" | "args" | "query_string" | "is_args"
        | "host" | "http_host" | "scheme" | "request" => false,
        _ if ["http_", "arg_", "cookie_"].iter().any(|prefix| name.starts_with(prefix)) => maps > 0,
        _ if maps == MAPS_MAX => true,
        _ => match map_source(tree, name) {
            Some(source) => variables(source).any(|name| is_checked(tree, name, maps + 1)),
            // Addresses, users, certificates; variables of `geo` and `set`.
            None => true,
        },
    }
}

/// Returns the source of the `map` that defines a variable.
fn map_source<'t>(tree: &'t Tree, name: &str) -> Option<&'t str> {
    let is_map = |statement: &&Statement| {
        statement.name.text == "map" && statement.arg(1).and_then(|text| text.strip_prefix('$')) == Some(name)
    };
    let blocks = tree.statements.iter().filter(|statement| statement.name.text == "http");
    blocks.flat_map(Statement::children).find(is_map)?.arg(0)
}

/// Returns the names of the variables in a text.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.split('$').skip(1);
    behind.filter_map(|rest| template::variable_name(rest).ok()).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::{may_tunnel, open_purge};
    use crate::testing::loaded;

    #[test]
    fn conditions_that_all_clients_can_meet_are_found() {
        let purges = |http: &str, condition: &str| {
            let config = loaded(&format!(
                "proxy_cache_path /c keys_zone=z:1m; {http}
                 server {{ location / {{ proxy_pass http://127.0.0.1; proxy_cache z; proxy_cache_purge {condition}; }} }}"
            ));
            open_purge(&config.http.locations.last().expect("there is one").scope).is_some()
        };
        let method = "map $request_method $p { PURGE 1; default 0; }";
        for (http, condition) in [
            (method, "$p"),
            ("", "1"),
            ("", "$http_x_purge"),
            (&format!("{method} map $p $q {{ default $p; }}"), "$q"),
        ] {
            assert!(purges(http, condition), "{http} {condition}");
        }
        for (http, condition) in [
            ("geo $g { default 0; 127.0.0.1 1; } map $request_method:$g $p { PURGE:1 1; }", "$p"),
            ("map $remote_addr $p { 127.0.0.1 1; }", "$p"),
            ("map $http_x_key $p { secret 1; }", "$p"),
            ("map $ssl_client_verify $p { SUCCESS 1; }", "$p"),
            ("", "0"),
            ("", "''"),
        ] {
            assert!(!purges(http, condition), "{http} {condition}");
        }
    }

    #[test]
    fn only_a_tunnel_without_an_argument_goes_anywhere() {
        let tunnels = |text: &str| {
            let config = loaded(&format!("server {{ location / {{ {text} }} }}"));
            may_tunnel(&config.http.locations.last().expect("there is one").scope)
        };
        assert!(tunnels("tunnel_pass;"));
        assert!(!tunnels("tunnel_pass a.example:443;"));
        assert!(!tunnels("tunnel_pass; location /x { }"));
    }
}
