//! `keyval`: a variable whose value is looked up in a shared zone of pairs, which `api` changes while the server runs.
//!
//! `site::shared_zone::pairs` has the pairs and the matching of keys, [`json`] their text, [`save`](mod@save) writes the state file. A reload in place
//! retains the pairs if name, size and type of the zone are unchanged. Any other start reads them from the state file.
//!
//! A zone has three users:
//!
//! | user | access |
//! |---|---|
//! | a variable of `keyval` | looks up a value, once for a request or session |
//! | `api` | reads and changes pairs, and waits until the state file has the change |
//! | another module, such as `oidc` for its sessions | reads and changes pairs of a zone that shares them, and does not wait for the file |
//!
//! Only the first one is in this module. The pairs and their lock are in `site`, so that the other modules need not depend on this
//! crate. The state file is written here, because only the settings of the zone name it.

mod json;
mod save;

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use conf::{Args, Contexts, Error, Spec, value};

use crate::{Declaration, Directive, Module};
use exchange::module::{ThreadHooks, compute};
use exchange::saved_pairs::SavePairs;
use site::config::{Config, Cx, Section};
use site::shared_zone::limits::without_zone;
use site::shared_zone::{self, ZoneKind, pairs, table};
use site::template::Template;
use site::uses::FileUse;
use site::variables::{Compute, HasVariables};

pub use json::{Fault, changes, object_of};
pub use save::save;
pub use site::shared_zone::pairs::{
    CopiedPair, Matching, PairChange as Change, PairRefusal as Refusal, Pairs, now_ms,
};

/// The module.
pub(crate) static MODULE: Module = Module {
    // After a reload the state file may have another name.
    thread: ThreadHooks {
        make: |locals| locals.insert(SavePairs(save::save_changed)),
        configured: save::save_moved,
        ..ThreadHooks::NONE
    },
    ..Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_keyval") })
};

/// The same directives in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_keyval")
});

const DIRECTIVES: &[Directive] = &[
    // The zone may be declared later, as with the other modules that have zones.
    Directive::http(
        Spec::new(
            "http_keyval",
            "keyval",
            Contexts::HTTP,
            Args::Exactly(3),
            "Defines a variable whose value is looked up by a key in a zone of `keyval_zone`.",
        )
        .many(),
        add_variable,
    ),
    Directive::http(
        Spec::new(
            "http_keyval",
            "keyval_zone",
            Contexts::HTTP,
            Args::Between(1, 5),
            "Declares a shared zone of keys and values that `api` changes: `zone=NAME:SIZE`, and optionally `state=`, `timeout=`, `type=`; `sync` is not supported.",
        )
        .many(),
        declare,
    ),
];

/// A zone of pairs.
pub type KeyvalZone = shared_zone::Zone<Declared>;

/// The settings of `keyval_zone`. The pairs themselves are not a part of it: a reload creates new settings, and retains the pairs if the
/// settings agree with the earlier ones.
#[derive(Debug)]
pub struct Declared {
    /// `type`
    matching: Matching,
    /// `timeout`, by which pairs expire that have no time of their own.
    timeout_ms: Option<u64>,
    /// The file that changes are written to.
    state: Option<PathBuf>,
    /// The content of this file when the configuration was read.
    initial: Arc<Vec<u8>>,
}

/// The pairs of a zone, and the state of their file. All threads share it, and a reload in place passes it to the zone of the new
/// configuration.
#[derive(Debug)]
pub struct Stored {
    /// The pairs.
    pub pairs: Pairs,
    /// The file that was written last. Its lock is held during a write, by a helper thread.
    saved: Mutex<Option<save::Saved>>,
}

impl ZoneKind for Declared {
    type Content = Stored;

    fn empty(&self, bytes: u64) -> Stored {
        let pairs = self.pairs(bytes);
        // The setter has added the same pairs without an error. Times since then only remove pairs.
        let restored =
            json::state(&self.initial).map(|initial| pairs.restore(initial, now_ms(SystemTime::now())));
        debug_assert!(matches!(restored, Ok(Ok(()))), "the file was checked with the configuration");
        let saved = self.state.clone().map(|path| save::Saved { path, changes: 0 });
        Stored { pairs, saved: Mutex::new(saved) }
    }

    /// The keys of other modules are texts.
    fn shares_pairs(&self) -> bool {
        self.matching == Matching::Exact
    }

    fn pairs(state: &Stored) -> Option<&Pairs> {
        Some(&state.pairs)
    }

    fn used(state: &Stored) -> Option<u64> {
        Some(state.pairs.used())
    }

    /// Pairs without another copy are retained. The pairs of another state file replace them.
    fn continues(&self, before: &Declared) -> bool {
        let is_same_file = self.state == before.state || self.initial.is_empty();
        self.matching == before.matching && self.timeout_ms == before.timeout_ms && is_same_file
    }
}

impl Declared {
    /// Returns an empty table for a zone of this size.
    fn pairs(&self, bytes: u64) -> Pairs {
        Pairs::new(table::usable_bytes(bytes), self.matching, self.timeout_ms)
    }
}

