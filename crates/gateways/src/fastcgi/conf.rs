//! Settings that only FastCGI has, with nginx's defaults.

use std::sync::Arc;

use http::fields::HeaderId;

use crate::fastcgi::request;
use crate::passing::conf::{Conf, NEXT_UPSTREAM_OF_SCRIPTS};
use crate::passing::params::{self, Param};
use crate::passing::pass::Destination;
use crate::passing::request::Fill;
use crate::passing::{Family, Passing, Protocol};
use exchange::request::Request;
use site::config::{Layered, Scope};
use site::pattern::Pattern;
use upstream::Outgoing;

/// Returns the settings of a block, mutable.
pub(super) fn fastcgi(scope: &mut Scope) -> &mut FastCgi {
    &mut scope.make_mut::<Passing<FastCgi>>().protocol
}

/// The FastCGI settings of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct FastCgi {
    /// `fastcgi_param`
    pub(super) params: Layered<Param>,
    /// `fastcgi_index`
    pub(super) index: Option<Arc<str>>,
    /// `fastcgi_split_path_info`
    pub(super) split: Option<Arc<Pattern>>,
    /// `fastcgi_catch_stderr`
    pub(super) caught: Layered<Box<str>>,
    /// `fastcgi_keep_conn`
    pub(super) keep_conn: bool,
}

impl Family for FastCgi {
    const PREFIX: &'static str = "fastcgi";
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] = NEXT_UPSTREAM_OF_SCRIPTS;

    fn hides(_: HeaderId, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(b"Status")
    }

    fn finish(&mut self, conf: &mut Conf) {
        // A script gets the method as a parameter from the configuration, so the cache cannot change it.
        conf.cache.convert_head = false;
        conf.cache.sets_range = params::sets_range(self.params.items());
    }
}

impl Protocol for FastCgi {
    fn build(
        &self,
        conf: &Conf,
        request: &mut Request,
        _: &Destination,
        fill: Option<&Fill>,
    ) -> Result<Outgoing, u16> {
        request::build(self, conf, request, fill)
    }
}
