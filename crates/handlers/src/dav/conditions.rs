//! Whether locks and the field `If` permit a change (RFC 4918 sections 7 and 10.4).

use std::time::Instant;

use http::conditional::Etag;
use http::webdav::condition::{If, List, ResourceState};

use super::locks::{Change, Holder, Locks, key};
use super::relocate::after_ignoring_case;
use super::resource::{Resource, is_directory};
use super::{Conf, path_of, refusal};
use exchange::credentials::Credentials;
use exchange::files::ChangePath;
use exchange::request::Request;
use exchange::subrequest;

/// Returns the first field of this name.
pub(super) fn field<'r>(request: &'r Request, name: &[u8]) -> Option<&'r [u8]> {
    let bytes = request.bytes();
    let mut fields = request.head.fields().iter();
    fields.find(|field| field.name.of(bytes).eq_ignore_ascii_case(name)).map(|field| field.value.of(bytes))
}

/// Returns the value of `If`; `None` without the field.
pub(super) fn if_field(request: &Request) -> Result<Option<If<'_>>, u16> {
    let Some(value) = field(request, b"If") else { return Ok(None) };
    let parsed = If::parse(value);
    parsed.map(Some).ok_or_else(|| refusal(request, 400, format_args!("client sent invalid \"If\" header")))
}

/// Checks that a client may make these changes, given by the path of each resource. Does nothing without `dav_ext_lock`.
pub(super) async fn check(conf: &Conf, request: &Request, changes: &[(&[u8], Change)]) -> Result<(), u16> {
    check_if(conf, request).await?;
    check_locks(conf, request, changes)
}

/// Checks the conditions of `If`. Does nothing without `dav_ext_lock`.
pub(super) async fn check_if(conf: &Conf, request: &Request) -> Result<(), u16> {
    let Some(zone) = &conf.lock else { return Ok(()) };
    let (locks, now) = (zone.state(), rt::now());
    let sent = if_field(request)?;
    if let Some(sent) = &sent
        && !is_true(request, locks, sent, now).await
    {
        return Err(412);
    }
    Ok(())
}

/// Checks that no lock of another client forbids these changes, whatever the conditions of `If`.
pub(super) fn check_locks(conf: &Conf, request: &Request, changes: &[(&[u8], Change)]) -> Result<(), u16> {
    let Some(zone) = &conf.lock else { return Ok(()) };
    let (locks, now) = (zone.state(), rt::now());
    let sent = if_field(request)?;
    let tokens: Vec<&[u8]> = sent.iter().flat_map(If::tokens).collect();
    let creator = creator(request);
    let holder = Holder { creator: &creator, tokens: &tokens };
    match changes.iter().all(|(path, change)| locks.permits(&key(path), *change, holder, now)) {
        true => Ok(()),
        false => Err(refusal(request, 423, format_args!("the resource is locked"))),
    }
}

/// Returns the path of the first directory that is created with a resource; the path of the resource if its directory
/// exists. The lock of a collection protects its names from new directories too.
pub(super) async fn first_created(conf: &Conf, place: &ChangePath) -> Vec<u8> {
    let mut path = key(place.full());
    let count = if conf.lock.is_some() { place.missing_directories().await } else { 0 };
    for _ in 0..count {
        path.truncate(memchr::memrchr(b'/', &path).unwrap_or(0));
    }
    path
}

/// Returns what the client is authenticated by: the name of Basic authentication, and its certificate. Empty for all
/// anonymous clients.
pub(super) fn creator(request: &Request) -> Vec<u8> {
    let mut creator =
        Credentials::of(request).map_or_else(Vec::new, |credentials| credentials.user().to_vec());
    let secured = request.conn.secured.get();
    let certificate = secured.and_then(|secured| secured.client.as_ref()?.parsed()?.fingerprint());
    if let Some(fingerprint) = certificate {
        creator.push(b'\n');
        creator.extend_from_slice(fingerprint.as_bytes());
    }
    creator
}

async fn is_true(request: &Request, locks: &Locks, sent: &If<'_>, now: Instant) -> bool {
    for list in &sent.lists {
        if is_list_true(request, locks, list, now).await {
            return true;
        }
    }
    false
}

async fn is_list_true(request: &Request, locks: &Locks, list: &List<'_>, now: Instant) -> bool {
    let path = match list.resource {
        None => path_of(request, &request.uri),
        Some(url) => match uri_of(request, url) {
            Some(uri) => path_of(request, &uri),
            // A resource of another server has no state here.
            None => return false,
        },
    };
    let covering = locks.covering(&key(&path), now);
    for condition in &list.conditions {
        let is_so = match condition.state {
            ResourceState::Token(token) => covering.iter().any(|lock| lock.token.as_bytes() == token),
            ResourceState::Etag(tag) => has_etag(request, &path, tag).await,
        };
        if is_so == condition.is_not {
            return false;
        }
    }
    true
}

/// Returns the path of a URL of this server.
fn uri_of(request: &Request, url: &[u8]) -> Option<Vec<u8>> {
    let path = match url.first() {
        Some(b'/') => url,
        _ => {
            let authority = memchr::memmem::find(url, b"://").map(|at| &url[at + 3..])?;
            // The name of another host may begin in the same way. Colons are also part of an IPv6 address.
            let rest = after_ignoring_case(authority, &request.host)?;
            let slash = memchr::memchr(b'/', rest).filter(|slash| *slash == 0 || rest[0] == b':')?;
            &rest[slash..]
        }
    };
    subrequest::parse_uri(request, path).map(|(path, _)| path)
}

async fn has_etag(request: &Request, path: &[u8], tag: &[u8]) -> bool {
    let Ok(resource) = Resource::of(request, path.to_vec()).await else { return false };
    match resource.stat().await {
        Ok(stat) if !is_directory(&stat) => Etag::of_file(stat.modified, stat.size).as_bytes() == tag,
        _ => false,
    }
}

/// Removes the locks of a resource that was removed.
pub(super) fn forget(conf: &Conf, path: &[u8]) {
    if let Some(zone) = &conf.lock {
        zone.state().forget(&key(path));
    }
}
