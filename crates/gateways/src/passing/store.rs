//! `proxy_store`: answers are kept as files while they are sent, for `static_file` to serve the next time.
//!
//! ```text
//!    Idle --piece--> Busy (the disk takes it) --> Idle --end--> Busy (mode, time, name) --> Gone
//!      |               |
//!      +-- an error of the upstream or of the disk: the temporary file goes --> Gone
//! ```
//!
//! An answer goes to a temporary file first and gets its name when it is complete: no reader sees an incomplete copy
//! under its name. Errors of the disk are logged, and the client's response continues without a copy.

use std::ffi::OsString;
use std::future::{Future, poll_fn};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use conf::{Args, Error};
use io::op::Source;

use crate::Directive;
use crate::passing::conf::{Conf, conf};
use crate::passing::spec::row;
use crate::passing::{Family, Rows};
use exchange::config::Cx;
use exchange::error_log;
use exchange::files;
use exchange::request::Request;
use exchange::response::Body;
use exchange::stored_file::{self, Destination, Fault, Writer};
use exchange::template::Template;
use exchange::thread::Thread;
use telemetry::{Level, Reason};
use transfer::body::source::BodySource;
use transfer::body::{BodyError, choose};
use upstream::caching::settings::Zone;

impl<F: Family> Rows<F> {
    /// Copies of responses as files.
    pub(crate) const STORE: &'static [Directive] = &[
        // A mirror of another server, filled by requests: `try_files` or `error_page` leads here when a file is missing.
        // Nothing ever looks whether a copy is still right; that is what caches are for.
        Directive::scope(
            row(
                "_store",
                Args::Exactly(1),
                "Stores responses as files: at the paths of their URIs, or at this path.",
            )
            .default("off"),
            |scope, cx| set(conf::<F>(scope), cx),
        ),
        // New directories get the same bits, and those with a right to read get the right to enter.
        Directive::scope(
            row(
                "_store_access",
                Args::Between(1, 3),
                "Permissions of these files: `user:`, `group:`, `all:` with `r` or `rw`.",
            )
            .default("user:rw"),
            |scope, cx| {
                conf::<F>(scope).store_access = stored_file::access(cx)?;
                Ok(())
            },
        ),
    ];
}

/// `proxy_store`
#[derive(Clone, Debug, Default)]
pub(super) enum Store {
    /// `off`
    #[default]
    Off,
    /// `on`: by `root` or `alias`.
    ByUri,
    /// At this path.
    At(Arc<Template>),
}

impl Store {
    pub(super) fn is_on(&self) -> bool {
        !matches!(self, Store::Off)
    }
}

fn set(conf: &mut Conf, cx: &mut Cx<'_>) -> Result<(), Error> {
    if cx.arg(0) != "off" && conf.cache_block == cx.block && conf.cache.zone.is_on() {
        let prefix = conf.prefix;
        return Err(
            cx.error(format_args!("\"{prefix}_store\" directive is incompatible with \"{prefix}_cache\""))
        );
    }
    conf.store = match cx.arg(0) {
        "off" => Store::Off,
        "on" => Store::ByUri,
        "" => return Err(cx.error("empty path")),
        text => Store::At(Arc::new(cx.path_template(text)?)),
    };
    if conf.store.is_on() {
        // A block that stores does not cache, whatever the blocks around it do.
        conf.cache.zone = Zone::Off;
    }
    conf.store_block = cx.block;
    Ok(())
}

/// The body, with a copy of it on its way to a file where the configuration asks for that. Only a complete response to
/// a GET is stored.
pub(super) fn keep(request: &Request, conf: &Conf, body: Body) -> Body {
    let is_whole = request.response.status == 200 && !matches!(body, Body::None | Body::Tunnel(_));
    // HEAD has no body, 206 a part of one, and other statuses are no files.
    if !conf.store.is_on() || !is_whole {
        return body;
    }
    let mut path = Vec::new();
    match &conf.store {
        Store::Off => return body,
        Store::ByUri => files::path_of(request, &request.uri, &mut path),
        Store::At(template) => {
            template.render(request, &mut path);
            // An empty value stays one, which is an error below.
            if !path.is_empty() {
                files::put_behind(&request.config().http.prefix, &mut path, 0);
            }
        }
    }
    // A decoded URI may have any byte in it but this one, which would end the path early.
    if path.contains(&0) || path.is_empty() {
        request.log(Level::Error, format_args!("the path of a stored response is empty or has a zero byte"));
        return body;
    }
    let plan = Destination {
        path: PathBuf::from(OsString::from_vec(path)),
        temp: conf.upstream.temp_path.0.clone(),
        levels: conf.upstream.temp_path.1.to_vec(),
        mode: conf.store_access,
        makes_folders: true,
        modified: request.response.last_modified,
        length: request.response.content_length,
        via: choose::path_engine(request.scope().core.sending.aio, &rt::caps()),
    };
    let stream: Box<dyn BodySource> = match body {
        Body::Source(stream) => stream,
        Body::Bytes(source) => Box::new(Once(Some(source))),
        other => return other,
    };
    let thread = Rc::clone(&request.conn.thread);
    Body::Source(Box::new(Storing {
        stream,
        copy: Copy::Idle(Writer::new(plan, Rc::clone(&thread))),
        thread,
        held: None,
        is_over: false,
    }))
}

