//! Templates of configuration files, whose variables are those of the environment, with the environment variables of nginx's image:
//! `NGINX_ENVSUBST_TEMPLATE_DIR`, `NGINX_ENVSUBST_OUTPUT_DIR`, `NGINX_ENVSUBST_TEMPLATE_SUFFIX`.
//!
//! `$NAME` and `${NAME}` are replaced if the environment has `NAME`; variables of the server, such as `$host`, remain.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum size of a template in bytes.
const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of nested directories below that of the templates.
const DEPTH_MAX: usize = 16;

/// Where templates are and their results will be.
#[derive(Debug)]
pub(crate) struct Templates {
    from: PathBuf,
    to: PathBuf,
    suffix: String,
    /// The variables, by name.
    variables: BTreeMap<String, String>,
}

impl Templates {
    /// Returns the templates that an environment names; `None` without `NGINX_ENVSUBST_TEMPLATE_DIR`. The results are in
    /// `NGINX_ENVSUBST_OUTPUT_DIR`, else in `default`.
    pub(crate) fn of(
        environment: impl Iterator<Item = (OsString, OsString)>,
        default: &Path,
    ) -> Option<Templates> {
        // Names and values that are no text cannot stand in a configuration.
        let text =
            |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        let variables: BTreeMap<String, String> = environment.filter_map(text).collect();
        let setting =
            |name: &str| variables.get(&format!("NGINX_ENVSUBST_{name}")).filter(|text| !text.is_empty());
        let from = PathBuf::from(setting("TEMPLATE_DIR")?);
        let to = setting("OUTPUT_DIR").map_or_else(|| default.to_owned(), PathBuf::from);
        let suffix = setting("TEMPLATE_SUFFIX").map_or_else(|| ".template".to_owned(), String::clone);
        Some(Templates { from, to, suffix, variables })
    }

    /// Writes the result of each template. Returns the paths of both, in order of their names.
    pub(crate) fn write(&self) -> Result<Vec<(PathBuf, PathBuf)>, String> {
        let mut found = Vec::new();
        self.find(Path::new(""), 0, &mut found)?;
        found.sort();
        found.into_iter().map(|relative| self.write_one(&relative)).collect()
    }

    /// Adds the templates in a directory, relative to that of the templates.
    fn find(&self, below: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), String> {
        let directory = self.from.join(below);
        let failed = |error: io::Error| failure("read the directory", &directory, &error);
        if depth > DEPTH_MAX {
            return Err(format!(
                "templates are in more than {DEPTH_MAX} nested directories: \"{}\"",
                directory.display()
            ));
        }
        let entries = match fs::read_dir(&directory) {
            // An image without templates.
            Err(error) if depth == 0 && error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let relative = below.join(&name);
            // Kubernetes mounts files as symbolic links, beside directories whose names begin with a dot.
            let is_hidden = name.to_str().is_none_or(|name| name.starts_with('.'));
            let path = self.from.join(&relative);
            match fs::metadata(&path) {
                _ if is_hidden => {}
                Ok(facts) if facts.is_dir() => self.find(&relative, depth + 1, found)?,
                Ok(_) if name.to_str().is_some_and(|name| name.ends_with(&self.suffix)) => {
                    found.push(relative)
                }
                Ok(_) => {}
                Err(error) => return Err(failure("read", &path, &error)),
            }
        }
        Ok(())
    }

    fn write_one(&self, relative: &Path) -> Result<(PathBuf, PathBuf), String> {
        let from = self.from.join(relative);
        let len = fs::metadata(&from).map_err(|error| failure("read", &from, &error))?.len();
        if len > TEMPLATE_BYTES_MAX {
            return Err(format!("\"{}\" has more than {TEMPLATE_BYTES_MAX} bytes", from.display()));
        }
        let text = fs::read_to_string(&from).map_err(|error| failure("read", &from, &error))?;
        let name = relative.to_str().and_then(|name| name.strip_suffix(&self.suffix));
        let to = self.to.join(name.unwrap_or_default());
        // A server that reads the directory meanwhile sees the old file or the new one.
        let mut new = to.clone().into_os_string();
        new.push(".new");
        let written = fs::create_dir_all(to.parent().unwrap_or(&self.to))
            .and_then(|()| fs::write(&new, expand(&text, &self.variables)))
            .and_then(|()| fs::rename(&new, &to));
        written.map_err(|error| failure("write", &to, &error))?;
        Ok((from, to))
    }
}

