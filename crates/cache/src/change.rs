//! Changing an entry that is there: a new head after a 304, and access to its file for new parts.
//!
//! A small entry is written anew and renamed into its place. Of a large one only a slot is written, the one that does not
//! count, with a higher generation: a reader sees the old head or the new one, and so does a start after a crash.

use std::sync::Arc;

use io::op::{OpenHow, Source};
use io::{Errno, Segments};
use rt::File;
use rustix::fs::OFlags;

use crate::crc32c;
use crate::error::Refused;
use crate::fill::small_start;
use crate::find::fate;
use crate::format::header::{Header, Identity, Layout, decode, encode, is_storable, used_bytes};
use crate::hit::{Hit, Placed};
use crate::key::Key;
use crate::meta::{Meta, New};
use crate::place::{Whole, put_in_place};
use crate::purge::Fate;
use crate::reading::{ReadError, extend_to, read_prefix};
use crate::space::blocks_of;
use crate::store::Store;

impl Store {
    /// Gives an entry new facts and a new head, after a 304. Its key, length, variant and tags stay as they are. What a
    /// purge has made of it since it was looked up stays too.
    pub async fn refresh(self: &Arc<Store>, hit: &Hit, meta: Meta, head: &[u8]) -> Result<(), Refused> {
        self.refresh_entry(hit, meta, head).await.map_err(|refused| self.counters.refuse(refused))
    }

    async fn refresh_entry(self: &Arc<Store>, hit: &Hit, meta: Meta, head: &[u8]) -> Result<(), Refused> {
        self.may_write()?;
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
            // A purge that came before the lookup, if it was soft, has been answered by asking again.
            asked: self.asked_at(hit.sequence),
            ticket: None,
        };
        if !is_storable(&new.text, &new.head, &new.meta) {
            return Err(Refused::Unstorable);
        }
        let subject = Header { meta: Arc::clone(&hit.meta), ..Header::clone(header) };
        if fate(&self.purges(), &subject, &new.text) == Some(Fate::Gone) {
            return Err(Refused::Gone);
        }
        match &hit.body {
            // A large one may have been read whole, and gets its new head in place all the same.
            Placed::Image(range) if hit.header.layout.is_small => {
                let body = &hit.image.bytes()[range.clone()];
                self.refresh_small(hit, &new, body).await
            }
            Placed::Image(_) | Placed::File(_) => self.refresh_large(hit, &new).await,
        }
    }

    async fn refresh_small(self: &Arc<Store>, hit: &Hit, new: &New, body: &[u8]) -> Result<(), Refused> {
        let length = body.len() as u64;
        let layout = Layout::small(used_bytes(&new.text, &new.head, &new.meta), length);
        let identity = Identity {
            layout,
            generation: 1,
            nonce: self.nonce(),
            sequence: new.asked.number(),
            length,
            primary: new.key,
        };
        let crc = (!body.is_empty()).then(|| crc32c::of(body));
        let mut bytes = small_start(&identity, new, crc);
        bytes.extend_from_slice(body);
        let reserved = self.reserve(&hit.key, blocks_of(bytes.len() as u64)).await?;
        let mut data = Segments::new();
        data.push(Source::Vec(bytes));
        let asked = Arc::clone(&new.asked);
        put_in_place(self, Whole::Bytes(vec![data]), hit.key, reserved, hit.version, asked).await?;
        Ok(())
    }

    async fn refresh_large(self: &Arc<Store>, hit: &Hit, new: &New) -> Result<(), Refused> {
        let used = used_bytes(&new.text, &new.head, &new.meta);
        if used > hit.header.layout.room as usize {
            return Err(Refused::HeadTooLong);
        }
        // One at a time: two would write the same slot.
        let lease = self.leases.try_take(&hit.key).ok_or(Refused::Busy)?;
        let (file, header) = self.open_to_change(&hit.key, &hit.header).await?;
        let identity = Identity {
            layout: header.layout,
            generation: header.generation.wrapping_add(1),
            nonce: header.nonce,
            sequence: new.asked.number(),
            length: header.length,
            primary: header.primary,
        };
        let mut slot = Vec::new();
        encode(&identity, &new.text, &new.head, &new.meta, &mut slot);
        let at = if header.is_second { 0 } else { u64::from(header.layout.room) };
        let written = crate::purging::write(&file, at, slot, self).await;
        drop(lease);
        written.map_err(|errno| {
            self.write_failed("writing a head", errno);
            Refused::Disk(errno)
        })
    }

    /// Opens an entry's file for writing and reads its header, which has to be that of the same entry.
    pub(crate) async fn open_to_change(&self, key: &Key, header: &Header) -> Result<(File, Header), Refused> {
        let (device, via) = (self.device, self.via());
        let flags = (OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let how = OpenHow { flags, ..OpenHow::default() };
        let file = match File::open(None, self.path_of(key).0, how, device, via).await {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(Refused::Gone),
            Err(errno) => {
                self.write_failed("opening an entry", errno);
                return Err(Refused::Disk(errno));
            }
        };
        let wanted = 2 * u64::from(header.layout.room);
        let read = async {
            let buf = read_prefix(&file, wanted, device, via).await?;
            extend_to(&file, buf, wanted, device, via).await
        };
        let buf = match read.await {
            Ok(buf) => buf,
            Err(ReadError::Disk(errno)) => {
                self.read_failed("reading an entry", errno);
                return Err(Refused::Disk(errno));
            }
            Err(ReadError::NoMemory) => return Err(Refused::NoMemory),
            Err(ReadError::Damaged(_)) => return Err(Refused::Gone),
        };
        match decode(&buf) {
            Ok(found) if found.nonce == header.nonce && found.layout == header.layout => Ok((file, found)),
            _ => Err(Refused::Gone),
        }
    }

    /// Whether an entry that is whole may still come: not once another process may own the folder.
    pub(crate) fn may_finish(&self) -> Result<(), Refused> {
        if self.is_owner() { Ok(()) } else { Err(Refused::NotOwner) }
    }
}
