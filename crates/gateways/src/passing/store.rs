//! `proxy_store`: saves responses as files while they are sent, so that `static_file` can serve them later.
//!
//! ```text
//!    Idle --piece--> Busy (written to disk) --> Idle --end--> Busy (mode, time, name) --> Gone
//!      |               |
//!      +-- an error of the upstream or of the disk: the temporary file is removed --> Gone
//! ```
//!
//! A response is written to a temporary file first and gets its name when it is complete, so that no reader finds an incomplete
//! copy. Disk errors are logged, and the client's response continues without a copy.

use std::future::{Future, poll_fn};
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use conf::{Args, Error};
use http::fields::Method;
use io::segments::Source;

use crate::Directive;
use crate::passing::conf::{Conf, conf};
use crate::passing::protocol::{Family, Rows};
use crate::passing::spec::row;
use caching::settings::Zone;
use exchange::error_log;
use exchange::files::{self, ChangePath};
use exchange::refusals::{self, Access};
use exchange::request::Request;
use exchange::response::Body;
use exchange::stored_file::{self, Destination, Fault, Writer};
use exchange::thread::Thread;
use site::config::Cx;
use site::template::Template;
use site::uses::FileUse;
use telemetry::{Level, Reason};
use transfer::body::source::BodySource;
use transfer::body::{BodyError, choose};

impl<F: Family> Rows<F> {
    /// Copies of responses as files.
    pub(crate) const STORE: &'static [Directive] = &[
        // A mirror of another server, filled by requests: `try_files` or `error_page` leads here if a file is missing. Copies are
        // never revalidated, unlike the entries of a cache.
        Directive::scope(
            row(
                "_store",
                Args::Exactly(1),
                "Stores responses as files: at the paths of their URIs, or at this path.",
            )
            .default("off"),
            |scope, cx| set(conf::<F>(scope), cx),
        ),
        // New directories get the same bits; where reading is permitted, so is entering.
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
    /// `on`: the path is determined by `root` or `alias`.
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
        text => Store::At(Arc::new(cx.path_template(text, FileUse::WriteFile)?)),
    };
    if conf.store.is_on() {
        // `proxy_store` cancels a `proxy_cache` of enclosing blocks.
        conf.cache.zone = Zone::Off;
    }
    conf.store_block = cx.block;
    Ok(())
}

/// Returns the body, and writes a copy of it to a file if configured. Only a complete response to a GET is stored.
pub(super) fn keep(request: &Request, conf: &Conf, body: Body) -> Body {
    // HEAD has no body, 206 only a part of it, and other statuses are not files.
    let is_complete = request.response.status == 200
        && match body {
            Body::Tunnel(_) => false,
            Body::None => request.method != Method::Head && request.response.content_length == Some(0),
            _ => true,
        };
    if !conf.store.is_on() || !is_complete {
        return body;
    }
    let mut path = Vec::new();
    match &conf.store {
        Store::Off => return body,
        Store::ByUri => files::path_of(request, &request.uri, &mut path),
        Store::At(template) => {
            template.render(request, &mut path);
            // An empty value remains empty, which is an error below.
            if !path.is_empty() {
                files::prepend_directory(&request.config().http.prefix, &mut path, 0);
            }
        }
    }
    // A decoded URI may contain any byte; a zero byte would end the path early.
    if path.contains(&0) || path.is_empty() {
        request.log(Level::Error, format_args!("the path of a stored response is empty or has a zero byte"));
        return body;
    }
    let place = match &conf.store {
        Store::ByUri => ChangePath::new(request, path),
        _ => ChangePath::anywhere(request, path),
    };
    let place = match place {
        Ok(place) => place,
        Err(failure) => {
            request.log(Level::Error, format_args!("a response is not stored: {}", Reason(failure.errno)));
            return body;
        }
    };
    let plan = Destination {
        place,
        temp: conf.upstream.temp_path.clone(),
        mode: conf.store_access,
        creates_directories: true,
        modified: request.response.last_modified,
        length: request.response.content_length,
        via: choose::path_engine(request.scope().core.sending.aio, &rt::caps()),
    };
    let stream: Box<dyn BodySource> = match body {
        Body::Source(stream) => stream,
        Body::Bytes(source) => Box::new(Once(Some(source))),
        Body::None => Box::new(Once(None)),
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

/// A body that was received completely.
struct Once(Option<Source>);

impl BodySource for Once {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        Poll::Ready(Ok(self.0.take().filter(|source| !source.bytes().is_empty())))
    }
}

/// A body that is copied to a file while it is sent. As in nginx, the copy is completed even if the client disconnects.
struct Storing {
    stream: Box<dyn BodySource>,
    copy: Copy,
    thread: Rc<Thread>,
    /// A piece that is passed on once it is written to the copy.
    held: Option<Source>,
    /// Whether the body has ended, successfully or not.
    is_over: bool,
}

/// State of the copy.
enum Copy {
    Idle(Writer),
    /// Writing a piece, or being completed.
    Busy(Pin<Box<dyn Future<Output = Option<Writer>>>>),
    /// Abandoned or complete.
    Gone,
}

impl Storing {
    /// Waits until the pending write to the copy has ended.
    fn poll_copy(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Copy::Busy(work) = &mut self.copy {
            let writer = ready!(work.as_mut().poll(context));
            // `None` for a complete copy, or one that failed.
            self.copy = writer.map_or(Copy::Gone, Copy::Idle);
        }
        Poll::Ready(())
    }

    /// Starts writing a piece, or completing the copy.
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
                    // The client gets the piece after the disk: a slow disk slows the response, but memory use stays limited.
                    self.begin(Some(piece.bytes().to_vec()));
                    self.held = Some(piece);
                }
                Ok(None) => {
                    self.is_over = true;
                    self.begin(None);
                }
                Err(error) => {
                    self.is_over = true;
                    // An incomplete response is not stored.
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

/// Appends bytes; returns `None` after a failure, which is logged.
async fn write(mut writer: Writer, bytes: Vec<u8>, thread: Rc<Thread>) -> Option<Writer> {
    match writer.append(&bytes).await {
        Ok(()) => Some(writer),
        Err(fault) => log_failure(&thread, fault),
    }
}

/// Completes the copy and gives it its name.
async fn complete(writer: Writer, thread: Rc<Thread>) -> Option<Writer> {
    writer.publish().await.map_or_else(|fault| log_failure(&thread, fault), |()| None)
}

fn log_failure(thread: &Rc<Thread>, (call, path, errno): Fault) -> Option<Writer> {
    refusals::note_path_of_thread(thread, path.as_os_str().as_bytes(), Access::Write, errno);
    let path = path.display();
    let what = format_args!("{call}() \"{path}\" failed ({}) while storing a response", Reason(errno));
    error_log::write(thread, Level::Crit, what);
    None
}

/// Placeholder for the body of a response whose client has disconnected.
struct Empty;

impl BodySource for Empty {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Result<Option<Source>, BodyError>> {
        Poll::Ready(Ok(None))
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        // Without a copy to complete, the upstream's connection is closed with the client's.
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
        // The task ends with the last byte of the upstream, or after `proxy_read_timeout` without data.
        rt::spawn(async move { while let Ok(Some(_)) = poll_fn(|context| rest.poll_next(context)).await {} });
    }
}
