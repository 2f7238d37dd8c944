//! The advice of `ringroad check`: likely mistakes that only the settings of several modules together show.

use site::config::Config;

/// Returns a line for each location with a likely mistake: the location, and the remedy.
pub fn advice(config: &Config) -> Vec<String> {
    gateways::advice(config, core_modules::checks_files)
}

#[cfg(test)]
mod tests {
    use super::advice;
    use crate::testing::loaded;

    #[test]
    fn pitfalls_of_script_filename_are_reported() {
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
            "\"/no/such/index.php\", which does not exist",
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
