//! The directives of `events`: nginx's, and this server's own for io_uring and buffers.

use std::net::ToSocketAddrs;
use std::time::Duration;

use conf::value;
use conf::{Args, Contexts, Error, Spec, Support};

use crate::Directive;
use site::config::{ClientTest, Cx};
use site::network::Network;
use site::settings::events::{BUFFER_POOL_MIN, EventsConf, Method};

const EVENTS: Contexts = Contexts::EVENTS;

/// The module name of directives that nginx does not have.
const OWN: &str = "ringroad";

/// Returns a row of nginx's event module.
const fn event(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("event", name, EVENTS, args, help)
}

/// Returns a row of this server's own directives; each has a default that suits most machines.
const fn own(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new(OWN, name, EVENTS, args, help)
}

pub(super) const DIRECTIVES: &[Directive] = &[
    // A method that is set but not available is an error at start; without `use` the probe decides.
    Directive::events(
        event("use", Args::Exactly(1), "The network engine; by default io_uring, or epoll if io_uring is not available."),
        set_method,
    ),
    // nginx's default, which suits small machines.
    Directive::events(
        event(
            "worker_connections",
            Args::Exactly(1),
            "Maximum connections of a thread, including those to upstreams.",
        )
        .default("512"),
        set_worker_connections,
    ),
    Directive::events(
        event("multi_accept", Args::Flag, "Accepts all waiting connections in one event-loop turn.")
            .default("off")
            .state(Support::Accepted("each event-loop turn accepts waiting connections, up to a fixed number")),
        |_, cx| cx.flag(&mut false),
    ),
    Directive::events(
        event("accept_mutex", Args::Flag, "Lets workers take turns at accepting.")
            .default("off")
            .state(Support::Accepted("the engines spread new connections without a lock")),
        |_, cx| cx.flag(&mut false),
    ),
    Directive::events(
        event("accept_mutex_delay", Args::Exactly(1), "How long a worker waits for its turn at accepting.")
            .default("500ms")
            .state(Support::Accepted("there is no accept mutex to wait for")),
        |_, cx| cx.milliseconds(&mut Duration::default()),
    ),
    // Behind a proxy this is the address of the proxy, as in nginx.
    Directive::events(
        event(
            "debug_connection",
            Args::Exactly(1),
            "Clients whose connections write debug messages to every error log, whatever its level: an address, a network, a name, or `unix:`.",
        )
        .many(),
        |_, cx| {
            let text = cx.arg(0);
            let resolved = || (text, 0).to_socket_addrs().ok().map(|found| found.map(|address| address.ip().into()));
            let networks = match Network::read(text, cx) {
                Some(network) => vec![network],
                None => resolved().map(Iterator::collect).unwrap_or_default(),
            };
            if networks.is_empty() {
                return Err(cx.error(format_args!("host not found in debug_connection \"{text}\"")));
            }
            let includes = |network: Network| ClientTest(Box::new(move |client| network.includes(client)));
            cx.http.traced_clients.extend(networks.into_iter().map(includes));
            cx.http.traces = true;
            Ok(())
        },
    ),
    // About the depth of a disk queue; more reads would only wait in the kernel.
    Directive::events(
        Spec::new("epoll", "worker_aio_requests", EVENTS, Args::Exactly(1), "Maximum reads in flight in libaio, for each thread.")
            .default("32"),
        set_aio_requests,
    ),
    Directive::events(
        Spec::new("epoll", "epoll_events", EVENTS, Args::Exactly(1), "Maximum events per call of epoll_wait.")
            .default("512")
            .state(Support::Accepted("the engine sizes its table of events by itself")),
        |_, cx| cx.number(&mut 0),
    ),
    // Enough for an event-loop turn with a thousand connections; a full submission queue is submitted early.
    Directive::events(
        own(
            "ring_entries",
            Args::Exactly(1),
            "Entries of each thread's io_uring submission queue, a power of two up to 32768.",
        )
        .default("1024"),
        |events, cx| {
            // The upper bound is the kernel's (IORING_MAX_ENTRIES); the lower bound suffices for one event-loop turn of
            // one connection.
            cx.number_in(&mut events.ring_entries, 8, 32768)?;
            power_of_two(cx, 0, events.ring_entries)
        },
    ),
    // A buffer is held only from the arrival of bytes to their use, so there may be many more connections than buffers.
    Directive::events(
        own(
            "ring_recv_buffers",
            Args::Exactly(2),
            "Buffers of io_uring for bytes from clients: their number, a power of two up to 32768, and their size. Up to 256 further buffers of 16 KiB are for responses of upstreams.",
        )
        .default("1024 4k"),
        set_recv_buffers,
    ),
    // One device may occupy a quarter of the workers, enough for the queues of a fast disk. The kernel creates workers on
    // demand and ends idle workers.
    Directive::events(
        own(
            "ring_io_workers",
            Args::Exactly(1),
            "Kernel workers for operations on files, for each thread: 1 to 1024 threads.",
        )
        .default("128"),
        |events, cx| cx.number_in(&mut events.io_workers, 1, 1024),
    ),
    // With a quarter, a hanging disk leaves three quarters of the workers to other disks.
    Directive::events(
        own(
            "device_share",
            Args::Exactly(1),
            "Operations on one device may occupy 1/N of the workers or pool threads; 1 means all.",
        )
        .default("4"),
        |events, cx| cx.number_in(&mut events.device_share, 1, 1024),
    ),
    // Memory is allocated and freed in pieces of a megabyte; this is the limit of a thread.
    Directive::events(
        own("buffer_pool", Args::Exactly(1), "Maximum bytes of buffers for each thread. If a cgroup limits memory, the default is lower: a quarter of it for all threads.").default("256m"),
        set_buffer_pool,
    ),
    // Below this size, pinning pages costs more than copying them.
    Directive::events(
        own(
            "zero_copy",
            Args::Exactly(1),
            "Sends of at least this size are zero-copy, except on loopback; `off` copies always.",
        )
        .default("16k"),
        |events, cx| {
            // Zero means "always", so `off` is a separate keyword to avoid confusion.
            let off = cx.arg(0).eq_ignore_ascii_case("off");
            events.zero_copy = if off { None } else { Some(cx.statement.value(0, value::size)?) };
            Ok(())
        },
    ),
    // Below this size, two system calls cost more than copying the bytes.
    Directive::events(
        own(
            "splice",
            Args::Exactly(1),
            "Bodies of which at least this many bytes have not arrived yet are passed from an upstream to a client by splice(2), unless they are changed or stored; so are the bytes of busy tunnels and sessions of `stream`. `off` copies always.",
        )
        .default("16k"),
        |events, cx| {
            let off = cx.arg(0).eq_ignore_ascii_case("off");
            events.splice = if off { None } else { Some(cx.statement.value(0, value::size)?) };
            Ok(())
        },
    ),
    // Turned off to measure or test the engines themselves, because reads of resident files would not reach them.
    Directive::events(
        own(
            "try_cached",
            Args::Flag,
            "Opens and reads resident files by direct calls that cannot block; the engine does all other operations.",
        )
        .default("on"),
        |events, cx| cx.flag(&mut events.try_cached),
    ),
    // The engine parses the text, so that faults and their names are defined only there.
    Directive::events(
        own("engine_fault", Args::AtLeast(1), "Faults that the engine injects, for tests; one rule for each directive (docs/engines.md).")
            .many(),
        add_fault,
    ),
];

