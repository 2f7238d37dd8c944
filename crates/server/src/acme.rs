//! Changes to a serving process by the process that obtains certificates: challenges of the process, certificates of a
//! configuration. Every thread has a change when its function returns.

use acme::agent::Challenge;
use exchange::acme::{self as served, Slots};
use exchange::config::Config;
use tls::{Identity, Server};

pub use modules::issuers;

/// Puts a challenge in place.
pub fn install(challenge: &Challenge) -> Result<(), String> {
    let is_installed = match challenge {
        Challenge::Http { token, text } => served::install_http(token.clone(), text.clone()),
        Challenge::Tls { name, pem } => {
            let identity = Identity::from_pem(pem, pem, &[]).map_err(|error| error.to_string())?;
            let server = Server::for_challenge(&identity).map_err(|error| error.to_string())?;
            served::install_tls(name.clone(), server)
        }
    };
    if is_installed { Ok(()) } else { Err("too many challenges".to_owned()) }
}

/// Takes a challenge away.
pub fn remove(challenge: &Challenge) {
    match challenge {
        Challenge::Http { token, .. } => served::remove_http(token),
        Challenge::Tls { name, .. } => served::remove_tls(name),
    }
}

/// Shows a certificate from the next handshake on. The text is a chain with the key of the first, in PEM.
pub fn set_certificate(config: &Config, id: &str, pem: &[u8]) -> Result<(), String> {
    let identity = Identity::from_pem(pem, pem, &[]).map_err(|error| error.to_string())?;
    // An order that the configuration does not have any more.
    if let Some(slot) = config.http.of::<Slots>().0.get(id) {
        slot.set(identity);
    }
    Ok(())
}
