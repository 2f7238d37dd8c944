//! nginx's dav module: PUT, DELETE, MKCOL, COPY and MOVE (RFC 4918) on the files of a location, with nginx's statuses; and
//! the methods of the third-party module dav-ext: OPTIONS, PROPFIND, PROPPATCH, LOCK and UNLOCK.
//!
//! | module | content |
//! |---|---|
//! | [`put`] | uploads, which get their name when they are complete |
//! | [`relocate`] | COPY and MOVE: the fields `Destination`, `Depth` and `Overwrite` |
//! | [`resource`] | a path of a request, its open directory, and operations on its name there |
//! | [`remove`], [`copy`] | files and directories: removal, copies |
//! | [`propfind`], [`proppatch`], [`properties`] | properties, and responses with status 207 |
//! | [`lock`], [`locks`] | LOCK and UNLOCK; the locks of a zone |
//! | [`conditions`] | whether locks and the field `If` permit a change |
//! | [`directives`] | the settings |
//!
//! ```text
//!   skip (no disk) --> body of a PUT --> run --> Disk (the engine) --> status
//!        |
//!        +-- another module's method, or a request that is rejected by its fields alone
//! ```
//!
//! Every call that may wait for the disk goes through the engine of the location.

mod conditions;
mod copy;
mod directives;
mod lock;
mod locks;
mod properties;
mod propfind;
mod proppatch;
mod put;
mod relocate;
mod remove;
mod resource;

use http::fields::{BodyLength, HeaderId, Method};
use http::webdav::body::BODY_MAX;
use http::webdav::xml::XmlError;

use crate::{Declaration, Module};
pub(crate) use directives::Conf;
use exchange::files;
use exchange::phases::{Phase, Step};
use exchange::rehearsal::Event;
use exchange::request::Request;
use exchange::stored_file;
use locks::Change;
use remove::Tree;
use resource::{Resource, is_directory};
use site::config::SettingsType;
use site::declaration::BlockHooks;
use site::uses::FileUse;
use telemetry::{ForLog, Level};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().is_on() {
            plan.now_or_later(Phase::Content, scope.shared::<Conf>(), skip, |conf, request| {
                Box::pin(run(conf, request))
            });
        }
    },
    rehearse: |request| {
        let changes = request.scope().of::<Conf>().has(request.method);
        changes.then(|| {
            let text = "WebDAV handles this method, which may change files: not carried out".to_owned();
            request.note(|| Event::Said { label: "dav", text });
            request.response.status = 200;
            Step::Done
        })
    },
    ..Module::of(Declaration {
        directives: &[directives::DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        blocks: BlockHooks {
            requires: |http, scope, requirements| {
                if scope.of::<Conf>().is_on() {
                    let (base, uses) = (http.prefix_path(), &mut requirements.uses);
                    scope.core.files.add_root_use(base, FileUse::Write, uses);
                }
            },
            ..BlockHooks::NONE
        },
        ..Declaration::named("http_dav")
    })
};

/// Decides before the disk is accessed: the request is passed to another module, rejected, or waits for its body.
fn skip(conf: &Conf, request: &mut Request) -> Option<Step> {
    if !conf.has(request.method) {
        return Some(Step::Next);
    }
    match request.method {
        Method::Put => return put::begin(request),
        Method::Options => return Some(options(conf, request)),
        Method::Propfind | Method::Proppatch | Method::Lock => return wait_for_xml(request),
        _ => {}
    }
    let what = match request.method {
        Method::Delete => "DELETE with body is",
        Method::Mkcol => "MKCOL with body is",
        Method::Unlock => "UNLOCK with body is",
        _ => "COPY and MOVE with body are",
    };
    match request.head.body() {
        BodyLength::None | BodyLength::Exactly(0) => None,
        _ => Some(refused(request, 415, format_args!("{what} unsupported"))),
    }
}

/// Executes the method; each one returns nginx's status.
async fn run(conf: &Conf, request: &mut Request) -> Step {
    if files::is_alias_undefined(request) {
        return Step::Status(500);
    }
    let done = match request.method {
        Method::Put => put::run(conf, request).await,
        Method::Delete => delete(conf, request).await,
        Method::Mkcol => make(conf, request).await,
        Method::Propfind => propfind::run(conf, request).await,
        Method::Proppatch => proppatch::run(conf, request).await,
        Method::Lock => lock::lock(conf, request).await,
        Method::Unlock => lock::unlock(conf, request),
        _ => relocate::run(conf, request).await,
    };
    done.unwrap_or_else(Step::Status)
}

