//! Live properties of resources, and responses with status 207 (RFC 4918 sections 13 to 15).

use std::fmt::Write;
use std::time::Instant;

use exchange::request::Request;
use exchange::response::ContentType;
use http::conditional::Etag;
use http::date;
use http::uri::escape_uri;
use http::webdav::body::{Owner, Propfind};
use http::webdav::xml::{self, DAV, PropertyName};
use io::facts::Stat;
use io::segments::Source;

use super::locks::Lock;
use super::resource::is_directory;

/// Names of the live properties of RFC 4918.
const LIVE: &[&str] = &[
    "displayname",
    "resourcetype",
    "creationdate",
    "getlastmodified",
    "getcontentlength",
    "getcontenttype",
    "getetag",
    "supportedlock",
    "lockdiscovery",
];

/// A resource in a response.
pub(super) struct Listed<'r> {
    pub(super) request: &'r Request,
    /// Its URI, not escaped.
    pub(super) uri: Vec<u8>,
    pub(super) stat: Stat,
    /// The locks that cover it; `None` if the location has no locks.
    pub(super) locks: Option<Vec<Lock>>,
    pub(super) now: Instant,
}

/// Returns the start of a response with status 207.
pub(super) fn begin() -> String {
    "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n".to_owned()
}

/// Completes a response with status 207.
pub(super) fn finish(request: &mut Request, mut text: String) {
    text.push_str("</D:multistatus>\n");
    respond(request, 207, text);
}

/// Responds with XML.
pub(super) fn respond(request: &mut Request, status: u16, text: String) {
    request.response.status = status;
    request.response.content_type = ContentType::Text("application/xml; charset=utf-8".into());
    request.response.set_bytes(Source::Vec(text.into_bytes()));
}

/// Appends an element `href` with a URI.
pub(super) fn push_href(uri: &[u8], out: &mut String) {
    let mut escaped = Vec::with_capacity(uri.len());
    escape_uri(uri, &mut escaped);
    out.push_str("<D:href>");
    xml::escape(&String::from_utf8_lossy(&escaped), out);
    out.push_str("</D:href>");
}

/// Appends an empty element of any namespace.
pub(super) fn push_name(name: &PropertyName, out: &mut String) {
    if name.namespace == DAV {
        out.push_str("<D:");
        xml::escape(&name.local, out);
        out.push_str("/>");
        return;
    }
    out.push('<');
    xml::escape(&name.local, out);
    out.push_str(" xmlns=\"");
    xml::escape(&name.namespace, out);
    out.push_str("\"/>");
}

