//! LOCK and UNLOCK (RFC 4918 sections 9.10 and 9.11): exclusive and shared write locks. A LOCK of a path without a
//! resource creates an empty file.

use std::fmt::Write;
use std::time::Duration;

use http::uri::escape_uri;
use http::webdav::body::{self, LockInfo};
use http::webdav::condition::If;
use io::Errno;
use io::op::OpenHow;
use rustix::fs::OFlags;

use super::conditions::{self, creator, field, if_field};
use super::locks::{Change, Holder, Lock, Refused, Zone, key};
use super::properties;
use super::resource::{Done, OperationError, Resource, fault};
use super::{Conf, Depth, body_of, depth, malformed, path_of, refusal};
use exchange::phases::Step;
use exchange::request::Request;

/// Handles LOCK.
pub(super) async fn lock(conf: &Conf, request: &mut Request) -> Result<Step, u16> {
    let Some(zone) = &conf.lock else { return Err(405) };
    let body = body_of(request).await?;
    let (status, lock) = if body.iter().all(u8::is_ascii_whitespace) {
        (200, refresh(zone, request)?)
    } else {
        let info = body::lock(&body).map_err(|error| malformed(request, error))?;
        acquire(conf, zone, request, info).await?
    };
    let mut text =
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:prop xmlns:D=\"DAV:\"><D:lockdiscovery>".to_owned();
    properties::push_lock(&lock, rt::now(), &mut text);
    text.push_str("</D:lockdiscovery></D:prop>\n");
    let token = format!("<{}>", lock.token).into_bytes();
    request.response.fields.push(b"Lock-Token", &token);
    properties::respond(request, status, text);
    Ok(Step::Done)
}

/// Prolongs a lock, whose token is in the field `If`.
fn refresh(zone: &Zone, request: &Request) -> Result<Lock, u16> {
    let sent = if_field(request)?;
    let tokens: Vec<&[u8]> = sent.iter().flat_map(If::tokens).collect();
    if tokens.is_empty() {
        return Err(refusal(request, 400, format_args!("LOCK without a body and a lock token")));
    }
    let path = key(&path_of(request, &request.uri));
    let holder = Holder { creator: &creator(request), tokens: &tokens };
    zone.state().refresh(&path, holder, rt::now(), timeout(zone, request)).ok_or(412)
}

/// Creates a lock, and an empty file if no resource exists. Returns the status and the lock.
async fn acquire(conf: &Conf, zone: &Zone, request: &Request, info: LockInfo) -> Result<(u16, Lock), u16> {
    let is_deep = match depth(request, Depth::Infinity) {
        Depth::Zero => false,
        Depth::Infinity => true,
        _ => return Err(refusal(request, 400, format_args!("\"Depth\" header must be 0 or infinity"))),
    };
    let resource = Resource::of(request, path_of(request, &request.uri)).await?;
    let is_new = match resource.stat().await {
        Ok(_) => false,
        Err(OperationError { errno: Errno::NOENT, .. }) => true,
        Err(trouble) => return Err(trouble.log(request, 409)),
    };
    if is_new {
        conditions::check(conf, request, &[(resource.full(), Change::Created)]).await?;
    } else {
        conditions::check_if(conf, request).await?;
    }
    let mut root = Vec::new();
    escape_uri(&request.uri, &mut root);
    let expires = rt::now() + timeout(zone, request);
    let LockInfo { is_exclusive, owner } = info;
    let (creator, network) = (creator(request), request.client().client_network());
    let lock = Lock { token: token(), root, is_deep, is_exclusive, owner, creator, network, expires };
    let path = key(resource.full());
    zone.state().acquire(path.clone(), lock.clone(), rt::now()).map_err(|refused| match refused {
        Refused::Locked => refusal(request, 423, format_args!("the resource is locked")),
        Refused::Full => {
            let name = zone.name();
            refusal(request, 507, format_args!("the zone \"{name}\" of locks has no space for this client"))
        }
    })?;
    if !is_new {
        return Ok((200, lock));
    }
    match create(&resource, conf.access).await {
        Ok(()) => Ok((201, lock)),
        Err(trouble) => {
            zone.state().withdraw(&path, &lock.token);
            Err(trouble.log(request, 409))
        }
    }
}

/// Creates an empty file.
async fn create(resource: &Resource, mode: u32) -> Done {
    let (dir, name) = resource.place("open()")?;
    if resource.full().ends_with(b"/") {
        return Err(fault("open()", resource.full())(Errno::NOENT));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = OpenHow { flags: flags.bits() as i32, mode, is_cold: true, ..OpenHow::default() };
    let made = dir.open_at(name, how, resource.disk).await;
    made.map(drop).map_err(fault("open()", resource.full()))
}

/// Returns the time for which a lock is valid: that of the field `Timeout`, at most that of the zone.
fn timeout(zone: &Zone, request: &Request) -> Duration {
    let most = zone.kind().timeout;
    let value = field(request, b"Timeout").unwrap_or_default();
    let mut choices = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    let seconds = choices.find_map(|choice| {
        let seconds = choice.strip_prefix(b"Second-")?;
        std::str::from_utf8(seconds).ok()?.parse().ok()
    });
    seconds.map_or(most, |seconds| Duration::from_secs(seconds).clamp(Duration::from_secs(1), most))
}

/// Returns a new token: a random UUID.
fn token() -> String {
    let mut id = [0; 16];
    // The kernel's generator is initialised long before a server runs, and returns small requests completely.
    let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::NONBLOCK);
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    let mut text = "urn:uuid:".to_owned();
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Handles UNLOCK.
pub(super) fn unlock(conf: &Conf, request: &Request) -> Result<Step, u16> {
    let Some(zone) = &conf.lock else { return Err(405) };
    let value = field(request, b"Lock-Token").map(<[u8]>::trim_ascii);
    let token = value.and_then(|value| value.strip_prefix(b"<")?.strip_suffix(b">"));
    let Some(token) = token else {
        return Err(refusal(request, 400, format_args!("client sent invalid \"Lock-Token\" header")));
    };
    let path = key(&path_of(request, &request.uri));
    let holder = Holder { creator: &creator(request), tokens: &[token] };
    match zone.state().release(&path, holder, rt::now()) {
        true => Ok(Step::Status(204)),
        false => Err(refusal(request, 409, format_args!("the resource is not locked with this token"))),
    }
}
