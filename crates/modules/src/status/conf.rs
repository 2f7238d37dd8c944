//! The settings of a block: its page, and the name under which its requests are counted.

use std::sync::Arc;

use conf::Layered;
use site::config::{Inner, Settings};

/// The settings of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// The page. As for other content handlers, nested locations do not inherit it.
    pub(super) page: Option<Page>,
    /// `status_zone`
    pub(super) zone: Option<Named>,
    /// `api_hosts`
    pub(super) hosts: Layered<Box<str>>,
}

/// `status_zone` of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Counted under this name.
    As(Arc<str>),
    /// No separate zone: a location counts only for its server, a server is not counted.
    Off,
}

/// The pages of a block. A block has only one content handler, and so one page: that of the last directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// `health live`: whether a thread serves.
    Live,
    /// `health ready`: whether clients should connect.
    Ready,
    /// `dashboard`: the page and its data, at the same URL.
    Dashboard,
    /// `metrics`
    Metrics,
    /// `api`
    Api {
        /// `write=on`
        may_write: bool,
    },
}

impl Page {
    /// Returns the name of its directive.
    pub(super) fn name(self) -> &'static str {
        match self {
            Page::Live | Page::Ready => "health",
            Page::Dashboard => "dashboard",
            Page::Metrics => "metrics",
            Page::Api { .. } => "api",
        }
    }

    /// Whether it reveals facts that the public should not know. Health checks reveal no more than a connection does.
    pub(super) fn is_private(self) -> bool {
        !matches!(self, Page::Live | Page::Ready)
    }

    /// Whether clients can change something through it.
    pub(super) fn may_write(self) -> bool {
        matches!(self, Page::Api { may_write: true })
    }
}

impl Settings for Conf {
    fn inherit(&self, inner: Inner) -> Option<Conf> {
        (inner == Inner::Block).then(|| Conf { hosts: self.hosts.clone(), ..Conf::default() })
    }
}
