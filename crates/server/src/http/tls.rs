//! HTTPS by the server itself: a certificate and its key, read again when the files change.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// How often it is looked whether the files have changed: certificates are renewed days before they end.
const LOOK: Duration = Duration::from_secs(30);

/// Where the certificate and its key are, both as PEM.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TlsFiles {
    /// The certificate, and behind it those that lead to the authority.
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// The certificate that is shown.
pub(crate) struct Tls {
    files: TlsFiles,
    shown: Arc<CurrentCertificate>,
    read: (Vec<u8>, Vec<u8>),
    provider: Arc<CryptoProvider>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When they cannot be read, are no certificate and key, or do not belong together; the message names the file.
    pub(crate) fn read(files: TlsFiles) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let read = files.read()?;
        let key = files.certified(&read, &provider)?;
        Ok(Self { files, shown: Arc::new(CurrentCertificate(RwLock::new(Arc::new(key)))), read, provider })
    }

    /// Makes connections with it, and looks for a new one from now on.
    ///
    /// # Errors
    /// When the library refuses its own defaults.
    pub(crate) fn begin(self) -> Result<TlsAcceptor, String> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.shown) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        tokio::spawn(self.renew());
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    async fn renew(mut self) {
        loop {
            tokio::time::sleep(LOOK).await;
            match self.look() {
                Ok(false) => {}
                Ok(true) => tracing::info!("the certificate was read anew"),
                // The old one is still shown. Halfway through a renewal the two files do not belong together.
                Err(error) => tracing::warn!(error, "the new certificate cannot be used"),
            }
        }
    }

    /// Looks for a new certificate; answers whether there is one.
    fn look(&mut self) -> Result<bool, String> {
        let read = self.files.read()?;
        if read == self.read {
            return Ok(false);
        }
        let key = self.files.certified(&read, &self.provider)?;
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
        self.read = read;
        Ok(true)
    }
}

impl TlsFiles {
    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        let file = |key: &str, path: &PathBuf| {
            std::fs::read(path)
                .map_err(|error| format!("{key}: the file {} cannot be read: {error}", path.display()))
        };
        Ok((file("tls.cert", &self.cert)?, file("tls.key", &self.key)?))
    }

    fn certified(
        &self,
        (cert, key): &(Vec<u8>, Vec<u8>),
        provider: &CryptoProvider,
    ) -> Result<CertifiedKey, String> {
        let chain = certificates(cert)
            .map_err(|error| format!("tls.cert: {} has no certificates: {error}", self.cert.display()))?;
        // What is wrong with a key is not shown: it might be shown with it.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            format!("tls.key: {} has no private key as PEM (PKCS#8, SEC1 or PKCS#1)", self.key.display())
        })?;
        CertifiedKey::from_der(chain, key, provider).map_err(|error| {
            format!(
                "the certificate {} and the key {} cannot be used together: {error}",
                self.cert.display(),
                self.key.display()
            )
        })
    }
}

/// All certificates of a PEM file; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("there is no BEGIN CERTIFICATE in it".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Debug)]
struct CurrentCertificate(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &tempfile::TempDir, cert: &str, key: &str) -> TlsFiles {
        let made = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates/");
        let files = TlsFiles { cert: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
        std::fs::copy(format!("{made}{cert}"), &files.cert).unwrap();
        std::fs::copy(format!("{made}{key}"), &files.key).unwrap();
        files
    }

    fn shown(tls: &Tls) -> Vec<u8> {
        tls.shown.0.read().unwrap().cert[0].to_vec()
    }

    #[test]
    fn a_renewed_certificate_is_shown_as_soon_as_both_files_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut tls = Tls::read(put(&folder, "one.pem", "one.key")).unwrap();
        let first = shown(&tls);
        assert_eq!(tls.look(), Ok(false), "nothing has changed");
        put(&folder, "two.pem", "one.key");
        assert!(tls.look().unwrap_err().contains("together"), "halfway through");
        assert_eq!(shown(&tls), first, "the old one is shown meanwhile");
        put(&folder, "two.pem", "two.key");
        assert_eq!(tls.look(), Ok(true));
        assert_ne!(shown(&tls), first);
        assert_eq!(tls.look(), Ok(false));
    }
}
