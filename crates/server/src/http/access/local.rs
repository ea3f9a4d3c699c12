//! Without keys, whoever reaches loopback is the administrator: a page in a browser on the same machine must not be.
//!
//! A page from elsewhere can send requests to 127.0.0.1, and by a name of its own that it lets point there it can even
//! read the answers. Browsers say where a request comes from, and for which name it is meant.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::http::problem::Problem;

/// Refuses what a foreign page has a browser send.
pub(super) fn not_by_a_foreign_page(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).is_none_or(|host| is_loopback(host, ""));
    let origin = headers.get(header::ORIGIN).is_none_or(|origin| is_loopback(origin, "http://"));
    let cross_site = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    if host && origin && !cross_site {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "foreign-origin",
        "without keys only this machine is served, and this request comes from a page of another one",
        "Call the server as 127.0.0.1 or localhost; to serve others, configure keys.",
    ))
}

/// Whether a host, behind a prefix and perhaps with a port, is this machine.
fn is_loopback(value: &HeaderValue, prefix: &str) -> bool {
    let Some(host) = value.to_str().ok().and_then(|text| text.strip_prefix(prefix)) else { return false };
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let is_address = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_are_told_from_others() {
        let allowed = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            not_by_a_foreign_page(&headers.collect()).is_ok()
        };
        assert!(allowed(&[("host", "127.0.0.1:7400")]) && allowed(&[("host", "[::1]:7400")]) && allowed(&[]));
        assert!(allowed(&[("host", "localhost:7400"), ("origin", "http://localhost:7400")]));
        assert!(!allowed(&[("host", "evil.example:7400")]), "a name that points here");
        assert!(!allowed(&[("host", "127.0.0.1.evil.example")]));
        assert!(!allowed(&[("host", "127.0.0.1:7400"), ("origin", "https://evil.example")]));
        assert!(!allowed(&[("host", "127.0.0.1:7400"), ("origin", "null")]), "a sandboxed page");
        assert!(!allowed(&[("host", "127.0.0.1:7400"), ("sec-fetch-site", "cross-site")]));
    }
}
