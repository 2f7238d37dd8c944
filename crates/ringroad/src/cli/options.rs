//! The command line as one table: `-h`, each `--help`, the manual page and the shell completions are generated from the
//! table, and [`read`] parses the arguments of a command by it.
//!
//! nginx's options are in the table as [`LETTERS`], only for the texts: `letters` parses them as nginx does. `bench`
//! parses its own arguments.

use std::ffi::{OsStr, OsString};
use std::fmt;

/// A command: the first argument of `ringroad`, without a dash.
#[derive(Debug)]
pub(crate) struct Command {
    /// Name of the command.
    pub(crate) name: &'static str,
    /// Summary in one line, without a full stop.
    pub(crate) summary: &'static str,
    /// Description for `--help` and the manual page; paragraphs are separated by an empty line.
    pub(crate) about: &'static str,
    /// Arguments without a dash, in order; optional ones are last.
    pub(crate) operands: &'static [Operand],
    /// Options, without `--help`, which every command has.
    pub(crate) options: &'static [Opt],
    /// Exit statuses. Status 2 is a usage error for every command and needs no row.
    pub(crate) exits: &'static [(u8, &'static str)],
    /// Example command lines, without the program name.
    pub(crate) examples: &'static [&'static str],
}

/// An argument without a dash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    /// Name in texts.
    pub(crate) name: &'static str,
    /// Whether it is required.
    pub(crate) needed: bool,
    /// Shell completion.
    pub(crate) hint: Hint,
}

/// An argument with a dash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opt {
    /// Short name, e.g. `H` of `-H`.
    pub(crate) letter: Option<char>,
    /// Long name, without dashes.
    pub(crate) long: Option<&'static str>,
    /// Its value.
    pub(crate) value: Value,
    /// Description of its effect, without a full stop.
    pub(crate) help: &'static str,
}

/// The value of an option.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// No value.
    No,
    /// A required value: its name and shell completion.
    Needed(&'static str, Hint),
    /// An optional value.
    Optional(&'static str, Hint),
}

/// The kind of a shell completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// None: the value is free text.
    Nothing,
    /// File names.
    File,
    /// Directory names.
    Directory,
    /// One of these words.
    Words(&'static [&'static str]),
}

/// Returns an option without a value.
const fn flag(long: &'static str, help: &'static str) -> Opt {
    Opt { letter: None, long: Some(long), value: Value::No, help }
}

/// Returns an option with a required value.
const fn valued(long: &'static str, name: &'static str, hint: Hint, help: &'static str) -> Opt {
    Opt { letter: None, long: Some(long), value: Value::Needed(name, hint), help }
}

/// Returns an option with only a short name.
const fn letter(letter: char, value: Value, help: &'static str) -> Opt {
    Opt { letter: Some(letter), long: None, value, help }
}

/// Returns a required operand.
const fn needed(name: &'static str, hint: Hint) -> Operand {
    Operand { name, needed: true, hint }
}

/// Returns an optional operand.
const fn optional(name: &'static str, hint: Hint) -> Operand {
    Operand { name, needed: false, hint }
}

/// `--help` of every command.
pub(crate) const HELP: Opt = flag("help", "show this help and exit");

/// The options of nginx, as the help texts show them.
pub(crate) const LETTERS: &[Opt] = &[
    letter('?', Value::No, "show this help and exit"),
    letter('h', Value::No, "show this help and exit"),
    letter('v', Value::No, "show version and exit"),
    letter('V', Value::No, "show version and configure options then exit"),
    letter('t', Value::No, "test configuration and exit"),
    letter('T', Value::No, "test configuration, dump it and exit"),
    letter('q', Value::No, "suppress non-error messages during configuration testing"),
    letter(
        's',
        Value::Needed("signal", Hint::Words(&["stop", "quit", "reopen", "reload", "upgrade"])),
        "send signal to a master process: stop, quit, reopen, reload, upgrade; the last two wait for the result, at most a minute",
    ),
    letter('p', Value::Needed("prefix", Hint::Directory), "set prefix path"),
    letter('e', Value::Needed("filename", Hint::File), "set error log file"),
    letter('c', Value::Needed("filename", Hint::File), "set configuration file"),
    letter(
        'g',
        Value::Needed("directives", Hint::Nothing),
        "set global directives out of configuration file",
    ),
];

