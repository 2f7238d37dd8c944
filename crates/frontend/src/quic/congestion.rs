//! The congestion controllers of connections: those of `quinn-proto`, except that a closed connection has an unlimited window.
//!
//! A packet with CONNECTION_CLOSE is not congestion controlled (RFC 9002 section 7), but `quinn-proto` 0.11.19 holds it back while the
//! window is full: the client would notice the end by its idle timeout only. This module is of no use with a version that has the
//! mend (quinn's pull request 2787).

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::{Connection, RttEstimator, Transmit};

use exchange::http3::CongestionControl;

thread_local! {
    /// Whether the connection that is asked for packets is closed.
    static IS_CLOSED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the next packets of a connection, as [`Connection::poll_transmit`] does.
pub(super) fn next_packets(
    connection: &mut Connection,
    now: Instant,
    most: usize,
    packets: &mut Vec<u8>,
) -> Option<Transmit> {
    IS_CLOSED.set(connection.is_closed());
    let transmit = connection.poll_transmit(now, most, packets);
    IS_CLOSED.set(false);
    transmit
}

/// Returns the maker of controllers for an algorithm.
pub(super) fn factory(algorithm: CongestionControl) -> Arc<dyn ControllerFactory + Send + Sync> {
    match algorithm {
        CongestionControl::Cubic => Arc::new(ClosableFactory(Arc::new(CubicConfig::default()))),
        CongestionControl::Bbr => Arc::new(ClosableFactory(Arc::new(BbrConfig::default()))),
    }
}

struct ClosableFactory<F>(Arc<F>);

impl<F: ControllerFactory> ControllerFactory for ClosableFactory<F> {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Closable(Arc::clone(&self.0).build(now, mtu)))
    }
}

struct Closable(Box<dyn Controller>);

impl Controller for Closable {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.0.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.0.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.0.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.0.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.0.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        if IS_CLOSED.get() { u64::MAX } else { self.0.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.0.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Closable(self.0.clone_box()))
    }

    fn initial_window(&self) -> u64 {
        self.0.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.0.into_any()
    }
}
