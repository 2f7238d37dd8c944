//! The function that writes the state file of a zone of pairs: `keyval` sets it, and modules that change pairs call it.

use std::rc::Rc;
use std::sync::Arc;

use crate::thread::Thread;
use site::shared_zone::AnyZone;

/// Begins to write the pairs of a zone to its state file, if it has one. A thread has it as a local value.
pub struct SavePairs(pub fn(&Arc<dyn AnyZone>, &Rc<Thread>));
