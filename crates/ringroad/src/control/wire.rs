//! Encodes numbers, texts and paths for the control channel. Both ends are the same executable, so the format need not be stable.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// An error: the content of a message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Encodes values one after another.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Appends a number. All numbers have 64 bits, because messages need not be small.
    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends a length and the bytes.
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Writer {
        self.u64(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a text as bytes; the reader checks that they are UTF-8.
    pub(crate) fn text(&mut self, value: &str) -> &mut Writer {
        self.bytes(value.as_bytes())
    }

    /// Appends a path, which need not be UTF-8.
    pub(crate) fn path(&mut self, value: &Path) -> &mut Writer {
        self.bytes(value.as_os_str().as_bytes())
    }

    /// Appends an optional value, preceded by a count of 0 or 1.
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

    /// Appends a count and the items.
    pub(crate) fn list<T>(&mut self, items: &[T], put: impl Fn(&mut Writer, &T)) -> &mut Writer {
        self.u64(items.len() as u64);
        for item in items {
            put(self, item);
        }
        self
    }

    /// Returns the encoded body.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Decodes values in the order in which they were encoded.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Creates a reader at the first byte.
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Reads a number; fails at the end of the bytes.
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let (value, rest) = self.0.split_first_chunk::<8>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*value))
    }

    /// Reads bytes. The result borrows from the frame, so that the caller decides whether to copy.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.u64()?).map_err(|_| Malformed)?;
        let (value, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)
    }

    /// Reads a text with a limit on its length in bytes.
    pub(crate) fn text_up_to(&mut self, most: usize) -> Result<String, Malformed> {
        let text = self.text()?;
        if text.len() <= most { Ok(text) } else { Err(Malformed) }
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

    /// Reads a list that [`Writer::list`] encoded.
    pub(crate) fn list<T>(
        &mut self,
        mut take: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        // No memory is reserved for the count, because an invalid count could be very large.
        (0..self.u64()?).map(|_| take(self)).collect()
    }

    /// Checks that all bytes were read.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
