//! The page of `metrics`, generated from the rows of all sections.

use http::fields::{HeaderId, Method};
use io::segments::Source;
use telemetry::metric::{Form, Label, Metric, Page};
use telemetry::reloads::{self, Reloads};
use telemetry::{disks, losses, spans, tally, traffic, turns};

use super::conf::Conf;
use super::sessions::SessionZones;
use super::zones::StatusZones;
use super::{limits, process, rebinding};
use caching::settings::Caches;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::response::ContentType;
use peers::Upstreams;
use site::config::Section;

/// A constant, whose label shows the version on dashboards.
const BUILD: Metric = Metric::gauge("build_info", "1", "1, with the version of the program.")
    .labelled(&[Label { name: "version", values: &[] }]);

/// Changes with each reload in place; a replacement of the worker starts again with 1.
const GENERATION: Metric = Metric::gauge(
    "config_generation",
    "configurations",
    "Number of the configuration in force, counted from 1 by each worker process.",
);

/// A certificate that a server uses twice has one line.
const CERTIFICATES: Metric = Metric::gauge(
    "tls_certificate_expiry_timestamp_seconds",
    "seconds",
    "Expiry time of a certificate, in seconds since 1970; 0 until an authority has issued it.",
)
.labelled(&[Label { name: "server", values: &[] }, Label { name: "certificate", values: &[] }]);

/// A section of the page: a heading for the documentation, and its rows.
type Part = (&'static str, Vec<&'static Metric>);

/// Returns all metrics of the page, in its order.
pub fn metrics() -> Vec<Part> {
    vec![
        ("Server", [&[&BUILD, &GENERATION], reloads::METRICS, process::METRICS].concat()),
        ("Connections and requests", tally::METRICS.to_vec()),
        ("Threads", turns::METRICS.to_vec()),
        ("Disks", disks::METRICS.to_vec()),
        ("Servers and locations", traffic::METRICS.to_vec()),
        ("Servers of stream", traffic::SESSION_METRICS.to_vec()),
        ("Limits", limits::METRICS.to_vec()),
        ("Upstreams", peers::metrics::METRICS.to_vec()),
        ("Certificates", vec![&CERTIFICATES]),
        ("Caches", caching::metrics::metrics()),
        ("Logs", losses::METRICS.to_vec()),
        ("Traces", spans::METRICS.to_vec()),
    ]
}

/// Generates the page in memory: 27 lines per histogram, some hundred KiB with a hundred zones. The sums on a page may
/// be of slightly different times.
pub(super) fn run(_: &Conf, request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    if let Some(refusal) = rebinding::refuse(request) {
        return refusal;
    }
    let form = form(request.header(HeaderId::Accept));
    let http = &request.config().http;
    let shared = &request.conn.thread.shared;
    let mut page = Page::new(form);
    page.head(&BUILD);
    page.number(&BUILD, &[env!("CARGO_PKG_VERSION")], 1);
    page.head(&GENERATION);
    page.number(&GENERATION, &[], request.thread_config.number);
    Reloads::current().write(&mut page);
    process::write(shared.started(), &mut page);
    shared.write_connections(&mut page);
    shared.write_loops(&mut page);
    shared.write_disks(&mut page);
    shared.traffic.write(http.of::<StatusZones>().all(), &mut page);
    let sessions = request.config().section(Section::Stream).of::<SessionZones>();
    shared.session_traffic.write_sessions(sessions.all(), &mut page);
    limits::write(http, &mut page);
    let groups = request.config().sections().into_iter().flat_map(|block| block.of::<Upstreams>().groups());
    peers::metrics::write(groups, rt::now(), &mut page);
    page.head(&CERTIFICATES);
    for (server, path, expires) in core_modules::expiries(http) {
        let path = path.display().to_string();
        page.number(&CERTIFICATES, &[server, &path], u64::try_from(expires).unwrap_or(0));
    }
    let caches = &http.of::<Caches>().zones;
    caching::metrics::write(caches.iter().map(|zone| (zone.name(), &**zone.state())), &mut page);
    losses::write(&mut page);
    spans::write(&mut page);
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text(form.content_type().into());
    response.set_bytes(Source::Vec(page.finish().into_bytes()));
    Step::Done
}

/// Returns the format that a client accepts: a scraper that supports OpenMetrics requests it.
fn form(accept: Option<&[u8]>) -> Form {
    const OPEN: &[u8] = b"application/openmetrics-text";
    let accepts = |accept: &[u8]| memchr::memmem::find(accept, OPEN).is_some();
    if accept.is_some_and(accepts) { Form::OpenMetrics } else { Form::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapers_select_the_format_by_accept() {
        assert_eq!(form(None), Form::Plain);
        assert_eq!(form(Some(b"text/plain;version=0.0.4, */*")), Form::Plain);
        let prometheus =
            b"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75";
        assert_eq!(form(Some(prometheus)), Form::OpenMetrics);
    }
}