/// Long options without a command.
pub(crate) const LONG: &[Opt] = &[
    flag("help", "show this help on standard output and exit"),
    flag("version", "show version, commit and the kernel features that the server uses, and exit"),
    flag(
        "diff",
        "test configuration and show what a reload would change in the running server (uses its admin_socket)",
    ),
    flag(
        "any-process",
        "with -s: signal the process of the pid file even if it is not ringroad, for example nginx",
    ),
    flag(
        "no-wait",
        "with -s reload and -s upgrade: exit when the signal is sent, without waiting for the result",
    ),
];

/// Shells with completions.
const SHELLS: &[&str] = &["bash", "zsh", "fish"];

/// Sort keys of `top`.
pub(super) const RANKS: &[&str] = &["rate", "bytes", "misses", "time"];

/// Filter of the requests to show.
const FILTER: Opt = letter(
    'f',
    Value::Needed("FILTER", Hint::Nothing),
    "show only requests that match; may be repeated: all must match",
);

/// The configuration that contains the path of the admin socket.
const CONF: Opt =
    letter('c', Value::Needed("FILE", Hint::File), "configuration file with the admin_socket of the server");

/// Another form of the operand FILE.
const FILE: Opt = letter('c', Value::Needed("FILE", Hint::File), "the same as FILE");

/// `--listen` of `serve` and `proxy`.
const LISTEN: Opt = valued(
    "listen",
    "ADDR",
    Hint::Nothing,
    "address to listen on: PORT (of 127.0.0.1), :PORT (all addresses), IP:PORT or [IPV6]:PORT",
);

/// `--tls` of `serve` and `proxy`.
const TLS: Opt = Opt {
    letter: None,
    long: Some("tls"),
    value: Value::Optional("NAME,...", Hint::Nothing),
    help: "serve over https, with a certificate of a local CA; with NAME, with a certificate for public names by ACME",
};

/// `--acme-directory` of `serve` and `proxy`.
const ACME_DIRECTORY: Opt = valued(
    "acme-directory",
    "URL",
    Hint::Nothing,
    "ACME directory of the CA for --tls NAME (default: that of Let's Encrypt)",
);

/// The prefix, for use with `-c`.
const PREFIX: Opt = letter('p', Value::Needed("PREFIX", Hint::Directory), "prefix path of the server");

/// The root certificates for `https`.
const CA: Opt =
    valued("ca", "FILE", Hint::File, "root certificates for an https URL (default: those of the system)");

/// No verification of certificates.
const INSECURE: Opt = flag("insecure", "do not verify the certificate of an https URL");

/// The admin socket, without a configuration.
const SOCKET: Opt = valued("socket", "PATH", Hint::File, "path of the admin socket, instead of -c");

/// Exit statuses of `drain` and `undrain`.
const DRAIN_EXITS: &[(u8, &str)] =
    &[(0, "the state was changed"), (1, "the server cannot be reached, or is shutting down")];

