//! The movie box of an MP4 file (ISO/IEC 14496-12): it is parsed into tracks, cut to a time span, and written again.
//!
//! ```text
//!   moov
//!   +- mvhd                            duration of the movie
//!   +- trak                            for each track:
//!      +- tkhd                         its duration, in the units of mvhd
//!      +- edts.elst                    created here, if a track begins before the start (key frames)
//!      +- mdia
//!         +- mdhd, hdlr                units and duration; kind
//!         +- minf
//!            +- vmhd or smhd, dinf
//!            +- stbl
//!               +- stsd                sample descriptions, unchanged
//!               +- stts, stss, ctts    durations, sync samples, composition offsets
//!               +- stsc, stsz          samples per chunk, sample sizes
//!               +- stco or co64        chunk offsets in the file
//! ```
//!
//! All other boxes are omitted, as in nginx. This file does no I/O: the caller passes the bytes of the box, which may
//! be hostile. Main types: [`Movie`], [`Cut`].

use std::ops::Range;

/// The requested span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    /// Start of the span, in ms from the beginning.
    pub(super) start_ms: u64,
    /// Length of the span in ms; 0 means up to the end.
    pub(super) length_ms: u64,
    /// Whether a track begins at the last key frame before the start (`mp4_start_key_frame`).
    pub(super) at_key_frame: bool,
}

/// Facts about the file outside the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Around {
    /// Length of the file in bytes.
    pub(super) file_len: u64,
    /// Offset at which the media data ends.
    pub(super) data_end: u64,
    /// Number of bytes sent before the box.
    pub(super) before: u64,
}

/// The end of a response: `head`, and then the range `data` of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The box, and the header of the media data.
    pub(super) head: Vec<u8>,
    /// The media data.
    pub(super) data: Range<u64>,
}

/// nginx's message for an invalid file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The message follows the file name.
    Of(String),
    /// The message precedes the file name.
    In(String),
}

impl Fault {
    /// Returns the log message.
    pub(super) fn shown(&self, path: &str) -> String {
        match self {
            Fault::Of(words) => format!("\"{path}\" mp4 {words}"),
            Fault::In(words) => format!("{words} in \"{path}\""),
        }
    }
}

fn fail<T>(words: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Of(words.into()))
}

fn within<T>(words: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::In(words.into()))
}

/// Length in bytes of a box's size and name.
const HEADER_LEN: u64 = 8;

/// Parses the header of a box: its name, the length of the header, and the length of the box. Returns `None` if a size
/// of zero ends the boxes. `left` is the number of remaining bytes in the file or the enclosing box.
pub(super) fn header(bytes: &[u8], left: u64) -> Result<Option<([u8; 4], u64, u64)>, Fault> {
    let Some(size) = bytes.first_chunk().map(|size| u32::from_be_bytes(*size)) else {
        return fail("file truncated");
    };
    let (header_len, len) = match size {
        0 => return Ok(None),
        1 => match bytes.get(8..).and_then(<[u8]>::first_chunk) {
            Some(size) => (16, u64::from_be_bytes(*size)),
            None => return fail("file truncated"),
        },
        size => (HEADER_LEN, u64::from(size)),
    };
    if len < header_len {
        return fail(format!("atom is too small:{len}"));
    }
    let Some(name) = bytes.get(4..).and_then(<[u8]>::first_chunk) else { return fail("file truncated") };
    if len > left {
        return fail(format!("atom too large:{len}"));
    }
    Ok(Some((*name, header_len, len)))
}

/// Calls `visit` for each box in these bytes, with its name and its content.
fn each<'a>(
    mut bytes: &'a [u8],
    mut visit: impl FnMut([u8; 4], &'a [u8]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    while !bytes.is_empty() {
        let Some((name, header_len, len)) = header(bytes, bytes.len() as u64)? else { break };
        debug_assert!(
            header_len <= len && len <= bytes.len() as u64,
            "an atom contains its header and ends within its parent"
        );
        let (this, rest) = bytes.split_at(len as usize);
        visit(name, &this[header_len as usize..])?;
        bytes = rest;
    }
    Ok(())
}

/// A movie, before it is cut.
#[derive(Clone, Debug, Default)]
pub(super) struct Movie {
    /// `mvhd` with the changed duration.
    header: Option<Vec<u8>>,
    /// Time units per second.
    timescale: u32,
    duration: u64,
    tracks: Vec<Track>,
}

