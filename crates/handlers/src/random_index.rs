//! `random_index`: serves a random file of a directory for the directory.

use conf::{Args, Contexts, Spec};
use http::fields::Method;

use crate::autoindex::listing::Listing;
use crate::{Declaration, Directive, Module};
use exchange::module::Variable;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use site::config::{Settings, SettingsType};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().0 {
            plan.now_or_later(Phase::Content, scope.shared::<Conf>(), skip, |conf, request| {
                Box::pin(run(conf, request))
            });
        }
    },
    variables: &[Variable {
        name: "random_index",
        get: |request, out| {
            let chosen = request.extensions.get::<Chosen>();
            chosen.is_some_and(|chosen| {
                out.extend_from_slice(&chosen.0);
                true
            })
        },
        set: None,
        help: "The name of the file that `random_index` chose.",
    }],
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_random_index")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_random_index",
        "random_index",
        Contexts::LOCATION,
        Args::Flag,
        "Serves a random file of a directory as its index.",
    )
    .default("off"),
    |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().0),
)];

/// Whether the directive is on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conf(bool);

impl Settings for Conf {}

/// Skips requests for other URIs than those of directories, and other methods than GET, HEAD and POST.
fn skip(_: &Conf, request: &mut Request) -> Option<Step> {
    let is_wanted = request.uri.last() == Some(&b'/')
        && matches!(request.method, Method::Get | Method::Head | Method::Post);
    (!is_wanted).then_some(Step::Next)
}

/// The name chosen for a request.
struct Chosen(Box<[u8]>);

/// Reads the names and continues with a random one. As in nginx links to files count, and hidden files are excluded.
async fn run(_: &Conf, request: &mut Request) -> Step {
    let listing = match Listing::open(request).await {
        Ok(listing) => listing,
        Err(step) => return step,
    };
    let (mut chosen, mut seen) = (None, 0);
    loop {
        let entries = match listing.read_kinds(request).await {
            Ok(Some(entries)) => entries,
            Ok(None) => break,
            Err(step) => return step,
        };
        for entry in entries {
            if !listing.is_file(&entry).await {
                continue;
            }
            seen += 1;
            // Reservoir sampling: each name replaces the current one with probability 1 / `seen`. So all names are
            // equally likely, and a large directory needs the memory of one name.
            if random_below(seen) == 0 {
                chosen = Some(entry.name);
            }
        }
        // With `aio off` the worker thread reads the directory itself, so the read does not let other tasks run.
        rt::yield_now().await;
    }
    // A directory without files is left to the following modules.
    let Some(name) = chosen else { return Step::Next };
    request.uri.extend_from_slice(&name);
    // An internal redirect retains the extensions, so the location that serves the file can read the name.
    request.extensions.insert(Chosen(name));
    Step::Internal
}

/// Returns a random number below `count` from the kernel's generator, which is initialised long before a server runs.
fn random_below(count: u64) -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    // The upper half of the product is below `count`; its bias is at most `count` / 2^64.
    ((u128::from(u64::from_ne_bytes(bytes)) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn nested_locations_inherit_it() {
        let config = loaded(
            "server { location / { random_index on; location /a {} location /b { random_index off; } } }",
        );
        let on: Vec<bool> =
            config.http.locations.iter().map(|location| location.scope.of::<Conf>().0).collect();
        assert_eq!(on, [false, true, true, false]);
    }

    #[test]
    fn wrong_values_and_contexts_are_refused() {
        let found = error("http { server { location / {\nrandom_index yes; } } }");
        let message = "invalid value \"yes\" in \"random_index\" directive, it must be \"on\" or \"off\"";
        assert_eq!(found, format!("{message} in /conf/nginx.conf:2"));
        let found = error("http { server {\nrandom_index on; } }");
        assert_eq!(
            found,
            "\"random_index\" directive is not allowed here in /conf/nginx.conf:2; it is allowed in location"
        );
    }

    #[test]
    fn random_numbers_cover_exactly_the_range() {
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[random_below(5) as usize] += 1);
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
    }
}
