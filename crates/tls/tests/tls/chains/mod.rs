//! Certificate chains, and comparison of their verification with the `openssl` command.

#![allow(dead_code, reason = "each test binary uses a part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a helper of a test fails as the test itself does"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tls::certificate::{certificates, crls};
use tls::x509::{Purpose, Roots};

/// Whether the `openssl` command is available. Without it the comparison is skipped, and a message reports this.
pub(crate) fn has_openssl() -> bool {
    let is_there =
        Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        eprintln!("skipped: there is no openssl command");
    }
    is_there
}

/// The directory of one test.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(test: &str) -> Files {
        let path = std::env::temp_dir().join(format!("ringroad-verdicts-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Files(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }

    /// Runs the command in the directory. Returns whether it succeeded, and its output.
    pub(crate) fn openssl(&self, arguments: &[&str]) -> (bool, String) {
        let output = Command::new("openssl").args(arguments).current_dir(&self.0).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    pub(crate) fn make(&self, arguments: &[&str]) {
        let (is_done, text) = self.openssl(arguments);
        assert!(is_done, "openssl {arguments:?}: {text}");
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A certificate with its parameters and its private key.
pub(crate) struct Made {
    pub(crate) certificate: Certificate,
    pub(crate) params: CertificateParams,
    pub(crate) key: KeyPair,
}

impl Made {
    pub(crate) fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }
}

pub(crate) fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(["example.org".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2049, 1, 1));
    params.use_authority_key_identifier_extension = true;
    params
}

pub(crate) fn authority(
    name: &str,
    issuer: Option<&Made>,
    change: impl FnOnce(&mut CertificateParams),
) -> Made {
    made(name, issuer, |params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.subject_alt_names = Vec::new();
        change(params);
    })
}

pub(crate) fn made(name: &str, issuer: Option<&Made>, change: impl FnOnce(&mut CertificateParams)) -> Made {
    let (mut params, key) = (params(name), KeyPair::generate().unwrap());
    change(&mut params);
    let certificate = match issuer {
        Some(issuer) => params.signed_by(&key, &issuer.issuer()),
        None => params.self_signed(&key),
    };
    Made { certificate: certificate.unwrap(), params, key }
}

/// A chain to verify.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The certificates in PEM, the peer's first.
    pub(crate) chain: Vec<String>,
    pub(crate) roots: Vec<String>,
    pub(crate) crls: Vec<String>,
    pub(crate) depth: u32,
    pub(crate) purpose: Purpose,
}

impl Case {
    pub(crate) fn new(name: &'static str, chain: &[&Made], root: &Made) -> Case {
        let chain = chain.iter().map(|made| made.certificate.pem()).collect();
        let roots = vec![root.certificate.pem()];
        Case { name, chain, roots, crls: Vec::new(), depth: 9, purpose: Purpose::Client }
    }

    /// Returns the error number and message of this crate.
    pub(crate) fn ours(&self) -> Result<(), (i32, String)> {
        let mut roots = Roots::new().unwrap();
        for root in &self.roots {
            roots.add(&certificates(root.as_bytes()).unwrap()[0]).unwrap();
        }
        for crl in &self.crls {
            roots.add_crl(&crls(crl.as_bytes()).unwrap()[0]).unwrap();
        }
        let chain: Vec<_> =
            self.chain.iter().map(|pem| certificates(pem.as_bytes()).unwrap().remove(0)).collect();
        roots.verify(&chain, self.purpose, self.depth).map_err(|error| (error.code, error.reason))
    }

    /// Returns the error number and message of `openssl verify`.
    pub(crate) fn theirs(&self, files: &Files) -> Result<(), (i32, String)> {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let roots = path(&files.write("roots.pem", &self.roots.concat()));
        let others = path(&files.write("others.pem", &self.chain[1..].concat()));
        let first = path(&files.write("first.pem", &self.chain[0]));
        let purpose = if self.purpose == Purpose::Client { "sslclient" } else { "sslserver" };
        let depth = self.depth.to_string();
        let mut arguments =
            vec!["verify", "-no-CApath", "-no-CAstore", "-CAfile", &roots, "-purpose", purpose];
        arguments.extend(["-verify_depth", &depth]);
        if self.chain.len() > 1 {
            arguments.extend(["-untrusted", &others]);
        }
        let crls = path(&files.write("crls.pem", &self.crls.concat()));
        if !self.crls.is_empty() {
            arguments.extend(["-crl_check", "-crl_check_all", "-CRLfile", &crls]);
        }
        arguments.push(&first);
        let (is_trusted, text) = files.openssl(&arguments);
        // Example of the output: error 20 at 0 depth lookup: unable to get local issuer certificate
        let verdict = text.lines().find_map(|line| line.strip_prefix("error ")?.split_once(" at "));
        match verdict {
            None => {
                assert!(is_trusted, "{}: {text}", self.name);
                Ok(())
            }
            Some((code, words)) => {
                let words = words.split_once(": ").unwrap().1;
                Err((code.parse().unwrap(), words.to_owned()))
            }
        }
    }
}