/// One track.
#[derive(Clone, Debug, Default)]
struct Track {
    tkhd: Option<Vec<u8>>,
    /// The duration for `tkhd`.
    shown_duration: u64,
    mdia: bool,
    mdhd: Option<Vec<u8>>,
    timescale: u32,
    duration: u64,
    hdlr: Option<Vec<u8>>,
    minf: bool,
    /// `vmhd` or `smhd`.
    media: Option<([u8; 4], Vec<u8>)>,
    dinf: Option<Vec<u8>>,
    stbl: bool,
    stsd: Option<Vec<u8>>,
    /// `stts`: numbers of samples, and the duration of each.
    stts: Option<Vec<[u32; 2]>>,
    /// Sample numbers of the sync samples (`stss`), 1-based.
    stss: Option<Vec<[u32; 1]>>,
    /// `ctts`: numbers of samples, and their composition offset.
    ctts: Option<Vec<[u32; 2]>>,
    /// `stsc`: first chunk, samples per chunk, and sample description.
    stsc: Option<Vec<[u32; 3]>>,
    /// `stsz`: the sizes of the samples.
    stsz: Option<Sizes>,
    /// `stco` or `co64`: offsets of the chunks, and whether they have eight bytes.
    chunks: Option<(Vec<u64>, bool)>,
    /// Version and flags of the tables, which are retained.
    flags: Flags,
}

/// Version and flags of the tables of a track.
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    stts: [u8; 4],
    stss: [u8; 4],
    ctts: [u8; 4],
    stsc: [u8; 4],
    stsz: [u8; 4],
    chunks: [u8; 4],
}

/// `stsz`
#[derive(Clone, Debug)]
enum Sizes {
    /// All samples have the same size; contains the content of the box.
    Uniform(Vec<u8>),
    Each(Vec<[u32; 1]>),
}

/// The timescale and the duration in a header. Durations have four bytes in version 0 and eight in version 1.
struct Times {
    timescale: u32,
    duration: u64,
}

/// The offsets of numbers in a header's content for both versions, and its minimum length.
struct Layout {
    name: &'static str,
    /// Offset of the timescale, if there is one.
    timescale: [Option<usize>; 2],
    duration: [usize; 2],
    least: [usize; 2],
}

const MVHD: Layout =
    Layout { name: "mvhd", timescale: [Some(12), Some(20)], duration: [16, 24], least: [100, 112] };
const TKHD: Layout = Layout { name: "tkhd", timescale: [None, None], duration: [20, 28], least: [84, 96] };
const MDHD: Layout =
    Layout { name: "mdhd", timescale: [Some(12), Some(20)], duration: [16, 24], least: [24, 36] };

impl Layout {
    fn version(content: &[u8]) -> usize {
        usize::from(content[0] != 0)
    }

    /// Reads the numbers; fails if the content is too short for its version.
    fn read(&self, content: &[u8]) -> Result<Times, Fault> {
        let small = || Fault::Of(format!("{} atom too small", self.name));
        if content.len() < self.least[0] || content.len() < self.least[Self::version(content)] {
            return Err(small());
        }
        let version = Self::version(content);
        let timescale = self.timescale[version].map_or(0, |at| number(content, at, 4) as u32);
        let width = if version == 0 { 4 } else { 8 };
        Ok(Times { timescale, duration: number(content, self.duration[version], width) })
    }

    /// Replaces the duration in a content that was read before.
    fn write(&self, content: &mut [u8], duration: u64) {
        let version = Self::version(content);
        let at = self.duration[version];
        match version {
            0 => content[at..at + 4].copy_from_slice(&(duration as u32).to_be_bytes()),
            _ => content[at..at + 8].copy_from_slice(&duration.to_be_bytes()),
        }
    }
}

/// Returns a big-endian number of `width` bytes. The caller has checked the length.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    debug_assert!(width <= 8 && at + width <= bytes.len(), "the caller has checked the length");
    bytes[at..at + width].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns a table of rows of `N` numbers, which follows `before` bytes and the count.
fn table<const N: usize>(name: &str, content: &[u8], before: usize) -> Result<Vec<[u32; N]>, Fault> {
    let small = || Fault::Of(format!("{name} atom too small"));
    let rows = content.get(before + 4..).ok_or_else(small)?;
    let count = number(content, before, 4) as usize;
    let rows = rows.get(..count.checked_mul(4 * N).ok_or_else(small)?).ok_or_else(small)?;
    let row = |row: &[u8]| std::array::from_fn(|at| number(row, 4 * at, 4) as u32);
    Ok(rows.chunks_exact(4 * N).map(row).collect())
}

/// Sets a value that may occur only once.
fn once<T>(field: &mut Option<T>, value: T, name: &str) -> Result<(), Fault> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => within(format!("duplicate mp4 {name} atom")),
    }
}

