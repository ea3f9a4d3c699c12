//! What a Kafka URL says: which servers, how to know them and be known to them, and how topics are made.
//!
//! `kafka://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/][?partitions=8&replication=3&beginning=always]`, and with the feature
//! `kafka-tls` `tls=true&cacert=FILE&cert=FILE&key=FILE&sasl=SCRAM-SHA-512`.

use std::fmt;

use crate::BadBrokerUrl;
use crate::url::{parameters, percent_decoded};

/// The partitions of a topic that we create, unless the URL says otherwise.
const PARTITIONS: i32 = 8;

/// How a password is proven.
const MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// A Kafka URL that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// As librdkafka wants it: `host:port,host:port`.
    pub(super) servers: String,
    pub(super) partitions: i32,
    /// `None` is the broker's own default (Kafka 2.4 and later).
    pub(super) replication: Option<i32>,
    /// A group without a position begins at the beginning, however old what is there.
    pub(super) always_begins: bool,
    /// Connections are secured.
    pub(super) tls: Option<Tls>,
    pub(super) user: Option<User>,
}

/// Files for TLS: whom to trust (the machine's authorities if nobody is named), and who we are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tls {
    pub(super) authorities: Option<String>,
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
}

/// As whom to connect.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) mechanism: &'static str,
    pub(super) name: String,
    pub(super) password: String,
}

/// Without the password.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("mechanism", &self.mechanism)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Address {
    /// Reads a URL. What is wrong with it is told without repeating any of it.
    pub(crate) fn read(url: &str) -> Result<Self, BadBrokerUrl> {
        let rest = url.strip_prefix("kafka://").ok_or_else(|| bad("a Kafka URL begins with kafka://"))?;
        let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, servers) = match authority.rsplit_once('@') {
            Some((user, servers)) => (Some(user), servers),
            None => (None, authority),
        };
        let servers = servers.strip_suffix('/').unwrap_or(servers);
        if !servers.split(',').all(is_server) {
            return Err(bad(
                "the Kafka URL cannot be read: write kafka://host:9092 or kafka://one:9092,two:9092",
            ));
        }
        let mut address = Self {
            servers: servers.to_owned(),
            partitions: PARTITIONS,
            replication: None,
            always_begins: false,
            tls: None,
            user: None,
        };
        let (mut files, mut mechanism) = (Tls::default(), None);
        for (name, value) in parameters(query) {
            match name {
                "partitions" => address.partitions = number(value)?,
                "replication" => address.replication = Some(number(value)?),
                "beginning" if value == "always" => address.always_begins = true,
                "beginning" => return Err(bad("beginning in a Kafka URL is \"always\", or not there")),
                "tls" if value == "true" => address.tls = Some(Tls::default()),
                "tls" if value == "false" => address.tls = None,
                "tls" => return Err(bad("tls in a Kafka URL is true or false")),
                "cacert" => files.authorities = Some(file(value)?),
                "cert" => files.certificate = Some(file(value)?),
                "key" => files.key = Some(file(value)?),
                "sasl" => mechanism = Some(mechanism_called(value)?),
                _ => {
                    return Err(bad(
                        "a Kafka URL takes the parameters partitions, replication, beginning, tls, \
                                    cacert, cert, key and sasl only",
                    ));
                }
            }
        }
        address.user = read_user(user, mechanism)?;
        match &mut address.tls {
            Some(tls) if files.certificate.is_some() == files.key.is_some() => *tls = files,
            Some(_) => return Err(bad("cert and key in a Kafka URL belong together")),
            None if files == Tls::default() => {}
            None => return Err(bad("cacert, cert and key in a Kafka URL need tls=true")),
        }
        if !cfg!(feature = "kafka-tls") && (address.tls.is_some() || address.user.is_some()) {
            return Err(bad(
                "this build has no TLS and no passwords for kafka://; build with `--features kafka-tls`",
            ));
        }
        Ok(address)
    }

    /// Whether the files that the URL names can be read. What is in them is seen when they are used.
    pub(super) fn check_files(&self) -> Result<(), BadBrokerUrl> {
        let files = self.tls.iter().flat_map(|tls| [&tls.authorities, &tls.certificate, &tls.key]).flatten();
        for file in files {
            std::fs::File::open(file).map_err(|error| {
                BadBrokerUrl(format!("the Kafka URL names a file that is no use: {file}: {error}"))
            })?;
        }
        Ok(())
    }

    /// How librdkafka calls all of this.
    pub(super) fn security(&self) -> Vec<(&'static str, &str)> {
        let mut settings = vec![(
            "security.protocol",
            match (&self.tls, &self.user) {
                (None, None) => "plaintext",
                (Some(_), None) => "ssl",
                (None, Some(_)) => "sasl_plaintext",
                (Some(_), Some(_)) => "sasl_ssl",
            },
        )];
        if let Some(Tls { authorities, certificate, key }) = &self.tls {
            let files = [
                ("ssl.ca.location", authorities),
                ("ssl.certificate.location", certificate),
                ("ssl.key.location", key),
            ];
            settings.extend(files.into_iter().filter_map(|(name, file)| Some((name, file.as_deref()?))));
        }
        if let Some(User { mechanism, name, password }) = &self.user {
            settings.extend([
                ("sasl.mechanism", *mechanism),
                ("sasl.username", name),
                ("sasl.password", password),
            ]);
        }
        settings
    }

    /// How many copies must have a message before it counts as published: the majority, where we say how many there are.
    /// One that is left alone must not confirm, or its messages are lost with it.
    pub(super) fn in_sync(&self) -> Option<i32> {
        self.replication.filter(|copies| *copies > 1).map(|copies| copies / 2 + 1)
    }
}

