//! `load_module`: modules are compiled in, and no file is loaded. A configuration is accepted if it needs no such
//! module, or if this server has the module. Distributions load modules in every configuration, whether it uses them or
//! not.

use std::path::Path;

use conf::{CheckResult, Error, ErrorKind, Statement};

use site::config::Cx;
use site::declaration::Declarations;

/// Implements the setter of `load_module`.
pub(super) fn read(cx: &mut Cx<'_>) -> Result<(), Error> {
    // nginx counts its modules when it reads one of these blocks.
    let is_counted = |name: &str| matches!(name, "events" | "http" | "mail" | "stream");
    let mut before = cx.tree.statements.iter().take_while(|other| !std::ptr::eq(*other, cx.statement));
    if before.any(|other| is_counted(&other.name.text)) {
        return Err(Error::directive(cx.statement, "is specified too late"));
    }
    let path = cx.arg(0);
    let module = module_of(path);
    if !is_built_in(cx.modules, &module)
        && let Some((used, needed)) = first_use(cx, &module)
    {
        let (directive, place) = (&used.name.text, used.span());
        let what = format_args!(
            "\"{path}\" cannot be loaded, and \"{directive}\" directive in {place} needs it; modules are built in or not available"
        );
        return Err(Error::missing_module(cx.statement, what, &needed));
    }
    // One warning for all `load_module` lines, at the first of them: distributions load ten.
    let is_one = |other: &&Statement| other.name.text == "load_module" && other.args.len() == 1;
    let all: Vec<&Statement> = cx.tree.statements.iter().filter(is_one).collect();
    match all.as_slice() {
        [first, ..] if !std::ptr::eq(*first, cx.statement) => {}
        [_, _, ..] => {
            let names: Vec<String> =
                all.iter().filter_map(|statement| statement.arg(0)).map(module_of).collect();
            let (count, names) = (names.len(), names.join(", "));
            cx.warn(format_args!("{count} modules are not loaded, each is built in or not used: {names}"));
        }
        _ if is_built_in(cx.modules, &module) => {
            cx.warn(format_args!("\"{path}\" is not loaded, its directives are built in"));
        }
        _ => cx.warn(format_args!("\"{path}\" is not loaded, none of its directives is used")),
    }
    Ok(())
}

/// Returns nginx's name of the module in a file: `http_image` for `/x/ngx_http_image_filter_module.so`.
fn module_of(path: &str) -> String {
    // Only the file name counts: the file is never read, so its existence is not checked.
    let file = Path::new(path).file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let name = file.strip_suffix(".so").unwrap_or(&file);
    let name = name.strip_suffix("_module").unwrap_or(name);
    let name = name.strip_prefix("ngx_").unwrap_or(name);
    name.strip_suffix("_filter").unwrap_or(name).to_owned()
}

/// Whether this server has that module.
fn is_built_in(modules: &Declarations, module: &str) -> bool {
    // The module names of directives are checked too, because a module here may have directives of several modules of nginx.
    let name = |name: &'static str| name.strip_suffix("_filter").unwrap_or(name);
    modules.modules().iter().any(|ours| name(ours.name) == module)
        || modules.specs().specs().any(|ours| name(ours.module) == module)
}

/// Returns the first directive in the configuration that this module would provide, and its error.
fn first_use<'t>(cx: &Cx<'t>, module: &str) -> Option<(&'t Statement, ErrorKind)> {
    // The complete text is searched, because directives of a module follow the line that loads it.
    let mut first = None;
    conf::visit(cx.tree, cx.modules.specs(), &mut |visit| {
        let CheckResult::Fault(error) = &visit.verdict else { return };
        let is_of_it = match error.kind() {
            ErrorKind::NotSupported { module: of, .. } => is_part(of, module),
            ErrorKind::Unknown { name, .. } => conf::is_of_third_party(name, module),
            _ => false,
        };
        if is_of_it {
            first.get_or_insert_with(|| (visit.statement, error.kind().clone()));
        }
    });
    first
}

/// Whether nginx's module `part` is in the file of `module`: the files of mail and stream contain many modules.
fn is_part(part: &str, module: &str) -> bool {
    let rest = part.strip_prefix(module);
    rest.is_some_and(|rest| rest.is_empty() || matches!(module, "mail" | "stream") && rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, warnings};

    #[test]
    fn several_modules_cause_one_message() {
        let found = warnings(
            "\nload_module modules/ngx_http_realip_module.so;\nload_module ngx_http_geoip_module.so; http { }",
        );
        let expected = "2 modules are not loaded, each is built in or not used: http_realip, http_geoip in \
                        /conf/nginx.conf:2";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_required_module_is_an_error_naming_the_directive() {
        for (file, directive) in [
            ("ngx_http_image_filter_module", "image_filter resize 1 2"),
            ("ngx_http_xslt_filter_module", "xslt_stylesheet x"),
            ("ngx_http_echo_module", "echo hello"),
        ] {
            let text = format!(
                "load_module modules/{file}.so;\nhttp {{ server {{ location / {{\n{directive}; }} }} }}"
            );
            let name = directive.split(' ').next().expect("there is a first word");
            let expected = format!(
                "\"modules/{file}.so\" cannot be loaded, and \"{name}\" directive in /conf/nginx.conf:3 needs it; \
                 modules are built in or not available in /conf/nginx.conf:1"
            );
            assert_eq!(error(&text), expected);
        }
        let found = error("load_module ngx_mail_module.so;\nmail { }");
        assert!(found.contains("\"mail\" directive in /conf/nginx.conf:2 needs it"), "{found}");
    }

    #[test]
    fn load_module_must_precede_the_blocks() {
        for text in ["http { }\nload_module ngx_http_geoip_module.so;", "events { }\nload_module x;"] {
            let found = error(text);
            assert_eq!(found, "\"load_module\" directive is specified too late in /conf/nginx.conf:2");
        }
        let found = error("load_module a b;");
        assert!(found.starts_with("invalid number of arguments in \"load_module\" directive"), "{found}");
    }

    #[test]
    fn module_names_are_file_names() {
        for (path, expected) in [
            ("/x/ngx_http_image_filter_module.so", "http_image"),
            ("ngx_http_brotli_static_module.so", "http_brotli_static"),
            ("ndk_http_module.so", "ndk_http"),
            ("x", "x"),
            ("", ""),
        ] {
            assert_eq!(module_of(path), expected);
        }
        assert!(is_part("stream_core", "stream") && is_part("mail", "mail"));
        assert!(!is_part("http_geoip", "http") && !is_part("http_geoip", "http_geo"));
    }
}