/// Records a box that only contains other boxes, and may occur only once.
fn first(field: &mut bool, name: &str) -> Result<(), Fault> {
    match std::mem::replace(field, true) {
        false => Ok(()),
        true => within(format!("duplicate mp4 {name} atom")),
    }
}

/// Converts ms to units of the timescale.
fn units(milliseconds: u64, timescale: u32) -> u64 {
    (u128::from(milliseconds) * u128::from(timescale) / 1000).min(u128::from(u64::MAX)) as u64
}

/// Returns the remaining duration in the span.
fn rest_of(duration: u64, span: &Span, timescale: u32) -> u64 {
    let rest = duration.saturating_sub(units(span.start_ms, timescale));
    match span.length_ms {
        0 => rest,
        length => rest.min(units(length, timescale)),
    }
}

impl Movie {
    /// Parses the content of the box. Tracks that end before the start are omitted.
    pub(super) fn read(bytes: &[u8], span: &Span) -> Result<Movie, Fault> {
        let mut movie = Movie::default();
        each(bytes, |name, content| match &name {
            b"mvhd" => movie.read_header(content, span),
            b"trak" => movie.read_track(content, span),
            b"cmov" => fail("compressed moov atom (cmov) is not supported"),
            _ => Ok(()),
        })?;
        match movie.tracks.is_empty() {
            true => within("no mp4 trak atoms were found"),
            false => Ok(movie),
        }
    }

    /// Returns the duration of the complete movie in ms, from the file and without the span.
    pub(super) fn duration_ms(content: &[u8]) -> Option<u64> {
        let mut found = None;
        let read = each(content, |name, content| {
            if &name == b"mvhd" {
                found = MVHD.read(content).ok();
            }
            Ok(())
        });
        let times = found.filter(|times| read.is_ok() && times.timescale > 0)?;
        u64::try_from(u128::from(times.duration) * 1000 / u128::from(times.timescale)).ok()
    }

    /// Parses `mvhd`. It has to be first, because the durations of tracks are compared with it.
    fn read_header(&mut self, content: &[u8], span: &Span) -> Result<(), Fault> {
        let times = MVHD.read(content)?;
        if times.duration < units(span.start_ms, times.timescale) {
            return fail("start time exceeds file duration");
        }
        self.timescale = times.timescale;
        self.duration = rest_of(times.duration, span, times.timescale);
        let mut header = content.to_vec();
        MVHD.write(&mut header, self.duration);
        once(&mut self.header, header, "mvhd")
    }

    /// Parses `trak` with all its boxes.
    fn read_track(&mut self, content: &[u8], span: &Span) -> Result<(), Fault> {
        let mut track = Track::default();
        // If a header shows that the track ends before the start, no further boxes are parsed.
        let mut is_over = false;
        each(content, |name, content| match &name {
            _ if is_over => Ok(()),
            b"tkhd" => {
                let times = TKHD.read(content)?;
                is_over = times.duration <= units(span.start_ms, self.timescale);
                if is_over {
                    return Ok(());
                }
                track.shown_duration = rest_of(times.duration, span, self.timescale);
                let mut header = content.to_vec();
                TKHD.write(&mut header, track.shown_duration);
                once(&mut track.tkhd, header, "tkhd")
            }
            b"mdia" => {
                first(&mut track.mdia, "mdia")?;
                each(content, |name, content| match &name {
                    _ if is_over => Ok(()),
                    b"mdhd" => {
                        let times = MDHD.read(content)?;
                        is_over = times.duration <= units(span.start_ms, times.timescale);
                        if is_over {
                            return Ok(());
                        }
                        track.timescale = times.timescale;
                        track.duration = rest_of(times.duration, span, times.timescale);
                        once(&mut track.mdhd, content.to_vec(), "mdhd")
                    }
                    b"hdlr" => once(&mut track.hdlr, content.to_vec(), "hdlr"),
                    b"minf" => track.read_media(content),
                    _ => Ok(()),
                })
            }
            _ => Ok(()),
        })?;
        if !is_over {
            self.tracks.push(track);
        }
        Ok(())
    }