/// All commands, in the order of `-h`.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "serve",
        summary: "serve the files of a directory, without a configuration",
        about: "Serves the files of a directory in the foreground, on 127.0.0.1:8080 unless --listen names another address. The \
                address is printed when the server is ready. Requests and errors are logged to standard error. Symbolic links \
                to files outside the directory are not followed. Directories without an index.html are listed.",
        operands: &[needed("DIR", Hint::Directory)],
        options: &[LISTEN, TLS, ACME_DIRECTORY],
        exits: &[(0, "the server was stopped by a signal"), (1, "the server could not start")],
        examples: &["serve .", "serve site --listen :8000", "serve site --tls"],
    },
    Command {
        name: "proxy",
        summary: "pass requests on to an application, without a configuration",
        about: "Passes all requests on to an application in the foreground, from 127.0.0.1:8080 unless --listen names another \
                address. The address is printed when the server is ready. Requests and errors are logged to standard error. The \
                application gets the fields Host, X-Forwarded-For, X-Forwarded-Host and X-Forwarded-Proto; WebSocket works.",
        operands: &[],
        options: &[
            valued(
                "to",
                "TARGET",
                Hint::Nothing,
                "the application: PORT or :PORT (of 127.0.0.1), HOST:PORT, unix:PATH, or a URL with http or https",
            ),
            LISTEN,
            TLS,
            ACME_DIRECTORY,
        ],
        exits: &[(0, "the server was stopped by a signal"), (1, "the server could not start")],
        examples: &[
            "proxy --to :3000",
            "proxy --to app.internal:8080 --listen :80",
            "proxy --to :3000 --tls",
        ],
    },
    Command {
        name: "check",
        summary: "check whether an nginx configuration is supported",
        about: "Reads an nginx configuration with all included files and reports all its problems in one run: errors, and features \
                that are not supported, grouped by nginx module. A missing file, such as a certificate, does not end the report. \
                Then it tries the steps of a start as -t does: user, log files, sockets. It creates no files. Without FILE, it reads \
                the default configuration of the server.",
        operands: &[optional("FILE", Hint::File)],
        options: &[
            FILE,
            flag(
                "all",
                "list every directive with its state, and for each location the engine that sends its files",
            ),
            flag("json", "print the report as JSON"),
            letter(
                'p',
                Value::Needed("PREFIX", Hint::Directory),
                "prefix of relative paths (default: the directory of FILE)",
            ),
        ],
        exits: &[
            (0, "the configuration loads, and a start would succeed"),
            (2, "the configuration needs features that are not supported, or usage error"),
            (1, "the configuration has errors, or a start on this machine would fail"),
        ],
        examples: &["check /etc/nginx/nginx.conf"],
    },
    Command {
        name: "explain",
        summary: "show how a configuration handles a request",
        about: "Reads a configuration and shows for one request the listener, the selected server and the reason, the selected \
                location and the other candidates, rewrites, the root, the handler and the cache. The command starts no server \
                and contacts no upstream.\n\n\
                With --running or --socket, a running server explains the request through its admin_socket. It uses its loaded \
                configuration, and shows the cache entry for the request.",
        operands: &[needed("URL", Hint::Nothing)],
        options: &[
            Opt {
                letter: Some('c'),
                long: None,
                value: Value::Needed("FILE", Hint::File),
                help: "configuration file (default: the default configuration of the server)",
            },
            Opt {
                letter: Some('H'),
                long: None,
                value: Value::Needed("HEADER", Hint::Nothing),
                help: "header field of the request, such as \"Host: example.org\"; may be repeated",
            },
            Opt {
                letter: Some('X'),
                long: None,
                value: Value::Needed("METHOD", Hint::Words(&["GET", "HEAD", "POST", "PUT", "DELETE"])),
                help: "method of the request (default: GET)",
            },
            valued("from", "ADDR", Hint::Nothing, "address of the client (default: 127.0.0.1)"),
            flag("http3", "a request of HTTP/3, to an address with \"quic\""),
            flag("running", "query the running server, through the admin_socket of the configuration"),
            PREFIX,
            SOCKET,
        ],
        exits: &[(0, "the request was explained"), (1, "the request could not be explained")],
        examples: &[
            "explain -c nginx.conf http://example.org/a.png",
            "explain -c nginx.conf -X POST http://127.0.0.1:8080/api/",
            "explain --running http://example.org/a.png",
        ],
    },
    Command {
        name: "fmt",
        summary: "format a configuration",
        about: "Formats the text of a configuration: one directive per line, four spaces of indentation per block. Comments and \
                the order are preserved. Included files are not changed. The result is written to standard output, or with -w to \
                the file. FILE may be - for standard input.",
        operands: &[optional("FILE", Hint::File)],
        options: &[
            FILE,
            Opt {
                letter: Some('w'),
                long: Some("write"),
                value: Value::No,
                help: "write the result to the file",
            },
            flag("check", "do not print the result; exit with 1 if the file is not formatted"),
        ],
        exits: &[
            (0, "success; with --check: the file is formatted"),
            (1, "the file is unusable, or with --check: it is not formatted"),
            (2, "usage error, such as a missing FILE"),
        ],
        examples: &["fmt -w nginx.conf"],
    },
    Command {
        name: "lint",
        summary: "find traps in a configuration",
        about: "Reads a configuration with all included files and finds directives that are valid, but probably do not what their \
                author expects: access rules that are never read, header fields that are not inherited, paths out of a root. Each \
                finding has the name of its rule, which a comment \"# lint: allow RULE\" accepts; docs/lint.md explains the rules. \
                Errors for which -t refuses the configuration are findings too. Without FILE, it reads the default configuration of \
                the server.",
        operands: &[optional("FILE", Hint::File)],
        options: &[
            FILE,
            flag("fix", "mend the findings that have a mechanical fix, in the files"),
            valued(
                "level",
                "LEVEL",
                Hint::Words(&["note", "warning", "error"]),
                "lowest level of findings (default: note)",
            ),
            valued("rule", "RULE", Hint::Nothing, "check only this rule; may be repeated"),
            valued(
                "format",
                "FORMAT",
                Hint::Words(&["text", "json", "sarif"]),
                "form of the report (default: text)",
            ),
            flag("list", "list all rules"),
            letter(
                'p',
                Value::Needed("PREFIX", Hint::Directory),
                "prefix of relative paths (default: the directory of FILE)",
            ),
        ],
        exits: &[
            (0, "no findings, or only notes"),
            (1, "there are errors or warnings, or the configuration cannot be read"),
        ],
        examples: &[
            "lint /etc/nginx/nginx.conf",
            "lint --fix --level warning nginx.conf",
            "lint --format sarif nginx.conf",
        ],
    },
    Command {
        name: "engines",
        summary: "show which I/O engines this machine supports",
        about: "Probes io_uring, libaio, epoll and related kernel features. For each missing one it prints the likely cause and a \
                remedy. Then it prints the engines that a server would select. If started as root, the command first changes to \
                the user of the workers.",
        operands: &[],
        options: &[
            flag("json", "print the result as JSON"),
            valued("user", "USER", Hint::Nothing, "if started as root: probe as this user (default: nobody)"),
        ],
        exits: &[(0, "success"), (1, "the probe failed")],
        examples: &["engines"],
    },
    Command {
        name: "stat",
        summary: "show metrics of a running server, updated every second",
        about: "Reads metrics of a running server from a location with the directive dashboard, and shows them every second: \
                requests, errors, times and bytes of each location, and the servers of upstream groups.\n\n\
                Without URL, the command uses the first location with dashboard in the configuration that is reachable without TLS. \
                http://unix:PATH:URI is a unix socket.",
        operands: &[optional("URL", Hint::Nothing)],
        options: &[
            letter(
                '1',
                Value::No,
                "show the metrics once, with rates since the start of the server, and exit",
            ),
            letter(
                'c',
                Value::Needed("FILE", Hint::File),
                "configuration file with a dashboard, without URL",
            ),
            PREFIX,
            CA,
            INSECURE,
        ],
        exits: &[(0, "success"), (1, "the server returned no metrics")],
        examples: &[
            "stat",
            "stat -1 http://127.0.0.1/status",
            "stat http://unix:/run/ringroad/status.sock:/status",
        ],
    },
    Command {
        name: "health",
        summary: "check whether a running server serves requests",
        about: "Makes one request, and exits with 0 if its status is 200 to 399: for health checks of containers whose image has no \
                shell. Without URL, the request is for a location of the configuration with \"health ready\", else with \
                \"health live\", at an address of its server without TLS and PROXY protocol. http://unix:PATH:URI is a unix socket.",
        operands: &[optional("URL", Hint::Nothing)],
        options: &[
            valued("timeout", "SECONDS", Hint::Nothing, "maximum time of the check (default: 5)"),
            letter('c', Value::Needed("FILE", Hint::File), "configuration file of the server, without URL"),
            PREFIX,
            CA,
            INSECURE,
        ],
        exits: &[
            (0, "the server serves"),
            (1, "the server does not serve, is drained, or does not respond in time"),
        ],
        examples: &["health", "health --timeout 2 http://127.0.0.1:8080/health"],
    },
    Command {
        name: "trust",
        summary: "make this machine trust the local CA of serve --tls",
        about: "Installs the root certificate of the local CA that serve --tls and proxy --tls use into the certificates that the \
                system trusts, by update-ca-certificates (Debian, Alpine, openSUSE) or update-ca-trust (Fedora, Arch). Run it as root. \
                ROOT is the path of root.pem; by default that of this user, or of the user who has called sudo. Chromium and Firefox \
                have certificates of their own: serve --tls prints how they trust the CA.\n\n\
                Protect root-key.pem: with this key any site can be impersonated to this machine.",
        operands: &[optional("ROOT", Hint::File)],
        options: &[flag("remove", "remove the root certificate of the user again")],
        exits: &[
            (0, "the certificate is trusted, or with --remove no longer trusted"),
            (1, "nothing was changed, or the command of the system failed"),
        ],
        examples: &["trust", "trust --remove"],
    },
    Command {
        name: "log",
        summary: "show finished requests of a running server",
        about: "Prints a line for each finished request of a running server, which it reads through the admin_socket: status, URL, \
                client, server, location, bytes and times, then the engine, the cache status with its reason, and each try at an \
                upstream. Times are in milliseconds from the first byte of the request until its header section was received, until \
                access checks were finished, until its file, cache entry or upstream response was available, and until the first \
                and the last byte of the response were sent. The server sends at most 10000 lines per second and counts the \
                omitted ones. While no command is connected, the cost of a request is the check of one flag.\n\n\
                A filter has terms of the form KEY=VALUE,VALUE or KEY!=VALUE. A request must match all terms. The keys are server, \
                location, code (404, 5xx), slower (100ms), cache (MISS), network (10.0.0.0/8) and method.",
        operands: &[],
        options: &[
            FILTER,
            letter('n', Value::Needed("COUNT", Hint::Nothing), "exit after COUNT requests"),
            flag("json", "print the requests as JSON, with times in microseconds"),
            CONF,
            PREFIX,
            SOCKET,
        ],
        exits: &[(0, "COUNT requests were shown"), (1, "the server cannot be reached, or has exited")],
        examples: &["log", "log -f 'code=5xx slower=100ms'", "log -f 'cache=MISS location=/api/' --json"],
    },
    Command {
        name: "top",
        summary: "rank URLs, clients and locations of a running server",
        about: "Reads the finished requests of a running server through its admin_socket. Every two seconds it shows the URLs, clients \
                and locations with the most requests, bytes, cache misses or time. The server sends at most 10000 requests per \
                second; the command shows the number of omitted ones.",
        operands: &[],
        options: &[
            valued("by", "RANK", Hint::Words(RANKS), "rank by rate (default), bytes, misses or time"),
            letter('n', Value::Needed("ROWS", Hint::Nothing), "number of rows of each table (default: 8)"),
            valued("every", "SECONDS", Hint::Nothing, "interval in seconds (default: 2)"),
            letter('1', Value::No, "show the tables once and exit"),
            FILTER,
            CONF,
            PREFIX,
            SOCKET,
        ],
        exits: &[(0, "success"), (1, "the server cannot be reached, or has exited")],
        examples: &["top", "top --by misses -f server=example.org", "top -1 --every 10 --by time"],
    },
    Command {
        name: "drain",
        summary: "drain a running server, for example before maintenance",
        about: "Puts a running server into the drained state, through its admin_socket. The directive health ready then returns 503, so \
                that load balancers select other servers, and each connection is closed after its next response. New connections \
                are still accepted and requests served. The state persists over reloads and new workers, until undrain or a restart.",
        operands: &[],
        options: &[CONF, PREFIX, SOCKET],
        exits: DRAIN_EXITS,
        examples: &["drain"],
    },
    Command {
        name: "undrain",
        summary: "end the drained state of a running server",
        about: "Ends the state that ringroad drain has set: health ready returns 200 again.",
        operands: &[],
        options: &[CONF, PREFIX, SOCKET],
        exits: DRAIN_EXITS,
        examples: &["undrain"],
    },
    Command {
        name: "bench",
        summary: if cfg!(feature = "bench") {
            "run benchmarks of this server, its engines and other servers"
        } else {
            "run benchmarks (not in this build; needs --features bench)"
        },
        about: "Runs benchmarks of this server, its engines, nginx and other servers, if installed. The report is one HTML file. Only \
                builds with the feature bench have this command: cargo build --release -p ringroad --features bench. In such a \
                build, ringroad bench --help shows the options.",
        operands: &[optional("SCENARIO", Hint::Nothing)],
        options: &[],
        exits: &[(0, "success"), (1, "a measurement failed")],
        examples: &["bench all --quick"],
    },
    Command {
        name: "reference",
        summary: "print the tables of directives, counters and rules of lint",
        about: "Prints all directives as Markdown, with contexts, arguments and defaults. With the argument counters, it prints all \
                metrics with their labels; with the argument lint, the rules of ringroad lint; with the argument json, all directives \
                as a JSON array for editors: name, module, contexts, syntax, default, effect, examples and nginx's documentation.",
        operands: &[optional("PAGE", Hint::Words(&["counters", "json", "lint"]))],
        options: &[],
        exits: &[(0, "success")],
        examples: &["reference counters", "reference json > directives.json"],
    },
    Command {
        name: "completions",
        summary: "print the completion script for a shell: bash, zsh or fish",
        about: "Prints a script that completes the commands and options of ringroad in this shell.",
        operands: &[needed("SHELL", Hint::Words(SHELLS))],
        options: &[],
        exits: &[(0, "success")],
        examples: &[
            "completions bash > /usr/share/bash-completion/completions/ringroad",
            "completions zsh > /usr/share/zsh/site-functions/_ringroad",
            "completions fish > /usr/share/fish/vendor_completions.d/ringroad.fish",
        ],
    },
    Command {
        name: "help",
        summary: "show help on a command or directive; help man: the manual page",
        about: "Shows the same text as COMMAND --help, or the syntax, the default, the context, the effect and examples of a directive. The \
                manual page is in mdoc format.",
        operands: &[optional("COMMAND|DIRECTIVE", Hint::Words(&["man"]))],
        options: &[],
        exits: &[(0, "success")],
        examples: &["help check", "help proxy_cache_path", "help man > /usr/share/man/man8/ringroad.8"],
    },
];

