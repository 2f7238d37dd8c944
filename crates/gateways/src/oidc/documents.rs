//! The documents of a provider, which all threads share: its metadata and its keys.
//!
//! A document is fetched by one task, for which all requests that need it wait; a fetch continues without its client. It is used for
//! [`FRESH_TIME`], then it is fetched again while requests use the old one. A document that cannot be fetched again remains in use for
//! [`STALE_TIME`]. After a failure without a document, no fetch begins for [`FAILURE_PAUSE`].

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jose::object::Value;
use jose::{KeySet, Object};

use super::call::ProviderFault;
use super::shared_work::{self, WorkEnd};
use super::url::ProviderUrl;

/// Time for which a document is used without a new fetch.
const FRESH_TIME: Duration = Duration::from_secs(60 * 60);

/// Time for which a document is used whose fetches fail.
const STALE_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Time after a failed fetch in which requests fail without another one, so that a provider that is down gets few requests.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Time between fetches of keys because a token has an unknown one.
const KEYS_PAUSE: Duration = Duration::from_secs(1);

/// The documents of a provider.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// The metadata.
    pub(super) metadata: Arc<SharedDocument<ProviderMetadata>>,
    /// The keys that ID tokens are signed with.
    pub(super) keys: Arc<SharedDocument<KeySet>>,
}

/// A document, and the fetch in flight.
#[derive(Debug)]
pub(super) struct SharedDocument<T>(Mutex<DocumentState<T>>);

#[derive(Debug)]
struct DocumentState<T> {
    /// The document, and the time at which it arrived.
    known: Option<(Arc<T>, Instant)>,
    /// The failure of the last fetch, and its time.
    failed: Option<(ProviderFault, Instant)>,
    /// The fetch in flight.
    fetch: Option<WorkEnd>,
    /// Time at which the last fetch began.
    begun: Option<Instant>,
}

/// What there is of a document.
enum Found<T> {
    /// The document, or the reason why there is none.
    Result(Result<Arc<T>, ProviderFault>),
    /// A fetch in flight, whose end is to be waited for.
    Fetch(WorkEnd),
}

impl<T> Default for SharedDocument<T> {
    fn default() -> Self {
        SharedDocument(Mutex::new(DocumentState { known: None, failed: None, fetch: None, begun: None }))
    }
}

/// The future of a fetch.
pub(super) type DocumentFetch<T> = Pin<Box<dyn Future<Output = Result<T, ProviderFault>>>>;

