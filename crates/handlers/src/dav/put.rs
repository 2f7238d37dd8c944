//! PUT: the body is written to a temporary file while it arrives, which is renamed to the URI's path at the end.
//! Readers see the old file or the complete new file.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;

use http::date;
use http::request::{BodyLength, HeaderId};

use super::tree::Disk;
use super::{Conf, path_of, refusal, refused, set_location};
use exchange::files;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::stored_file::{Destination, Fault, Writer};
use telemetry::{Level, Reason};

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
    let path = path_of(request, &request.uri);
    let disk = Disk::of(request);
    disk.guard(request, &path).await?;
    // Checked before the body is received, so that no body is received for a request that fails.
    let is_new = disk.is_missing(&path).await.map_err(|()| {
        let path = files::display(&path);
        refusal(request, 409, format_args!("\"{path}\" could not be created (21: Is a directory)"))
    })?;
    let (temp, levels) = request.scope().core.body_files.temp_path.clone();
    let plan = Destination {
        path: PathBuf::from(OsString::from_vec(path)),
        temp,
        levels,
        mode: conf.access,
        creates_directories: conf.creates_directories,
        modified: request.header(HeaderId::Date).and_then(date::parse_http),
        length: None,
        via: disk.via,
    };
    let mut writer = Writer::new(plan, Rc::clone(&request.conn.thread));
    receive(request, &mut writer).await?;
    writer.publish().await.map_err(|fault| log_failure(request, fault))?;
    if !is_new {
        return Ok(Step::Status(204));
    }
    set_location(request);
    Ok(Step::Status(201))
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
            for source in piece {
                writer.append(source.bytes()).await.map_err(|fault| log_failure(request, fault))?;
            }
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

/// Logs a failure, and returns 500: nginx's status for all failures to write.
fn log_failure(request: &Request, (call, path, errno): Fault) -> u16 {
    let (path, reason) = (path.display(), Reason(errno));
    request.log(Level::Crit, format_args!("{call}() \"{path}\" failed ({reason})"));
    500
}
