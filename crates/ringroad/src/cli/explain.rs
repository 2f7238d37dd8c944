//! `ringroad explain URL`: parses the arguments, and explains by a configuration file or by a running server.

use std::path::Path;
use std::process::ExitCode;

use super::call;
use super::options::Arguments;
use super::output::{print, print_error};
use super::run::request_for;
use crate::adapter::{self, Files};
use crate::explain::{Query, explain};
use crate::loader::DiskLoader;
use crate::paths::{DEFAULT_PREFIX, Paths, Request, default_conf};

/// Explains one request.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match explained(given) {
        Ok(text) => {
            print(text);
            ExitCode::SUCCESS
        }
        Err(message) => {
            print_error(format_args!("ringroad explain: {message}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the explanation: by the running server if an option requests it, otherwise by a file.
fn explained(given: &Arguments) -> Result<String, String> {
    let query = query(given)?;
    if given.has("running") || given.has("socket") {
        let path = call::socket_path(given)?;
        let (_, answer) = call::call(&path, &query.to_json())?;
        let text = answer["text"].as_str().ok_or("the server sent no explanation")?;
        return Ok(text.lines().map(|line| call::shown(line) + "\n").collect());
    }
    let request = request(given)?;
    let site = adapter::load(&request, Files::Disk).map_err(|refused| refused.message)?;
    let tree = conf::parse(&conf::Source::new(&request.main), &DiskLoader::new(&request))
        .map_err(|error| error.to_string())?;
    explain(&site, &tree, &query).map(|explained| explained.text)
}

/// Returns the configuration and the prefix that a server with these options would use. With one exception: without `-p` the
/// prefix of a file other than the default one is its directory, so that a configuration can be tested anywhere.
fn request(given: &Arguments) -> Result<Request, String> {
    let prefix = given.value("p").map(Path::new);
    let Some(file) = given.value("c").map(Path::new) else { return Ok(request_for(prefix, None)) };
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    let main = absolute(file)?;
    let prefix = match prefix {
        Some(prefix) => absolute(prefix)?,
        None if main == Path::new(default_conf()) => DEFAULT_PREFIX.into(),
        None => main.parent().unwrap_or(&main).to_owned(),
    };
    Ok(Request { main, globals: String::new(), places: Paths::below(&prefix), text: None })
}

/// Returns the request to explain.
fn query(given: &Arguments) -> Result<Query, String> {
    let mut fields = Vec::new();
    for field in given.all("H").map(|field| field.to_string_lossy().into_owned()) {
        let (name, value) = field
            .split_once(':')
            .ok_or_else(|| format!("\"{field}\" is not a header field; write \"Name: value\""))?;
        fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    let text = |name: &str, default: &str| {
        given.value(name).map_or(default.to_owned(), |text| text.to_string_lossy().into_owned())
    };
    Ok(Query {
        url: given.operands[0].to_string_lossy().into_owned(),
        from: text("from", "127.0.0.1"),
        method: text("X", "GET"),
        fields,
    })
}