impl<T> SharedDocument<T> {
    fn lock(&self) -> MutexGuard<'_, DocumentState<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: 'static> SharedDocument<T> {
    /// Returns the document. `replaces` is one that the caller cannot use.
    pub(super) async fn get(
        self: &Arc<Self>,
        replaces: Option<&Arc<T>>,
        fetch: impl Fn() -> DocumentFetch<T>,
    ) -> Result<Arc<T>, ProviderFault> {
        match self.find(rt::now(), replaces, false, &fetch) {
            Found::Result(result) => result,
            Found::Fetch(end) => {
                end.wait().await;
                match self.find(rt::now(), replaces, true, &fetch) {
                    Found::Result(result) => result,
                    // The task of the fetch was dropped, because its thread ends.
                    Found::Fetch(_) => Err(ProviderFault::new("the fetch was cancelled")),
                }
            }
        }
    }

    /// Returns the document, or a fetch to wait for. After the wait (`waited`) the result of the fetch counts, whatever its age.
    fn find(
        self: &Arc<Self>,
        now: Instant,
        replaces: Option<&Arc<T>>,
        waited: bool,
        fetch: &impl Fn() -> DocumentFetch<T>,
    ) -> Found<T> {
        let age = |at: Instant| now.saturating_duration_since(at);
        let mut state = self.lock();
        let known = state.known.as_ref().filter(|(_, at)| age(*at) < STALE_TIME);
        let known = known.filter(|(document, _)| !replaces.is_some_and(|old| Arc::ptr_eq(old, document)));
        let is_fresh = known.is_some_and(|(_, at)| age(*at) < FRESH_TIME);
        let known = known.map(|(document, _)| Arc::clone(document));
        let failed = state.failed.as_ref().filter(|(_, at)| waited || age(*at) < FAILURE_PAUSE);
        match (known, failed) {
            // An old document is used while it is fetched again, and if that fails.
            (Some(document), failed) => {
                if !is_fresh && !waited && failed.is_none() && state.fetch.is_none() {
                    self.begin(&mut state, fetch());
                }
                Found::Result(Ok(document))
            }
            (None, Some((fault, _))) => Found::Result(Err(fault.clone())),
            (None, None) => match &state.fetch {
                Some(end) => Found::Fetch(end.clone()),
                // A token with an unknown key must not cause a fetch each time.
                None if replaces.is_some() && state.begun.is_some_and(|at| age(at) < KEYS_PAUSE) => {
                    Found::Result(Err(ProviderFault::new("the keys of the provider were fetched just now")))
                }
                None if waited => Found::Result(Err(ProviderFault::new("the document did not change"))),
                None => Found::Fetch(self.begin(&mut state, fetch())),
            },
        }
    }

    /// Begins a fetch.
    fn begin(self: &Arc<Self>, state: &mut DocumentState<T>, fetch: DocumentFetch<T>) -> WorkEnd {
        let (document, released) = (Arc::clone(self), Arc::clone(self));
        let work = async move {
            let fetched = fetch.await;
            let mut state = document.lock();
            match fetched {
                Ok(fetched) => {
                    state.known = Some((Arc::new(fetched), rt::now()));
                    state.failed = None;
                }
                Err(fault) => state.failed = Some((fault, rt::now())),
            }
        };
        let end = shared_work::begin(work, move || released.lock().fetch = None);
        state.fetch = Some(end.clone());
        state.begun = Some(rt::now());
        end
    }
}

/// The metadata of a provider (OpenID Connect Discovery 1.0 section 3).
#[derive(Debug)]
pub(super) struct ProviderMetadata {
    /// The page for the login.
    pub(super) authorization: ProviderUrl,
    /// The endpoint that exchanges codes and refresh tokens.
    pub(super) token: ProviderUrl,
    /// The key set.
    pub(super) keys: ProviderUrl,
    /// The endpoint for UserInfo.
    pub(super) userinfo: Option<ProviderUrl>,
    /// The page for the logout.
    pub(super) end_session: Option<ProviderUrl>,
    /// The algorithms of ID tokens.
    pub(super) algorithms: Vec<String>,
    /// Whether clients may send their secret in the form (`client_secret_post`) only.
    pub(super) posts_secret: bool,
    /// Whether the provider supports PKCE with `S256`.
    pub(super) has_pkce: bool,
    /// Whether responses name the issuer (RFC 9207).
    pub(super) names_issuer: bool,
}

impl ProviderMetadata {
    /// Parses the metadata of a provider, and checks that it is its own.
    pub(super) fn parse(text: &[u8], issuer: &str, needs_tls: bool) -> Result<ProviderMetadata, String> {
        let object = Object::parse(text).ok_or("the metadata is no JSON object")?;
        if object.text("issuer").as_deref() != Some(issuer) {
            return Err("the metadata has another issuer".to_owned());
        }
        let url = |name: &str| -> Result<Option<ProviderUrl>, String> {
            let Some(text) = object.text(name) else { return Ok(None) };
            let url = ProviderUrl::parse(&text).map_err(|fault| format!("{fault} in \"{name}\""))?;
            match url.is_secure || !needs_tls {
                true => Ok(Some(url)),
                false => Err(format!("\"{name}\" has no TLS")),
            }
        };
        let required = |name: &str| url(name)?.ok_or_else(|| format!("the metadata has no \"{name}\""));
        let list = |name: &str| texts(&object, name);
        let methods = list("token_endpoint_auth_methods_supported");
        let has_method = |name: &str| methods.as_ref().is_some_and(|names| names.iter().any(|it| it == name));
        let challenges = list("code_challenge_methods_supported").unwrap_or_default();
        let is_true = |name: &str| matches!(object.get(name), Some(Value::Literal(text)) if text == "true");
        Ok(ProviderMetadata {
            authorization: required("authorization_endpoint")?,
            token: required("token_endpoint")?,
            keys: required("jwks_uri")?,
            userinfo: url("userinfo_endpoint")?,
            end_session: url("end_session_endpoint")?,
            algorithms: list("id_token_signing_alg_values_supported")
                .unwrap_or_else(|| vec!["RS256".to_owned()]),
            posts_secret: has_method("client_secret_post") && !has_method("client_secret_basic"),
            has_pkce: challenges.iter().any(|name| name == "S256"),
            names_issuer: is_true("authorization_response_iss_parameter_supported"),
        })
    }
}

/// Returns the texts of an array.
fn texts(object: &Object, name: &str) -> Option<Vec<String>> {
    let Some(Value::Array(items)) = object.get(name) else { return None };
    let text = |item| match item {
        Value::Text(text) => Some(text),
        _ => None,
    };
    Some(items.into_iter().filter_map(text).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use io::engine::{EngineConfig, NetKind};

    use super::*;

    /// A provider whose documents are numbers: that of the fetch, or a failure.
    #[derive(Clone, Default)]
    struct Numbers {
        fetches: Rc<Cell<u32>>,
        is_down: Rc<Cell<bool>>,
    }

    impl Numbers {
        fn fetch(&self) -> DocumentFetch<u32> {
            self.fetches.set(self.fetches.get() + 1);
            let (number, is_down) = (self.fetches.get(), self.is_down.get());
            Box::pin(async move {
                match is_down {
                    true => Err(ProviderFault::new("down")),
                    false => Ok(number),
                }
            })
        }
    }

    /// Returns the document that a request gets a time after now.
    async fn get(document: &Arc<SharedDocument<u32>>, provider: &Numbers, later: Duration) -> Option<u32> {
        let now = rt::now() + later;
        let found = match document.find(now, None, false, &|| provider.fetch()) {
            Found::Result(result) => result,
            Found::Fetch(end) => {
                end.wait().await;
                match document.find(rt::now(), None, true, &|| provider.fetch()) {
                    Found::Result(result) => result,
                    Found::Fetch(_) => panic!("the fetch has ended"),
                }
            }
        };
        // Lets a fetch end that the request has begun, but has not waited for.
        let fetch = document.lock().fetch.clone();
        if let Some(end) = fetch {
            end.wait().await;
        }
        found.ok().map(|number| *number)
    }

    fn run(test: impl AsyncFnOnce(Arc<SharedDocument<u32>>, Numbers)) {
        let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
        let mut runtime = rt::Runtime::new(engine.expect("epoll is everywhere"));
        runtime.block_on(test(Arc::default(), Numbers::default()));
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_document_is_fetched_again_after_its_time_while_the_old_one_is_used() {
        run(async |document, provider| {
            assert_eq!(get(&document, &provider, Duration::ZERO).await, Some(1));
            assert_eq!(get(&document, &provider, FRESH_TIME - MINUTE).await, Some(1));
            assert_eq!(provider.fetches.get(), 1);
            // The request that begins the fetch does not wait for it.
            assert_eq!(get(&document, &provider, FRESH_TIME + MINUTE).await, Some(1));
            assert_eq!(get(&document, &provider, MINUTE).await, Some(2), "that of the fetch");
            assert_eq!(provider.fetches.get(), 2);
        });
    }

    #[test]
    fn a_provider_that_is_down_keeps_its_document_for_a_day() {
        run(async |document, provider| {
            assert_eq!(get(&document, &provider, Duration::ZERO).await, Some(1));
            provider.is_down.set(true);
            assert_eq!(get(&document, &provider, FRESH_TIME + MINUTE).await, Some(1));
            assert_eq!(provider.fetches.get(), 2);
            // Each later request tries again, after a pause; one in the pause does not.
            assert_eq!(get(&document, &provider, FAILURE_PAUSE / 2).await, Some(1));
            assert_eq!(provider.fetches.get(), 2);
            assert_eq!(get(&document, &provider, STALE_TIME - MINUTE).await, Some(1));
            assert_eq!(provider.fetches.get(), 3);
            let late = rt::now() + STALE_TIME + MINUTE;
            let Found::Fetch(end) = document.find(late, None, false, &|| provider.fetch()) else {
                panic!("the document is too old");
            };
            end.wait().await;
            let found = document.find(late, None, true, &|| provider.fetch());
            assert!(matches!(found, Found::Result(Err(_))), "the fetch has failed");
        });
    }

    #[test]
    fn requests_wait_for_one_fetch_and_a_failure_has_a_pause() {
        run(async |document, provider| {
            provider.is_down.set(true);
            let now = rt::now();
            let Found::Fetch(first) = document.find(now, None, false, &|| provider.fetch()) else {
                panic!("a fetch begins");
            };
            let Found::Fetch(second) = document.find(now, None, false, &|| provider.fetch()) else {
                panic!("the fetch is in flight");
            };
            first.wait().await;
            second.wait().await;
            assert!(document.lock().fetch.is_none(), "it is released before its end");
            assert_eq!(get(&document, &provider, Duration::ZERO).await, None);
            assert_eq!(provider.fetches.get(), 1);
            provider.is_down.set(false);
            assert_eq!(get(&document, &provider, 2 * FAILURE_PAUSE).await, Some(2));
        });
    }
}
