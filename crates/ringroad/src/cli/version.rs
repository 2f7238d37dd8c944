//! Version, modules and usage: the texts that tools read.

use crate::places::{DEFAULT_CONF, DEFAULT_ERROR_LOG, DEFAULT_PID, DEFAULT_PREFIX};

/// The nginx whose directives and behaviour are the reference.
const REFERENCE: &str = "1.31.5";

/// The first line of `-v` and `-V`. Tools match `nginx/` and the number behind it.
pub(crate) fn version_line() -> String {
    format!("nginx version: nginx/{REFERENCE} (ringroad/{})\n", env!("CARGO_PKG_VERSION"))
}

/// The last line of `-V`: where things are and which modules are there, in the words of nginx's configure script.
pub(crate) fn configure_line() -> String {
    let modules = crate::site::configure_arguments().join(" ");
    format!(
        "configure arguments: --prefix={} --conf-path={DEFAULT_CONF} --pid-path={DEFAULT_PREFIX}{DEFAULT_PID} \
         --error-log-path={DEFAULT_PREFIX}{DEFAULT_ERROR_LOG} {modules}\n",
        DEFAULT_PREFIX.trim_end_matches('/'),
    )
}

/// The text of `-h`.
pub(crate) fn usage() -> String {
    format!(
        "Usage: ringroad [-?hvVtTq] [-s signal] [-p prefix]
                [-e filename] [-c filename] [-g directives]
       ringroad serve DIR [--listen ADDR] [--tls [NAME,...]]
                [--acme-directory URL]
       ringroad check FILE
       ringroad engines [--json]
       ringroad stat [-1] URL
       ringroad reference [counters]

Options:
  -?,-h         : this help
  -v            : show version and exit
  -V            : show version and configure options then exit
  -t            : test configuration and exit
  -T            : test configuration, dump it and exit
  -q            : suppress non-error messages during configuration testing
  -s signal     : send signal to a master process: stop, quit, reopen, reload
  -p prefix     : set prefix path (default: {DEFAULT_PREFIX})
  -e filename   : set error log file (default: logs/error.log below the prefix)
  -c filename   : set configuration file (default: {DEFAULT_CONF},
                  with -p: conf/nginx.conf below the prefix)
  -g directives : set global directives out of configuration file

Commands:
  serve DIR     : serve the files of a directory, without a configuration;
                  with --tls over https, by a local certificate authority,
                  or with public names by one that speaks ACME
  check FILE    : show the state of each directive of an nginx configuration
  engines       : show the I/O engines of this machine
  stat URL      : show the numbers of a running server, once a second; the URL
                  is that of its dashboard
  reference     : print all directives, or all counters, as Markdown

"
    )
}
