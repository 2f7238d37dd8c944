//! State that several requests share: [`Shared`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use site::extensions::Extensions;
use site::slots::Slots;
use site::variables::assigned_values;

/// State that a request of a client and its subrequests share, as in nginx. Several of them may be in flight concurrently.
#[derive(Default)]
pub struct Shared {
    /// Values of the configuration's variables.
    pub slots: Slots,
    /// Values of modules for all of these requests. It must not be borrowed across an await.
    pub extensions: RefCell<Extensions>,
    /// Number of subrequests so far, at any depth.
    pub subrequests: Cell<u32>,
    /// `$request_id`, generated at its first use. Copies of a request have the same identifier, also if it is generated later.
    pub id: Rc<Cell<Option<[u8; 16]>>>,
    /// The identifier of the trace, once the request was chosen not to be traced. Most requests need nothing else of a trace, so
    /// that a small share of traced requests costs the others no memory.
    pub untraced_id: Cell<Option<[u8; 16]>>,
}

impl Shared {
    /// Returns the state for a request that continues independently: the same identifier, and nothing else.
    pub fn detached(&self) -> Shared {
        Shared { id: Rc::clone(&self.id), ..Shared::default() }
    }

    /// As [`Shared::detached`], with these values of variables.
    pub(crate) fn detached_with(&self, slots: Slots) -> Shared {
        let extensions = RefCell::new(assigned_values(&self.extensions.borrow()));
        Shared { slots, extensions, ..self.detached() }
    }

    /// Resets everything. The identifier is replaced if a copy of the request still uses it.
    pub(crate) fn clear(&mut self) {
        let Shared { slots, extensions, subrequests, id, untraced_id } = self;
        slots.clear();
        extensions.get_mut().clear();
        subrequests.set(0);
        untraced_id.set(None);
        match Rc::get_mut(id) {
            Some(id) => id.set(None),
            None => *id = Rc::default(),
        }
    }
}