fn bad(message: &str) -> BadBrokerUrl {
    BadBrokerUrl(message.to_owned())
}

fn is_server(server: &str) -> bool {
    let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port.strip_prefix(':').or(port.is_empty().then_some("9092"))),
        None => match server.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, Some("9092")),
        },
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    !host.is_empty()
        && host.bytes().all(allowed)
        && port.and_then(|port| port.parse::<u16>().ok()).is_some_and(|port| port > 0)
}

fn number(value: &str) -> Result<i32, BadBrokerUrl> {
    let number = value.parse::<u16>().ok().filter(|number| *number > 0).map(i32::from);
    number.ok_or_else(|| bad("partitions and replication in a Kafka URL are numbers above 0"))
}

fn file(value: &str) -> Result<String, BadBrokerUrl> {
    let file = percent_decoded(value).filter(|file| !file.is_empty());
    file.ok_or_else(|| bad("cacert, cert and key in a Kafka URL are files"))
}

fn mechanism_called(value: &str) -> Result<&'static str, BadBrokerUrl> {
    let known = MECHANISMS.into_iter().find(|known| known.eq_ignore_ascii_case(value));
    known.ok_or_else(|| bad("sasl in a Kafka URL is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"))
}

fn read_user(user: Option<&str>, mechanism: Option<&'static str>) -> Result<Option<User>, BadBrokerUrl> {
    match (user, mechanism) {
        (None, None) => Ok(None),
        (Some(user), Some(mechanism)) => {
            let parts = user
                .split_once(':')
                .and_then(|(name, password)| Some((percent_decoded(name)?, percent_decoded(password)?)));
            match parts {
                Some((name, password)) if !name.is_empty() => Ok(Some(User { mechanism, name, password })),
                _ => Err(bad("a user in a Kafka URL is written user:password, percent-encoded")),
            }
        }
        _ => Err(bad(
            "a user in a Kafka URL and sasl belong together: kafka://user:password@host:9093?sasl=SCRAM-SHA-512",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(servers: &str, partitions: i32, replication: Option<i32>) -> Address {
        Address {
            servers: servers.to_owned(),
            partitions,
            replication,
            always_begins: false,
            tls: None,
            user: None,
        }
    }

    #[test]
    fn a_url_says_which_servers_and_how_topics_are_made() {
        assert_eq!(Address::read("kafka://host"), Ok(plain("host", 8, None)));
        assert_eq!(Address::read("kafka://one:9092,two:9093/"), Ok(plain("one:9092,two:9093", 8, None)));
        let twelve = Address::read("kafka://[::1]:1?partitions=12&replication=3");
        assert_eq!(twelve, Ok(plain("[::1]:1", 12, Some(3))));
        for bad in [
            "kafka://host:0",
            "kafka://host:x",
            "kafka://,",
            "kafka://a b",
            "kafka://h?partitions=-1",
            "kafka://h?beginning=never",
            "kafka://h?cacert=ca.pem",
            "kafka://h?tls=yes",
            "kafka://h?tls=true&cert=c.pem",
            "kafka://me:secret@h",
            "kafka://h?sasl=PLAIN",
            "kafka://me@h?sasl=PLAIN",
            "kafka://me:secret@h?sasl=GSSAPI",
        ] {
            assert!(Address::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_message_counts_when_the_majority_of_its_copies_has_it() {
        for (replication, in_sync) in
            [(None, None), (Some(1), None), (Some(2), Some(2)), (Some(3), Some(2)), (Some(5), Some(3))]
        {
            assert_eq!(plain("h", 8, replication).in_sync(), in_sync, "{replication:?}");
        }
    }

    #[cfg(feature = "kafka-tls")]
    #[test]
    fn a_url_says_how_servers_are_known_and_as_whom_to_connect() {
        let read =
            Address::read("kafka://m%40e:s3%3Acret@h:9093?tls=true&cacert=%2Fca.pem&sasl=scram-sha-256")
                .unwrap();
        assert_eq!(
            read.security(),
            [
                ("security.protocol", "sasl_ssl"),
                ("ssl.ca.location", "/ca.pem"),
                ("sasl.mechanism", "SCRAM-SHA-256"),
                ("sasl.username", "m@e"),
                ("sasl.password", "s3:cret"),
            ]
        );
        assert!(!format!("{read:?}").contains("cret"), "{read:?}");
        assert!(read.check_files().unwrap_err().to_string().contains("/ca.pem"));
        let read = Address::read("kafka://h?tls=true&cert=c&key=k").unwrap();
        let files = [("ssl.certificate.location", "c"), ("ssl.key.location", "k")];
        assert_eq!(read.security(), [&[("security.protocol", "ssl")][..], &files[..]].concat());
        assert_eq!(Address::read("kafka://h").unwrap().security(), [("security.protocol", "plaintext")]);
    }

    #[cfg(not(feature = "kafka-tls"))]
    #[test]
    fn a_build_without_tls_says_how_to_get_it() {
        for url in ["kafka://h?tls=true", "kafka://me:secret@h?sasl=PLAIN"] {
            let error = Address::read(url).unwrap_err().to_string();
            assert!(error.contains("--features kafka-tls"), "{error}");
        }
    }
}