    /// Cuts all tracks, and writes the box.
    pub(super) fn cut(mut self, span: &Span, around: Around) -> Result<Cut, Fault> {
        let (mut start, mut end) = (around.file_len, 0);
        let mut tracks = Vec::with_capacity(self.tracks.len());
        for track in &mut self.tracks {
            let (samples, data) = track.cut(span, around)?;
            (start, end) = (start.min(data.start), end.max(data.end));
            tracks.push(samples);
        }
        if end <= start {
            return within("no data between start time and end time");
        }
        if start >= around.data_end {
            return within("start time is out mp4 mdat atom");
        }
        let data_header_len: u64 = if end - start > u64::from(u32::MAX) - HEADER_LEN { 16 } else { 8 };
        // The offsets of chunks depend on the length of the box, but their width does not.
        let mut head = Vec::new();
        self.write(&tracks, 0, &mut head)?;
        let before = around.before + head.len() as u64 + data_header_len;
        let adjustment = before.wrapping_sub(start);
        head.clear();
        self.write(&tracks, adjustment, &mut head)?;
        match data_header_len {
            8 => head.extend_from_slice(&((HEADER_LEN + end - start) as u32).to_be_bytes()),
            _ => head.extend_from_slice(&1u32.to_be_bytes()),
        }
        head.extend_from_slice(b"mdat");
        if data_header_len == 16 {
            head.extend_from_slice(&(16 + end - start).to_be_bytes());
        }
        Ok(Cut { head, data: start..end })
    }

    fn write(&self, tracks: &[Samples], adjustment: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        nested(out, b"moov", |out| {
            leaf(out, b"mvhd", self.header.as_deref())?;
            for (track, samples) in self.tracks.iter().zip(tracks) {
                nested(out, b"trak", |out| track.write(samples, adjustment, out))?;
            }
            Ok(())
        })
    }
}

/// Writes a box that contains the output of `fill`.
fn nested(
    out: &mut Vec<u8>,
    name: &[u8; 4],
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    fill(out)?;
    debug_assert!(start + 8 <= out.len(), "an atom has length and name");
    let Ok(len) = u32::try_from(out.len() - start) else { return fail("moov atom is too large") };
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

/// Writes a box with this content, if there is one.
fn leaf(out: &mut Vec<u8>, name: &[u8; 4], content: Option<&[u8]>) -> Result<(), Fault> {
    let Some(content) = content else { return Ok(()) };
    nested(out, name, |out| {
        out.extend_from_slice(content);
        Ok(())
    })
}

/// Writes a table: flags, an optional number, the count, and the rows.
fn rows<'r, const N: usize>(
    out: &mut Vec<u8>,
    name: &[u8; 4],
    (flags, number): ([u8; 4], Option<u32>),
    rows: impl ExactSizeIterator<Item = &'r [u32; N]>,
) -> Result<(), Fault> {
    nested(out, name, |out| {
        out.extend_from_slice(&flags);
        number.into_iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        out.extend_from_slice(&(rows.len() as u32).to_be_bytes());
        rows.flatten().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
        Ok(())
    })
}

/// The tables of the samples of a track that are sent.
#[derive(Clone, Debug, Default)]
struct Samples {
    // As in the boxes with these names.
    stts: Vec<[u32; 2]>,
    stss: Option<Vec<[u32; 1]>>,
    ctts: Option<Vec<[u32; 2]>>,
    stsc: Vec<[u32; 3]>,
    stsz: Option<Vec<[u32; 1]>>,
    /// The offsets of chunks in the file. The first one is the offset of the first byte that is sent.
    chunks: Vec<u64>,
    /// Duration in units of the track, including the prefix.
    duration: u64,
    /// Time of the samples before the start that are sent, in units of the track.
    prefix: u64,
}

/// A range of samples, of chunks, and of samples within chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    /// The first sample, 0-based.
    start: u64,
    /// The sample after the last one, if the request has an end.
    end: u64,
    /// The first chunk, 0-based.
    start_chunk: u64,
    /// The chunk after the last one, if the request has an end.
    end_chunk: u64,
    /// Number of samples of the first chunk that are not sent.
    start_chunk_samples: u64,
    /// Number of samples of the last chunk that are sent.
    end_chunk_samples: u64,
}

impl Track {
    /// Parses `minf`.
    fn read_media(&mut self, content: &[u8]) -> Result<(), Fault> {
        first(&mut self.minf, "minf")?;
        each(content, |name, content| match &name {
            b"vmhd" | b"smhd" => once(&mut self.media, (name, content.to_vec()), "vmhd/smhd"),
            b"dinf" => once(&mut self.dinf, content.to_vec(), "dinf"),
            b"stbl" => {
                first(&mut self.stbl, "stbl")?;
                each(content, |name, content| self.read_table(name, content))
            }
            _ => Ok(()),
        })
    }

