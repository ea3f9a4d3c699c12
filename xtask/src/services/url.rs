//! What has to be known of a server's URL: whom to connect to, and how to show it.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::failure::Failure;

/// Host and port of a URL; nothing when it names no host, as those of UNIX sockets do.
pub(super) fn endpoint_of(url: &str) -> Result<Option<(String, u16)>, Failure> {
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| Failure::new(format!("`{}` is not a URL", without_password(url))))?;
    let authority = authority_of(rest);
    let host_and_port = authority.rsplit_once('@').map_or(authority, |(_, after)| after);
    // Kafka's name several servers of one cluster; any of them leads to the others.
    let host_and_port = host_and_port.split(',').next().unwrap_or_default();
    let (host, port) = match host_and_port.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
        Some((ipv6_host, after)) => (ipv6_host, after.strip_prefix(':')),
        None => match host_and_port.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host_and_port, None),
        },
    };
    if host.is_empty() {
        return Ok(None);
    }
    let port = match port {
        Some(port) => port
            .parse()
            .map_err(|_| Failure::new(format!("`{port}` in `{}` is not a port", without_password(url))))?,
        None => default_port(scheme)
            .ok_or_else(|| Failure::new(format!("`{}` names no port", without_password(url))))?,
    };
    Ok(Some((host.to_owned(), port)))
}

/// Whether something listens there. No protocol is spoken: the server is somebody else's.
pub(super) fn check_reachable(url: &str) -> Result<(), Failure> {
    let Some((host, port)) = endpoint_of(url)? else {
        return Ok(());
    };
    let attempt = format!("connect to {host}:{port}");
    let addresses = (host.as_str(), port).to_socket_addrs().map_err(Failure::while_trying(&attempt))?;
    let mut last_failure = Failure::new(format!("cannot {attempt}: the name has no address"));
    for address in addresses {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(_) => return Ok(()),
            Err(cause) => last_failure = Failure::while_trying(&attempt)(cause),
        }
    }
    Err(last_failure)
}

/// The URL for a terminal: a password in it becomes stars.
pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let authority = authority_of(rest);
    let Some((user_and_password, _)) = authority.rsplit_once('@') else {
        return url.to_owned();
    };
    match user_and_password.split_once(':') {
        // The stock account of a local broker is no secret, and people copy its URL from the table.
        Some((user, password)) if (user, password) != ("guest", "guest") => {
            format!("{scheme}://{user}:***{}", &rest[user_and_password.len()..])
        }
        _ => url.to_owned(),
    }
}

fn authority_of(rest: &str) -> &str {
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "postgres" | "postgresql" => Some(5432),
        "mysql" | "mariadb" => Some(3306),
        "amqp" => Some(5672),
        "amqps" => Some(5671),
        "kafka" => Some(9092),
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_found() {
        for (url, host, port) in [
            ("postgres://postgres@127.0.0.1:7432/postgres", "127.0.0.1", 7432),
            ("mysql://root:p%40ss@db.example/mysql", "db.example", 3306),
            ("amqp://guest:guest@127.0.0.1:7672/%2f", "127.0.0.1", 7672),
            ("amqps://broker", "broker", 5671),
            ("kafka://one:7092,two:7093", "one", 7092),
            ("http://guest:guest@[::1]:7673", "::1", 7673),
            ("postgres://h?sslmode=disable", "h", 5432),
        ] {
            assert_eq!(endpoint_of(url).unwrap(), Some((host.to_owned(), port)), "{url}");
        }
    }

    #[test]
    fn a_unix_socket_and_a_file_have_no_endpoint_and_nonsense_is_refused() {
        assert_eq!(endpoint_of("file:///usr/bin/nisshi").unwrap(), None);
        assert_eq!(endpoint_of("postgres:///db?host=/run/postgresql").unwrap(), None);
        for nonsense in ["localhost:5432", "postgres://h:port/db", "gopher://h"] {
            assert!(endpoint_of(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(without_password("mysql://root:secret@h:1/d"), "mysql://root:***@h:1/d");
        assert_eq!(without_password("mysql://root@h:1/d"), "mysql://root@h:1/d");
        assert_eq!(without_password("amqp://guest:guest@h/%2f"), "amqp://guest:guest@h/%2f");
    }
}
