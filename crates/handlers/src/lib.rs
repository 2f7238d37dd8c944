//! The modules of nginx that serve files, and `dav`, which changes files. They use no upstream and no TLS.
//!
//! A module owns its directives, its settings and their inheritance, its variables, and its handlers.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `telemetry`, `transfer`, `site`, `exchange`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`empty_gif`] | an image of one transparent pixel |
//! | [`mp4`] | a time span of an MP4 file |
//! | [`flv`] | a Flash video from a byte offset |
//! | [`dav`] | WebDAV: changes of files, properties and locks |
//! | [`random_index`] | a random file of a directory |
//! | [`mod@index`] | the file that is served for a directory |
//! | [`zstd_static`], [`brotli_static`] | files that were compressed in advance |
//! | [`gzip_static`] | the same for gzip |
//! | [`precompressed`] | the common code of these three |
//! | [`autoindex`] | a listing of a directory |
//! | [`static_file`] | files of the document root |
#![forbid(unsafe_code)]

mod autoindex;
mod brotli_static;
mod dav;
mod empty_gif;
mod flv;
mod gzip_static;
mod index;
mod mp4;
mod precompressed;
mod random_index;
mod static_file;
#[cfg(test)]
#[path = "../../modules/src/testing.rs"]
pub mod testing;
mod zstd_static;

use exchange::module::Module;
use site::declaration::{Declaration, Directive};

/// The modules, in the order of the handlers in a phase.
pub static MODULES: &[&Module] = &[
    // Modules that serve a complete location precede those that search files in it.
    &empty_gif::MODULE,
    &mp4::MODULE,
    &flv::MODULE,
    &dav::MODULE,
    &random_index::MODULE,
    &index::MODULE,
    // As in nginx with these modules, the best coding is first. The handler of the original files is last.
    &zstd_static::MODULE,
    &brotli_static::MODULE,
    &gzip_static::MODULE,
    &autoindex::MODULE,
    &static_file::MODULE,
];

/// Whether clients can change files of a location by methods of WebDAV.
pub fn may_write(scope: &site::config::Scope) -> bool {
    scope.of::<dav::Conf>().allows_changes()
}

/// Returns the modules that tests read configurations with.
#[cfg(test)]
fn all() -> &'static exchange::module::ModuleTable {
    static TABLE: std::sync::LazyLock<exchange::module::ModuleTable> =
        std::sync::LazyLock::new(|| exchange::module::ModuleTable::new(&[core_modules::MODULES, MODULES]));
    &TABLE
}
