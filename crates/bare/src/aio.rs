//! libaio with minimal code around it: io_submit(2) and io_getevents(2), as fio and other programs use them.

use rustix::io::Errno;

use super::kernel::{Context, Event, Request};
use super::places::Places;
use super::{Done, Load, Queue, QueueError, Transfer};

/// A libaio context, its files and its buffers.
pub struct AioQueue {
    /// The first field, so that it is dropped first: its drop waits for operations in flight, which use the buffers.
    context: Context,
    places: Places,
    /// One request per buffer slot; `staged` has the slots of added requests.
    requests: Vec<Request>,
    staged: Vec<u32>,
    pointers: Vec<*mut Request>,
    events: Vec<Event>,
    /// Transfers that the kernel refused.
    refused: Vec<Done>,
}

impl AioQueue {
    /// Creates a context for the depth of `load`.
    ///
    /// # Errors
    /// When the kernel refuses the context, or has no memory.
    pub fn new(load: Load) -> Result<AioQueue, QueueError> {
        let context = Context::new(load.depth).map_err(QueueError::Aio)?;
        let places = Places::new(load)?;
        let requests = vec![Request::default(); places.depth()];
        Ok(AioQueue {
            context,
            places,
            requests,
            staged: Vec::new(),
            pointers: Vec::new(),
            events: Vec::new(),
            refused: Vec::new(),
        })
    }
}

/// Converts an event and frees its slot.
fn finished(event: Event, places: &mut Places) -> Done {
    let place = event.data as u32;
    places.give_back(place);
    let result =
        u32::try_from(event.result).map_err(|_| Errno::from_raw_os_error(event.result.wrapping_neg() as i32));
    Done { place, result }
}

impl Queue for AioQueue {
    fn push(&mut self, transfer: Transfer) -> Option<u32> {
        let place = self.places.take(transfer)?;
        let fd = self.places.fd(transfer.file);
        let buf = self.places.buf(place);
        let request = Request::new(transfer.write, fd, transfer.offset, buf, transfer.len, place.into());
        self.requests[place as usize] = request;
        self.staged.push(place);
        Some(place)
    }

    fn submit(&mut self) -> Result<(), Errno> {
        while !self.staged.is_empty() {
            self.pointers.clear();
            for &place in &self.staged {
                self.pointers.push(&raw mut self.requests[place as usize]);
            }
            match self.context.submit(&mut self.pointers) {
                Ok(taken) => {
                    self.staged.drain(..taken);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Errno::AGAIN),
                // The error concerns the first request.
                Err(error) => {
                    let place = self.staged.remove(0);
                    self.places.give_back(place);
                    self.refused.push(Done { place, result: Err(error) });
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, min: u32, done: &mut Vec<Done>) -> Result<(), Errno> {
        let wanted = done.len() + min as usize;
        done.append(&mut self.refused);
        loop {
            let min = wanted.saturating_sub(done.len());
            match self.context.wait(min, self.places.depth(), &mut self.events) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            let places = &mut self.places;
            done.extend(self.events.drain(..).map(|event| finished(event, places)));
            if done.len() >= wanted {
                return Ok(());
            }
        }
    }

    fn content(&self, place: u32) -> &[u8] {
        self.places.content(place)
    }

    fn kernel_entries(&self) -> u64 {
        self.context.kernel_entries
    }
}
