//! All groups of a configuration: upstream blocks, and implicit groups of addresses in `proxy_pass`.

use std::fmt;
use std::sync::Arc;

use conf::Span;

use super::Group;
use super::address::Url;
use super::lines::Draft;

/// The groups, in the order in which they were defined or first named.
#[derive(Debug, Default)]
pub struct Upstreams(Vec<Arc<Group>>);

/// Reason why a group is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupFault {
    /// A block with this name already exists.
    Duplicate(String),
    /// A reference to a block has a port.
    Port(String, u16),
}

impl fmt::Display for GroupFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupFault::Duplicate(name) => write!(f, "duplicate upstream \"{name}\""),
            GroupFault::Port(name, port) => write!(f, "upstream \"{name}\" may not have port {port}"),
        }
    }
}

impl Upstreams {
    /// Checks whether a block with this name could be added.
    pub fn check_block(&self, name: &str) -> Result<(), GroupFault> {
        match self.block(name.as_bytes()) {
            Some(_) => Err(GroupFault::Duplicate(name.to_owned())),
            None => Ok(()),
        }
    }

    /// Adds and returns the group of a block. All blocks are read before the locations that may name them, regardless of their order.
    pub fn add_block(&mut self, draft: Draft) -> Arc<Group> {
        let group = Arc::new(Group::of_block(draft));
        self.0.push(Arc::clone(&group));
        group
    }

    /// Returns the group for an address without variables: that of a block, or an implicit one that is shared by all references to
    /// the same address.
    pub fn of_address(&mut self, url: &Url, position: &Span) -> Result<Arc<Group>, GroupFault> {
        if let Some(group) = self.block(url.host.as_bytes()) {
            return match url.has_port {
                true => Err(GroupFault::Port(url.host.clone(), url.port)),
                false => Ok(Arc::clone(group)),
            };
        }
        if let Some(group) = self.find(url.host.as_bytes(), url.port, url.has_port) {
            return Ok(Arc::clone(group));
        }
        let group = Arc::new(Group::of_address(url, position));
        self.0.push(Arc::clone(&group));
        Ok(group)
    }

    /// Returns the group for a host from variables: that of a block if there is no port, or an implicit one with the same address.
    pub fn find(&self, host: &[u8], port: u16, has_port: bool) -> Option<&Arc<Group>> {
        self.0.iter().find(|group| {
            let fits = match group.port {
                None => !has_port,
                Some(known) => known == port,
            };
            fits && group.name.as_bytes().eq_ignore_ascii_case(host)
        })
    }

    fn block(&self, name: &[u8]) -> Option<&Arc<Group>> {
        self.0.iter().find(|group| group.port.is_none() && group.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns all groups.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.0.iter()
    }

    /// Takes over state from the groups of the same names in the previous configuration. Must be called before a thread serves with
    /// this configuration.
    pub fn begin(&self, before: &Upstreams) {
        for group in &self.0 {
            let of_name = || before.0.iter().filter(|old| old.name.eq_ignore_ascii_case(&group.name));
            let same = of_name().find(|old| old.port == group.port);
            // The same host with another port: its addresses are known.
            let same = same.or_else(|| of_name().find(|old| old.port.is_some() && group.port.is_some()));
            group.begin(same.map(|old| &**old));
        }
    }
}