    /// Parses a box in `stbl`.
    fn read_table(&mut self, name: [u8; 4], content: &[u8]) -> Result<(), Fault> {
        let flags = *content.first_chunk().unwrap_or(&[0; 4]);
        match &name {
            b"stsd" if content.len() < 16 => fail("stsd atom too small"),
            b"stsd" => once(&mut self.stsd, content.to_vec(), "stsd"),
            b"stts" => {
                self.flags.stts = flags;
                once(&mut self.stts, table("stts", content, 4)?, "stts")
            }
            b"stss" => {
                self.flags.stss = flags;
                once(&mut self.stss, table("stss", content, 4)?, "stss")
            }
            b"ctts" => {
                self.flags.ctts = flags;
                once(&mut self.ctts, table("ctts", content, 4)?, "ctts")
            }
            b"stsc" => {
                self.flags.stsc = flags;
                once(&mut self.stsc, table("stsc", content, 4)?, "stsc")
            }
            b"stsz" if content.len() < 12 => fail("stsz atom too small"),
            b"stsz" => {
                self.flags.stsz = flags;
                let sizes = match number(content, 4, 4) {
                    0 => Sizes::Each(table("stsz", content, 8)?),
                    _ => Sizes::Uniform(content.to_vec()),
                };
                once(&mut self.stsz, sizes, "stsz")
            }
            b"stco" => {
                self.flags.chunks = flags;
                let offsets = table::<1>("stco", content, 4)?;
                let offsets = offsets.iter().map(|[offset]| u64::from(*offset)).collect();
                once(&mut self.chunks, (offsets, false), "stco/co64")
            }
            b"co64" => {
                self.flags.chunks = flags;
                let offsets = table::<2>("co64", content, 4)?;
                let offsets = offsets.iter().map(|[high, low]| u64::from(*high) << 32 | u64::from(*low));
                once(&mut self.chunks, (offsets.collect(), true), "stco/co64")
            }
            _ => Ok(()),
        }
    }

    /// Returns the samples of the span, and their range in the file.
    fn cut(&self, span: &Span, around: Around) -> Result<(Samples, Range<u64>), Fault> {
        let mut bounds = Bounds::default();
        let mut samples = self.cut_times(span, &mut bounds)?;
        let has_end = span.length_ms > 0;
        samples.stss = self.stss.as_ref().map(|frames| {
            // Sample numbers are 1-based.
            let kept = frames.iter().skip_while(|[frame]| u64::from(*frame) <= bounds.start);
            let kept = kept.take_while(|[frame]| !has_end || u64::from(*frame) <= bounds.end);
            kept.map(|[frame]| [frame.wrapping_sub(bounds.start as u32)]).collect()
        });
        samples.ctts = self.ctts.as_ref().map(|offsets| {
            let mut kept = without_first(offsets, bounds.start);
            if has_end {
                keep_first(&mut kept, bounds.end - bounds.start);
            }
            kept
        });
        samples.ctts = samples.ctts.filter(|offsets| !offsets.is_empty());
        samples.stsc = self.cut_chunks(has_end, &mut bounds)?;
        let sizes = self.cut_sizes(has_end, &bounds, around.file_len, &mut samples)?;
        let data = self.cut_offsets(has_end, &bounds, around, sizes, &mut samples)?;
        Ok((samples, data))
    }

    /// Cuts `stts`: determines the samples in the span.
    fn cut_times(&self, span: &Span, bounds: &mut Bounds) -> Result<Samples, Fault> {
        let Some(times) = &self.stts else { return within("no mp4 stts atoms were found") };
        let mut samples = Samples { duration: self.duration, ..Samples::default() };
        let Some((row, rest, before)) = sample_at(times, units(span.start_ms, self.timescale)) else {
            return within("start time is out mp4 stts samples");
        };
        let wanted = before + rest;
        let prefix = self.key_frame_before(span, wanted)?;
        (samples.stts, samples.prefix) = from_sample(times, row, rest, prefix);
        samples.duration = samples.duration.saturating_add(samples.prefix);
        debug_assert!(prefix <= wanted, "a key frame is at or before the wanted sample");
        bounds.start = wanted - prefix;
        if span.length_ms > 0 {
            let length = units(span.length_ms, self.timescale).saturating_add(samples.prefix);
            bounds.end = bounds.start
                + match sample_at(&samples.stts, length) {
                    Some((row, rest, before)) => {
                        samples.stts.truncate(row + 1);
                        samples.stts[row][0] = rest as u32;
                        before + rest
                    }
                    None => samples.stts.iter().map(|[count, _]| u64::from(*count)).sum(),
                };
        }
        Ok(samples)
    }

