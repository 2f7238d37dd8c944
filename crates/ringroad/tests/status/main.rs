//! Metrics, status API, dashboard, health, and the log of the administrator.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod api;
mod dashboard;
mod health;
mod keyvals;
mod log;
mod metrics;
mod operations;
mod sessions;
