//! Shell completions, generated from the table of the command line.

use std::fmt::Write;

use super::options::{COMMANDS, Command, HELP, Hint, LETTERS, LONG, Opt, Value};

/// Returns the completion script for a shell.
pub(super) fn script(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash()),
        "zsh" => Some(zsh()),
        "fish" => Some(fish()),
        _ => None,
    }
}

/// Returns the options of a command, including `--help`.
fn options(command: &Command) -> impl Iterator<Item = &'static Opt> {
    command.options.iter().chain(std::iter::once(&HELP))
}

/// Returns all spellings of an option: `-w`, `--write`.
fn names(option: &Opt) -> impl Iterator<Item = String> {
    let letter = option.letter.map(|letter| format!("-{letter}"));
    letter.into_iter().chain(option.long.map(|long| format!("--{long}")))
}

/// Returns the completion hint for the value of an option.
fn hint(value: Value) -> Option<Hint> {
    match value {
        Value::No => None,
        Value::Needed(_, hint) | Value::Optional(_, hint) => Some(hint),
    }
}

/// Returns the fixed words that a command accepts as operands.
fn words(command: &Command) -> Vec<&'static str> {
    let hints = command.operands.iter().filter_map(|operand| match operand.hint {
        Hint::Words(words) => Some(words),
        _ => None,
    });
    let names = COMMANDS.iter().map(|command| command.name).filter(|_| command.name == "help");
    hints.flatten().copied().chain(names).collect()
}

/// Returns whether operands are files or directories, if they are.
fn files(command: &Command) -> Option<Hint> {
    let hints = command.operands.iter().map(|operand| operand.hint);
    hints.into_iter().find(|hint| matches!(hint, Hint::File | Hint::Directory))
}

/// Generates the script for bash: a function that evaluates the word before the cursor and the one before that.
fn bash() -> String {
    let generate = |hint: Hint| match hint {
        Hint::Nothing => "COMPREPLY=()".to_owned(),
        Hint::File => "COMPREPLY=($(compgen -f -- \"$word\"))".to_owned(),
        Hint::Directory => "COMPREPLY=($(compgen -d -- \"$word\"))".to_owned(),
        Hint::Words(words) => format!("COMPREPLY=($(compgen -W '{}' -- \"$word\"))", words.join(" ")),
    };
    let mut script = String::from(
        "# Completions of ringroad for bash; printed by \"ringroad completions bash\".
_ringroad() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
    [ \"$COMP_CWORD\" -eq 1 ] && command=
    case $command:$before in
",
    );
    for command in COMMANDS {
        for option in command.options.iter().filter(|option| matches!(option.value, Value::Needed(..))) {
            let patterns: Vec<String> =
                names(option).map(|name| format!("{}:{name}", command.name)).collect();
            let reply = hint(option.value).map(generate).unwrap_or_default();
            let _infallible = writeln!(script, "    {}) {reply}; return ;;", patterns.join(" | "));
        }
    }
    for option in LETTERS {
        if let Some(reply) = hint(option.value).map(generate) {
            let letter = option.letter.unwrap_or_default();
            let _infallible = writeln!(script, "    :-{letter} | -*:-{letter}) {reply}; return ;;");
        }
    }
    script.push_str("    esac\n    case $command in\n");
    for command in COMMANDS {
        let mut all: Vec<String> = options(command).flat_map(names).collect();
        all.extend(words(command).into_iter().map(str::to_owned));
        let _infallible = writeln!(script, "    {})", command.name);
        let _infallible =
            writeln!(script, "        COMPREPLY=($(compgen -W '{}' -- \"$word\"))", all.join(" "));
        if let Some(kind) = files(command) {
            let kind = if kind == Hint::Directory { 'd' } else { 'f' };
            let _infallible =
                writeln!(script, "        [[ $word == -* ]] || COMPREPLY=($(compgen -{kind} -- \"$word\"))");
        }
        script.push_str("        ;;\n");
    }
    let letters: Vec<String> = LETTERS.iter().chain(LONG).flat_map(names).collect();
    let commands: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    let _infallible = write!(
        script,
        "    '') COMPREPLY=($(compgen -W '{} {}' -- \"$word\")) ;;
    -*) COMPREPLY=($(compgen -W '{}' -- \"$word\")) ;;
    esac
}}
complete -o filenames -F _ringroad ringroad
",
        commands.join(" "),
        letters.join(" "),
        letters.join(" ")
    );
    script
}