    /// Returns how many samples before `sample` the last key frame is.
    fn key_frame_before(&self, span: &Span, sample: u64) -> Result<u64, Fault> {
        let mut prefix = 0;
        for [frame] in self.stss.iter().flatten().filter(|_| span.at_key_frame) {
            match u64::from(*frame) {
                0 => return within("zero sync sample"),
                frame if frame > sample + 1 => break,
                frame => prefix = sample + 1 - frame,
            }
        }
        Ok(prefix)
    }

    /// Cuts `stsc`: determines the chunks of the samples. A chunk that is sent partly gets a separate row.
    fn cut_chunks(&self, has_end: bool, bounds: &mut Bounds) -> Result<Vec<[u32; 3]>, Fault> {
        let Some(rows) = &self.stsc else { return within("no mp4 stsc atoms were found") };
        if rows.is_empty() {
            return within("zero number of entries in stsc atom");
        }
        let chunk_count = self.chunks.as_ref().map_or(0, |(offsets, _)| offsets.len() as u64);
        let found = chunk_of(rows, chunk_count, bounds.start, "start")?;
        let mut kept = rows[found.row..].to_vec();
        (bounds.start_chunk, bounds.start_chunk_samples) = (found.chunk, found.samples);
        debug_assert!(found.samples < found.per_chunk, "the sample is in its chunk");
        let left = found.per_chunk - found.samples;
        let mut part = None;
        kept[0][0] = found.chunk as u32 + 1;
        if found.samples > 0 && found.next_chunk - found.chunk == 2 {
            kept[0][1] = left as u32;
        } else if found.samples > 0 {
            part = Some([1, left as u32, kept[0][2]]);
            kept[0][0] = found.chunk as u32 + 2;
        }
        let mut last = None;
        if has_end {
            last = cut_last_chunk(&mut kept, &mut part, chunk_count, bounds)?;
        }
        for row in &mut kept {
            row[0] = row[0].wrapping_sub(bounds.start_chunk as u32);
        }
        Ok(part.into_iter().chain(kept).chain(last).collect())
    }

    /// Cuts `stsz`: returns how many bytes of the first chunk are not sent, and how many of the last chunk are.
    fn cut_sizes(
        &self,
        has_end: bool,
        bounds: &Bounds,
        file_len: u64,
        samples: &mut Samples,
    ) -> Result<(u64, u64), Fault> {
        // As in nginx, chunks of samples of one size are always sent completely.
        let Some(Sizes::Each(sizes)) = &self.stsz else { return Ok((0, 0)) };
        let sum = |samples: Option<&[[u32; 1]]>, what: &str| {
            let bytes: Option<u64> =
                samples.map(|samples| samples.iter().map(|[size]| u64::from(*size)).sum());
            match bytes.filter(|bytes| *bytes <= file_len) {
                Some(bytes) => Ok(bytes),
                None => within(format!("too large mp4 {what} samples size")),
            }
        };
        if bounds.start >= sizes.len() as u64 {
            return within("start time is out mp4 stsz samples");
        }
        let start = bounds.start as usize;
        let first = start.checked_sub(bounds.start_chunk_samples as usize);
        let before = sum(first.map(|first| &sizes[first..start]), "start")?;
        let mut behind = 0;
        let mut end = sizes.len();
        if has_end {
            if bounds.end > sizes.len() as u64 {
                return within("end time is out mp4 stsz samples");
            }
            end = bounds.end as usize;
            let first = end.checked_sub(bounds.end_chunk_samples as usize);
            behind = sum(first.map(|first| &sizes[first..end]), "end")?;
        }
        samples.stsz = Some(sizes[start..end].to_vec());
        Ok((before, behind))
    }

    /// Cuts `stco` or `co64`: returns the range of the samples in the file.
    fn cut_offsets(
        &self,
        has_end: bool,
        bounds: &Bounds,
        around: Around,
        (before, behind): (u64, u64),
        samples: &mut Samples,
    ) -> Result<Range<u64>, Fault> {
        let Some((offsets, is_wide)) = &self.chunks else { return within("no mp4 stco atoms were found") };
        let name = if *is_wide { "co64" } else { "stco" };
        if bounds.start_chunk >= offsets.len() as u64 {
            return within(format!("start time is out mp4 {name} chunks"));
        }
        let shifted = |offset: u64, bytes: u64| {
            let place = offset.checked_add(bytes).filter(|place| *place <= around.file_len);
            match place.filter(|place| *is_wide || *place <= u64::from(u32::MAX)) {
                Some(place) => Ok(place),
                None => within("too large chunk offset"),
            }
        };
        let mut kept = offsets[bounds.start_chunk as usize..].to_vec();
        kept[0] = shifted(kept[0], before)?;
        let start = kept[0];
        let mut end = around.data_end;
        if has_end {
            let count = bounds.end_chunk.checked_sub(bounds.start_chunk);
            let Some(count) = count.filter(|count| *count <= kept.len() as u64) else {
                return within(format!("end time is out mp4 {name} chunks"));
            };
            kept.truncate(count as usize);
            end = kept.last().map_or(Ok(0), |last| shifted(*last, behind))?;
        }
        let is_empty = kept.is_empty();
        samples.chunks = kept;
        // A track without samples in the span does not affect the start of the data.
        Ok(if is_empty { around.file_len..0 } else { start..end })
    }

