//! nginx's options, parsed as in nginx: letters may be combined (`-tq`), and a value may follow its letter directly
//! (`-cFILE`) or as the next argument.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::options::LONG;

/// The parsed options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `-?`, `-h`
    pub(crate) help: bool,
    /// `-v`
    pub(crate) version: bool,
    /// `-V`
    pub(crate) configure: bool,
    /// `-t`, also set by `-T`
    pub(crate) test: bool,
    /// `-T`
    pub(crate) dump: bool,
    /// `-q`
    pub(crate) quiet: bool,
    /// `-s`
    pub(crate) signal: Option<Command>,
    /// `-p`
    pub(crate) prefix: Option<PathBuf>,
    /// `-e`
    pub(crate) error_log: Option<PathBuf>,
    /// `-c`
    pub(crate) conf: Option<PathBuf>,
    /// `-g`
    pub(crate) globals: String,
    /// `--diff`, with `-t`
    pub(crate) diff: bool,
    /// `--any-process`
    pub(crate) any_process: bool,
    /// `--no-wait`
    pub(crate) no_wait: bool,
}

/// The signal of `-s` to a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Stop,
    Quit,
    Reopen,
    Reload,
    Upgrade,
}

/// An error, with nginx's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OptionError {
    /// An unknown letter.
    Letter(char),
    /// An argument without a dash.
    Operand(String),
    /// `-s` with an unknown signal.
    Signal(String),
    /// A long option; nginx has none.
    Long(String),
    /// A letter without its value.
    Missing { letter: char, what: &'static str },
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::Letter(letter) => {
                write!(f, "invalid option: \"{letter}\"; \"ringroad -h\" lists the options")
            }
            OptionError::Operand(text) => {
                write!(f, "invalid option: \"{text}\"; write \"-c {text}\" if it is the configuration file")
            }
            OptionError::Signal(word) => {
                write!(
                    f,
                    "invalid option: \"-s {word}\"; the signals are stop, quit, reopen, reload and upgrade"
                )
            }
            OptionError::Long(text) => {
                let known = LONG.iter().filter_map(|option| option.long);
                match conf::similar(text.trim_start_matches('-'), known) {
                    Some(meant) => write!(f, "unknown option \"{text}\"; did you mean \"--{meant}\"?"),
                    None => write!(f, "unknown option \"{text}\"; \"ringroad -h\" lists the options"),
                }
            }
            OptionError::Missing { letter, what } => write!(f, "option \"-{letter}\" requires {what}"),
        }
    }
}

/// Parses the arguments in order; a later value replaces an earlier one.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Options, OptionError> {
    let mut options = Options::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg.len() > 2 && arg.as_bytes().starts_with(b"--") {
            match arg.as_bytes() {
                b"--any-process" => options.any_process = true,
                b"--no-wait" => options.no_wait = true,
                b"--diff" => (options.test, options.diff) = (true, true),
                _ => return Err(OptionError::Long(arg.to_string_lossy().into_owned())),
            }
            continue;
        }
        let Some(letters) = arg.as_bytes().strip_prefix(b"-") else {
            return Err(OptionError::Operand(arg.to_string_lossy().into_owned()));
        };
        // The remaining letters of this argument; for a letter with a value they are the value.
        let mut rest = letters;
        while let Some((&letter, after)) = rest.split_first() {
            rest = after;
            match letter {
                b'?' | b'h' => options.help = true,
                b'v' => options.version = true,
                b'V' => options.configure = true,
                b't' => options.test = true,
                b'T' => (options.test, options.dump) = (true, true),
                b'q' => options.quiet = true,
                b's' | b'p' | b'e' | b'c' | b'g' => {
                    let value =
                        if rest.is_empty() { args.next() } else { Some(OsStr::from_bytes(rest).into()) };
                    // An empty value is accepted, as in nginx: `-g "$UNSET"` is empty.
                    let value = value.ok_or_else(|| missing(letter))?;
                    set_value(&mut options, letter, value)?;
                    rest = &[];
                }
                other => return Err(OptionError::Letter(char::from(other))),
            }
        }
    }
    Ok(options)
}