/// Returns the command with this name.
pub(crate) fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name)
}

/// The parsed arguments of a command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Operands in order.
    pub(crate) operands: Vec<OsString>,
    /// The options by their keys, in order.
    values: Vec<(&'static str, Option<OsString>)>,
}

impl Arguments {
    /// Whether the option with this name or letter is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.iter().any(|(known, _)| *known == name)
    }

    /// Returns its last value.
    pub(crate) fn value(&self, name: &str) -> Option<&OsStr> {
        self.all(name).last()
    }

    /// Returns all its values, in order.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &OsStr> {
        self.values.iter().filter(move |(known, _)| *known == name).filter_map(|(_, value)| value.as_deref())
    }

    /// Reinterprets the value of an option as an operand.
    pub(crate) fn value_as_operand(&mut self, name: &str) {
        if self.operands.is_empty() {
            let found = self.values.iter_mut().rev().find(|(known, value)| *known == name && value.is_some());
            self.operands.extend(found.and_then(|(_, value)| value.take()));
        }
    }
}

/// A usage error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misuse {
    /// `--help` was given, which is not an error.
    Help,
    /// An unknown option, and a suggestion.
    Option(String, Option<String>),
    /// An option without its value.
    NoValue(String, &'static str),
    /// A value for an option without values.
    Value(&'static str),
    /// A missing operand.
    Missing(&'static str),
    /// A surplus operand.
    TooMany(String),
    /// A shell without completions.
    Shell(String),
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::Help => f.write_str("help"),
            Misuse::Option(name, None) => write!(f, "unknown option \"{name}\""),
            Misuse::Option(name, Some(meant)) => {
                write!(f, "unknown option \"{name}\"; did you mean \"{meant}\"?")
            }
            Misuse::NoValue(name, value) => write!(f, "option \"{name}\" needs a value: {value}"),
            Misuse::Value(name) => write!(f, "option \"--{name}\" takes no value"),
            Misuse::Missing(name) => write!(f, "{name} is missing"),
            Misuse::TooMany(text) => write!(f, "unexpected argument \"{text}\""),
            Misuse::Shell(text) => write!(f, "no completions for \"{text}\": SHELL is bash, zsh or fish"),
        }
    }
}

