//! What an AMQP URL says: which servers, and how to know them and be known to them.
//!
//! `amqp[s]://USER:PASSWORD@HOST[:PORT][,HOST[:PORT]…]/VIRTUAL-HOST[?cacert=FILE&cert=FILE&key=FILE&heartbeat=SECONDS…]`

use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::BadBrokerUrl;
use crate::url::{parameters, percent_decoded};

/// How often both sides say that they are there, in seconds, unless the URL says otherwise.
const HEARTBEAT: u16 = 20;

/// Parameters that are lapin's.
const OF_LAPIN: [&str; 5] = ["heartbeat", "frame_max", "channel_max", "connection_timeout", "auth_mechanism"];

/// An AMQP URL that was read.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// One for each server; they differ in host and port only.
    pub(super) servers: Vec<AMQPUri>,
    pub(super) tls: Tls,
}

/// Files for TLS. They are read anew for every connection: certificates are renewed while a program runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tls {
    /// Whom to trust; the world's authorities if nobody is named, and nobody else if somebody is.
    authorities: Option<PathBuf>,
    /// Who we are: a certificate and its key.
    identity: Option<(PathBuf, PathBuf)>,
}

impl Address {
    /// Reads a URL. What is wrong with it is told without repeating any of it.
    pub(crate) fn read(url: &str) -> std::result::Result<Self, BadBrokerUrl> {
        let bad = |message: &str| BadBrokerUrl(message.to_owned());
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(bad("an AMQP URL begins with amqp:// or amqps://"));
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if path.contains('@') {
            return Err(bad("a password with special characters must be percent-encoded in an AMQP URL"));
        }
        let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let (tls, query) = read_query(query)?;
        let mut servers = Vec::new();
        for host in hosts.split(',') {
            if host.is_empty() || host.starts_with(':') {
                return Err(bad("the AMQP URL names no server, or a comma too many"));
            }
            let at = if authority.contains('@') { "@" } else { "" };
            servers.push(read_one(&format!("{scheme}://{user}{at}{host}{path}{query}"), host)?);
        }
        if tls != Tls::default() && servers.iter().any(|server| server.scheme != AMQPScheme::AMQPS) {
            return Err(bad("cacert, cert and key in an AMQP URL are for amqps://"));
        }
        Ok(Self { servers, tls })
    }

    /// Whether the files that the URL names can be used.
    pub(super) fn check_files(&self) -> std::result::Result<(), BadBrokerUrl> {
        let checked = self.tls.connector().map(|_| ());
        checked.map_err(|error| BadBrokerUrl(format!("the AMQP URL names a file that is no use: {error}")))
    }
}

impl Tls {
    /// What makes connections secure, from the files as they are now.
    pub(super) fn connector(&self) -> Result<RustlsConnector> {
        let mut settings = RustlsConnectorConfig::default();
        settings = match &self.authorities {
            Some(file) => settings.with_parsable_certificates(certificates(file)?),
            None => settings.with_webpki_root_certs(),
        };
        match &self.identity {
            Some((certificate, key)) => {
                let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
                settings.connector_with_single_cert(certificates(certificate)?, private)
            }
            None => settings.connector_with_no_client_auth(),
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| unusable(file, &error))?;
    if found.is_empty() {
        return Err(unusable(file, &"it holds no certificate"));
    }
    Ok(found)
}

fn unusable(file: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("{}: {why}", file.display()))
}

/// Our own parameters, and lapin's as it wants them.
fn read_query(query: &str) -> std::result::Result<(Tls, String), BadBrokerUrl> {
    let bad = |message: &str| BadBrokerUrl(message.to_owned());
    let (mut authorities, mut certificate, mut key) = (None, None, None);
    let mut of_lapin = Vec::new();
    for (name, value) in parameters(query) {
        let file = match name {
            "cacert" => &mut authorities,
            "cert" => &mut certificate,
            "key" => &mut key,
            name if OF_LAPIN.contains(&name) => {
                of_lapin.push(format!("{name}={value}"));
                continue;
            }
            _ => {
                return Err(bad(
                    "an AMQP URL takes the parameters cacert, cert, key, heartbeat, frame_max, \
                                channel_max, connection_timeout and auth_mechanism only",
                ));
            }
        };
        let path = percent_decoded(value).filter(|path| !path.is_empty());
        *file =
            Some(PathBuf::from(path.ok_or_else(|| bad("cacert, cert and key in an AMQP URL are files"))?));
    }
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(bad("cert and key in an AMQP URL belong together")),
    };
    let query = if of_lapin.is_empty() { String::new() } else { format!("?{}", of_lapin.join("&")) };
    Ok((Tls { authorities, identity }, query))
}

fn read_one(url: &str, host: &str) -> std::result::Result<AMQPUri, BadBrokerUrl> {
    let Ok(mut uri) = url.parse::<AMQPUri>() else {
        return Err(BadBrokerUrl(
            "the AMQP URL cannot be read: write amqp://user:password@host:5672/%2f".to_owned(),
        ));
    };
    // lapin reads an IPv6 address as no host at all, and would connect to localhost.
    if let Some((address, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        address.clone_into(&mut uri.authority.host);
    }
    // An URL that ends in a slash means the default virtual host to people, and one with an empty name to lapin.
    if uri.vhost.is_empty() {
        "/".clone_into(&mut uri.vhost);
    }
    uri.query.heartbeat = uri.query.heartbeat.or(Some(HEARTBEAT));
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(url: &str) -> Vec<(String, u16)> {
        let read = Address::read(url).unwrap();
        let place = |server: &AMQPUri| (server.authority.host.clone(), server.authority.port);
        read.servers.iter().map(place).collect()
    }

    #[test]
    fn several_servers_share_user_virtual_host_and_parameters() {
        let url = "amqp://me:s3%40cret@one:5673,two,[::1]:5674/live?heartbeat=5";
        assert_eq!(servers(url), [("one".into(), 5673), ("two".into(), 5672), ("::1".into(), 5674)]);
        for server in Address::read(url).unwrap().servers {
            assert_eq!(server.authority.userinfo.password, "s3@cret");
            assert_eq!((server.vhost.as_str(), server.query.heartbeat), ("live", Some(5)));
        }
        assert_eq!(servers("amqps://host"), [("host".into(), 5671)]);
    }

    #[test]
    fn files_for_tls_are_read_from_the_parameters() {
        let read = Address::read("amqps://h/?cacert=%2Fetc%2Fca%20one.pem&cert=c.pem&key=k.pem").unwrap();
        assert_eq!(read.tls.authorities, Some(PathBuf::from("/etc/ca one.pem")));
        assert_eq!(read.tls.identity, Some((PathBuf::from("c.pem"), PathBuf::from("k.pem"))));
        let error = read.check_files().unwrap_err().to_string();
        assert!(error.contains("/etc/ca one.pem"), "{error}");
        for bad in [
            "amqp://h/?cacert=ca.pem",
            "amqps://h/?cert=c.pem",
            "amqps://h/?cacert=",
            "amqps://h/?cacrt=ca.pem",
            "amqp://one,,two",
            "amqp://one,:5672",
        ] {
            assert!(Address::read(bad).is_err(), "{bad}");
        }
    }
}
