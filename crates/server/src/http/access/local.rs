//! Without keys, whoever reaches loopback is the administrator: a page in a browser on the same machine must not be.
//!
//! A page from elsewhere can send requests to 127.0.0.1, and by a name of its own that it lets point there it can even
//! read the answers. Browsers say where a request comes from, and for which name it is meant.

use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};

use crate::http::problem::Problem;

/// What proxies add to what they pass on, where they add something: not all do. nginx adds none of these unless it is told
/// to.
const ADDED_BY_PROXIES: [&str; 3] = ["forwarded", "via", "x-real-ip"];

/// Refuses what looks as if it was passed on by a proxy: whoever has asked it is perhaps not on this machine. One that adds
/// no header and speaks HTTP/1.1 is not noticed: behind a proxy, keys are needed.
pub(super) fn not_by_a_proxy(version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    let is_added = |name: &str| ADDED_BY_PROXIES.contains(&name) || name.starts_with("x-forwarded-");
    let name = match headers.keys().find(|name| is_added(name.as_str())) {
        Some(name) => name.as_str(),
        // What nginx speaks to servers behind it if nothing else is configured, and hardly anybody else.
        None if version < Version::HTTP_11 => "HTTP/1.0",
        None => return Ok(()),
    };
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "forwarded-request",
        format!(
            "without keys only this machine is served, and this request was passed on by a proxy ({name})"
        ),
        "Configure keys or an issuer of tokens, and let callers show theirs; or call the server directly.",
    ))
}

/// Refuses what a foreign page has a browser send. A page of this machine on another port is foreign, too.
pub(super) fn not_by_a_foreign_page(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes).map(authority);
    let is_for_us = host.as_ref().is_none_or(|host| host.as_ref().is_some_and(is_loopback));
    let is_ours = headers.get(header::ORIGIN).is_none_or(|origin| {
        let Ok(origin) = origin.to_str() else { return false };
        let (origin, port) = match (origin.strip_prefix("http://"), origin.strip_prefix("https://")) {
            (Some(rest), _) => (rest, 80),
            (_, Some(rest)) => (rest, 443),
            _ => return false,
        };
        let with_port = |(name, given): (String, Option<u16>)| (name, given.unwrap_or(port));
        let host = host.clone().flatten().map(with_port);
        host.is_some() && authority(origin.as_bytes()).map(with_port) == host
    });
    let site = headers.get("sec-fetch-site");
    let from_elsewhere = site.is_some_and(|site| site != "same-origin" && site != "none");
    if is_for_us && is_ours && !from_elsewhere {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "foreign-origin",
        "without keys only this machine is served, and this request comes from a page of another origin",
        "Call the server as 127.0.0.1 or localhost; to serve others, configure keys.",
    ))
}

/// The name and the port of `NAME`, `NAME:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn authority(text: &[u8]) -> Option<(String, Option<u16>)> {
    let text = std::str::from_utf8(text).ok()?;
    let (name, rest) = match text.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((address, rest)) => (address, rest),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => Some(port.parse().ok()?),
        None if rest.is_empty() => None,
        None => return None,
    };
    Some((name.to_ascii_lowercase(), port))
}

/// Whether a name is one of this machine.
fn is_loopback((name, _): &(String, Option<u16>)) -> bool {
    name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()) || name == "localhost"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(header).collect()
    }

    #[test]
    fn pages_of_this_machine_are_told_from_others() {
        let allowed = |pairs: &[(&'static str, &'static str)]| not_by_a_foreign_page(&headers(pairs)).is_ok();
        assert!(allowed(&[("host", "127.0.0.1:7400")]) && allowed(&[("host", "[::1]:7400")]) && allowed(&[]));
        assert!(allowed(&[("host", "localhost:7400"), ("origin", "http://localhost:7400")]));
        assert!(allowed(&[("host", "LocalHost:7400"), ("origin", "https://localhost:7400")]));
        assert!(allowed(&[("host", "localhost"), ("origin", "http://localhost:80")]));
        assert!(allowed(&[("host", "[::1]:443"), ("origin", "https://[::1]")]));
        assert!(allowed(&[("host", "127.0.0.1:7400"), ("sec-fetch-site", "same-origin")]));
        assert!(allowed(&[("host", "127.0.0.1:7400"), ("sec-fetch-site", "none")]), "typed by a person");
        assert!(!allowed(&[("host", "evil.example:7400")]), "a name that points here");
        assert!(!allowed(&[("host", "127.0.0.1.evil.example")]));
        assert!(!allowed(&[("host", "127.0.0.1:x")]));
        assert!(!allowed(&[("host", "127.0.0.1:7400"), ("origin", "https://evil.example")]));
        assert!(!allowed(&[("host", "127.0.0.1:7400"), ("origin", "null")]), "a sandboxed page");
        assert!(!allowed(&[("host", "127.0.0.1:7400"), ("sec-fetch-site", "cross-site")]));
        assert!(!allowed(&[("host", "127.0.0.1:7400"), ("sec-fetch-site", "same-site")]), "another port");
    }

    #[test]
    fn a_page_of_this_machine_on_another_port_is_foreign() {
        for origin in ["http://localhost:3000", "http://localhost", "http://127.0.0.1:7400"] {
            let sent = headers(&[("host", "localhost:7400"), ("origin", origin)]);
            assert!(not_by_a_foreign_page(&sent).is_err(), "{origin}");
        }
        assert!(not_by_a_foreign_page(&headers(&[("origin", "http://localhost:7400")])).is_err(), "no host");
    }

    #[test]
    fn what_a_proxy_passed_on_is_told() {
        for name in
            ["forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]
        {
            let passed_on = headers(&[(name, "1")]);
            assert!(not_by_a_proxy(Version::HTTP_11, &passed_on).is_err(), "{name}");
        }
        let plain = headers(&[("x-request-id", "1"), ("x-forward", "1")]);
        assert!(not_by_a_proxy(Version::HTTP_11, &plain).is_ok());
        assert!(not_by_a_proxy(Version::HTTP_10, &plain).is_err());
    }
}