    fn write(&self, samples: &Samples, adjustment: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        leaf(out, b"tkhd", self.tkhd.as_deref())?;
        if samples.prefix > 0 {
            nested(out, b"edts", |out| {
                nested(out, b"elst", |out| {
                    // Version 1, one row: the duration, the start in the media, normal speed.
                    out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1]);
                    out.extend_from_slice(&self.shown_duration.to_be_bytes());
                    out.extend_from_slice(&samples.prefix.to_be_bytes());
                    out.extend_from_slice(&[0, 1, 0, 0]);
                    Ok(())
                })
            })?;
        }
        nested(out, b"mdia", |out| {
            if let Some(mdhd) = &self.mdhd {
                let mut mdhd = mdhd.clone();
                MDHD.write(&mut mdhd, samples.duration);
                leaf(out, b"mdhd", Some(&mdhd))?;
            }
            leaf(out, b"hdlr", self.hdlr.as_deref())?;
            nested(out, b"minf", |out| {
                if let Some((name, content)) = &self.media {
                    leaf(out, name, Some(content))?;
                }
                leaf(out, b"dinf", self.dinf.as_deref())?;
                nested(out, b"stbl", |out| self.write_tables(samples, adjustment, out))
            })
        })
    }

    fn write_tables(&self, samples: &Samples, adjustment: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        let flags = &self.flags;
        leaf(out, b"stsd", self.stsd.as_deref())?;
        rows(out, b"stts", (flags.stts, None), samples.stts.iter())?;
        if let Some(frames) = &samples.stss {
            rows(out, b"stss", (flags.stss, None), frames.iter())?;
        }
        if let Some(offsets) = &samples.ctts {
            rows(out, b"ctts", (flags.ctts, None), offsets.iter())?;
        }
        rows(out, b"stsc", (flags.stsc, None), samples.stsc.iter())?;
        match (&self.stsz, &samples.stsz) {
            (Some(Sizes::Uniform(content)), _) => leaf(out, b"stsz", Some(content))?,
            (_, Some(sizes)) => rows(out, b"stsz", (flags.stsz, Some(0)), sizes.iter())?,
            (_, None) => {}
        }
        let moved = samples.chunks.iter().map(|offset| offset.wrapping_add(adjustment));
        match self.chunks {
            Some((_, true)) => {
                let moved: Vec<_> = moved.map(|offset| [(offset >> 32) as u32, offset as u32]).collect();
                rows(out, b"co64", (flags.chunks, None), moved.iter())
            }
            _ => {
                let moved: Vec<_> = moved.map(|offset| [offset as u32]).collect();
                rows(out, b"stco", (flags.chunks, None), moved.iter())
            }
        }
    }
}

/// Returns the row of a time, the number of samples in this row before the time, and the number in all rows before.
fn sample_at(rows: &[[u32; 2]], mut time: u64) -> Option<(usize, u64, u64)> {
    let mut before = 0;
    for (row, [count, duration]) in rows.iter().enumerate() {
        let all = u64::from(*count) * u64::from(*duration);
        if time < all {
            return Some((row, time / u64::from(*duration), before));
        }
        time -= all;
        before += u64::from(*count);
    }
    None
}

/// Returns the rows from `prefix` samples before a sample on, and the duration of these `prefix` samples. The sample
/// follows the first `rest` samples of `row`.
fn from_sample(rows: &[[u32; 2]], row: usize, rest: u64, prefix: u64) -> (Vec<[u32; 2]>, u64) {
    let (mut row, mut rest, mut left, mut time) = (row, rest, prefix, 0_u64);
    while rest < left && row > 0 {
        time = time.saturating_add(rest * u64::from(rows[row][1]));
        left -= rest;
        row -= 1;
        rest = u64::from(rows[row][0]);
    }
    time = time.saturating_add(left * u64::from(rows[row][1]));
    let mut kept = rows[row..].to_vec();
    kept[0][0] -= rest.saturating_sub(left) as u32;
    (kept, time)
}

