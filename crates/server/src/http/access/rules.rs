//! Which role a request needs.

use axum::http::Method;

use super::Role;

/// Paths that tell nothing and change nothing: what starts and watches the server asks them without a key.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Whether anybody may ask.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.contains(&path)
}

/// Changes that skip or repeat facts for good. So do those that are asked for by force, and a new channel that begins
/// with old facts: their handlers look at that.
const FOR_ADMINS: [(Method, &str); 5] = [
    (Method::DELETE, "/api/channels/{name}"),
    (Method::POST, "/api/channels/{name}/reset"),
    (Method::POST, "/api/dead-letters/discard"),
    (Method::POST, "/api/dead-letters/{id}/discard"),
    (Method::POST, "/api/outbox/{id}/skip"),
];

/// What a request needs. Anything that is not known to only read is a change.
pub(super) fn needed(method: &Method, route: &str) -> Role {
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Role::Viewer;
    }
    let is_for_admins = FOR_ADMINS.iter().any(|(listed, path)| listed == method && *path == route);
    if is_for_admins { Role::Admin } else { Role::Operator }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_for_viewers_and_changing_is_not() {
        assert_eq!(needed(&Method::GET, "/api/channels/{name}"), Role::Viewer);
        assert_eq!(needed(&Method::POST, "/api/outbox/{id}/retry"), Role::Operator);
        assert_eq!(needed(&Method::POST, "/api/outbox/{id}/skip"), Role::Admin);
        assert_eq!(needed(&Method::DELETE, "/api/channels/{name}"), Role::Admin);
        assert_eq!(needed(&Method::POST, "/api/dead-letters/{id}/discard"), Role::Admin);
        assert_eq!(needed(&Method::POST, "/api/dead-letters/{id}/replay"), Role::Operator);
        let unknown = Method::from_bytes(b"BREW").unwrap();
        assert_eq!(needed(&unknown, "/api/channels"), Role::Operator, "what is not known is a change");
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
    }
}
