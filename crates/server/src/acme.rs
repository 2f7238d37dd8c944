//! Applies changes that the process which obtains certificates has sent: challenges, and certificates of a
//! configuration. When a function returns, all threads use the change.

use acme::agent::Challenge;
use exchange::acme::{self as served, Slots};
use site::config::Config;
use tls::{Identity, Server};

pub use modules::issuers;

/// Installs a challenge.
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

/// Removes a challenge.
pub fn remove(challenge: &Challenge) {
    match challenge {
        Challenge::Http { token, .. } => served::remove_http(token),
        Challenge::Tls { name, .. } => served::remove_tls(name),
    }
}

/// Uses a certificate from the next handshake on. The text is a chain and the key of its first certificate, in PEM.
pub fn set_certificate(config: &Config, id: &str, pem: &[u8]) -> Result<(), String> {
    let identity = Identity::from_pem(pem, pem, &[]).map_err(|error| error.to_string())?;
    // A reload may have removed the order of this certificate.
    if let Some(slot) = config.http.of::<Slots>().0.get(id) {
        slot.set(identity);
    }
    Ok(())
}