/// Responds to OPTIONS: the classes of RFC 4918 and the methods of the location.
fn options(conf: &Conf, request: &mut Request) -> Step {
    let has_locks = conf.lock.is_some() && conf.has(Method::Lock);
    let classes: &[u8] = if has_locks { b"1, 2" } else { b"1" };
    let fields = &mut request.response.fields;
    fields.push(b"DAV", classes);
    fields.push(b"Allow", &conf.allowed());
    // Microsoft's clients look for FrontPage otherwise.
    fields.push(b"MS-Author-Via", b"DAV");
    request.response.status = 200;
    request.response.set_bytes(io::segments::Source::Static(b""));
    Step::Done
}

/// Requests the body of a method with XML, unless it is too large.
fn wait_for_xml(request: &mut Request) -> Option<Step> {
    if matches!(request.head.body(), BodyLength::Exactly(bytes) if bytes > BODY_MAX) {
        return Some(refused(request, 413, format_args!("the body of a WebDAV request is too large")));
    }
    (request.body.is_none() && request.head.body().has_body()).then_some(Step::ReadBody)
}

/// Returns the body of a method with XML; empty if there is none.
async fn body_of(request: &Request) -> Result<Vec<u8>, u16> {
    let Some(body) = &request.body else { return Ok(Vec::new()) };
    if body.byte_count() > BODY_MAX {
        return Err(refusal(request, 413, format_args!("the body of a WebDAV request is too large")));
    }
    let mut text = Vec::new();
    for piece in body.pieces().unwrap_or_default() {
        text.extend_from_slice(piece);
    }
    let mut offset = 0;
    while offset < body.in_file() {
        let read = body.read_file(offset, BODY_MAX).await;
        let buf = read.map_err(|_| refusal(request, 500, format_args!("the body could not be read")))?;
        offset += buf.len() as u64;
        text.extend_from_slice(&buf);
    }
    Ok(text)
}

/// Logs that a body is invalid, and returns the status.
fn malformed(request: &Request, error: XmlError) -> u16 {
    let status = if error == XmlError::TooLarge { 413 } else { 400 };
    refusal(request, status, format_args!("client sent an invalid XML body ({error:?})"))
}

/// Logs an error and responds with a status.
fn refused(request: &Request, status: u16, what: std::fmt::Arguments<'_>) -> Step {
    Step::Status(refusal(request, status, what))
}

/// Logs an error and returns the status.
fn refusal(request: &Request, status: u16, what: std::fmt::Arguments<'_>) -> u16 {
    request.log(Level::Error, what);
    status
}

/// Returns the path of a URI.
fn path_of(request: &Request, uri: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    files::path_of(request, uri, &mut path);
    path
}

/// Sets `Location` to the URI of the new resource.
fn set_location(request: &mut Request) {
    let mut location = Vec::with_capacity(request.uri.len());
    http::uri::escape_uri(&request.uri, &mut location);
    request.response.location = Some(location);
}

/// The value of `Depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Zero,
    One,
    Infinity,
    Invalid,
}

/// Returns the depth in the request, or the default of its method. nginx compares bytes, so other letter cases are
/// invalid.
fn depth(request: &Request, default: Depth) -> Depth {
    match request.header(HeaderId::Depth) {
        None => default,
        Some(b"0") => Depth::Zero,
        Some(b"1") => Depth::One,
        Some(b"infinity") => Depth::Infinity,
        Some(text) => {
            let text = text.for_log();
            request.log(Level::Error, format_args!("client sent invalid \"Depth\" header: \"{text}\""));
            Depth::Invalid
        }
    }
}

/// Checks that a path has at least `least` slashes before its last component, as DELETE requires. Fails with the actual
/// number.
fn is_deep_enough(uri: &[u8], least: u64) -> Result<(), u64> {
    let mut depth = 0;
    for (at, _) in uri.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
        depth += 1;
        if depth >= least && at + 1 < uri.len() {
            return Ok(());
        }
    }
    match least {
        0 => Ok(()),
        _ => Err(depth),
    }
}

