//! Fetches the documents of a provider: its metadata (OpenID Connect Discovery 1.0 section 4) and its keys.

use std::sync::Arc;

use jose::KeySet;
use jose::key::KEY_SET_LEN_MAX;

use super::call::{Caller, ProviderCall, ProviderFault, call};
use super::conf::OidcProvider;
use super::documents::{DocumentFetch, ProviderMetadata};
use exchange::error_log;
use telemetry::Level;

/// Maximum size in bytes of the metadata.
const METADATA_BYTES_MAX: usize = 256 << 10;

/// Returns the metadata of a provider.
pub(super) async fn metadata(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
) -> Result<Arc<ProviderMetadata>, ProviderFault> {
    let fetch = || -> DocumentFetch<ProviderMetadata> {
        let (caller, provider) = (caller.clone(), Arc::clone(provider));
        Box::pin(async move {
            let fetched = fetch_metadata(&caller, &provider).await;
            report(&caller, &provider, fetched)
        })
    };
    provider.documents.metadata.get(None, fetch).await
}

/// Returns the keys of a provider. `replaces` are keys that a token does not match.
pub(super) async fn keys(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
    metadata: &Arc<ProviderMetadata>,
    replaces: Option<&Arc<KeySet>>,
) -> Result<Arc<KeySet>, ProviderFault> {
    let fetch = || -> DocumentFetch<KeySet> {
        let (caller, provider, metadata) = (caller.clone(), Arc::clone(provider), Arc::clone(metadata));
        Box::pin(async move {
            let fetched = fetch_keys(&caller, &provider, &metadata).await;
            report(&caller, &provider, fetched)
        })
    };
    provider.documents.keys.get(replaces, fetch).await
}

/// Logs a failed fetch once, for all requests that wait for it.
fn report<T>(
    caller: &Caller,
    provider: &OidcProvider,
    fetched: Result<T, ProviderFault>,
) -> Result<T, ProviderFault> {
    if let Err(fault) = &fetched {
        let (name, reason) = (&provider.name, &fault.reason);
        error_log::write(&caller.thread, Level::Error, format_args!("OIDC provider \"{name}\": {reason}"));
    }
    fetched
}

async fn fetch_metadata(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
) -> Result<ProviderMetadata, ProviderFault> {
    let url = &provider.config_url;
    let content = ProviderCall { url, authorization: None, form: None, bytes_max: METADATA_BYTES_MAX };
    let response = call(caller, provider.secure.as_ref(), &content).await?;
    if response.status != 200 {
        return Err(ProviderFault::new(format!("{}: status {}", url.text, response.status)));
    }
    ProviderMetadata::parse(&response.body, &provider.issuer, provider.needs_tls)
        .map_err(|fault| ProviderFault::new(format!("{}: {fault}", url.text)))
}

async fn fetch_keys(
    caller: &Caller,
    provider: &Arc<OidcProvider>,
    metadata: &ProviderMetadata,
) -> Result<KeySet, ProviderFault> {
    let url = &metadata.keys;
    let content = ProviderCall { url, authorization: None, form: None, bytes_max: KEY_SET_LEN_MAX };
    let response = call(caller, provider.secure.as_ref(), &content).await?;
    if response.status != 200 {
        return Err(ProviderFault::new(format!("{}: status {}", url.text, response.status)));
    }
    // Parsing many keys takes a while.
    let parsed = rt::offload(move || KeySet::parse(&response.body)).await;
    let parsed = parsed.ok_or_else(|| ProviderFault::new("parsing the keys panicked"))?;
    parsed.map_err(|fault| ProviderFault::new(format!("{}: the keys are wrong: {fault}", url.text)))
}