/// A body that is here as a whole.
struct Once(Option<Source>);

impl BodySource for Once {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        Poll::Ready(Ok(self.0.take().filter(|source| !source.bytes().is_empty())))
    }
}

/// A stream of which a copy is made. A client that goes away does not keep the copy from being completed, as in nginx.
struct Storing {
    stream: Box<dyn BodySource>,
    copy: Copy,
    thread: Rc<Thread>,
    /// A piece that is passed on when the copy has it.
    held: Option<Source>,
    /// Whether the stream has ended, successfully or not.
    is_over: bool,
}

/// Where the copy stands.
enum Copy {
    Idle(Writer),
    /// It takes a piece, or is being completed.
    Busy(Pin<Box<dyn Future<Output = Option<Writer>>>>),
    /// It was given up, or is complete.
    Gone,
}

impl Storing {
    /// Waits until the copy has all bytes given to it.
    fn poll_copy(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Copy::Busy(work) = &mut self.copy {
            let writer = ready!(work.as_mut().poll(context));
            // A complete copy, or one that could not continue, returns nothing.
            self.copy = writer.map_or(Copy::Gone, Copy::Idle);
        }
        Poll::Ready(())
    }

    /// Gives the copy something to do.
    fn begin(&mut self, piece: Option<Vec<u8>>) {
        if let Copy::Idle(writer) = std::mem::replace(&mut self.copy, Copy::Gone) {
            let thread = Rc::clone(&self.thread);
            self.copy = Copy::Busy(match piece {
                Some(bytes) => Box::pin(write(writer, bytes, thread)),
                None => Box::pin(complete(writer, thread)),
            });
        }
    }
}

impl BodySource for Storing {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        loop {
            ready!(self.poll_copy(context));
            if let Some(piece) = self.held.take() {
                return Poll::Ready(Ok(Some(piece)));
            }
            if self.is_over {
                return Poll::Ready(Ok(None));
            }
            match ready!(self.stream.poll_next(context)) {
                Ok(Some(piece)) => {
                    // The client gets the piece when the disk has it: a slow disk slows the answer, and never fills the memory.
                    self.begin(Some(piece.bytes().to_vec()));
                    self.held = Some(piece);
                }
                Ok(None) => {
                    self.is_over = true;
                    self.begin(None);
                }
                Err(error) => {
                    self.is_over = true;
                    // A part of an answer is none.
                    self.copy = Copy::Gone;
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    fn trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.stream.trailers()
    }

    fn is_unbuffered(&self) -> bool {
        self.stream.is_unbuffered()
    }

    fn is_reading(&self) -> bool {
        matches!(self.copy, Copy::Busy(_)) || self.stream.is_reading()
    }

    fn send_bytes(&self) -> usize {
        self.stream.send_bytes()
    }
}

/// Takes bytes; returns nothing after a failure, which is logged.
async fn write(mut writer: Writer, bytes: Vec<u8>, thread: Rc<Thread>) -> Option<Writer> {
    match writer.append(&bytes).await {
        Ok(()) => Some(writer),
        Err(fault) => tell(&thread, fault),
    }
}

/// Gives the copy its name.
async fn complete(writer: Writer, thread: Rc<Thread>) -> Option<Writer> {
    writer.publish().await.map_or_else(|fault| tell(&thread, fault), |()| None)
}

fn tell(thread: &Thread, (call, path, errno): Fault) -> Option<Writer> {
    let path = path.display();
    let what = format_args!("{call}() \"{path}\" failed ({}) while storing an answer", Reason(errno));
    error_log::write(thread, Level::Crit, what);
    None
}

/// The reader of the rest of a response whose client is gone.
struct Empty;

impl BodySource for Empty {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        Poll::Ready(Ok(None))
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        // Without a copy to complete, the upstream's connection ends with the client's.
        if matches!(self.copy, Copy::Gone) {
            return;
        }
        let mut rest = Storing {
            stream: std::mem::replace(&mut self.stream, Box::new(Empty)),
            copy: std::mem::replace(&mut self.copy, Copy::Gone),
            thread: Rc::clone(&self.thread),
            held: None,
            is_over: self.is_over,
        };
        // It ends with the upstream: at its last byte, or when it has sent nothing for `proxy_read_timeout`.
        rt::spawn(async move { while let Ok(Some(_)) = poll_fn(|context| rest.poll_next(context)).await {} });
    }
}
