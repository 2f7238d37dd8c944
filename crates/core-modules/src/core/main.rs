//! The directives of `main`.

use std::sync::Arc;
use std::time::Duration;

use conf::value::{self, ValueError};
use conf::{Args, Contexts, Error, Spec};

use crate::core::load_module;
use crate::log::use_socket;
use crate::{Directive, Walk};
use site::config::Cx;
use site::settings::main::{Affinity, MainConf, Sandbox, ThreadPoolSpec, UserSpec, Workers, started_as_root};
use site::uses::FileUse;
use telemetry::syslog::Peer;
use telemetry::{ErrorLog, ErrorTarget, Form, Level, LogKind, Target};

const fn nginx(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("nginx", name, Contexts::MAIN, args, help)
}

pub(super) const DIRECTIVES: &[Directive] = &[
    // The default is nginx's compiled-in user. The master handles a missing group.
    Directive::main(
        nginx("user", Args::Between(1, 2), "User and group of the worker, if the master runs as root.")
            .default("nobody nobody"),
        set_user,
    ),
    // Threads of one process here; each thread does the work of an nginx worker process.
    Directive::main(
        nginx("worker_processes", Args::Exactly(1), "Number of worker threads; `auto` is one for each CPU.")
            .default("1"),
        set_workers,
    ),
    // A thread without a mask uses the last one, as in nginx.
    Directive::main(
        nginx("worker_cpu_affinity", Args::AtLeast(1), "CPUs that each thread is bound to, as masks."),
        set_affinity,
    ),
    // All threads share one descriptor table, so the process gets this number times the number of threads.
    Directive::main(
        nginx("worker_rlimit_nofile", Args::Exactly(1), "Maximum number of open files for each thread."),
        |main, cx| cx.set(&mut main.worker_rlimit_nofile, |text| value::number(text).map(Some)),
    ),
    // Without it the limit of the master's environment applies.
    Directive::main(
        nginx("worker_rlimit_core", Args::Exactly(1), "Maximum size of a core file."),
        |main, cx| cx.set(&mut main.worker_rlimit_core, |text| value::offset(text).map(Some)),
    ),
    // Set in the worker before it drops privileges, because a negative value needs them.
    Directive::main(
        nginx("worker_priority", Args::Exactly(1), "Scheduling priority, a nice value.").default("0"),
        |main, cx| cx.set(&mut main.worker_priority, priority),
    ),
    // Load balancers notice within a few checks that this server is about to shut down.
    Directive::main(
        Spec::new(
            "ringroad",
            "shutdown_delay",
            Contexts::MAIN,
            Args::Exactly(1),
            "Time before a graceful shutdown in which `health ready` fails and connections are closed after their next response.",
        )
        .default("0"),
        |main, cx| cx.milliseconds(&mut main.shutdown_delay),
    ),
    // Without it a connection may keep a retired worker alive for any time.
    Directive::main(
        nginx(
            "worker_shutdown_timeout",
            Args::Exactly(1),
            "Time after which a retired worker closes its remaining connections.",
        ),
        |main, cx| {
            let milliseconds = cx.statement.value(0, value::milliseconds)?;
            main.worker_shutdown_timeout = Some(Duration::from_millis(milliseconds));
            Ok(())
        },
    ),
    // Only core dumps of the kernel use this directory; relative paths start from the prefix.
    Directive::main(nginx("working_directory", Args::Exactly(1), "The directory of core files."), |main, cx| {
        main.working_directory = Some(cx.path(cx.arg(0), FileUse::Master));
        Ok(())
    }),
    // Process supervisors need `daemon off`.
    Directive::main(nginx("daemon", Args::Flag, "Runs in the background.").default("on"), |main, cx| {
        cx.flag(&mut main.daemon)
    }),
    // Off is for debugging: nothing restarts a worker that crashed.
    Directive::main(
        nginx("master_process", Args::Flag, "Runs a worker process under a master.").default("on"),
        |main, cx| cx.flag(&mut main.master_process),
    ),
    // Written once every socket listens, so that clients can connect as soon as the file exists.
    Directive::main(
        nginx("pid", Args::Exactly(1), "The file with the master's process ID.")
            .default("logs/nginx.pid"),
        |main, cx| {
            // As in nginx an empty name is the default.
            if !cx.arg(0).is_empty() {
                main.pid = cx.path(cx.arg(0), FileUse::Master);
            }
            Ok(())
        },
    ),
    // As in nginx, `load_module` must precede all blocks.
    Directive::main(
        nginx("load_module", Args::Exactly(1), "A module file: ignored, or an error if it is needed.")
            .many()
            .state(conf::Support::Differs("modules are built in")),
        |_, cx| load_module::read(cx),
    ),
    Directive::nothing(
        nginx("lock_file", Args::Exactly(1), "The file that workers lock.").default("logs/nginx.lock"),
        "threads need no lock file",
    ),
    // Workers retain only TZ and the variables named here, as in nginx.
    Directive::main(
        nginx("env", Args::Exactly(1), "An environment variable that workers retain or get.").many(),
        |main, cx| {
            let (name, value) = match cx.arg(0).split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (cx.arg(0), None),
            };
            main.env.push((name.to_owned(), value));
            Ok(())
        },
    ),
    // Both keywords are checked, so that a misspelt one is rejected here as in nginx.
    Directive::main(
        nginx("debug_points", Args::Exactly(1), "The reaction to an internal fault: stop or abort.")
            .state(conf::Support::Accepted("an internal fault ends the request that caused it")),
        |_, cx| cx.set(&mut (), value::choice(&[("stop", ()), ("abort", ())])),
    ),
    // nginx reduces clock calls with it; this server reads the clock only once per event-loop turn.
    Directive::main(
        nginx("timer_resolution", Args::Exactly(1), "How often the clock is read.")
            .state(conf::Support::Accepted("the clock is read once in each event-loop turn")),
        |_, cx| cx.milliseconds(&mut Duration::default()),
    ),
    // Several logs are possible, each with its own level.
    Directive::main(
        Spec::new(
            "log",
            "error_log",
            Contexts::MAIN,
            Args::AtLeast(1),
            "Target of error messages, their minimum level (`debug` traces each request), and `format=json` for JSON lines.",
        )
        .many()
        .default("logs/error.log error"),
        |main, cx| read_error_log(&mut main.error_log, cx),
    ),
    // The pool `default` exists implicitly, and may be redefined.
    Directive::main(
        Spec::new(
            "thread_pool",
            "thread_pool",
            Contexts::MAIN,
            Args::Between(2, 3),
            "A pool of threads for operations on files.",
        )
        .many()
        .default("default threads=32 max_queue=65536"),
        add_thread_pool,
    ),
    // Off as in nginx: some systems forbid memory that is writable and executable.
    Directive::main(
        Spec::new("regex", "pcre_jit", Contexts::MAIN, Args::Flag, "Compiles regular expressions to machine code.")
            .default("off"),
        |main, cx| cx.flag(&mut main.pcre_jit),
    ),
    // A reload that needs other restrictions starts a new process.
    Directive::main(
        Spec::new(
            "ringroad",
            "sandbox",
            Contexts::MAIN,
            Args::Exactly(1),
            "Whether the kernel restricts workers to what the configuration needs: `on`, `strict` or `off`.",
        )
        .default("on"),
        |main, cx| {
            const MODES: &[(&str, Sandbox)] =
                &[("off", Sandbox::Off), ("on", Sandbox::On), ("strict", Sandbox::Strict)];
            cx.choice(&mut main.sandbox, MODES)?;
            main.sandbox_position = Some(cx.statement.span().clone());
            main.is_unrestricted = main.sandbox == Sandbox::Off;
            Ok(())
        },
    ),
    // For symbolic links out of a root, and for paths that a variable without known values determines.
    Directive::main(
        Spec::new(
            "ringroad",
            "sandbox_path",
            Contexts::MAIN,
            Args::Between(1, 2),
            "A file or directory that `sandbox` permits in addition, for reading, or with `rw` for writing too.",
        )
        .many(),
        |_, cx| {
            let file_use = match cx.statement.args.get(1) {
                None => FileUse::Read,
                Some(_) => cx.statement.value(1, value::choice(&[("rw", FileUse::Write)]))?,
            };
            cx.path(cx.arg(0), file_use);
            Ok(())
        },
    ),
    Directive::walk(
        Spec::new("event", "events", Contexts::MAIN, Args::None, "Settings of connections and engines.")
            .block(Contexts::EVENTS),
        Walk::Events,
    ),
    Directive::walk(
        Spec::new("http", "http", Contexts::MAIN, Args::None, "The HTTP server.").block(Contexts::HTTP),
        Walk::Http,
    ),
];

