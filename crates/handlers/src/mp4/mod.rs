//! nginx's mp4 module: serves a time span of an MP4 file, which `start` and `end` in the query specify in seconds.
//!
//! ```text
//!   file:      ftyp | moov | mdat ........ or ftyp | mdat ........ | moov
//!   response:  ftyp | moov of the span, generated here | mdat: a range of the file
//! ```
//!
//! This file has the directives and reads the boxes that it needs, through the engine; [`movie`] creates the new movie
//! box. `mp4_limit_rate` and `mp4_limit_rate_after` are directives of nginx's commercial edition.

mod movie;

use conf::{Args, Contexts, Error, Spec, value};
use io::{Disk, Errno};

use crate::static_file;
use crate::{Declaration, Directive, Module};
use exchange::files::{self, Opened};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use movie::{Around, Cut, Fault, Movie, Span};
use site::config::{Cx, Inner, Settings, SettingsType};
use site::declaration::{LEVELS, OWN};
use telemetry::{Level, Reason};
use transfer::body::choose;
use transfer::body::read::DIRECT_ALIGNMENT;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().on {
            plan.later(Phase::Content, scope.shared::<Conf>(), |conf, request| Box::pin(run(conf, request)));
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_mp4")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_mp4", name, LEVELS, args, help)
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_mp4",
            "mp4",
            Contexts::LOCATION,
            Args::None,
            "Sends a time span of an MP4 file: `start` and `end` in the query, in seconds.",
        ),
        |scope, _| {
            scope.make_mut::<Conf>().on = true;
            Ok(())
        },
    ),
    // In most files one read of the default size contains all boxes that are needed.
    Directive::scope(
        spec("mp4_buffer_size", Args::Exactly(1), "Minimum bytes per read of the boxes of a file.")
            .default("512k"),
        |scope, cx| cx.size(&mut scope.make_mut::<Conf>().buffer_size),
    ),
    // The complete box is in memory, in addition to its parsed tables.
    Directive::scope(
        spec("mp4_max_buffer_size", Args::Exactly(1), "Maximum length of a movie box, else status 500.")
            .default("10m"),
        |scope, cx| cx.size(&mut scope.make_mut::<Conf>().buffer_size_max),
    ),
    // Otherwise a player displays nothing until the next key frame.
    Directive::scope(
        spec(
            "mp4_start_key_frame",
            Args::Flag,
            "Begins with the key frame before `start`; players skip the time between the two.",
        )
        .default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().at_key_frame),
    ),
    // A player needs no higher rate to continue, and a client that disconnects has not received the remaining bytes.
    Directive::scope(
        Spec::new(
            OWN,
            "mp4_limit_rate",
            LEVELS,
            Args::Exactly(1),
            "Limits the rate to this multiple of the bit rate of the file; `on` is 1.1.",
        )
        .default("off"),
        |scope, cx| {
            scope.make_mut::<Conf>().rate_permille = permille(cx)?;
            Ok(())
        },
    ),
    // The player's buffer is filled at full speed.
    Directive::scope(
        Spec::new(
            OWN,
            "mp4_limit_rate_after",
            LEVELS,
            Args::Exactly(1),
            "Playback time that is sent before `mp4_limit_rate` applies.",
        )
        .default("60s"),
        |scope, cx| cx.milliseconds(&mut scope.make_mut::<Conf>().rate_after),
    ),
];

/// The settings, which blocks inherit except for `mp4` itself.
#[derive(Clone, Copy, Debug)]
struct Conf {
    /// `mp4`
    on: bool,
    /// `mp4_buffer_size`
    buffer_size: u64,
    /// `mp4_max_buffer_size`
    buffer_size_max: u64,
    /// `mp4_start_key_frame`
    at_key_frame: bool,
    /// `mp4_limit_rate` in thousandths; 0 is off.
    rate_permille: u64,
    /// `mp4_limit_rate_after`
    rate_after: std::time::Duration,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            on: false,
            buffer_size: 512 << 10,
            buffer_size_max: 10 << 20,
            at_key_frame: false,
            rate_permille: 0,
            rate_after: std::time::Duration::from_secs(60),
        }
    }
}

