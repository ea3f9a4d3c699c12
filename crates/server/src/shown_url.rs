//! URLs as people may see them: in errors, logs and listings.

/// A URL without who logs in, and without what a query may hold. What is no URL is shown in the same way: it may be one
/// that was written wrong, with a password in it.
pub(crate) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    // A password may hold anything, if it was not written as a URL asks for: so it ends at the last of these.
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    match rest.split_once('?') {
        None => format!("{scheme}{rest}"),
        Some((path, _)) => format!("{scheme}{path}?…"),
    }
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn neither_a_login_nor_a_query_is_shown() {
        for (given, shown) in [
            ("https://id.example/keys", "https://id.example/keys"),
            ("https://me:s3cret@id.example:80/keys", "https://id.example:80/keys"),
            ("http://me:s3/cr@et@id.example", "http://id.example"),
            ("me:s3cret@id.example", "id.example"),
            ("https://id.example/keys?token=s3cret", "https://id.example/keys?…"),
            ("jwks.json", "jwks.json"),
        ] {
            assert_eq!(without_secrets(given), shown);
        }
    }
}