/// Returns the zones that a block declares.
pub fn zones(config: &Config, section: Section) -> impl Iterator<Item = Arc<KeyvalZone>> {
    let zones = config.http.zones.0.iter().filter(move |entry| entry.section() == section);
    zones.filter_map(|entry| {
        let zone: Arc<dyn Any + Send + Sync> = Arc::clone(&entry.zone) as _;
        zone.downcast().ok()
    })
}

/// Returns the state files, which are read with the configuration.
pub fn state_files(config: &Config) -> impl Iterator<Item = PathBuf> {
    let zones = [Section::Http, Section::Stream].into_iter().flat_map(|section| zones(config, section));
    zones.filter_map(|zone| zone.kind().state.clone())
}

/// Implements the setter of `keyval_zone`. The state file is read with the configuration, so that a damaged file refuses the start or the
/// reload instead of a zone that is empty.
fn declare(cx: &mut Cx<'_>) -> Result<(), Error> {
    let (mut zone, mut state) = (None, None);
    let (mut matching, mut timeout_ms) = (Matching::Exact, None);
    for text in cx.statement.texts() {
        match text.split_once('=') {
            Some(("zone", _)) => {
                zone = Some(shared_zone::name_and_size(text).map_err(|fault| cx.error(fault))?)
            }
            Some(("state", path)) if !path.is_empty() => state = Some(cx.path(path, FileUse::WriteFile)),
            Some(("timeout", time)) => {
                let time = value::milliseconds(time).ok().filter(|&ms| ms > 0);
                timeout_ms =
                    Some(time.ok_or_else(|| cx.error(format_args!("invalid timeout value \"{text}\"")))?);
            }
            Some(("type", "string")) => matching = Matching::Exact,
            Some(("type", "ip")) => matching = Matching::Network,
            Some(("type", "prefix")) => matching = Matching::Prefix,
            // Pairs exist only in this server, so a configuration that relies on their distribution must not start.
            None if text == "sync" => return Err(cx.not_supported(text)),
            _ => return Err(cx.error(format_args!("invalid parameter \"{text}\""))),
        }
    }
    let Some((name, bytes)) = zone.filter(|(name, _)| !name.is_empty()) else {
        return Err(without_zone(cx.statement));
    };
    let initial = match &state {
        Some(path) => cx.read_written(path)?,
        None => Arc::default(),
    };
    let declared = Declared { matching, timeout_ms, state, initial };
    check_state(&declared, bytes, cx)?;
    cx.http.zones.declare((name, bytes), declared, |_| "keyval", cx.statement)
}

/// Fails if the state file is wrong, too large for the zone, or that of another zone.
fn check_state(declared: &Declared, bytes: u64, cx: &Cx<'_>) -> Result<(), Error> {
    let Some(path) = &declared.state else { return Ok(()) };
    let known = cx.http.zones.0.iter().filter_map(|entry| {
        let zone: &dyn Any = &*entry.zone;
        zone.downcast_ref::<KeyvalZone>()?.declared()?.state.as_ref()
    });
    if known.into_iter().any(|known| known == path) {
        return Err(
            cx.error(format_args!("\"{}\" is already the state file of another zone", path.display()))
        );
    }
    let shown = path.display();
    let pairs = json::state(&declared.initial);
    let pairs =
        pairs.map_err(|fault| cx.error(format_args!("the state file \"{shown}\" is wrong: {fault}")))?;
    let restored = declared.pairs(bytes).restore(pairs, now_ms(SystemTime::now()));
    restored.map_err(|(key, refusal)| {
        let key = key.escape_debug();
        cx.error(match refusal {
            Refusal::Full => format!("the zone is too small for the pairs of its state file \"{shown}\""),
            Refusal::Exists => format!("the state file \"{shown}\" has the network of key \"{key}\" twice"),
            _ => format!("the state file \"{shown}\" has the key \"{key}\", which is no network"),
        })
    })
}

/// Implements the setter of `keyval`. The variable has a slot, so that its value is looked up once for a request, although the zone may
/// change during the request.
fn add_variable(cx: &mut Cx<'_>) -> Result<(), Error> {
    let key = cx.template(cx.arg(0))?;
    let name = cx.variable_name(cx.arg(1))?;
    let text = cx.arg(2);
    let zone = text.strip_prefix("zone=").filter(|name| !name.is_empty());
    let zone = zone.ok_or_else(|| cx.error(format_args!("invalid parameter \"{text}\"")))?;
    let zone = cx.http.zones.named::<Declared>(zone, cx.statement)?;
    let slot = cx.http.registry.define_computed(name, cx.statement)?;
    compute(cx.http, slot, Lookup { key, zone });
    Ok(())
}

/// The lookup of a variable, once per request.
#[derive(Debug)]
struct Lookup {
    /// The text that is searched for.
    key: Template,
    /// The zone, which may be declared after the variable.
    zone: Arc<KeyvalZone>,
}

impl<R: HasVariables> Compute<R> for Lookup {
    fn value(&self, request: &R, out: &mut Vec<u8>) -> bool {
        let key = self.key.rendered(request);
        // Without a pair the variable is empty, as that of `map` without a default.
        self.zone.state().pairs.find(&key, now_ms(rt::wall()), out);
        true
    }
}

#[cfg(test)]
mod tests;
