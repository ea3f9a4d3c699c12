//! Certificates for servers of tests: an authority of our own, and what it vouches for.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::failure::Failure;
use crate::services::home::Home;

/// Who signs the others. Its certificate is what clients trust.
pub(super) const AUTHORITY: &str = "authority";

/// The sections are named as the certificates are. Without extensions a certificate would not be of version 3, and some
/// servers take no others from their clients.
const SETTINGS: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = towpath
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
";

/// Makes `authority`, `server` and `client` with their subjects, each as `NAME.crt` and `NAME.key` in the server's folder.
/// What is there already stays.
pub(super) fn make(home: &Home, server: &str, client: &str) -> Result<(), Failure> {
    let folder = home.folder();
    home.write(&folder.join("openssl.cnf"), SETTINGS)?;
    for (name, subject) in [(AUTHORITY, "/CN=towpath-tests"), ("server", server), ("client", client)] {
        if folder.join(format!("{name}.crt")).exists() {
            continue;
        }
        let mut openssl = home.command("openssl");
        openssl
            .args(["req", "-x509", "-config", "openssl.cnf", "-extensions", name, "-subj", subject])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650"])
            .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")]);
        if name != AUTHORITY {
            openssl.args(["-CA", "authority.crt", "-CAkey", "authority.key"]);
        }
        home.run(openssl)?;
    }
    // Tests run as another user than the server. The key opens a server on this machine's loopback that holds nothing but
    // what tests put there.
    let key = folder.join("client.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644))
        .map_err(Failure::while_trying(format!("share {}", key.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_certificate_has_its_extensions() {
        for name in [AUTHORITY, "server", "client"] {
            assert!(SETTINGS.contains(&format!("[{name}]\nbasicConstraints")), "{name}");
        }
    }
}
