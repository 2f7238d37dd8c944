//! Changes of an existing entry: a new header section after a 304, and access to its file for new parts.
//!
//! A small entry is written to a new file, which is renamed. In a large entry, only the unused slot is rewritten, with
//! a higher generation: a reader sees the old or the new header section, and so does a start after a crash.

use std::sync::Arc;

use io::segments::Source;
use io::{Errno, Segments};
use rt::File;
use rustix::fs::OFlags;

use crate::disk::directory::{Directory, ReadError};
use crate::entries::Entries;
use crate::error::Refused;
use crate::fill::publish::{Condition, Publication, publish};
use crate::fill::start::{New, file_start, identity, slot};
use crate::format::{Header, Identity, Layout, crc32c, decode, is_storable, used_bytes};
use crate::index::space::blocks_of;
use crate::key::Key;
use crate::lookup::{Body, Hit};
use crate::meta::Meta;
use crate::purge::PurgeEffect;

/// Gives an entry new metadata and a new header section, after a 304. Its key, length, variant and tags do not change.
/// A purge since its lookup applies to it too.
pub(crate) async fn refresh(
    entries: &Arc<Entries>,
    hit: &Hit,
    meta: Meta,
    head: &[u8],
) -> Result<(), Refused> {
    entries.dir.may_write()?;
    let header = &hit.header;
    let text = hit.image.bytes()[header.text.clone()].to_vec();
    let old = &hit.meta;
    let meta = Meta {
        length: Some(header.length),
        vary: old.vary.clone(),
        variant: old.variant.clone(),
        tags: old.tags.clone(),
        ..meta
    };
    let new = New {
        key: header.primary,
        text,
        meta: Arc::new(meta),
        head: head.into(),
        is_partial: header.layout.is_partial,
        // The request that led to the 304 was sent after the lookup, so soft purges before the lookup do not apply.
        request: entries.retention.register(|| hit.sequence),
        ticket: None,
    };
    if !is_storable(&new.text, &new.head, &new.meta) {
        return Err(Refused::Unstorable);
    }
    let subject = Header { meta: Arc::clone(&hit.meta), ..Header::clone(header) };
    if entries.purge_effect(&subject, &new.text) == Some(PurgeEffect::Unusable) {
        return Err(Refused::Removed);
    }
    match &hit.body {
        // A large entry may have been read in one operation; its header is still rewritten in place.
        Body::Image(range) if hit.header.layout.is_small => {
            let body = &hit.image.bytes()[range.clone()];
            refresh_small(entries, hit, &new, body).await
        }
        Body::Image(_) | Body::File(_) => refresh_large(&entries.dir, hit, &new).await,
    }
}

async fn refresh_small(entries: &Arc<Entries>, hit: &Hit, new: &New, body: &[u8]) -> Result<(), Refused> {
    let length = body.len() as u64;
    let layout = Layout::small(used_bytes(&new.text, &new.head, &new.meta), length);
    let identity = identity(new, layout, entries.dir.nonce(), length);
    let record = (!body.is_empty()).then(|| (0, crc32c(body)));
    let mut bytes = file_start(&identity, new, record.as_slice());
    bytes.extend_from_slice(body);
    assert!(bytes.len() as u64 == layout.file_bytes(length), "a small entry is written completely");
    let reserved = entries.reserve(&hit.key, blocks_of(bytes.len() as u64)).await?;
    let mut data = Segments::new();
    data.push(Source::Vec(bytes));
    let publication = Publication {
        temp: None,
        data: vec![data],
        key: hit.key,
        reserved,
        condition: Condition::Version(hit.version),
        request: Arc::clone(&new.request),
        variants: None,
        backlog: None,
    };
    publish(entries, publication).await.map(drop)
}

async fn refresh_large(dir: &Directory, hit: &Hit, new: &New) -> Result<(), Refused> {
    let used = used_bytes(&new.text, &new.head, &new.meta);
    if used > hit.header.layout.slot_bytes as usize {
        return Err(Refused::HeadTooLong);
    }
    // One refresh at a time: two would write the same slot.
    let lock = dir.locks.try_lock(&hit.key).ok_or(Refused::Busy)?;
    let (file, header) = open_to_change(dir, &hit.key, &hit.header).await?;
    let identity = Identity {
        generation: header.generation.wrapping_add(1),
        primary: header.primary,
        ..identity(new, header.layout, header.nonce, header.length)
    };
    let at = if header.is_second { 0 } else { u64::from(header.layout.slot_bytes) };
    let written = dir.write(&file, at, slot(&identity, new).into()).await;
    drop(lock);
    written.map_err(|errno| {
        dir.write_failed("writing a header section", errno);
        Refused::Disk
    })
}

/// Opens an entry's file for writing and reads its header, which must be that of the same entry.
pub(crate) async fn open_to_change(
    dir: &Directory,
    key: &Key,
    header: &Header,
) -> Result<(File, Header), Refused> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match dir.open_file(dir.path_of(key).0, flags).await {
        Ok(file) => file,
        Err(Errno::NOENT) => return Err(Refused::Removed),
        Err(errno) => {
            dir.write_failed("opening an entry", errno);
            return Err(Refused::Disk);
        }
    };
    let wanted = 2 * u64::from(header.layout.slot_bytes);
    let read = async {
        let file = dir.to_read(&file);
        file.extend_to(file.read_some(0, wanted).await?, wanted).await
    };
    let buf = match read.await {
        Ok(buf) => buf,
        Err(ReadError::Disk(errno)) => {
            dir.read_failed("reading an entry", errno);
            return Err(Refused::Disk);
        }
        Err(ReadError::NoMemory) => return Err(Refused::NoMemory),
        Err(ReadError::Damaged(_)) => return Err(Refused::Removed),
    };
    match decode(&buf) {
        Ok(found) if found.nonce == header.nonce && found.layout == header.layout => Ok((file, found)),
        _ => Err(Refused::Removed),
    }
}
