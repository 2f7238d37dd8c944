//! Numbers, texts and paths as bytes, for the control channel only: both ends are the same executable.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A message with invalid content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Puts values one after another.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Every number travels as 64 bits: there is nothing to save on a socket pair.
    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A length and the bytes.
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Writer {
        self.u64(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Text is bytes that the reader will check.
    pub(crate) fn text(&mut self, value: &str) -> &mut Writer {
        self.bytes(value.as_bytes())
    }

    /// Paths need not be UTF-8.
    pub(crate) fn path(&mut self, value: &Path) -> &mut Writer {
        self.bytes(value.as_os_str().as_bytes())
    }

    /// A value that may be absent: a count of 0 or 1 before it.
    pub(crate) fn option<T>(
        &mut self,
        value: Option<T>,
        put: impl FnOnce(&mut Writer, T) -> &mut Writer,
    ) -> &mut Writer {
        self.u64(u64::from(value.is_some()));
        if let Some(value) = value {
            put(self, value);
        }
        self
    }

    /// A count and the items.
    pub(crate) fn list<T>(&mut self, items: &[T], put: impl Fn(&mut Writer, &T)) -> &mut Writer {
        self.u64(items.len() as u64);
        for item in items {
            put(self, item);
        }
        self
    }

    /// The body of a frame.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes values off in the order in which they were put.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads from the first byte on.
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Fails at the end of the bytes.
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let (value, rest) = self.0.split_first_chunk::<8>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*value))
    }

    /// Borrowed from the frame: the caller decides on a copy.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.u64()?).map_err(|_| Malformed)?;
        let (value, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)
    }

    pub(crate) fn path(&mut self) -> Result<PathBuf, Malformed> {
        Ok(OsString::from_vec(self.bytes()?.to_vec()).into())
    }

    pub(crate) fn option<T>(
        &mut self,
        mut take: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.u64()? {
            0 => Ok(None),
            1 => take(self).map(Some),
            _ => Err(Malformed),
        }
    }

    /// The counterpart of [`Writer::list`].
    pub(crate) fn list<T>(
        &mut self,
        mut take: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        // No capacity from the count: a wrong one must not allocate.
        (0..self.u64()?).map(|_| take(self)).collect()
    }

    /// Everything was read.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