/// Handles DELETE (RFC 4918 section 9.6). As in nginx, a failure inside a tree is only logged, not reported by a 207.
async fn delete(conf: &Conf, request: &mut Request) -> Result<Step, u16> {
    if let Err(depth) = is_deep_enough(&request.uri, conf.delete_depth_min) {
        return Err(refusal(request, 409, format_args!("insufficient URI depth:{depth} to DELETE")));
    }
    let target = Resource::of(request, path_of(request, &request.uri)).await?;
    if target.path.is_start() {
        return Err(refusal(request, 403, format_args!("the root of the location cannot be removed")));
    }
    let stat = target.stat().await.map_err(|trouble| {
        // A file where a directory is expected is not a missing file.
        let missing = if trouble.errno == io::Errno::NOTDIR { 409 } else { 404 };
        trouble.log(request, missing)
    })?;
    conditions::check(conf, request, &[(target.full(), Change::Tree)]).await?;
    let is_collection = request.uri.ends_with(b"/");
    if is_directory(&stat) {
        if !is_collection {
            let path = files::display(target.full());
            let what = format_args!("DELETE \"{path}\" failed (21: Is a directory)");
            return Err(refusal(request, 409, what));
        }
        if depth(request, Depth::Infinity) != Depth::Infinity {
            return Err(refusal(request, 400, format_args!("\"Depth\" header must be infinity")));
        }
        let top = target.open_directory().await.map_err(|trouble| trouble.log_failed(request))?;
        Tree { request, disk: target.disk, top, path: target.full() }.clear().await;
        target.rmdir().await.map_err(|trouble| trouble.log(request, 404))?;
    } else {
        if !matches!(depth(request, Depth::Zero), Depth::Zero | Depth::Infinity) {
            return Err(refusal(request, 400, format_args!("\"Depth\" header must be 0 or infinity")));
        }
        target.unlink().await.map_err(|trouble| trouble.log(request, 404))?;
    }
    conditions::forget(conf, target.full());
    Ok(Step::Status(204))
}

/// Handles MKCOL (RFC 4918 section 9.3).
async fn make(conf: &Conf, request: &mut Request) -> Result<Step, u16> {
    // RFC 4918 does not require the final slash, and some clients omit it.
    let target = Resource::of(request, path_of(request, &request.uri)).await?;
    conditions::check(conf, request, &[(target.full(), Change::Created)]).await?;
    let mode = stored_file::directory_mode(conf.access);
    target.mkdir(mode).await.map_err(|trouble| trouble.log(request, 409))?;
    set_location(request);
    Ok(Step::Status(201))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn settings_are_inherited_separately() {
        let config = loaded(
            "dav_methods put delete; min_delete_depth 2; dav_access group:rw all:r;
             server { location /a { dav_methods off; create_full_put_path on; } location /b { dav_access user:r; } }",
        );
        let conf = |place: usize| config.http.locations[place].scope.of::<Conf>();
        assert!(conf(0).has(Method::Put) && conf(0).has(Method::Delete) && !conf(0).has(Method::Mkcol));
        assert_eq!(
            (conf(0).access, conf(0).delete_depth_min, conf(0).creates_directories),
            (0o664, 2, false)
        );
        assert!(!conf(1).has(Method::Put) && conf(1).creates_directories);
        assert_eq!((conf(2).access, conf(2).has(Method::Put)), (0o400, true));
        assert!(!loaded("server {}").http.locations[0].scope.of::<Conf>().is_on());
    }

    #[test]
    fn wrong_values_cause_the_messages_of_nginx() {
        for (text, words) in [
            ("dav_methods patch;", "invalid value \"patch\""),
            ("dav_access user:x;", "invalid value \"user:x\""),
            ("dav_access other:r;", "invalid value \"other:r\""),
            ("min_delete_depth x;", "invalid number"),
            ("create_full_put_path yes;", "it must be \"on\" or \"off\""),
        ] {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert!(found.contains(words), "{text}: {found}");
        }
    }

    #[test]
    fn min_delete_depth_is_checked() {
        for (uri, least, enough) in [
            ("/", 0, true),
            ("/a", 0, true),
            ("/", 1, false),
            ("/a", 1, true),
            ("/a", 2, false),
            ("/a/", 2, false),
            ("/a/b", 2, true),
            ("/a/b/", 3, false),
            ("/a/b/c", 3, true),
        ] {
            assert_eq!(is_deep_enough(uri.as_bytes(), least).is_ok(), enough, "{uri} {least}");
        }
    }
}
