//! PROPFIND (RFC 4918 section 9.1): the properties of a resource, of the members of a collection, or of everything below.

use http::webdav::body::{self, Propfind};
use io::Disk;
use io::facts::{DirEntry, EntryAttributes, Stat};
use rustix::fs::OFlags;

use super::locks::key;
use super::properties::{self, Listed};
use super::remove::join;
use super::resource::{OperationError, Resource, fault, is_directory, is_file};
use super::{Conf, Depth, body_of, depth, malformed, path_of, refusal};
use exchange::files;
use exchange::phases::Step;
use exchange::request::Request;
use telemetry::Level;

/// Maximum number of resources in a response, which is composed in memory with about 700 bytes for each.
const RESOURCES_MAX: usize = 20_000;

/// Maximum size in bytes of a response: the request determines the number of properties for each resource.
const RESPONSE_MAX: usize = 32 << 20;

/// Number of bytes of entries per read.
const ENTRIES_BYTES: u32 = 32 << 10;

/// A response that is composed.
struct Listing<'r> {
    request: &'r Request,
    conf: &'r Conf,
    disk: Disk,
    wanted: Propfind,
    /// The URI of the resource, with a slash for a collection.
    uri: Vec<u8>,
    /// The path of the resource.
    path: &'r [u8],
    text: String,
    count: usize,
}

/// Handles PROPFIND.
pub(super) async fn run(conf: &Conf, request: &mut Request) -> Result<Step, u16> {
    let depth = depth(request, Depth::Infinity);
    if depth == Depth::Invalid {
        return Err(400);
    }
    let body = body_of(request).await?;
    let wanted = body::propfind(&body).map_err(|error| malformed(request, error))?;
    let text = list(conf, request, wanted, depth).await?;
    properties::finish(request, text);
    Ok(Step::Done)
}

async fn list(conf: &Conf, request: &Request, wanted: Propfind, depth: Depth) -> Result<String, u16> {
    let resource = Resource::of(request, path_of(request, &request.uri)).await?;
    let (stat, mut uri) = (follow(&resource, request).await?, request.uri.clone());
    if is_directory(&stat) && !uri.ends_with(b"/") {
        uri.push(b'/');
    }
    let disk = resource.disk;
    let path = resource.full();
    let text = properties::begin();
    let mut listing = Listing { request, conf, disk, wanted, uri, path, text, count: 0 };
    listing.add(b"", stat)?;
    if is_directory(&stat) && depth != Depth::Zero {
        let top = resource.open_directory().await.map_err(|trouble| trouble.log(request, 404))?;
        listing.add_members(&top, depth, resource.path.follows_all_links()).await?;
    }
    Ok(listing.text)
}

/// Returns the attributes of a resource; links are followed by the rules of the location, as for GET.
async fn follow(resource: &Resource, request: &Request) -> Result<Stat, u16> {
    let call = "stat()";
    let found = match resource.path.open(OFlags::PATH).await {
        Ok(file) => file.stat(resource.disk).await.map_err(fault(call, resource.full())),
        Err(errno) => Err(fault(call, resource.full())(errno)),
    };
    found.map_err(|trouble: OperationError| trouble.log(request, 404))
}

impl Listing<'_> {
    /// Adds a resource; `below` is its path from the requested resource.
    fn add(&mut self, below: &[u8], stat: Stat) -> Result<(), u16> {
        self.count += 1;
        if self.count > RESOURCES_MAX {
            let what = format_args!("PROPFIND finds more than {RESOURCES_MAX} resources");
            return Err(refusal(self.request, 507, what));
        }
        let mut uri = if below.is_empty() { self.uri.clone() } else { join(&self.uri, below) };
        if is_directory(&stat) && !uri.ends_with(b"/") {
            uri.push(b'/');
        }
        let now = rt::now();
        let zone = self.conf.lock.as_ref();
        let path = || key(&join(self.path, below));
        let locks = zone.map(|zone| zone.state().covering(&path(), now));
        let listed = Listed { request: self.request, uri, stat, locks, now };
        listed.push(&self.wanted, &mut self.text);
        if self.text.len() > RESPONSE_MAX {
            let what = format_args!("the response to PROPFIND is larger than {RESPONSE_MAX} bytes");
            return Err(refusal(self.request, 507, what));
        }
        Ok(())
    }

    /// Adds the members of a collection, or everything below it.
    async fn add_members(&mut self, top: &rt::File, depth: Depth, follows: bool) -> Result<(), u16> {
        let attributes = if follows { EntryAttributes::Followed } else { EntryAttributes::Itself };
        let mut left = vec![Vec::new()];
        while let Some(path) = left.pop() {
            let name: &[u8] = if path.is_empty() { b"." } else { &path };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let opened = files::open_below(top, name, flags, self.disk).await;
            let Ok(directory) = opened else {
                // A collection that has been removed meanwhile, or may not be read, is listed without its members.
                self.note_unreadable(&path);
                continue;
            };
            loop {
                let read = directory.read_dir(ENTRIES_BYTES, attributes, self.disk).await;
                let entries =
                    read.map_err(|errno| fault("readdir()", self.path)(errno).log(self.request, 404))?;
                if entries.is_empty() {
                    break;
                }
                for entry in entries {
                    self.add_entry(&path, entry, depth, &mut left)?;
                }
            }
        }
        Ok(())
    }

    fn add_entry(
        &mut self,
        path: &[u8],
        entry: DirEntry,
        depth: Depth,
        left: &mut Vec<Vec<u8>>,
    ) -> Result<(), u16> {
        // Special files are not resources, and neither are links that the location does not follow.
        let Some(Ok(stat)) = entry.stat else { return Ok(()) };
        if !is_directory(&stat) && !is_file(&stat) {
            return Ok(());
        }
        let path = join(path, &entry.name);
        self.add(&path, stat)?;
        // A link to a directory is listed without its members, so that no loop is possible.
        let is_real = rustix::fs::FileType::from_raw_mode(entry.kind) == rustix::fs::FileType::Directory;
        if depth == Depth::Infinity && is_real {
            left.push(path);
        }
        Ok(())
    }

    fn note_unreadable(&self, path: &[u8]) {
        let path = join(self.path, path);
        let path = files::display(&path);
        self.request.log(Level::Error, format_args!("opendir() \"{path}\" failed"));
    }
}