/// Number of bits in `cpu_set_t` of sched_setaffinity(2).
const CPUS_MAX: usize = 1024;

/// Sets the user. The master resolves the names, because only it can change users.
fn set_user(main: &mut MainConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    if !started_as_root() {
        cx.warn(
            "the \"user\" directive makes sense only if the master process runs with super-user privileges, ignored",
        );
    }
    let group = cx.statement.args.get(1).map(|word| word.text.clone());
    main.user =
        Some(UserSpec { user: cx.arg(0).to_owned(), group, position: Some(cx.statement.span().clone()) });
    Ok(())
}

fn set_workers(main: &mut MainConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    cx.set(&mut main.workers, |text| match text {
        // The number is computed when the threads start, because the CPUs of a process may be restricted.
        "auto" => Ok(Workers::Auto),
        // Zero threads could serve no request.
        _ => match value::number(text).ok().and_then(|count| u32::try_from(count).ok()) {
            Some(count) if count > 0 => Ok(Workers::Count(count)),
            _ => Err(ValueError::Invalid),
        },
    })
}

/// Parses `auto [mask]`, or a mask for each thread.
fn set_affinity(main: &mut MainConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let texts: Vec<&str> = cx.statement.texts().collect();
    main.affinity = match texts.as_slice() {
        ["auto"] => Affinity::Auto(None),
        ["auto", mask] => Affinity::Auto(Some(cpus(mask, cx)?)),
        // The table allows any number of masks, but `auto` accepts at most one.
        ["auto", ..] => {
            return Err(cx.error("invalid number of arguments in \"worker_cpu_affinity\" directive"));
        }
        masks => Affinity::Sets(masks.iter().map(|mask| cpus(mask, cx)).collect::<Result<_, _>>()?),
    };
    Ok(())
}