/// Sets a value. Values are validated as far as nginx validates them during the parsing of arguments.
fn set_value(options: &mut Options, letter: u8, value: OsString) -> Result<(), OptionError> {
    match letter {
        b'p' => options.prefix = Some(with_slash(value)),
        b'e' => options.error_log = Some(value.into()),
        b'c' => options.conf = Some(value.into()),
        b'g' => options.globals = value.to_string_lossy().into_owned(),
        _ => {
            options.signal = Some(match value.as_bytes() {
                b"stop" => Command::Stop,
                b"quit" => Command::Quit,
                b"reopen" => Command::Reopen,
                b"reload" => Command::Reload,
                b"upgrade" => Command::Upgrade,
                _ => return Err(OptionError::Signal(value.to_string_lossy().into_owned())),
            });
        }
    }
    Ok(())
}

/// Returns the error for a missing value, with nginx's name for the value of each letter.
fn missing(letter: u8) -> OptionError {
    let what = match letter {
        b'p' => "directory name",
        b'e' | b'c' => "file name",
        _ => "parameter",
    };
    OptionError::Missing { letter: char::from(letter), what }
}

/// Appends a slash, unless the value ends with one: nginx's messages show exactly one slash between the prefix and a
/// name.
fn with_slash(value: OsString) -> PathBuf {
    let mut bytes = value.into_vec();
    // An empty prefix is the working directory.
    if bytes.last().is_some_and(|last| *last != b'/') {
        bytes.push(b'/');
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        let args = line.split('|').filter(|arg| !arg.is_empty()).map(OsString::from).collect();
        parse(args).map_err(|error| error.to_string())
    }

    #[test]
    fn short_options_combine_and_take_attached_or_separate_values() {
        let joined = read("-tqc/a.conf|-p|dir|-gdaemon off;|-estderr").expect("valid");
        let apart = read("-t|-q|-c|/a.conf|-pdir/|-g|daemon off;|-e|stderr").expect("valid");
        assert_eq!(joined, apart);
        assert_eq!(joined.prefix.as_deref(), Some(std::path::Path::new("dir/")));
        assert!(joined.test && joined.quiet && !joined.dump);
        assert!(read("-T").expect("valid").test);
        assert_eq!(read("-sreload").expect("valid").signal, Some(Command::Reload));
        assert_eq!(read("-s|stop").expect("valid").signal, Some(Command::Stop));
        assert!(read("-?").expect("valid").help);
        assert!(read("--diff").expect("valid").test);
        assert!(read("-s|quit|--any-process").expect("valid").any_process);
        assert_eq!(read("-"), Ok(Options::default()));
        let empty = parse(["-g", "", "-t"].map(OsString::from).to_vec()).expect("valid");
        assert!(empty.globals.is_empty() && empty.test);
    }

    #[test]
    fn wrong_options_cause_the_messages_of_nginx() {
        for (line, text) in [
            ("-x", "invalid option: \"x\"; \"ringroad -h\" lists the options"),
            ("-tx", "invalid option: \"x\"; \"ringroad -h\" lists the options"),
            ("foo", "invalid option: \"foo\"; write \"-c foo\" if it is the configuration file"),
            ("-t|foo", "invalid option: \"foo\"; write \"-c foo\" if it is the configuration file"),
            ("-s", "option \"-s\" requires parameter"),
            ("-s|foo", "invalid option: \"-s foo\"; the signals are stop, quit, reopen, reload and upgrade"),
            ("-sfoo", "invalid option: \"-s foo\"; the signals are stop, quit, reopen, reload and upgrade"),
            ("-c", "option \"-c\" requires file name"),
            ("-p", "option \"-p\" requires directory name"),
            ("-e", "option \"-e\" requires file name"),
            ("-g", "option \"-g\" requires parameter"),
            ("-t|--verison", "unknown option \"--verison\"; did you mean \"--version\"?"),
            ("-tc", "option \"-c\" requires file name"),
        ] {
            assert_eq!(read(line), Err(text.to_owned()), "{line}");
        }
    }
}
