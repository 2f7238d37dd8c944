//! Directives about opening files: which files stay open, and which symbolic links are followed.

use std::sync::Arc;
use std::time::Duration;

use conf::value;
use conf::{Args, Error, Support};

use crate::Directive;
use crate::http_core::core;
use exchange::files::Links;
use site::config::{Cx, Scope};
use site::declaration::LEVELS;
use telemetry::links::Refused;
use transfer::files::cache::{CacheId, Limits};

pub(super) const DIRECTIVES: &[Directive] = &[
    // Each directive creates a separate cache in each worker thread; inner blocks share it.
    Directive::scope(
        core(
            "open_file_cache",
            LEVELS,
            Args::Between(1, 2),
            "Caches open files and attributes of paths: `max=` entries, `inactive=` time.",
        )
        .default("off"),
        set_cache,
    ),
    // For this time attributes are used without a system call.
    Directive::scope(
        core(
            "open_file_cache_valid",
            LEVELS,
            Args::Exactly(1),
            "Time after which a path in the cache is checked again.",
        )
        .default("60s"),
        |scope, cx| cx.seconds(&mut scope.core.files.opening.settings.valid),
    ),
    // Otherwise files that are requested only once would evict others.
    Directive::scope(
        core(
            "open_file_cache_min_uses",
            LEVELS,
            Args::Exactly(1),
            "Number of uses after which a file stays open.",
        )
        .default("1"),
        |scope, cx| cx.number(&mut scope.core.files.opening.settings.min_uses),
    ),
    // Only errors that the path itself causes; failures of a disk are retried.
    Directive::scope(
        core("open_file_cache_errors", LEVELS, Args::Flag, "Caches errors of paths, too.").default("off"),
        |scope, cx| cx.flag(&mut scope.core.files.opening.settings.errors),
    ),
    // nginx parses it, but does not document it.
    Directive::scope(
        core("open_file_cache_events", LEVELS, Args::Flag, "Watches the files in the cache for changes.")
            .default("off")
            .state(Support::Idle("nginx has it for kqueue alone, which Linux does not have")),
        |_, cx| cx.flag(&mut false),
    ),
    // The kernel checks while it opens, so a link that is replaced concurrently cannot bypass the check.
    Directive::scope(
        core(
            "disable_symlinks",
            LEVELS,
            Args::Between(1, 2),
            "Symbolic links that are not followed: none, all, or links with another owner than their target.",
        )
        .default("off"),
        set_links,
    ),
];

/// Parses `max=N [inactive=time]` or `off`.
fn set_cache(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    // All arguments are checked before any takes effect: invalid arguments after `off` are errors too.
    let (mut max, mut inactive, mut off) = (None, INACTIVE_DEFAULT, false);
    for text in cx.statement.texts() {
        let read = match text.split_once('=') {
            Some(("max", count)) => {
                max = value::number(count).ok().filter(|&count| count > 0);
                max.is_some()
            }
            Some(("inactive", time)) => {
                let time = value::seconds(time).map(Duration::from_secs);
                time.map(|time| inactive = time).is_ok()
            }
            None if text == "off" => {
                off = true;
                true
            }
            _ => false,
        };
        if !read {
            return Err(cx.error(format_args!("invalid \"open_file_cache\" parameter \"{text}\"")));
        }
    }
    scope.core.files.opening.closes_immediately = off;
    if off {
        scope.core.files.opening.cache = None;
        return Ok(());
    }
    let max = max.ok_or_else(|| cx.error("\"open_file_cache\" must have the \"max\" parameter"))?;
    let caches = &mut cx.http.open_file_caches;
    let id = u16::try_from(caches.len()).map(CacheId);
    // Indices of entries have 32 bits; no machine has that many descriptors.
    caches.push(Limits { max: max.min(u64::from(u32::MAX)) as usize, inactive });
    scope.core.files.opening.cache =
        Some(id.map_err(|_| cx.error("too many \"open_file_cache\" directives"))?);
    Ok(())
}

/// nginx's default of `inactive`.
const INACTIVE_DEFAULT: Duration = Duration::from_secs(60);