impl Settings for Conf {
    fn inherit(&self, inner: Inner) -> Option<Conf> {
        (inner == Inner::Block).then_some(Conf { on: false, ..*self })
    }
}

/// Parses `on`, `off`, or a factor with up to three decimals.
fn permille(cx: &Cx<'_>) -> Result<u64, Error> {
    match cx.arg(0) {
        "on" => Ok(1100),
        "off" => Ok(0),
        text => match thousandths(text.as_bytes()) {
            Some(factor) => Ok(factor),
            None => Err(Error::value(cx.statement, text, value::ValueError::Invalid)),
        },
    }
}

/// Parses a decimal number in thousandths. Further decimals are ignored, because players send many.
fn thousandths(text: &[u8]) -> Option<u64> {
    let point = memchr::memchr(b'.', text);
    let (whole, part) = point.map_or((text, &b""[..]), |point| (&text[..point], &text[point + 1..]));
    if text.is_empty() || !whole.iter().chain(part).all(u8::is_ascii_digit) {
        return None;
    }
    let digits = whole.iter().chain(part.iter().chain(b"000").take(3));
    let add = |number: i64, digit: &u8| number.checked_mul(10)?.checked_add(i64::from(digit - b'0'));
    digits.copied().try_fold(0, |number, digit| add(number, &digit)).map(|number| number as u64)
}

/// Returns the span that the query specifies, if any.
fn span(request: &Request, conf: &Conf) -> Option<Span> {
    let time = |name| http::uri::arg(&request.args, name).and_then(thousandths);
    let start = time(b"start");
    let end = time(b"end").filter(|end| *end > 0);
    let start_ms = start.or(end.map(|_| 0))?;
    let length_ms = end.map_or(0, |end| end.saturating_sub(start_ms));
    Some(Span { start_ms, length_ms, at_key_frame: conf.at_key_frame })
}

/// Opens the file, and creates the bytes before the media data. The media data is sent like the bytes of any file.
async fn run(conf: &Conf, request: &mut Request) -> Step {
    let (opened, path) = match static_file::open(request).await {
        Ok(found) => found,
        Err(step) => return step,
    };
    let span = span(request, conf);
    let mut made = None;
    if span.is_some() || conf.rate_permille > 0 {
        let source = Source::new(request, &opened, conf);
        match make(source, span, conf).await {
            Ok(found) => made = Some(found),
            Err(trouble) if span.is_some() => return trouble.respond(request, &path),
            // Only the rate limit needs the movie, so an invalid file is sent unchanged.
            Err(trouble) => _ = trouble.respond(request, &path),
        }
    }
    let size = opened.stat.size;
    static_file::respond(request, opened);
    let (cut, duration_ms) = made.unwrap_or_default();
    if let Some((ftyp, Cut { head, data })) = cut {
        static_file::compose(request, [ftyp, head].concat(), data);
    }
    if let Some(duration_ms) = duration_ms.filter(|duration| conf.rate_permille > 0 && *duration > 0) {
        limit_rate(request, conf, size, duration_ms);
    }
    Step::Done
}

/// Applies `mp4_limit_rate`: the bit rate of the file times a factor.
fn limit_rate(request: &mut Request, conf: &Conf, size: u64, duration_ms: u64) {
    let bytes_in = |ms: u128, permille: u128| {
        let bytes = u128::from(size) * ms * permille / (u128::from(duration_ms) * 1000);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    };
    request.limit_rate = Some(bytes_in(1000, conf.rate_permille.into()).max(1));
    request.limit_rate_after = Some(bytes_in(conf.rate_after.as_millis(), 1000));
}

