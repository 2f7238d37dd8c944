//! `sandbox strict`: what a signing process needs of the configuration, and what it makes impossible.

use std::collections::BTreeSet;

use tls::apart::{KeyName, SecretKey};

use super::convert::{Config, table};
use super::{Refused, Settings};
use crate::log::{Level, place_of};

/// The end of the names of directives with a private key: `ssl_certificate_key`, `proxy_ssl_certificate_key` and its siblings.
const KEY_DIRECTIVE_END: &str = "ssl_certificate_key";

/// Ends of the names of directives with other secrets: `ssl_password_file` and its siblings, `account_key`, `external_account_key`.
const SECRET_DIRECTIVE_ENDS: [&str; 2] = ["ssl_password_file", "account_key"];

/// The key that ACME provides.
const ACME_KEY: &str = "$acme_certificate_key";

/// Checks that all private keys and passwords can be kept from the process that serves.
pub(super) fn check(
    source: &conf::Source,
    loader: &dyn conf::Loader,
    settings: &Settings,
) -> Result<(), Refused> {
    let (mut problem, mut no_master) = (None, None);
    // The configuration was loaded, so its text is valid.
    if let Ok(tree) = conf::parse(source, loader) {
        conf::visit(&tree, table(), &mut |visit| {
            let (name, span) = (visit.statement.name.text.as_str(), visit.statement.span());
            if name == "master_process" {
                no_master.get_or_insert_with(|| place_of(Some(span)));
            }
            let args = visit.statement.args.iter().map(|word| word.text.as_str());
            if let Some(reason) = reason_to_refuse(name, args).filter(|_| problem.is_none()) {
                let position = place_of(Some(span));
                problem = Some(format!(
                    "\"{name}\" {reason}: with \"sandbox strict\" name a file without variables{position}"
                ));
            }
        });
    }
    if !settings.master_process {
        let position = no_master.unwrap_or_default();
        problem = Some(format!(
            "\"sandbox strict\" needs a master process, which starts the signing process: use \"master_process on\", or \
             \"sandbox on\"{position}"
        ));
    }
    let refused = |message| Err(Refused { level: Level::Emerg, message, syntax_is_ok: true });
    problem.map_or(Ok(()), refused)
}

/// Returns why a worker would get the secret of a directive, which its configuration contains; `None` if it does not.
fn reason_to_refuse<'a>(name: &str, mut args: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    if SECRET_DIRECTIVE_ENDS.iter().any(|end| name.ends_with(end)) {
        let has_data = args.any(|text| text.starts_with("data:"));
        return has_data.then_some("contains the secret, so that workers would have it");
    }
    let text = args.next().filter(|text| name.ends_with(KEY_DIRECTIVE_END) && *text != ACME_KEY)?;
    if text.starts_with("data:") {
        Some("contains the key, so that workers would have it")
    } else {
        text.contains('$').then_some("has variables, so that workers would read the key")
    }
}

/// Removes keys that are not in a file of the configuration: those of certificates that the configuration creates itself.
pub(super) fn retain_keys_of_files(keys: &mut Vec<SecretKey>, config: &Config) {
    let names: BTreeSet<KeyName> =
        config.data_files().filter_map(|(_, bytes)| KeyName::of_text(bytes)).collect();
    keys.retain(|key| names.contains(&key.name()));
}