/// Returns the CPUs of a mask such as `0101`, whose last digit is CPU 0.
fn cpus(mask: &str, cx: &Cx<'_>) -> Result<Vec<usize>, Error> {
    if let Some(wrong) = mask.chars().find(|digit| !matches!(digit, '0' | '1')) {
        return Err(cx.error(format_args!("invalid character \"{wrong}\" in \"worker_cpu_affinity\"")));
    }
    // The kernel does not accept a longer mask.
    if mask.len() > CPUS_MAX {
        return Err(cx.error(format_args!("\"worker_cpu_affinity\" supports up to {CPUS_MAX} CPUs only")));
    }
    let bits = mask.bytes().rev().enumerate();
    Ok(bits.filter(|(_, digit)| *digit == b'1').map(|(cpu, _)| cpu).collect())
}

/// Parses a nice value with an optional sign; the kernel bounds it.
fn priority(text: &str) -> Result<i32, ValueError> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let value = i32::try_from(value::number(digits)?).map_err(|_| ValueError::InvalidNumber)?;
    Ok(if text.starts_with('-') { -value } else { value })
}

/// Parses the numbers as nginx does: `threads` is required, the queue is not.
fn add_thread_pool(main: &mut MainConf, cx: &mut Cx<'_>) -> Result<(), Error> {
    let name = cx.arg(0);
    if main.thread_pools.iter().any(|pool| pool.name == name) {
        return Err(cx.error(format_args!("duplicate thread pool \"{name}\"")));
    }
    // The queue has a default, `threads` has none, so that a missing value is detected.
    let mut pool = ThreadPoolSpec { name: name.to_owned(), threads: 0, ..ThreadPoolSpec::default() };
    for text in cx.statement.texts().skip(1) {
        let number = |digits| value::number(digits).ok().and_then(|number| u32::try_from(number).ok());
        if let Some(digits) = text.strip_prefix("threads=") {
            let threads = number(digits).filter(|&threads| threads > 0);
            pool.threads =
                threads.ok_or_else(|| cx.error(format_args!("invalid threads value \"{text}\"")))?;
        } else if let Some(digits) = text.strip_prefix("max_queue=") {
            let max_queue = number(digits);
            pool.max_queue =
                max_queue.ok_or_else(|| cx.error(format_args!("invalid max_queue value \"{text}\"")))?;
        } else {
            // nginx ignores an unknown parameter silently.
            cx.warn(format_args!("invalid parameter \"{text}\", ignored"));
        }
    }
    // Checked at the end, because the arguments may have any order.
    if pool.threads == 0 {
        return Err(cx.error("\"thread_pool\" must have \"threads\" parameter"));
    }
    main.thread_pools.push(pool);
    Ok(())
}