/// Parses `off`, or `on` or `if_not_owner` with an optional `from=`.
fn set_links(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    // The arguments may have any order; a duplicate is distinguished from a missing argument below.
    let (mut refused, mut from) = (None, None);
    for text in cx.statement.texts() {
        match text {
            "off" => refused = Some(Refused::Nothing),
            "on" => refused = Some(Refused::All),
            "if_not_owner" => refused = Some(Refused::OfOthers),
            _ => match text.strip_prefix("from=") {
                Some(path) => from = Some(cx.template(path)?),
                None => return Err(cx.error(format_args!("invalid parameter \"{text}\""))),
            },
        }
    }
    let name = &cx.statement.name.text;
    let missing =
        || cx.error(format_args!("\"{name}\" must have \"off\", \"on\" or \"if_not_owner\" parameter"));
    let refused = refused.ok_or_else(missing)?;
    if cx.statement.args.len() == 2 && from.is_none() {
        let (first, second) = (cx.arg(0), cx.arg(1));
        return Err(cx.error(format_args!("duplicate parameters \"{first} {second}\"")));
    }
    if refused == Refused::Nothing && from.is_some() {
        return Err(cx.error(format_args!("\"from=\" cannot be used with \"off\" parameter")));
    }
    // `off` has no cost per request, as if the directive were not used.
    scope.core.files.opening.links = match refused {
        Refused::Nothing => None,
        refused => Some(Arc::new(Links { refused, from })),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn blocks_share_a_cache_until_one_has_its_own() {
        let config = loaded(
            "open_file_cache max=10 inactive=5m; open_file_cache_valid 2m; open_file_cache_errors on;
             open_file_cache_min_uses 3;
             server { location /a {} location /b { open_file_cache off; open_file_cache_errors off; }
               location /c { open_file_cache inactive=1s max=2; open_file_cache_valid 1; } }",
        );
        let scopes = config.http.locations.iter().map(|location| &location.scope.core);
        let ids: Vec<Option<CacheId>> = scopes.map(|core| core.files.opening.cache).collect();
        assert_eq!(ids, [Some(CacheId(0)), Some(CacheId(0)), None, Some(CacheId(1))]);
        let limits = |max, seconds| Limits { max, inactive: Duration::from_secs(seconds) };
        assert_eq!(config.http.open_file_caches, [limits(10, 300), limits(2, 1)]);
        let of = |place: usize| {
            let core = &config.http.locations[place].scope.core;
            let seconds = core.files.opening.settings.valid.as_secs();
            (seconds, core.files.opening.settings.min_uses, core.files.opening.settings.errors)
        };
        assert_eq!([of(1), of(2), of(3)], [(120, 3, true), (120, 3, false), (1, 3, true)]);
    }

    #[test]
    fn disable_symlinks_is_inherited_and_switched_off() {
        let config = loaded(
            "disable_symlinks if_not_owner from=$document_root;
             server { location /a {} location /b { disable_symlinks on; } location /c { disable_symlinks off; } }",
        );
        let of = |place: usize| {
            let links = config.http.locations[place].scope.core.files.opening.links.as_ref();
            links.map(|links| (links.refused, links.from.is_some()))
        };
        let expected = [Some((Refused::OfOthers, true)), Some((Refused::All, false)), None];
        assert_eq!([of(1), of(2), of(3)], expected);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (statement, message) in [
            ("open_file_cache max=0;", "invalid \"open_file_cache\" parameter \"max=0\""),
            ("open_file_cache max=x;", "invalid \"open_file_cache\" parameter \"max=x\""),
            ("open_file_cache inactive=x;", "invalid \"open_file_cache\" parameter \"inactive=x\""),
            ("open_file_cache on;", "invalid \"open_file_cache\" parameter \"on\""),
            ("open_file_cache inactive=5s;", "\"open_file_cache\" must have the \"max\" parameter"),
            ("open_file_cache off; open_file_cache off;", "\"open_file_cache\" directive is duplicate"),
            ("open_file_cache_valid x;", "\"open_file_cache_valid\" directive invalid value"),
            ("open_file_cache_min_uses x;", "\"open_file_cache_min_uses\" directive invalid number"),
            (
                "open_file_cache_errors x;",
                "invalid value \"x\" in \"open_file_cache_errors\" directive, it must be \"on\" or \"off\"",
            ),
            ("disable_symlinks maybe;", "invalid parameter \"maybe\""),
            (
                "disable_symlinks from=/a;",
                "\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter",
            ),
            ("disable_symlinks off from=/a;", "\"from=\" cannot be used with \"off\" parameter"),
            ("disable_symlinks on off;", "duplicate parameters \"on off\""),
            ("disable_symlinks on; disable_symlinks on;", "\"disable_symlinks\" directive is duplicate"),
        ] {
            let found = error(&format!("http {{ server {{\n{statement} }} }}"));
            let found = crate::testing::without_remedy(&found);
            assert_eq!(found, format!("{message} in /conf/nginx.conf:2"), "{statement}");
        }
    }
}