/// Adds rules for faults. They are checked here, because a worker with an invalid rule could not start.
fn add_fault(events: &mut EventsConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let rules = cx.statement.texts().collect::<Vec<_>>().join(" ");
    io::fault::FaultPlan::parse(&rules).map_err(|error| {
        let what = format!("\"engine_fault\" directive: {}", error.kind);
        Error::at(cx.statement, what)
    })?;
    events.faults.push(rules);
    Ok(())
}

/// Sets the method. nginx has more methods; on Linux these two suffice.
fn set_method(events: &mut EventsConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    events.method = Some(match cx.arg(0) {
        "io_uring" => Method::Uring,
        "epoll" => Method::Epoll,
        other => {
            let message = format_args!("invalid event type \"{other}\"; there are io_uring and epoll");
            return Err(cx.error(message));
        }
    });
    Ok(())
}

/// Sets `worker_connections`; zero would reject every client.
fn set_worker_connections(events: &mut EventsConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let count = value::number(text).ok().and_then(|count| u32::try_from(count).ok());
    events.worker_connections = count.filter(|&count| count > 0).ok_or_else(|| {
        cx.error(format_args!("invalid number \"{text}\"")).advise("it takes a whole number, such as 1024")
    })?;
    Ok(())
}

/// Sets `worker_aio_requests`. The upper bound is that of io_setup(2) on common systems (`fs.aio-max-nr`).
fn set_aio_requests(events: &mut EventsConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    cx.number_in(&mut events.aio_requests, 1, 65536)
}

/// Sets `ring_recv_buffers`. io_uring requires a power of two (io_uring_register_buf_ring(3)).
fn set_recv_buffers(events: &mut EventsConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let (count, bytes) = cx.statement.buffers()?;
    if count > 32768 {
        return Err(cx.invalid(cx.arg(0)));
    }
    // Between the size of a usual request line and the largest buffer of the pool.
    if !(512..=1 << 20).contains(&bytes) {
        return Err(cx.invalid(cx.arg(1)));
    }
    events.recv_buffers = (count as u32, bytes as u32);
    power_of_two(cx, 0, events.recv_buffers.0)
}

/// Sets `buffer_pool`, which has only a lower bound, because the available memory is unknown here.
fn set_buffer_pool(events: &mut EventsConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let bytes = cx.statement.value(0, value::offset)?;
    if bytes < BUFFER_POOL_MIN {
        return Err(cx.error(format_args!("value must be equal to or greater than {BUFFER_POOL_MIN}")));
    }
    events.buffer_pool = Some(usize::try_from(bytes).map_err(|_| cx.invalid(cx.arg(0)))?);
    Ok(())
}

/// Checks for a power of two. The kernel would round up silently, and the configured number would be misleading.
fn power_of_two(cx: &Cx<'_>, index: usize, number: u32) -> Result<(), Error> {
    match number.is_power_of_two() {
        true => Ok(()),
        false => Err(cx.error(format_args!("\"{}\" is not a power of two", cx.arg(index)))),
    }
}