/// Parses the arguments after the name of a command. All arguments after `--` are operands.
pub(crate) fn read(command: &'static Command, args: Vec<OsString>) -> Result<Arguments, Misuse> {
    let mut given = Arguments::default();
    let mut args = args.into_iter().peekable();
    let mut only_operands = false;
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        match text.as_str() {
            "--" if !only_operands => only_operands = true,
            _ if only_operands || text == "-" || !text.starts_with('-') => given.operands.push(arg),
            "--help" | "-h" => return Err(Misuse::Help),
            _ => {
                let (option, name, attached) = find_option(command, &text)?;
                let value = match (option.value, attached) {
                    (Value::No, None) => None,
                    (Value::No, Some(_)) => return Err(Misuse::Value(name)),
                    (Value::Needed(..) | Value::Optional(..), Some(value)) => Some(value.into()),
                    (Value::Needed(what, _), None) => {
                        Some(args.next().ok_or(Misuse::NoValue(shown(option), what))?)
                    }
                    (Value::Optional(..), None) => {
                        args.next_if(|next| !next.to_string_lossy().starts_with('-'))
                    }
                };
                given.values.push((name, value));
            }
        }
    }
    Ok(given)
}

/// Checks the number of operands.
pub(crate) fn check_operands(command: &'static Command, given: &Arguments) -> Result<(), Misuse> {
    if let Some(missing) = command.operands.iter().filter(|operand| operand.needed).nth(given.operands.len())
    {
        return Err(Misuse::Missing(missing.name));
    }
    match given.operands.get(command.operands.len()) {
        Some(surplus) => Err(Misuse::TooMany(surplus.to_string_lossy().into_owned())),
        None => Ok(()),
    }
}

