//! `sandbox strict`: what a signing process needs of the configuration, and what it makes impossible.

use std::collections::BTreeSet;

use tls::apart::{KeyName, SecretKey};

use super::convert::{Config, table};
use super::{Refused, Settings};
use crate::log::{Level, place_of};

/// The end of the names of directives with a private key: `ssl_certificate_key`, `proxy_ssl_certificate_key` and its siblings.
const KEY_DIRECTIVE_END: &str = "ssl_certificate_key";

/// The key that ACME provides.
const ACME_KEY: &str = "$acme_certificate_key";

/// Checks that all private keys can be kept from the process that serves.
pub(super) fn check(
    source: &conf::Source,
    loader: &dyn conf::Loader,
    settings: &Settings,
) -> Result<(), Refused> {
    let refused = |message| Err(Refused { level: Level::Emerg, message, syntax_is_ok: true });
    if !settings.master_process {
        let message = "\"sandbox strict\" needs a master process, which starts the signing process: use \"master_process on\", or \
                       \"sandbox on\"";
        return refused(message.to_owned());
    }
    // The configuration was loaded, so its text is valid.
    let Ok(tree) = conf::parse(source, loader) else { return Ok(()) };
    let mut problem = None;
    conf::visit(&tree, table(), &mut |visit| {
        let name = &visit.statement.name.text;
        if problem.is_some() || !name.ends_with(KEY_DIRECTIVE_END) {
            return;
        }
        let reason = match visit.statement.args.first().map(|word| word.text.as_str()) {
            Some(ACME_KEY) | None => return,
            Some(text) if text.starts_with("data:") => "contains the key, so that workers would have it",
            Some(text) if text.contains('$') => "has variables, so that workers would read the key",
            Some(_) => return,
        };
        let place = place_of(Some(visit.statement.span()));
        problem = Some(format!(
            "\"{name}\" {reason}: with \"sandbox strict\" name a file without variables{place}"
        ));
    });
    problem.map_or(Ok(()), refused)
}

/// Removes keys that are not in a file of the configuration: those of certificates that the configuration creates itself.
pub(super) fn retain_keys_of_files(keys: &mut Vec<SecretKey>, config: &Config) {
    let names: BTreeSet<KeyName> =
        config.data_files().filter_map(|(_, bytes)| KeyName::of_text(bytes)).collect();
    keys.retain(|key| names.contains(&key.name()));
}
