//! Settings of the core that the life of a request depends on. Their directives are in [`crate::modules::http_core`].

pub(crate) mod gzip_clients;
