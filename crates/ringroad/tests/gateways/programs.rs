//! Installed application servers; they are stopped when dropped.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, test_kill_process_group, waitid,
};
use testkit::{Deadline, wait};

/// A running program.
pub(crate) struct Program {
    child: Child,
    /// File with its standard output and standard error.
    log: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        // After SIGKILL it would leave sockets and files behind.
        let _ = kill_process(pid, Signal::TERM);
        // Until it is reaped, no other process group gets its ID. uWSGI sometimes waits for itself in its signal handler.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = || waitid(WaitId::Pid(pid), options).ok().flatten();
        let _ = wait::until("the end", Deadline::default(), ended);
        // fcgiwrap does not stop its children.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts it, and waits for its socket, to which every user may then connect.
    fn start(mut command: Command, socket: &Path) -> Program {
        let log = socket.with_extension("log");
        let file = std::fs::File::create(&log).expect("the directory is writable");
        let second = file.try_clone().expect("a descriptor");
        command.stdin(Stdio::null()).stdout(file).stderr(second).process_group(0);
        let child = command.spawn().expect("it is a program");
        let program = Program { child, log };
        let listens = || std::os::unix::net::UnixStream::connect(socket).ok();
        wait::until("an application server", Deadline::default(), listens)
            .unwrap_or_else(|late| panic!("{late}: {command:?}\n{}", program.output()));
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).expect("it is ours");
        program
    }

    /// Stops it; panics if one of its children is still running.
    pub(crate) fn end(self) {
        let group = Pid::from_child(&self.child);
        drop(self);
        // A killed process belongs to the group until init has reaped it.
        let is_over = || test_kill_process_group(group).is_err().then_some(());
        wait::until("the end of all children", Deadline::default(), is_over)
            .unwrap_or_else(|late| panic!("{late}"));
    }

    /// Returns its output so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Returns the first of these files that exists; if none does, prints the package to install.
fn installed(paths: &[&str], package: &str) -> Option<PathBuf> {
    let found = paths.iter().map(PathBuf::from).find(|path| path.exists());
    if found.is_none() {
        testkit::skip(format_args!("{} is not installed (apt-get install {package})", paths[0]));
    }
    found
}

/// Starts Debian's php-fpm with this configuration, which must listen on the socket. Its temporary files are in the same directory:
/// other users may not be allowed to write to `/tmp`.
pub(crate) fn php_fpm(conf: &Path, socket: &Path) -> Option<Program> {
    let paths = ["/usr/sbin/php-fpm8.2", "/usr/sbin/php-fpm8.3", "/usr/sbin/php-fpm8.4"];
    let mut command = Command::new(installed(&paths, "php-fpm")?);
    let folder = socket.parent().expect("it is an absolute path");
    command.args(["-R", "-F", "-y"]).arg(conf);
    command.arg("-d").arg(format!("sys_temp_dir={}", folder.display()));
    Some(Program::start(command, socket))
}

/// Starts Debian's uWSGI with this Python module in the directory.
pub(crate) fn uwsgi(folder: &Path, module: &str, socket: &Path) -> Option<Program> {
    let program = installed(&["/usr/bin/uwsgi-core"], "uwsgi-core uwsgi-plugin-python3")?;
    let plugins = "/usr/lib/uwsgi/plugins";
    installed(&[&format!("{plugins}/python3_plugin.so")], "uwsgi-plugin-python3")?;
    let mut command = Command::new(program);
    command.args(["--plugins-dir", plugins, "--plugin", "python3", "--die-on-term", "--need-app"]);
    command.args(["--module", module, "--threads", "2", "--chmod-socket=666"]);
    command.arg("--chdir").arg(folder).arg("--socket").arg(socket);
    Some(Program::start(command, socket))
}

/// Returns whether Debian's Flask is installed, which uWSGI's Python finds.
pub(crate) fn has_flask() -> bool {
    installed(&["/usr/lib/python3/dist-packages/flask/__init__.py"], "python3-flask").is_some()
}

/// Starts Debian's fcgiwrap, which runs CGI scripts.
pub(crate) fn fcgiwrap(socket: &Path) -> Option<Program> {
    let mut command = Command::new(installed(&["/usr/sbin/fcgiwrap"], "fcgiwrap")?);
    // With `-f`, a script's standard error is sent to the web server.
    command.args(["-f", "-c", "2", "-s"]).arg(format!("unix:{}", socket.display()));
    Some(Program::start(command, socket))
}

/// Starts flup's SCGI server (PyPI) with the application in this file.
pub(crate) fn flup(folder: &Path, module: &str, socket: &Path) -> Option<Program> {
    let module_of_flup = "import flup.server.scgi";
    let has = Command::new("python3").args(["-c", module_of_flup]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        testkit::skip("flup is not installed (python3 -m pip install flup)");
        return None;
    }
    let text = format!(
        "import sys; sys.path.insert(0, {folder:?})\nfrom flup.server.scgi import WSGIServer\nfrom {module} import application\n\
         WSGIServer(application, scriptName='', bindAddress={socket:?}, umask=0).run()\n"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &text]);
    Some(Program::start(command, socket))
}
