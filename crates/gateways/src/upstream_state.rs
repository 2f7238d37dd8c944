//! `state` in an upstream block: a file with the servers of the group, to which changes through `api` are written.
//!
//! The file contains only `server` directives with their parameters. It is read with the configuration and replaces `server` in the
//! block; a missing file means an empty group.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use conf::{Args, Contexts, Error, MapLoader, Source, Spec};

use crate::upstream_block::add_server;
use crate::{Declaration, Directive, Module};
use exchange::error_log;
use exchange::thread::Thread;
use peers::Group;
use peers::lines::Draft;
use rt::HelperPool;
use site::config::{Cx, Scope};
use site::declaration::OWN;
use site::uses::FileUse;
use telemetry::{Level, Reason};
use transfer::replaced_file;

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("upstream_state") });

/// Maximum number of threads that write the files; each group has one file.
const STATE_FILE_THREADS_MAX: usize = 8;

/// Mode of the files: other users may read the addresses of servers.
const MODE: u32 = 0o644;

/// The threads that write the files.
static STATE_FILES: LazyLock<HelperPool> =
    LazyLock::new(|| HelperPool::new("upstream-state", STATE_FILE_THREADS_MAX));

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        OWN,
        "state",
        Contexts::UPSTREAM,
        Args::Exactly(1),
        "A file with the servers of the group, instead of `server`; changes through `api` are written to it.",
    ),
    read,
)];

fn read(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let path = cx.path(cx.arg(0), FileUse::WriteFile);
    if !scope.of::<Draft>().lines.is_empty() {
        return Err(cx.error("\"state\" directive is incompatible with \"server\""));
    }
    let text = cx.read_written(&path)?;
    read_servers(scope, cx, &path, &text)?;
    scope.make_mut::<Draft>().state = Some(path);
    Ok(())
}

/// Adds the servers of the file, as if they were in the block.
fn read_servers(scope: &mut Scope, cx: &mut Cx<'_>, path: &Path, text: &[u8]) -> Result<(), Error> {
    let loader: MapLoader = [(path.to_owned(), text)].into_iter().collect();
    let tree = conf::parse(&Source::new(path), &loader)?;
    for statement in &tree.statements {
        if let Some(fault) = statement.fault() {
            return Err(fault.clone());
        }
        let mut cx = cx.at(statement);
        if statement.name.text != "server" || statement.block.is_some() || statement.args.is_empty() {
            return Err(cx.error("a file of \"state\" may have only \"server\" directives"));
        }
        add_server(scope, &mut cx)?;
    }
    Ok(())
}

/// Writes the servers of a group to its file, if it has one, after the caller has changed them.
pub async fn save(group: &Arc<Group>, thread: &Thread) {
    let Some(path) = &group.state_file else { return };
    // Another thread may change the group during the write: the file is written again until it matches the group.
    loop {
        let text = group.state_text();
        let (to, bytes) = (path.clone(), text.clone().into_bytes());
        let done = STATE_FILES.run(move || replaced_file::replace(&to, &bytes, MODE)).await;
        let failed = match done {
            Some(Ok(())) if group.state_text() == text => return,
            Some(Ok(())) => continue,
            Some(Err(error)) => error,
            None => std::io::Error::from(ErrorKind::Other),
        };
        let reason = Reason(io::Errno::from_io_error(&failed).unwrap_or(io::Errno::IO));
        let path = path.display();
        error_log::write(
            thread,
            Level::Error,
            format_args!(
                "the state of upstream \"{}\" was not written to \"{path}\" ({reason}): changes last until the next reload",
                group.name
            ),
        );
        return;
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, load, load_with};
    use peers::Upstreams;

    const CONF: &str =
        "http {\nupstream a { state a.state; } server { location / { proxy_pass http://a; } } }";

    /// Returns the text that would be written for a group that was read from this text.
    fn again(text: &str) -> String {
        let loaded = load_with(CONF, &[("/prefix/a.state", text)]);
        let loaded = loaded.unwrap_or_else(|error| panic!("{text}: {error}"));
        loaded.config.http.of::<Upstreams>().groups().next().expect("there is one").state_text()
    }

    #[test]
    fn written_state_is_read_back_unchanged() {
        let text = "server 127.0.0.1:81;\n\
            server 127.0.0.2:82 weight=5 max_conns=7 max_fails=3 fail_timeout=1m slow_start=2s route=x backup down;\n\
            server unix:/a.sock drain;\nserver [::1]:83 max_fails=0;\n\
            server \"unix:/my app;x.sock\" \"route=a b\";\n";
        let written = again(text);
        assert_eq!(
            written,
            text.replace("fail_timeout=1m", "fail_timeout=60s").replace("slow_start=2s", "slow_start=2000ms")
        );
        assert_eq!(again(&written), written);
        assert_eq!(again(""), "");
    }

    #[test]
    fn a_missing_file_is_an_empty_group() {
        let config = load(CONF).expect("it is accepted").config;
        let group = config.http.of::<Upstreams>().groups().next().expect("there is one");
        assert!(group.peers(std::time::Instant::now()).is_empty() && group.state_file.is_some());
    }

    #[test]
    fn wrong_files_are_refused_with_their_line() {
        for (text, expected) in [
            (
                "server 127.0.0.1:81;\nserver a weight=0;",
                "invalid parameter \"weight=0\" in /prefix/a.state:2",
            ),
            ("keepalive 5;", "a file of \"state\" may have only \"server\" directives in /prefix/a.state:1"),
            ("server", "unexpected end of file"),
        ] {
            let found = load_with(CONF, &[("/prefix/a.state", text)]).expect_err(text).to_string();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
        let both = "\"state\" directive is incompatible with \"server\" in /conf/nginx.conf:2";
        assert_eq!(error("http { upstream a { server 127.0.0.1;\nstate x; } }"), both);
        assert_eq!(error("http { upstream a { state x;\nserver 127.0.0.1; } }"), both);
    }
}
