//! Settings that blocks inherit from the block around them.
//!
//! A scope is cloned for each block inside of it and then changed by that block's directives, so what is
//! not set stays as it was outside. Lists follow nginx: a directive that may be repeated replaces what was
//! inherited with its first use in a block and adds with the next ones; [`Layered`] does that.

use std::sync::Arc;

use crate::modules::{
    access, addition, auth_basic, auth_request, autoindex, brotli, brotli_static, browser, cache_counters,
    charset, empty_gif, gunzip, gzip, gzip_static, headers, http_core, index, limit_conn, limit_req, log,
    mirror, proxy, random_index, realip, referer, rewrite, secure_link, slice, ssi, stub_status, sub,
    try_files, upstream_sticky, userid, zstd, zstd_static,
};
use crate::resolve;

/// The settings of one block. One field for each module that has any.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub(crate) core: http_core::Conf,
    pub(crate) access: access::Conf,
    pub(crate) auth_request: auth_request::Conf,
    pub(crate) addition: addition::Conf,
    pub(crate) sub: sub::Conf,
    pub(crate) browser: browser::Conf,
    pub(crate) charset: charset::Conf,
    pub(crate) headers: headers::Conf,
    pub(crate) auth_basic: auth_basic::Conf,
    pub(crate) brotli: brotli::Conf,
    pub(crate) brotli_static: brotli_static::Conf,
    pub(crate) gunzip: gunzip::Conf,
    pub(crate) gzip: gzip::Conf,
    /// Directives of the core: which clients get compressed answers.
    pub(crate) gzip_clients: http_core::gzip::Conf,
    pub(crate) gzip_static: gzip_static::Conf,
    pub(crate) autoindex: autoindex::Conf,
    /// Holds for this block only.
    pub(crate) empty_gif: empty_gif::Conf,
    pub(crate) index: index::Conf,
    pub(crate) limit_conn: limit_conn::Conf,
    pub(crate) limit_req: limit_req::Conf,
    pub(crate) log: log::Conf,
    pub(crate) mirror: mirror::Conf,
    /// Whom requests are passed to holds for this block only.
    pub(crate) proxy: proxy::Conf,
    pub(crate) resolve: resolve::Conf,
    pub(crate) random_index: random_index::Conf,
    pub(crate) realip: realip::Conf,
    pub(crate) referer: referer::Conf,
    pub(crate) secure_link: secure_link::Conf,
    pub(crate) slice: slice::Conf,
    pub(crate) ssi: ssi::Conf,
    /// Its script holds for this block only.
    pub(crate) rewrite: rewrite::Conf,
    /// Holds for this block only.
    pub(crate) stub_status: stub_status::Conf,
    pub(crate) cache_counters: cache_counters::Conf,
    /// Holds for this block only.
    pub(crate) try_files: try_files::Conf,
    pub(crate) zstd: zstd::Conf,
    pub(crate) zstd_static: zstd_static::Conf,
    pub(crate) userid: userid::Conf,
    /// Set when the whole configuration has been read.
    pub(crate) upstream_sticky: upstream_sticky::Conf,
}

impl Scope {
    /// What a block inside of this one starts with.
    pub(crate) fn inherit(&self) -> Scope {
        Scope {
            core: self.core.inherit(),
            headers: self.headers.inherit(),
            proxy: self.proxy.inherit(),
            rewrite: self.rewrite.inherit(),
            stub_status: Default::default(),
            cache_counters: Default::default(),
            empty_gif: Default::default(),
            try_files: Default::default(),
            ..self.clone()
        }
    }

    /// What an `if` in a location starts with. It is that location under a condition: beside what blocks inherit
    /// it keeps the module that makes the content, where the location's directives name one.
    pub(crate) fn inherit_into_if(&self) -> Scope {
        Scope {
            stub_status: self.stub_status,
            cache_counters: self.cache_counters,
            ..self.inherit_into_limit_except()
        }
    }

    /// What a `limit_except` starts with: requests are passed on as in the location around it.
    pub(crate) fn inherit_into_limit_except(&self) -> Scope {
        Scope { proxy: self.proxy.clone(), ..self.inherit() }
    }
}

/// A list that a block either inherits or makes anew.
#[derive(Debug)]
pub struct Layered<T> {
    items: Arc<Vec<T>>,
    /// The block that made the list; 0 is nobody's.
    block: u32,
}

impl<T> Clone for Layered<T> {
    fn clone(&self) -> Self {
        Layered { items: Arc::clone(&self.items), block: self.block }
    }
}

impl<T> Default for Layered<T> {
    fn default() -> Self {
        Layered { items: Arc::default(), block: 0 }
    }
}

impl<T: Clone> Layered<T> {
    /// The list of the block with this number, emptied first if it was inherited.
    pub fn own(&mut self, block: u32) -> &mut Vec<T> {
        let items = Arc::make_mut(&mut self.items);
        if self.block != block {
            items.clear();
            self.block = block;
        }
        items
    }
}

impl<T> Layered<T> {
    /// Whether the list was made by the block with this number.
    pub fn is_of(&self, block: u32) -> bool {
        self.block == block
    }

    /// What is in force.
    pub fn items(&self) -> &[T] {
        &self.items
    }
}

impl<T> From<Vec<T>> for Layered<T> {
    fn from(items: Vec<T>) -> Self {
        Layered { items: Arc::new(items), block: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_replaces_what_it_inherited_and_adds_to_its_own() {
        let mut outer = Layered::<u8>::default();
        outer.own(1).push(1);
        outer.own(1).push(2);
        let mut inner = outer.clone();
        assert_eq!(inner.items(), [1, 2]);
        inner.own(2).push(3);
        inner.own(2).push(4);
        assert_eq!(inner.items(), [3, 4]);
        assert_eq!(outer.items(), [1, 2]);
    }
}