/// Parses `error_log target [level …] [format=text|json]`, for the process and for blocks of `http`.
pub(crate) fn read_error_log(log: &mut ErrorLog, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    // As in nginx an empty name is the standard error stream.
    let target = if matches!(text, "stderr" | "") {
        Target::Stderr
    } else if text.starts_with("memory:") {
        // nginx supports such a log only in builds with debug support, which this server does not have.
        return Err(cx.error("nginx was built without debug support"));
    } else if let Some(options) = text.strip_prefix("syslog:") {
        let peer = Peer::parse(options, &cx.http.hostname).map_err(|fault| cx.error(fault))?;
        use_socket(&peer, cx);
        Target::Syslog(Arc::new(peer))
    } else {
        Target::File(cx.path(text, FileUse::Master))
    };
    let (mut level, mut form) = (None, None);
    for name in cx.statement.texts().skip(1) {
        // Ringroad's own parameter. It is recognised by its name, so it may be at any position.
        if let Some(name) = name.strip_prefix("format=") {
            let known = Form::NAMES.iter().find(|(known, _)| *known == name);
            let found = known.ok_or_else(|| cx.error(format_args!("invalid error log format \"{name}\"")))?;
            if form.replace(found.1).is_some() {
                return Err(cx.error("duplicate error log format"));
            }
            continue;
        }
        let debug_part = name.strip_prefix("debug_").is_some_and(|part| DEBUG_PARTS.contains(&part));
        let known = Level::NAMES.iter().find(|(known, _)| *known == name).map(|(_, level)| *level);
        let found = known.or(debug_part.then_some(Level::Debug));
        let found = found.ok_or_else(|| cx.error(format_args!("invalid log level \"{name}\"")))?;
        // nginx accepts one level, or several subsets of `debug`. Another level with a subset is a contradiction.
        match level {
            Some(Level::Debug) if debug_part => {}
            Some(_) if debug_part => return Err(cx.error(format_args!("invalid log level \"{name}\""))),
            Some(_) => return Err(cx.error(format_args!("duplicate log level \"{name}\""))),
            None => level = Some(found),
        }
    }
    let id = cx.http.targets.intern(LogKind::Error, &target);
    // nginx's default level is `error`.
    let (level, form) = (level.unwrap_or(Level::Error), form.unwrap_or_default());
    cx.http.traces |= level == Level::Debug;
    log.targets.make_mut(cx.block).push(ErrorTarget { target, id, level, form });
    Ok(())
}

/// Subsets of nginx's debug log; here each means the complete log.
const DEBUG_PARTS: [&str; 7] = ["core", "alloc", "mutex", "event", "http", "mail", "stream"];
