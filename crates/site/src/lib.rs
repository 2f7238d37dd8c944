//! The configuration of a server: settings, servers, locations, zones, and text with variables. This crate knows no request.
//!
//! [`config`] reads it with the declarations of modules. Types for the processing of requests are generic over the
//! request: [`phases`] lists the handlers of a location, [`variables`] the functions of variables.
#![forbid(unsafe_code)]

pub mod address;
pub mod config;
pub mod extensions;
pub mod find_location;
pub mod ids;
pub mod network;
pub mod pattern;
pub mod phases;
pub mod registry;
pub mod route;
pub mod settings;
pub mod shared_zone;
pub mod slots;
pub mod template;
pub mod var_ref;
pub mod variables;
pub mod wildcard;

pub use config::{cx, declaration};
