//! `ringroad explain URL`: parses the arguments, and explains by a configuration file or by a running server.

use std::process::ExitCode;

use super::call;
use super::failure::CommandFailure;
use super::options::Arguments;
use super::output::print;
use super::request::request_of;
use crate::adapter::{self, Config, Files, Reread};
use crate::explain::{Query, explain};
use crate::loader::DiskLoader;
use crate::privilege;

/// Explains one request.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match explained(given) {
        Ok(text) => {
            print(text);
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report("explain"),
    }
}

/// Returns the explanation: by the running server if an option requests it, otherwise by a file.
fn explained(given: &Arguments) -> Result<String, CommandFailure> {
    let query = query(given)?;
    if given.has("running") || given.has("socket") {
        let path = call::socket_path(given)?;
        let (_, answer) = call::call(&path, &query.to_json())?;
        let text = answer["text"].as_str().ok_or("the server sent no explanation")?;
        return Ok(text.lines().map(|line| call::shown(line) + "\n").collect());
    }
    let request = request_of(given.value("c"), given.value("p"))?;
    let site = adapter::load(&request, Files::Disk).map_err(|refused| refused.message)?;
    let tree = conf::parse(&conf::Source::new(&request.main), &DiskLoader::new(&request))
        .map_err(|error| error.to_string())?;
    let files = Reread { request: &request, memory: None };
    Ok(explain(&site, files, &tree, &query, become_worker)?.text)
}

/// If started as root, changes to the user of the workers, so that files are opened with the permissions of a worker.
fn become_worker(config: &Config) -> Result<(), String> {
    let resolved = privilege::resolve(config.main().user.as_ref())?;
    match resolved.credentials {
        Some(credentials) => credentials.assume(false).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

/// Returns the request to explain.
fn query(given: &Arguments) -> Result<Query, CommandFailure> {
    let mut fields = Vec::new();
    for field in given.all("H").map(|field| field.to_string_lossy().into_owned()) {
        let (name, value) = field.split_once(':').ok_or_else(|| {
            CommandFailure::misuse(format_args!("\"{field}\" is not a header field; write \"Name: value\""))
        })?;
        fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    let text = |name: &str, default: &str| {
        given.value(name).map_or(default.to_owned(), |text| text.to_string_lossy().into_owned())
    };
    let query = Query {
        url: given.operands[0].to_string_lossy().into_owned(),
        from: text("from", "127.0.0.1"),
        method: text("X", "GET"),
        fields,
        http3: given.has("http3"),
    };
    query.check().map_err(CommandFailure::misuse)?;
    Ok(query)
}