/// The bytes before the media data, with the range of the media data; nothing if the file is sent unchanged. The second
/// value is the duration of the movie in ms, if known.
type CutResult = (Option<(Vec<u8>, Cut)>, Option<u64>);

/// Finds the boxes of a file, and cuts the movie to the span.
async fn make(mut source: Source<'_>, span: Option<Span>, conf: &Conf) -> Result<CutResult, CutError> {
    let (mut ftyp, mut moov, mut data) = (None, None, None);
    let mut at = 0;
    while at < source.len && (moov.is_none() || data.is_none()) {
        let left = source.len - at;
        let bytes = source.bytes(at, 4, 16).await?;
        let Some((name, header_len, len)) = movie::header(bytes, left)? else { break };
        debug_assert!(
            header_len <= len && len <= left,
            "an atom contains its header and ends within the file"
        );
        let content = at + header_len..at + len;
        match &name {
            b"ftyp" if content.end - content.start > FTYP_MAX => {
                let len = content.end - content.start;
                return Err(Fault::Of(format!("ftyp atom is too large:{len}")).into());
            }
            b"ftyp" => {
                let bytes = source.bytes(content.start, content.end - content.start, 0).await?;
                let size = (bytes.len() as u32 + 8).to_be_bytes();
                if ftyp.replace([&size[..], b"ftyp", bytes].concat()).is_some() {
                    return Err(Fault::In("duplicate mp4 ftyp atom".to_owned()).into());
                }
            }
            b"moov" => {
                let is_complete = span.is_none_or(|span| (span.start_ms, span.length_ms) == (0, 0));
                let is_first = data.is_none();
                let len = content.end - content.start;
                if len > source.window.max(conf.buffer_size_max) {
                    let what = "you may want to increase mp4_max_buffer_size";
                    return Err(Fault::Of(format!("moov atom is too large:{len}, {what}")).into());
                }
                // The complete file is requested, and the movie box precedes the media data, as players prefer.
                if is_complete && is_first && conf.rate_permille == 0 {
                    return Ok((None, None));
                }
                moov = Some(source.bytes(content.start, len, 0).await?.to_vec());
                if is_complete && is_first {
                    return Ok((None, moov.as_deref().and_then(Movie::duration_ms)));
                }
            }
            b"mdat" if data.replace(content.clone()).is_some() => {
                return Err(Fault::In("duplicate mp4 mdat atom".to_owned()).into());
            }
            _ => {}
        }
        at += len;
    }
    let Some(moov) = moov else {
        return Err(Fault::In("no mp4 trak atoms were found".to_owned()).into());
    };
    let duration_ms = Movie::duration_ms(&moov);
    let Some(span) = span else { return Ok((None, duration_ms)) };
    let movie = Movie::read(&moov, &span)?;
    let Some(data) = data else { return Err(Fault::In("no mp4 mdat atom was found".to_owned()).into()) };
    let ftyp = ftyp.unwrap_or_default();
    let around = Around { file_len: source.len, data_end: data.end, before: ftyp.len() as u64 };
    Ok((Some((ftyp, movie.cut(&span, around)?)), duration_ms))
}

/// Maximum length in bytes of the content of a `ftyp` box, as in nginx: it names a few brands.
const FTYP_MAX: u64 = 1024;

/// Number of bytes per read, a multiple of [`DIRECT_ALIGNMENT`].
const READ_BYTES: u64 = 256 << 10;

/// The reason why a movie could not be cut.
enum CutError {
    /// The file is no valid movie, or has no such span.
    File(Fault),
    /// The file could not be read.
    Disk(Errno),
}

impl From<Fault> for CutError {
    fn from(fault: Fault) -> CutError {
        CutError::File(fault)
    }
}

impl CutError {
    /// Logs nginx's line, and returns its status.
    fn respond(self, request: &Request, path: &[u8]) -> Step {
        let path = files::display(path).to_string();
        match self {
            CutError::File(fault) => request.log(Level::Error, format_args!("{}", fault.shown(&path))),
            CutError::Disk(errno) => {
                request.log(Level::Crit, format_args!("pread() \"{path}\" failed ({})", Reason(errno)));
            }
        }
        Step::Status(500)
    }
}