fn failure(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} \"{}\": {error}", path.display())
}

/// Replaces the variables of the environment in a text.
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (in_braces, after) = match rest[1..].strip_prefix('{') {
            Some(after) => (true, after),
            None => (false, &rest[1..]),
        };
        let is_other = |(index, letter): (usize, char)| {
            let is_part =
                letter == '_' || letter.is_ascii_alphabetic() || index > 0 && letter.is_ascii_digit();
            (!is_part).then_some(index)
        };
        let end = after.char_indices().find_map(is_other).unwrap_or(after.len());
        let is_closed = !in_braces || after[end..].starts_with('}');
        match variables.get(&after[..end]).filter(|_| is_closed && end > 0) {
            Some(value) => {
                out.push_str(value);
                rest = &after[end + usize::from(in_braces)..];
            }
            None => {
                out.push('$');
                rest = &rest[1..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_variables_of_the_environment_are_replaced() {
        let known = variables(&[("PORT", "8080"), ("NAME_2", "a.example"), ("EMPTY", ""), ("LOOP", "$PORT")]);
        for (text, expected) in [
            ("listen $PORT;", "listen 8080;"),
            ("listen ${PORT};", "listen 8080;"),
            ("${PORT}0$PORT", "808008080"),
            ("server_name $NAME_2;", "server_name a.example;"),
            ("return 200 $host$uri;", "return 200 $host$uri;"),
            ("$PORTS ${PORT ${} $ $", "$PORTS ${PORT ${} $ $"),
            ("[$EMPTY]", "[]"),
            ("$LOOP", "$PORT"),
            ("$é $1 $", "$é $1 $"),
            ("~^/(?<PORT>.*)$", "~^/(?<PORT>.*)$"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }

    fn templates(dir: &Path, more: &[(&str, &str)]) -> Option<Templates> {
        let (from, to) = (dir.join("templates"), dir.join("out"));
        let mut all = vec![
            ("NGINX_ENVSUBST_TEMPLATE_DIR", from.to_str().unwrap()),
            ("NGINX_ENVSUBST_OUTPUT_DIR", to.to_str().unwrap()),
            ("PORT", "8080"),
        ];
        all.extend(more);
        Templates::of(all.into_iter().map(|(name, value)| (name.into(), value.into())), Path::new("/none"))
    }

    #[test]
    fn results_are_in_the_same_directories() {
        let dir = testkit::TempDir::new("templates");
        let all = templates(dir.path(), &[]).unwrap();
        assert_eq!(all.write(), Ok(Vec::new()), "no directory");
        dir.write("templates/site.conf.template", "listen $PORT;");
        dir.write("templates/more/deep.conf.template", "return ${PORT};");
        dir.write("templates/readme", "$PORT");
        dir.write("templates/..data/site.conf.template", "hidden");
        assert_eq!(all.write().unwrap().len(), 2);
        let read = |name: &str| fs::read_to_string(dir.path().join("out").join(name)).unwrap();
        assert_eq!(
            (read("site.conf"), read("more/deep.conf")),
            ("listen 8080;".into(), "return 8080;".into())
        );
        assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 2);
        let other = templates(dir.path(), &[("NGINX_ENVSUBST_TEMPLATE_SUFFIX", "me")]).unwrap();
        assert_eq!(other.write().unwrap().len(), 1);
        assert_eq!(read("read"), "8080");
    }

    #[test]
    fn errors_name_the_file() {
        let dir = testkit::TempDir::new("templates");
        dir.write("templates/a.template", [0xff, 0xfe]);
        let error = templates(dir.path(), &[]).unwrap().write().unwrap_err();
        assert!(error.contains("templates/a.template"), "{error}");
        dir.write("templates/a.template", "text");
        dir.write("out", "a file instead of a directory");
        let error = templates(dir.path(), &[]).unwrap().write().unwrap_err();
        assert!(error.starts_with("cannot write") && error.contains("out/a"), "{error}");
        assert!(Templates::of(std::iter::empty(), dir.path()).is_none());
    }
}