/// Returns the rows without their first samples.
fn without_first(rows: &[[u32; 2]], mut samples: u64) -> Vec<[u32; 2]> {
    for (row, [count, _]) in rows.iter().enumerate() {
        if samples < u64::from(*count) {
            let mut kept = rows[row..].to_vec();
            kept[0][0] -= samples as u32;
            return kept;
        }
        samples -= u64::from(*count);
    }
    Vec::new()
}

/// Truncates the rows to N samples. As in nginx the last row may have no samples.
fn keep_first(rows: &mut Vec<[u32; 2]>, mut samples: u64) {
    for row in 0..rows.len() {
        if samples < u64::from(rows[row][0]) {
            rows[row][0] = samples as u32;
            return rows.truncate(row + 1);
        }
        samples -= u64::from(rows[row][0]);
    }
}

/// The position of a sample.
struct Found {
    /// Index of its row in `stsc`.
    row: usize,
    /// Index of its chunk, 0-based.
    chunk: u64,
    /// Number of samples before it in the chunk.
    samples: u64,
    /// Number of samples per chunk in the row.
    per_chunk: u64,
    /// First chunk after the row, 1-based.
    next_chunk: u64,
    /// Number of samples from the beginning of the row to the sample.
    in_row: u64,
    /// Number of samples per chunk in the previous row; 0 if there is none.
    earlier: u64,
}

/// Finds the chunk of a sample. The last row applies up to the last chunk.
fn chunk_of(rows: &[[u32; 3]], chunks: u64, mut sample: u64, what: &str) -> Result<Found, Fault> {
    let mut earlier = 0;
    for (row, [chunk, per_chunk, _]) in rows.iter().enumerate() {
        let (chunk, per_chunk) = (u64::from(*chunk), u64::from(*per_chunk));
        let is_last = row + 1 == rows.len();
        let next_chunk = if is_last { chunks + 1 } else { u64::from(rows[row + 1][0]) };
        let Some(count) = next_chunk.checked_sub(chunk) else { return within("unordered mp4 stsc chunks") };
        let all = count * per_chunk;
        if sample < all || is_last {
            if sample > all {
                return within(format!("{what} time is out mp4 stsc chunks"));
            }
            if per_chunk == 0 {
                return within("zero number of samples");
            }
            if chunk == 0 {
                return within("zero chunk");
            }
            return Ok(Found {
                row,
                chunk: chunk - 1 + sample / per_chunk,
                samples: sample % per_chunk,
                per_chunk,
                next_chunk,
                in_row: sample,
                earlier,
            });
        }
        sample -= all;
        if count > 0 {
            earlier = per_chunk;
        }
    }
    within("zero number of entries in stsc atom")
}

/// Cuts the rows after the last sample; `part` is the row of the first chunk if that is sent partly. Returns the row of
/// the last chunk if that is sent partly.
fn cut_last_chunk(
    kept: &mut Vec<[u32; 3]>,
    part: &mut Option<[u32; 3]>,
    chunk_count: u64,
    bounds: &mut Bounds,
) -> Result<Option<[u32; 3]>, Fault> {
    debug_assert!(bounds.start <= bounds.end, "a range ends behind its start");
    let mut samples = bounds.end - bounds.start;
    if let Some([_, in_part, _]) = part {
        *in_part = u64::from(*in_part).min(samples) as u32;
        samples -= u64::from(*in_part);
    }
    let found = chunk_of(kept, chunk_count, samples, "end")?;
    let [chunk, _, description] = kept[found.row];
    if found.in_row > 0 {
        kept.truncate(found.row + 1);
        bounds.end_chunk_samples = found.per_chunk;
    } else {
        kept.truncate(found.row);
        bounds.end_chunk_samples = found.earlier;
    }
    bounds.end_chunk = found.chunk;
    if found.samples == 0 {
        return Ok(None);
    }
    bounds.end_chunk = found.chunk + 1;
    bounds.end_chunk_samples = found.samples;
    // The row has no complete chunk, so it describes the partial one.
    if found.chunk + 1 == u64::from(chunk) {
        kept[found.row][1] = found.samples as u32;
        return Ok(None);
    }
    debug_assert!(bounds.start_chunk <= bounds.end_chunk, "the last chunk is not before the first one");
    let number = (bounds.end_chunk - bounds.start_chunk) as u32;
    Ok(Some([number, found.samples as u32, description]))
}
