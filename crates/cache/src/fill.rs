//! Writing: [`Fill`] becomes an entry when it is committed, and leaves nothing behind when it is dropped.

use std::sync::Arc;

use crate::error::FillError;
use crate::hit::Located;
use crate::store::Store;

/// An entry that is being written, or parts that are added to one. Belongs to the thread that began it.
///
/// Bytes are gathered into chunks, and a body of one chunk is written with its head at the commit: what has not got to
/// the file ([`FillReader::on_disk`]) has to be kept by the caller for as long as others want it from here. That
/// is never more than [`Fill::BEHIND_BYTES_MAX`].
pub struct Fill {
    store: Arc<Store>,
}

impl Fill {
    /// Most bytes that were given to [`Fill::write`] and cannot be read from the file yet.
    pub const BEHIND_BYTES_MAX: u64 = 6 * crate::format::CHUNK_BYTES;

    /// Adds bytes of the body at `offset`, which is where the last piece ended or, in a partial entry, anywhere. Waits
    /// only when writes are behind. After an error the fill is over and can only be dropped.
    pub async fn write(&mut self, _offset: u64, _bytes: &[u8]) -> Result<(), FillError> {
        let _ = &self.store;
        Err(crate::error::Refused::PassThrough.into())
    }

    /// For who wants to read what has been written so far, on any thread; it outlives the fill. `None` while there is no
    /// file.
    pub fn reader(&self) -> Option<FillReader> {
        None
    }

    /// Makes it an entry, in place of an earlier one. The body is at its end now.
    pub async fn commit(self) -> Result<(), FillError> {
        Err(crate::error::Refused::PassThrough.into())
    }
}

/// Reads a fill under way, on any thread.
#[derive(Clone)]
pub struct FillReader {
    store: Arc<Store>,
}

impl FillReader {
    /// Bytes from the start of the body that can be read.
    pub fn on_disk(&self) -> u64 {
        let _ = &self.store;
        0
    }

    /// The body so far as this thread's file. Of its length only [`FillReader::on_disk`] counts.
    pub fn located(&self) -> Result<Located, crate::error::StoreError> {
        Err(crate::error::StoreError::PassThrough)
    }
}
