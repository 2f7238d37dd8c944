//! The access log: a line for each request, in the formats that its location names.

use std::rc::Rc;

use crate::request::Request;

/// Writes the request to the access logs of its location.
pub(crate) fn write(request: &Request) {
    let thread = &request.conn.thread;
    for log in request.scope().log.logs() {
        if log.condition.as_ref().is_some_and(|condition| is_false(&condition.rendered(request))) {
            continue;
        }
        let Some(file) = thread.logs.get(&log.path) else { continue };
        let held = file.append(log.buffer.unwrap_or(0) as usize, |line| {
            log.format.render(request, line);
            line.push(b'\n');
        });
        if let (true, Some(flush)) = (held, log.flush) {
            let file = Rc::clone(&file);
            rt::spawn(async move {
                rt::sleep_until(rt::now() + flush).await;
                file.release();
            });
        }
    }
}

/// nginx: an empty value and `0` mean no.
fn is_false(value: &[u8]) -> bool {
    matches!(value, b"" | b"0")
}
