//! Prepares a response before its first byte is sent: header filters, and bodies in memory.

use std::rc::Rc;

use http::fields::{HeaderId, Method};
use io::Segments;
use io::segments::Source;

use crate::request::Request;
use crate::response::{Body, NotModified};
use site::settings::core::Core;
use transfer::body::{FileBody, OneRead};

/// Maximum length in bytes of a body that is appended to its header section by a copy.
const COPIED_MAX: usize = 1 << 10;

/// Runs the header filters before a response is sent. Returns the status of an error if a filter replaces the response
/// by one.
pub fn filter(request: &mut Request) -> Option<u16> {
    if let Some(status) = request.error_status.filter(|&status| status != 0) {
        request.response.status = status;
    }
    // The file of an error page is no version of the requested resource. With its `Last-Modified` a cache could store it as one.
    if !matches!(request.response.status, 200 | 206 | 304) {
        request.response.last_modified = None;
        request.response.allow_ranges = false;
    }
    // If the range filter refuses the request, the filters run again for the error. The fields from before the first run are
    // then restored, so that this server's own fields are not added twice.
    let given = (request.header(HeaderId::Range).is_some()).then(|| request.response.fields.clone());
    let thread_config = Rc::clone(&request.thread_config);
    for filter in thread_config.plans[request.location.0 as usize].filters() {
        filter(request);
        if let refusal @ Some(_) = request.response.refusal.take() {
            request.response.fields = given.unwrap_or_else(|| std::mem::take(&mut request.response.fields));
            return refusal;
        }
    }
    if request.response.not_modified == Some(NotModified::Here) {
        request.response.drop_content();
    }
    None
}

/// Returns header section and body if both are in memory; otherwise returns the header section.
pub fn try_read(request: &mut Request, core: &Core, mut head: Vec<u8>) -> Result<Segments, Vec<u8>> {
    let mut data = Segments::new();
    let has_none = request.method == Method::Head || request.response.has_no_content();
    if request.response.is_filtered() && !has_none {
        return Err(head);
    }
    match &mut request.response.body {
        _ if has_none => data.push(Source::Vec(head)),
        Body::None => data.push(Source::Vec(head)),
        // A copy of a few bytes costs less than a second segment.
        Body::Bytes(source) if source.bytes().len() <= COPIED_MAX => {
            head.extend_from_slice(source.bytes());
            data.push(Source::Vec(head));
        }
        Body::Bytes(source) => {
            data.push(Source::Vec(head));
            data.push(std::mem::replace(source, Source::Static(b"")));
        }
        Body::Slice(source, range) if range.len() <= COPIED_MAX => {
            head.extend_from_slice(&source.bytes()[range.clone()]);
            data.push(Source::Vec(head));
        }
        Body::Slice(source, range) => {
            data.push(Source::Vec(head));
            let source = std::mem::replace(source, Source::Static(b""));
            data.push_range(source, range.start, range.end);
        }
        Body::File(file) => {
            let Some(try_read) =
                file.try_read(&mut head, core.sending.output_buffers.map(|(_, bytes)| bytes))
            else {
                return Err(head);
            };
            request.store_spare(head);
            data = try_read;
        }
        Body::Ranged(_) | Body::Source(_) | Body::Tunnel(_) => return Err(head),
    }
    Ok(data)
}

/// Returns the file of the response, and a single read for all of it. If this is not possible, the response stays unchanged.
pub fn in_one_read(request: &mut Request, core: &Core) -> Option<(FileBody, OneRead)> {
    let response = &mut request.response;
    if request.method == Method::Head || response.has_no_content() || response.is_filtered() {
        return None;
    }
    let Body::File(file) = &mut response.body else { return None };
    let read = file.in_one_read(core.sending.output_buffers.map(|(_, bytes)| bytes))?;
    match std::mem::take(&mut response.body) {
        Body::File(file) => Some((file, read)),
        _ => None,
    }
}
