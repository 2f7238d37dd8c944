//! The advice of `ringroad check` on locations that pass scripts on: the pitfalls of `SCRIPT_FILENAME`, for which a PHP
//! server responds with an empty page or 404, and has the reason in its own log alone.

use std::path::Path;

use crate::fastcgi::conf::FastCgi;
use crate::passing::Passing;
use crate::{rewrite, try_files};
use exchange::config::{Config, Location};
use exchange::settings::locations::Locations;

/// A line for each location that has such a pitfall: the location, and the remedy.
pub fn advice(config: &Config) -> Vec<String> {
    let mut told = Vec::new();
    for server in &config.http.servers {
        let name = if server.name.is_empty() { "_" } else { &server.name };
        look(config, name, &server.locations, &mut told);
    }
    told
}

/// Locations inside of locations come behind the one around them; an `if` is listed separately.
fn look(config: &Config, server: &str, locations: &Locations, told: &mut Vec<String>) {
    for location in locations.all().map(|id| config.location(id)) {
        told.extend(
            pitfall(location).map(|pitfall| format!("server {server}, {}: {pitfall}", location.name)),
        );
        look(config, server, &location.nested, told);
    }
}

fn pitfall(location: &Location) -> Option<String> {
    let passing = location.scope.of::<Passing<FastCgi>>();
    passing.conf.pass.as_ref()?;
    let file = passing.own.params.items().iter().rev().find(|param| &*param.name == "SCRIPT_FILENAME");
    let Some(file) = file else {
        return Some(
            "no \"fastcgi_param SCRIPT_FILENAME\": php-fpm responds with an empty page. Add \
             \"fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\""
                .to_owned(),
        );
    };
    if let Some(path) = file.value.constant() {
        // The server of scripts may have other folders, such as those of a container.
        let is_missing = !Path::new(path).exists();
        return is_missing.then(|| {
            format!("SCRIPT_FILENAME is \"{path}\", which is not there: php-fpm responds 404, unless it sees other folders")
        });
    }
    let is_any_script = location.name.starts_with('~');
    let is_looked_for = location.scope.of::<try_files::Conf>().is_active()
        || location.scope.of::<rewrite::Conf>().is_active();
    (is_any_script && !is_looked_for).then(|| {
        "scripts that do not exist are passed on too: php-fpm responds 404 \"File not found.\" and logs \"Primary script \
         unknown\". \"try_files $fastcgi_script_name =404;\" in this location responds itself"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::advice;
    use crate::testing::loaded;

    #[test]
    fn pitfalls_of_script_filename_are_told() {
        let told = |location: &str| advice(&loaded(&format!("server {{ server_name a; {location} }}")));
        let dynamic =
            "fastcgi_pass 127.0.0.1:9000; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;";
        let one = |location: &str, words: &str| {
            let told = told(location);
            assert!(told.len() == 1 && told[0].contains(words), "{location}: {told:?}");
        };
        one(
            "location / { fastcgi_pass 127.0.0.1:9000; }",
            "server a, /: no \"fastcgi_param SCRIPT_FILENAME\"",
        );
        one(&format!(r"location ~ \.php$ {{ {dynamic} }}"), r"server a, ~ \.php$: scripts that do not exist");
        one(
            "location / { fastcgi_pass 127.0.0.1:9000; fastcgi_param SCRIPT_FILENAME /no/such/index.php; }",
            "\"/no/such/index.php\", which is not there",
        );
        for good in [
            format!(r"location ~ \.php$ {{ try_files $fastcgi_script_name =404; {dynamic} }}"),
            format!(r"location ~ \.php$ {{ if (!-f $request_filename) {{ return 404; }} {dynamic} }}"),
            format!("location = /index.php {{ {dynamic} }}"),
            "location / { fastcgi_pass 127.0.0.1:9000; fastcgi_param SCRIPT_FILENAME /dev/null; }".to_owned(),
            "location / { root /srv; }".to_owned(),
        ] {
            assert_eq!(told(&good), [""; 0], "{good}");
        }
    }
}