/// Returns the option that an argument names, its key in [`Arguments`], and a value that is joined to it.
fn find_option(
    command: &'static Command,
    text: &str,
) -> Result<(&'static Opt, &'static str, Option<String>), Misuse> {
    let options = command.options.iter();
    let (name, attached, found) = match text.strip_prefix("--") {
        Some(rest) => {
            let (name, value) =
                rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
            (format!("--{name}"), value, options.clone().find(|option| option.long == Some(name)))
        }
        None => {
            let mut letters = text.chars();
            letters.next();
            let letter = letters.next();
            let value = Some(letters.as_str()).filter(|rest| !rest.is_empty());
            let found = options.clone().find(|option| option.letter.is_some() && option.letter == letter);
            (format!("-{}", letter.unwrap_or_default()), value, found)
        }
    };
    match found {
        Some(option) => Ok((option, option.key(), attached.map(str::to_owned))),
        None => {
            let known = options.chain([&HELP]).filter_map(|option| option.long);
            let meant =
                text.strip_prefix("--").and_then(|_| conf::similar(name.trim_start_matches('-'), known));
            Err(Misuse::Option(name, meant.map(|meant| format!("--{meant}"))))
        }
    }
}

impl Opt {
    /// Returns the key by which code refers to the option: the long name, else the letter.
    pub(crate) fn key(&self) -> &'static str {
        /// Keys are `'static`, so a letter is a slice of this text.
        const ASCII: &str =
            "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz";
        match (self.long, self.letter) {
            (Some(long), _) => long,
            (None, Some(letter)) => ASCII.find(letter).and_then(|at| ASCII.get(at..=at)).unwrap_or_default(),
            (None, None) => "",
        }
    }
}