/// A file, with the bytes that were read last.
struct Source<'a> {
    request: &'a mut Request,
    opened: &'a Opened,
    disk: Disk,
    len: u64,
    /// Minimum number of bytes per read, unless the file is shorter.
    window: u64,
    held: Vec<u8>,
    /// Offset of `held` in the file.
    at: u64,
}

impl<'a> Source<'a> {
    fn new(request: &'a mut Request, opened: &'a Opened, conf: &Conf) -> Source<'a> {
        let via = choose::path_engine(request.scope().core.sending.aio, &rt::caps());
        let disk = Disk { device: opened.device, via };
        let (len, window) = (opened.stat.size, conf.buffer_size);
        Source { request, opened, disk, len, window, held: Vec::new(), at: 0 }
    }

    /// Returns at least `least` bytes from offset `at` on, and up to `most` if that is more.
    async fn bytes(&mut self, at: u64, least: u64, most: u64) -> Result<&[u8], CutError> {
        let left = self.len.saturating_sub(at);
        let wanted = least.max(most).min(left);
        if left < least {
            return Err(Fault::Of("file truncated".to_owned()).into());
        }
        let has = |held: &Source<'_>| at >= held.at && at + wanted <= held.at + held.held.len() as u64;
        if !has(self) {
            self.read(at, wanted.max(self.window).min(left)).await.map_err(CutError::Disk)?;
        }
        debug_assert!(self.at <= at, "the window begins at or before the wanted bytes");
        let start = (at - self.at) as usize;
        self.held.get(start..start + wanted as usize).ok_or(CutError::Disk(Errno::IO))
    }

    /// Reads these bytes into `held`, extended to the alignment of O_DIRECT, because `directio` may have opened the file
    /// with that flag. Fails if the file has become shorter.
    async fn read(&mut self, at: u64, len: u64) -> Result<(), Errno> {
        self.held.clear();
        self.at = at - at % DIRECT_ALIGNMENT;
        let end = at + len;
        loop {
            let offset = self.at + self.held.len() as u64;
            if offset >= end {
                return Ok(());
            }
            let count = (end - offset).next_multiple_of(DIRECT_ALIGNMENT).min(READ_BYTES);
            let buf = self.request.wait_for_buffer(count as usize).await.ok_or(Errno::NOMEM)?;
            let (read, buf) = self.opened.file.read_at(offset, count as u32, buf, self.disk).await;
            let (1.., Some(buf)) = (read?, buf) else { return Err(Errno::IO) };
            self.held.extend_from_slice(&buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn times_are_parsed_as_players_send_them() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("0", Some(0)),
            ("1.5", Some(1500)),
            ("1.23456789", Some(1234)),
            (".5", Some(500)),
            ("5.", Some(5000)),
            (".", Some(0)),
            ("", None),
            ("-1", None),
            ("1.2.3", None),
            ("1e3", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(thousandths(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn mp4_settings_are_inherited_but_the_handler_is_not() {
        let config = loaded(
            "mp4_buffer_size 1m; mp4_limit_rate 1.25; server { location /a { mp4; mp4_start_key_frame on; location /a/b { } } }",
        );
        let conf = |place: usize| config.http.locations[place].scope.of::<Conf>();
        assert_eq!((conf(1).on, conf(1).buffer_size, conf(1).rate_permille), (true, 1 << 20, 1250));
        assert!(!conf(2).on && conf(2).at_key_frame);
        for (text, words) in [
            ("mp4_limit_rate fast;", "invalid value"),
            ("mp4_start_key_frame 1;", "it must be \"on\" or \"off\""),
        ] {
            let found = error(&format!("http {{ {text} }}"));
            assert!(found.contains(words), "{text}: {found}");
        }
    }
}
