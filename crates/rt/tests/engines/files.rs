//! Files over every disk backend, and sending files to sockets.

use std::ffi::CString;
use std::future::poll_fn;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::common::{Pair, expect, on_each_pair};
use io::op::OpenHow;
use io::segments::Source;
use io::{Errno, Segments};
use rt::file::Create;
use rt::net::FilePart;
use rt::{File, Socket, counters, file};
use testkit::TempDir;

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|place| (place * 13 + place / 251) as u8).collect()
}

#[allow(clippy::disallowed_methods, reason = "the test checks the work of the engine without the engine")]
fn content_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

async fn open(path: &Path, flags: i32, pair: Pair) -> Result<File, Errno> {
    let how = OpenHow { flags, mode: 0o600, ..OpenHow::default() };
    File::open(None, c_path(path), how, pair.disk()).await
}

#[test]
fn a_file_is_read_to_its_end() {
    let dir = TempDir::new("rt-files");
    let wanted = content(300_001);
    let path = dir.write("a", &wanted);
    on_each_pair(|pair| {
        pair.run(async {
            let file = open(&path, 0, pair).await.unwrap();
            let facts = file.stat(pair.disk()).await.unwrap();
            assert_eq!(facts, file.stat_inline().unwrap());
            assert_eq!(facts, file::stat_path(c_path(&path), pair.disk()).await.unwrap());
            assert_eq!(facts.size, wanted.len() as u64);
            let mut got = Vec::new();
            let mut buf = rt::pool().get(64 << 10).unwrap();
            loop {
                let (result, back) = file.read_at(got.len() as u64, 64 << 10, buf, pair.disk()).await;
                buf = back.unwrap();
                match result.unwrap() {
                    0 => break,
                    count => got.extend_from_slice(&buf[..count as usize]),
                }
            }
            assert!(got == wanted);
            drop(file);
            while counters().operations > 0 {
                rt::yield_now().await;
            }
        });
    });
}

#[test]
fn a_file_is_written_renamed_and_removed() {
    const WRITE: i32 = 0o1 | 0o100; // O_WRONLY | O_CREAT
    let dir = TempDir::new("rt-files");
    on_each_pair(|pair| {
        let (path, moved) = (dir.path().join("new"), dir.path().join("moved"));
        pair.run(async {
            let file = open(&path, WRITE, pair).await.unwrap();
            let mut buf = rt::pool().get(4096).unwrap();
            buf.append(b"some bytes");
            let (result, buf) = file.write_at(0, buf, pair.disk()).await;
            assert_eq!(result, Ok(10));
            file.sync(pair.disk()).await.unwrap();
            drop(file);
            file::rename(c_path(&path), c_path(&moved), pair.disk()).await.unwrap();
            let file = open(&moved, 0, pair).await.unwrap();
            let (result, buf) = file.read_at(5, 4096, buf.unwrap(), pair.disk()).await;
            assert_eq!((result, &*buf.unwrap()), (Ok(5), &b"bytes"[..]));
            file::unlink(c_path(&moved), pair.disk()).await.unwrap();
            assert_eq!(open(&moved, 0, pair).await.err(), Some(Errno::NOENT));
        });
    });
}

#[test]
fn a_file_is_sent_to_a_socket_that_fills_up() {
    let dir = TempDir::new("rt-files");
    let wanted = content(1 << 20);
    let path = dir.write("a", &wanted);
    on_each_pair(|pair| {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        pair.run(async {
            let file = open(&path, 0, pair).await.unwrap();
            rt::spawn(async move {
                let mut socket = Socket::new(near.into());
                let mut part = FilePart { file: &file, offset: 0, len: 1 << 20, disk: pair.disk() };
                loop {
                    let sent = poll_fn(|context| socket.writer.poll_sendfile(context, &part)).await;
                    match sent.unwrap() {
                        0 => break,
                        count => part.offset += u64::from(count),
                    }
                }
            });
            let mut far = Socket::new(far.into());
            expect(&mut far, &wanted).await;
            assert!(far.reader.recv().await.unwrap().is_none());
        });
    });
}

#[test]
fn a_file_is_created_unnamed_and_published() {
    let dir = TempDir::new("rt-files");
    on_each_pair(|pair| {
        let folder = dir.path().join("cache");
        let whole = folder.join("whole");
        pair.run(async {
            let disk = pair.disk();
            file::mkdir(c_path(&folder), 0o700, disk).await.unwrap();
            assert_eq!(file::mkdir(c_path(&folder), 0o700, disk).await, Err(Errno::EXIST));
            let made = File::create(c_path(&folder), Create::Unnamed, 0o600, disk).await.unwrap();
            made.set_uncached();
            let shared: std::sync::Arc<[u8]> = content(100_000).into();
            let mut data = Segments::new();
            data.push_range(Source::Shared(shared.clone()), 0, 60_000);
            data.push_range(Source::Shared(shared.clone()), 60_000, shared.len());
            let (written, back) = made.write_segments_at(0, data, disk).await;
            assert_eq!((written, back.map(|rest| rest.len())), (Ok(100_000), Some(0)));
            made.sync(disk).await.unwrap();
            made.advise(0, 0, disk).await.unwrap();
            made.link(c_path(&whole), disk).await.unwrap();
            assert_eq!(made.link(c_path(&whole), disk).await, Err(Errno::EXIST));
            assert!(content_of(&whole) == *shared);
            let space = made.space(disk).await.unwrap();
            assert_eq!(space.total_bytes, file::space(c_path(&whole), disk).await.unwrap().total_bytes);
            let create = async |create: Create| {
                let made = File::create(c_path(&whole), create, 0o600, disk).await;
                made.map(|file| file.stat_inline().unwrap().size)
            };
            assert_eq!(create(Create::New).await, Err(Errno::EXIST));
            assert_eq!(create(Create::Keep).await, Ok(100_000));
            assert_eq!(create(Create::Empty).await, Ok(0));
            assert_eq!(file::rmdir(c_path(&folder), disk).await, Err(Errno::NOTEMPTY));
            file::unlink(c_path(&whole), disk).await.unwrap();
            file::rmdir(c_path(&folder), disk).await.unwrap();
        });
    });
}