/// Returns the option in the user's notation, without a value.
fn shown(option: &Opt) -> String {
    match (option.long, option.letter) {
        (Some(long), _) => format!("--{long}"),
        (None, letter) => format!("-{}", letter.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(name: &str, line: &str) -> Result<Arguments, String> {
        let command = find(name).expect("it is in the table");
        let args = line.split(' ').filter(|arg| !arg.is_empty()).map(OsString::from).collect();
        let read = read(command, args).and_then(|given| check_operands(command, &given).map(|()| given));
        read.map_err(|misuse| misuse.to_string())
    }

    #[test]
    fn options_and_operands_may_be_in_any_order() {
        let read = given("explain", "-HHost:a -c a.conf /x -H B:c --from=::1").expect("right");
        assert_eq!(read.operands, ["/x"]);
        assert_eq!(read.all("H").collect::<Vec<_>>(), ["Host:a", "B:c"]);
        assert_eq!((read.value("c"), read.value("from")), (Some("a.conf".as_ref()), Some("::1".as_ref())));
        assert!(!read.has("X"));
        assert_eq!(given("check", "-- --all").expect("right").operands, ["--all"]);
        assert_eq!(given("fmt", "-w -").expect("right").operands, ["-"]);
    }

    #[test]
    fn misuse_is_reported_with_a_suggestion() {
        for (name, line, text) in [
            ("check", "--jsno a", "unknown option \"--jsno\"; did you mean \"--json\"?"),
            ("check", "-x a", "unknown option \"-x\""),
            ("check", "--quux a", "unknown option \"--quux\""),
            ("check", "--json=1 a", "option \"--json\" takes no value"),
            ("explain", "", "URL is missing"),
            ("check", "a b", "unexpected argument \"b\""),
            ("explain", "/ -c", "option \"-c\" needs a value: FILE"),
            ("serve", ". --listen", "option \"--listen\" needs a value: ADDR"),
            ("fmt", "--help", "help"),
        ] {
            assert_eq!(given(name, line), Err(text.to_owned()), "{name} {line}");
        }
    }

    #[test]
    fn the_table_of_options_is_consistent() {
        for command in COMMANDS {
            assert!(command.summary.len() < 64 && !command.summary.ends_with('.'), "{}", command.name);
            assert!(!command.about.is_empty() && !command.examples.is_empty(), "{}", command.name);
            let keys: Vec<_> = command.options.iter().map(Opt::key).collect();
            assert!(keys.iter().all(|key| !key.is_empty() && *key != "help"), "{}", command.name);
            assert!(command.operands.windows(2).all(|pair| pair[0].needed || !pair[1].needed));
        }
    }
}
