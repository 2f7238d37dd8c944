//! From names to addresses, with nobody waiting for it who has something else to do.
//!
//! | part | holds |
//! |---|---|
//! | `system` | names that are written in the configuration: the system's way, on a helper thread |
//! | [`keeper`] | looks them up again in time, and hands what it finds to the groups of `upstream::peers` |

pub(crate) mod keeper;
mod system;

use std::sync::Arc;
use std::time::Duration;

use io::Errno;

pub use keeper::missing;

use crate::log::{Level, Reason};
use crate::request::Request;
use crate::upstream::peers::Group;

/// Waits until the names of a group have addresses, or are known to have none; not for ever.
pub(crate) async fn first_answer(request: &Request, group: &Arc<Group>) {
    let timer = rt::Timer::new();
    timer.set(rt::now() + TIMEOUT);
    if let Err(rt::Elapsed) = timer.limit(group.first_answer()).await {
        let (name, errno) = (&group.name, Reason(Errno::TIMEDOUT));
        request.log(Level::Error, format_args!("{name} could not be resolved ({errno})"));
    }
}

/// The default of `resolver_timeout`, nginx's.
const TIMEOUT: Duration = Duration::from_secs(30);
