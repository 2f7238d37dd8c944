//! PUT: the body is written to a temporary file while it arrives, which is renamed to the URI's path at the end.
//! Readers see the old file or the complete new file.

use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use http::date;
use http::fields::{BodyLength, HeaderId};
use io::Errno;
use rustix::fs::OFlags;

use super::conditions;
use super::locks::Change;
use super::resource::{Resource, is_directory};
use super::{Conf, path_of, refusal, refused, set_location};
use exchange::files::{self, ChangePath};
use exchange::phases::Step;
use exchange::refusals::{self, Access};
use exchange::request::Request;
use exchange::stored_file::{Destination, Fault, Writer};
use telemetry::{Level, Reason};
use transfer::incoming::Piece;

/// Maximum number of pieces of a body in one write; a piece has about 64 KiB.
const PIECES_MAX: usize = 4;

/// Performs the checks that need no disk: rejects requests, or requests the body.
pub(super) fn begin(request: &mut Request) -> Option<Step> {
    if request.uri.ends_with(b"/") {
        return Some(refused(request, 409, format_args!("cannot PUT to a collection")));
    }
    if request.header(HeaderId::ContentRange).is_some() {
        return Some(refused(request, 501, format_args!("PUT with range is unsupported")));
    }
    // nginx's response to a request without a body. To create an empty file, a client sends `Content-Length: 0`.
    if request.head.body() == BodyLength::None {
        return Some(refused(request, 500, format_args!("PUT request body must be in a file")));
    }
    let is_wanted = request.incoming.is_none() && request.body.is_none() && request.head.body().has_body();
    is_wanted.then_some(Step::StoreBody)
}

/// Receives the body and publishes it.
pub(super) async fn run(conf: &Conf, request: &mut Request) -> Result<Step, u16> {
    let place = Resource::of(request, path_of(request, &request.uri)).await?.path;
    // Checked before the body is received, so that no body is received for a request that fails.
    let is_new = is_missing(request, &place).await?;
    let change = if is_new { Change::Created } else { Change::Content };
    let path = place.full().to_vec();
    let first = match is_new {
        true => conditions::first_created(conf, &place).await,
        false => path.clone(),
    };
    let changes = [(&*path, change), (&*first, change)];
    conditions::check(conf, request, &changes).await?;
    let plan = Destination {
        place,
        temp: request.scope().core.body_files.temp_path.clone(),
        mode: conf.access,
        creates_directories: conf.creates_directories,
        modified: request.header(HeaderId::Date).and_then(date::parse_http),
        length: None,
        via: files::disk(request).via,
    };
    let mut writer = Writer::new(plan, Rc::clone(&request.conn.thread));
    receive(request, &mut writer).await?;
    // Another client may have locked the resource while the body arrived. Its own lock may have ended meanwhile.
    conditions::check_locks(conf, request, &changes)?;
    writer.publish().await.map_err(|fault| log_failure(request, fault))?;
    if !is_new {
        return Ok(Step::Status(204));
    }
    set_location(request);
    Ok(Step::Status(201))
}

/// Whether no resource exists at the path. Fails for a directory, for a path that the rules of the location refuse, and if
/// the directory is missing and PUT does not create directories.
async fn is_missing(request: &Request, place: &ChangePath) -> Result<bool, u16> {
    let refused = |errno: Errno| {
        refusals::note_path(request, place.full(), Access::Write, errno);
        let path = files::display(place.full());
        let what = format_args!("\"{path}\" could not be created ({})", Reason(errno));
        refusal(request, files::status_of(errno), what)
    };
    match place.parent().await {
        Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::XDEV)) => return Err(refused(errno)),
        Err(_) => return Ok(true),
        Ok(_) => {}
    }
    let Ok(file) = place.open(OFlags::PATH).await else {
        // A link that the rules refuse is replaced by the file.
        return Ok(true);
    };
    match file.stat(files::disk(request)).await {
        Ok(stat) if is_directory(&stat) => {
            let path = files::display(place.full());
            let what = format_args!("\"{path}\" could not be created (21: Is a directory)");
            Err(refusal(request, 409, what))
        }
        _ => Ok(false),
    }
}

/// Writes the complete body.
async fn receive(request: &Request, writer: &mut Writer) -> Result<(), u16> {
    if let Some(incoming) = request.incoming.clone() {
        loop {
            let piece = incoming.next().await.map_err(|aborted| {
                let status = aborted.status();
                refusal(request, status, format_args!("the body of a PUT was not received completely"))
            })?;
            let Some(piece) = piece else { return Ok(()) };
            let mut bytes = Vec::new();
            let mut add =
                |piece: Piece| piece.iter().for_each(|source| bytes.extend_from_slice(source.bytes()));
            add(piece);
            // Bytes that have arrived meanwhile belong to the same write, because each write waits for the disk engine.
            for _ in 1..PIECES_MAX {
                rt::yield_now().await;
                let Some(piece) = incoming.try_next() else { break };
                add(piece);
            }
            writer.append(&bytes).await.map_err(|fault| log_failure(request, fault))?;
        }
    }
    // Another module has already read the body.
    let Some(body) = &request.body else { return Ok(()) };
    for piece in body.pieces().unwrap_or_default() {
        writer.append(piece).await.map_err(|fault| log_failure(request, fault))?;
    }
    let mut offset = 0;
    while offset < body.in_file() {
        let buf = body.read_file(offset, u64::MAX).await.map_err(|errno| {
            log_failure(request, ("read", body.path().unwrap_or("".as_ref()).to_owned(), errno))
        })?;
        offset += buf.len() as u64;
        writer.append(&buf).await.map_err(|fault| log_failure(request, fault))?;
    }
    Ok(())
}

/// Logs a failure, and returns 507 if the file system is full, else 500: nginx's status for all failures to write.
fn log_failure(request: &Request, (call, path, errno): Fault) -> u16 {
    refusals::note_path(request, path.as_os_str().as_bytes(), Access::Write, errno);
    let (path, reason) = (path.display(), Reason(errno));
    request.log(Level::Crit, format_args!("{call}() \"{path}\" failed ({reason})"));
    if matches!(errno, Errno::NOSPC | Errno::DQUOT) { 507 } else { 500 }
}