impl Listed<'_> {
    /// Appends the element `response` with the requested properties.
    pub(super) fn push(&self, wanted: &Propfind, out: &mut String) {
        out.push_str("<D:response>");
        push_href(&self.uri, out);
        let (mut found, mut missing) = (String::new(), String::new());
        match wanted {
            Propfind::All => LIVE.iter().for_each(|name| {
                self.push_property(name, &mut found);
            }),
            Propfind::Names => LIVE.iter().filter(|name| self.has(name)).for_each(|name| {
                let _ = write!(found, "<D:{name}/>");
            }),
            Propfind::These(names) => {
                for name in names {
                    let is_found = name.namespace == DAV && self.push_property(&name.local, &mut found);
                    if !is_found {
                        push_name(name, &mut missing);
                    }
                }
            }
        }
        if !found.is_empty() || missing.is_empty() {
            push_status(&found, "200 OK", out);
        }
        if !missing.is_empty() {
            push_status(&missing, "404 Not Found", out);
        }
        out.push_str("</D:response>\n");
    }

    fn has(&self, name: &str) -> bool {
        self.push_property(name, &mut String::new())
    }

    /// Appends a property; returns `false` if the resource does not have it.
    fn push_property(&self, name: &str, out: &mut String) -> bool {
        let is_directory = is_directory(&self.stat);
        let start = out.len();
        let _ = write!(out, "<D:{name}>");
        match name {
            "displayname" => xml::escape(&String::from_utf8_lossy(name_of(&self.uri)), out),
            "resourcetype" if is_directory => out.push_str("<D:collection/>"),
            "resourcetype" => {}
            // The file systems have no portable creation time; the modification time is the best estimate, as in dav-ext.
            "creationdate" => out.push_str(&String::from_utf8_lossy(&creation_date(self.stat.modified))),
            "getlastmodified" => out.push_str(&String::from_utf8_lossy(&date::http(self.stat.modified))),
            "getcontentlength" if !is_directory => {
                let _ = write!(out, "{}", self.stat.size);
            }
            "getcontenttype" if !is_directory && self.push_type(out) => {}
            "getetag" if !is_directory => {
                let tag = Etag::of_file(self.stat.modified, self.stat.size);
                xml::escape(&String::from_utf8_lossy(tag.as_bytes()), out);
            }
            "supportedlock" if self.locks.is_some() => {
                for scope in ["exclusive", "shared"] {
                    let _ = write!(out, "<D:lockentry><D:lockscope><D:{scope}/></D:lockscope>");
                    out.push_str("<D:locktype><D:write/></D:locktype></D:lockentry>");
                }
            }
            "lockdiscovery" if self.locks.is_some() => {
                self.locks.iter().flatten().for_each(|lock| push_lock(lock, self.now, out));
            }
            _ => {
                out.truncate(start);
                return false;
            }
        }
        let _ = write!(out, "</D:{name}>");
        true
    }

    fn push_type(&self, out: &mut String) -> bool {
        let files = &self.request.scope().core.files;
        let media_type = files.types.find(&self.uri).unwrap_or(&files.default_type);
        xml::escape(media_type, out);
        !media_type.is_empty()
    }
}

fn push_status(properties: &str, status: &str, out: &mut String) {
    let _ = write!(
        out,
        "<D:propstat><D:prop>{properties}</D:prop><D:status>HTTP/1.1 {status}</D:status></D:propstat>"
    );
}

/// Appends an element `propstat` for a change of properties.
pub(super) fn push_changed(names: &[&PropertyName], status: &str, out: &mut String) {
    let mut properties = String::new();
    names.iter().for_each(|name| push_name(name, &mut properties));
    if !names.is_empty() {
        push_status(&properties, status, out);
    }
}

/// Appends an element `activelock`.
pub(super) fn push_lock(lock: &Lock, now: Instant, out: &mut String) {
    let scope = if lock.is_exclusive { "exclusive" } else { "shared" };
    let _ = write!(out, "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/>");
    out.push_str("</D:lockscope>");
    let depth = if lock.is_deep { "infinity" } else { "0" };
    let _ = write!(out, "<D:depth>{depth}</D:depth>");
    push_owner(&lock.owner, out);
    let _ = write!(out, "<D:timeout>Second-{}</D:timeout>", lock.seconds(now));
    let _ = write!(out, "<D:locktoken><D:href>{}</D:href></D:locktoken><D:lockroot><D:href>", lock.token);
    xml::escape(&String::from_utf8_lossy(&lock.root), out);
    out.push_str("</D:href></D:lockroot></D:activelock>");
}

fn push_owner(owner: &Owner, out: &mut String) {
    let (open, close) = if owner.is_href { ("<D:href>", "</D:href>") } else { ("", "") };
    if !owner.text.is_empty() {
        let _ = write!(out, "<D:owner>{open}");
        xml::escape(&owner.text, out);
        let _ = write!(out, "{close}</D:owner>");
    }
}

/// Returns the last component of a URI.
fn name_of(uri: &[u8]) -> &[u8] {
    let uri = uri.strip_suffix(b"/").unwrap_or(uri);
    memchr::memrchr(b'/', uri).map_or(uri, |slash| &uri[slash + 1..])
}

/// Returns a time in the format of RFC 3339 in UTC.
fn creation_date(unix: i64) -> Vec<u8> {
    let text = date::iso_8601(unix, 0);
    [&text[..text.len().min(19)], b"Z"].concat()
}
