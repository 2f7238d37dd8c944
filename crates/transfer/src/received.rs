//! The body of a request, if a handler requested it: in memory, or in a temporary file if it is large.
//!
//! The transport reads it (`exchange::transport`); a handler requests it with `exchange::phases::Step::ReadBody`.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use io::segments::{SEGMENTS_MAX, Source};
use io::{Buf, Disk, DiskVia, Errno, Segments, SharedBytes};
use rt::local::Counted;
use smallvec::SmallVec;

use crate::temp_directory::TempDirectory;

/// Settings for temporary files of large request bodies.
#[derive(Clone, Debug)]
pub struct BodyFiles {
    /// `client_body_in_file_only`
    pub in_file_only: BodyInFile,
    /// `client_body_temp_path`
    pub temp_path: TempDirectory,
}

impl Default for BodyFiles {
    fn default() -> BodyFiles {
        BodyFiles {
            in_file_only: BodyInFile::Off,
            temp_path: TempDirectory::new(PathBuf::from("client_body_temp"), &[]),
        }
    }
}

/// `client_body_in_file_only`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyInFile {
    /// `off`
    Off,
    /// `on`: files remain after the request.
    On,
    /// `clean`: files are removed with the request.
    Clean,
}

/// A body that was read. Its memory consists of pieces, which are sent from the buffers that received them.
#[derive(Default)]
pub struct ReceivedBody {
    pieces: SmallVec<[SharedBytes; 2]>,
    /// The buffer that receives the next bytes, after its content.
    last: Option<Buf>,
    /// Number of bytes in memory.
    held: usize,
    file: Option<TempFile>,
    /// Number of bytes in the file.
    in_file: u64,
    /// Counts this body among the bodies that stay in memory because no file could be used.
    _counted: Option<Counted>,
}

/// A temporary file.
pub struct TempFile {
    /// The open file.
    pub file: rt::File,
    /// Its path; a temporary file without a name retains its former path.
    path: PathBuf,
    /// Whether its name is to be removed with the request.
    clean: bool,
    disk: Disk,
}

impl ReceivedBody {
    /// Returns the bytes, if all of them are in memory.
    pub fn pieces(&self) -> Option<&[SharedBytes]> {
        self.file.is_none().then_some(&self.pieces)
    }

    /// Appends the bytes, if all of them are in memory (`$request_body`). Returns whether there were any.
    pub fn push_to(&self, out: &mut Vec<u8>) -> bool {
        let Some(pieces) = self.pieces().filter(|_| self.held > 0) else { return false };
        pieces.iter().for_each(|piece| out.extend_from_slice(piece));
        true
    }

    /// Returns the path of its file, if it has one (`$request_body_file`).
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Returns the number of bytes in its file.
    pub fn in_file(&self) -> u64 {
        self.in_file
    }

    /// Reads the next bytes of its file: at least one, at most `bytes_max`, and no more than [`READ_BYTES`].
    ///
    /// # Errors
    /// The file cannot be read, or has no bytes at `offset`.
    pub async fn read_file(&self, offset: u64, bytes_max: u64) -> Result<Buf, Errno> {
        let Some(file) = &self.file else { return Err(Errno::BADF) };
        let bytes_max = self.in_file.saturating_sub(offset).min(bytes_max).min(READ_BYTES);
        file.file.read_piece(offset, bytes_max as u32, file.disk).await
    }

    /// Returns the length of the complete body.
    pub fn byte_count(&self) -> u64 {
        self.in_file + self.held as u64
    }