/// Generates the script for zsh: `_describe` for the commands, `_arguments` for options and operands.
fn zsh() -> String {
    let action = |hint: Hint| match hint {
        Hint::Nothing => " ".to_owned(),
        Hint::File => "_files".to_owned(),
        Hint::Directory => "_files -/".to_owned(),
        Hint::Words(words) => format!("({})", words.join(" ")),
    };
    let argument = |option: &Opt| {
        let help =
            option.help.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]").replace(':', "\\:");
        let help = help.replace('\'', "'\\''");
        let lines = names(option).map(|name| {
            let name = if name == "-?" { "-\\?".to_owned() } else { name };
            let is_long = name.starts_with("--");
            match option.value {
                Value::No => format!("'{name}[{help}]'"),
                Value::Needed(what, hint) => {
                    let form = if is_long { "=" } else { "+" };
                    format!("'*{name}{form}[{help}]:{what}:{}'", action(hint))
                }
                Value::Optional(what, hint) => format!("'{name}=-[{help}]::{what}:{}'", action(hint)),
            }
        });
        lines.collect::<Vec<_>>()
    };
    let mut script = String::from(
        "#compdef ringroad
# Completions of ringroad for zsh; printed by \"ringroad completions zsh\".
_ringroad() {
    local -a commands
    commands=(
",
    );
    for command in COMMANDS {
        let summary = command.summary.replace(':', "\\:").replace('\'', "'\\''");
        let _infallible = writeln!(script, "        '{}:{summary}'", command.name);
    }
    script.push_str(
        "    )\n    if (( CURRENT == 2 )); then\n        _describe -t commands command commands\n    fi\n",
    );
    script.push_str("    case $words[2] in\n");
    for command in COMMANDS {
        let _infallible =
            write!(script, "    {})\n        shift words; (( CURRENT-- ))\n        _arguments", command.name);
        for line in options(command).flat_map(argument) {
            let _infallible = write!(script, " \\\n            {line}");
        }
        let words = words(command);
        for operand in command.operands {
            let action =
                if words.is_empty() { action(operand.hint) } else { format!("({})", words.join(" ")) };
            let _infallible = write!(script, " \\\n            ':{}:{action}'", operand.name);
        }
        script.push_str("\n        ;;\n");
    }
    script.push_str("    *)\n        _arguments -s");
    for line in LETTERS.iter().chain(LONG).flat_map(argument) {
        let _infallible = write!(script, " \\\n            {line}");
    }
    script.push_str("\n        ;;\n    esac\n}\n_ringroad \"$@\"\n");
    script
}

/// Generates the script for fish: a line for each command and option, with the condition under which it is offered.
fn fish() -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let line = |condition: &str, option: &Opt| {
        let mut line = format!("complete -c ringroad -n {}", quoted(condition));
        if let Some(letter) = option.letter {
            let _infallible = write!(line, " -s {}", quoted(&letter.to_string()));
        }
        if let Some(long) = option.long {
            let _infallible = write!(line, " -l {long}");
        }
        match (option.value, hint(option.value)) {
            (Value::Needed(..), Some(Hint::Words(words))) => {
                let _infallible = write!(line, " -x -a {}", quoted(&words.join(" ")));
            }
            (Value::Needed(..), Some(Hint::File)) => line.push_str(" -r -F"),
            (Value::Needed(..), Some(Hint::Directory)) => {
                line.push_str(" -x -a '(__fish_complete_directories)'")
            }
            (Value::Needed(..), _) => line.push_str(" -x"),
            _ => {}
        }
        let _infallible = writeln!(line, " -d {}", quoted(option.help));
        line
    };
    let mut script = String::from(
        "# Completions of ringroad for fish; printed by \"ringroad completions fish\".\ncomplete -c ringroad -f\n",
    );
    for option in LETTERS.iter().chain(LONG) {
        script.push_str(&line("not __fish_seen_subcommand_from (__ringroad_commands)", option));
    }
    let names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    let all = names.join(" ");
    let function = format!("function __ringroad_commands\n    string split ' ' {}\nend\n", quoted(&all));
    script.insert_str(script.find("complete -c").unwrap_or(0), &function);
    for command in COMMANDS {
        let _infallible = writeln!(
            script,
            "complete -c ringroad -n __fish_use_subcommand -a {} -d {}",
            command.name,
            quoted(command.summary)
        );
        let condition = format!("__fish_seen_subcommand_from {}", command.name);
        for option in options(command) {
            script.push_str(&line(&condition, option));
        }
        let words = words(command).join(" ");
        let operands = match files(command) {
            Some(Hint::Directory) => "-a '(__fish_complete_directories)'".to_owned(),
            Some(_) => "-F".to_owned(),
            None if words.is_empty() => continue,
            None => format!("-a {}", quoted(&words)),
        };
        let _infallible = writeln!(script, "complete -c ringroad -n {} {operands}", quoted(&condition));
    }
    script
}