    /// Returns the number of bytes in memory now.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Adds a copy of more bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(mut buf) = self.take_buffer(bytes.len().max(COPIED_MIN)) else {
                self.held += bytes.len();
                return self.pieces.push(SharedBytes::copy(bytes));
            };
            bytes = &bytes[buf.append(bytes)..];
            self.put(buf);
        }
    }

    /// Adds a buffer with more bytes. A small buffer is copied, so that a body in tiny pieces does not use memory for
    /// each.
    pub fn take(&mut self, buf: Buf) {
        let has_space = self.last.as_ref().is_some_and(|last| last.len() < last.capacity());
        if has_space || buf.len() < UNCOPIED_MIN {
            return self.add(&buf);
        }
        self.seal();
        self.held += buf.len();
        self.pieces.push(buf.freeze());
    }

    /// Returns a buffer that receives more bytes after its content; it must be returned with [`ReceivedBody::put`]. A
    /// new buffer has space for at least `bytes`, up to the largest class. Returns `None` if memory is scarce.
    pub fn take_buffer(&mut self, bytes: usize) -> Option<Buf> {
        if self.last.as_ref().is_some_and(|last| last.len() == last.capacity()) {
            self.seal();
        }
        let buf = self.last.take().or_else(|| rt::pool().get(bytes))?;
        debug_assert!(buf.len() <= self.held, "each byte in memory is counted");
        self.held -= buf.len();
        Some(buf)
    }

    /// Returns the buffer from [`ReceivedBody::take_buffer`].
    pub fn put(&mut self, buf: Buf) {
        self.held += buf.len();
        self.last = Some(buf);
    }

    /// Adds the partly filled last buffer to the pieces.
    pub fn seal(&mut self) {
        let last = self.last.take().filter(|last| !last.is_empty());
        self.pieces.extend(last.map(Buf::freeze));
    }

    /// Moves the bytes in memory to a file, which is created for the first of them.
    ///
    /// # Errors
    /// The failed operation, with the path and the error.
    pub async fn spill(
        &mut self,
        files: &BodyFiles,
        via: DiskVia,
    ) -> Result<(), (&'static str, PathBuf, Errno)> {
        let file = match self.file.take() {
            Some(file) => file,
            None => TempFile::create(files, via).await.map_err(|(path, errno)| ("open", path, errno))?,
        };
        self.seal();
        let mut done = Ok(());
        while done.is_ok() && !self.pieces.is_empty() {
            let count = self.pieces.len().min(SEGMENTS_MAX);
            done = file.write(self.in_file, &self.pieces[..count]).await;
            if done.is_ok() {
                let written: usize = self.pieces.drain(..count).map(|piece| piece.len()).sum();
                self.in_file += written as u64;
                assert!(written <= self.held, "each byte in memory is counted");
                self.held -= written;
            }
        }
        let path = file.path.clone();
        self.file = Some(file);
        done.map_err(|errno| ("write", path, errno))
    }

    /// Moves the complete body into memory, because no file can be used: bytes in the file are read back. `counted` is
    /// stored with the body.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn read_back(&mut self, counted: Counted) -> Result<(), Errno> {
        self.seal();
        let behind = std::mem::take(&mut self.pieces);
        let mut taken = 0;
        while taken < self.in_file
            && let Some(Source::Buf(buf)) = self.next_piece(&mut taken).await?
        {
            self.held += buf.len();
            self.pieces.push(buf.freeze());
        }
        self.pieces.extend(behind);
        (self.file, self.in_file, self._counted) = (None, 0, Some(counted));
        Ok(())
    }

    /// Returns the body piece by piece, from its start. The bytes in the file are first; `taken` counts them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn next_piece(&mut self, taken: &mut u64) -> Result<Option<Source>, Errno> {
        if *taken < self.in_file {
            let buf = self.read_file(*taken, READ_BYTES).await?;
            *taken += buf.len() as u64;
            return Ok(Some(Source::Buf(buf)));
        }
        if self.pieces.is_empty() {
            return Ok(None);
        }
        let piece = self.pieces.remove(0);
        debug_assert!(piece.len() <= self.held, "each byte in memory is counted");
        self.held -= piece.len();
        Ok(Some(Source::SharedBytes(piece)))
    }

    /// Removes the name of the file, with `client_body_in_file_only clean`.
    pub async fn clean(&self) {
        let Some(file) = self.file.as_ref().filter(|file| file.clean) else { return };
        if let Ok(path) = CString::new(file.path.as_os_str().as_bytes()) {
            // Another program may have moved the file, which is the purpose of its name.
            let _ = rt::file::unlink(path, file.disk).await;
        }
    }
}

/// Number of bytes per read of the file.
const READ_BYTES: u64 = 64 << 10;

/// Minimum length in bytes of a buffer that is stored without a copy.
const UNCOPIED_MIN: usize = 2 << 10;

/// Minimum size in bytes of a buffer that bytes are copied to, because chunks may be small.
const COPIED_MIN: usize = 16 << 10;

impl TempFile {
    /// Creates a file in the configured directory, and the directory if it is missing.
    async fn create(files: &BodyFiles, via: DiskVia) -> Result<TempFile, (PathBuf, Errno)> {
        let named = files.in_file_only != BodyInFile::Off;
        let (file, path, device) = files.temp_path.create(named).await?;
        let clean = files.in_file_only == BodyInFile::Clean;
        Ok(TempFile { file, path, clean, disk: Disk { device, via } })
    }

    async fn write(&self, offset: u64, pieces: &[SharedBytes]) -> Result<(), Errno> {
        let mut data = Segments::new();
        pieces.iter().for_each(|piece| data.push(Source::SharedBytes(piece.clone())));
        let (result, _) = self.file.write_segments_at(offset, data, self.disk).await;
        result.map(drop)
    }
}
