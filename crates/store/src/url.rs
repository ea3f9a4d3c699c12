//! Store URLs: which database, and what to write instead when the URL is wrong.

use std::fmt;

use towpath_core::ports::store::StoreError;

/// A store URL that was understood.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A SQLite file.
    Sqlite {
        /// Its path; the folder is made if it is missing.
        path: String,
    },
    /// A PostgreSQL database.
    Postgres {
        /// The URL as given.
        url: String,
    },
    /// A MySQL or MariaDB database.
    MySql {
        /// The URL as given.
        url: String,
    },
}

impl StoreUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// `BadUrl`, saying what to write instead, or which feature is not built in.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = |message: String| Err(StoreError::BadUrl(message));
        let Some((scheme, rest)) = url.split_once(':') else {
            return bad("a store URL begins with sqlite:, postgres: or mysql:".to_owned());
        };
        if scheme != "sqlite" && has_an_at_behind_its_server(rest) {
            // Where the password ends is only guessed then, and a wrong guess would show a part of it.
            return bad(
                "behind the server there is an @: write @ as %40, and in a password also / as %2F, ? as %3F \
                        and # as %23"
                    .to_owned(),
            );
        }
        match scheme {
            "sqlite" => {
                let path = rest.strip_prefix("//").unwrap_or(rest);
                if path.is_empty() || path.starts_with(":memory:") {
                    // Each connection would see a memory of its own, and nothing would survive a restart.
                    return bad("a SQLite store needs a file: write sqlite://data/towpath.db".to_owned());
                }
                if cfg!(feature = "sqlite") {
                    Ok(Self::Sqlite { path: path.to_owned() })
                } else {
                    bad(not_built("sqlite", "sqlite"))
                }
            }
            "postgres" | "postgresql" if rest.len() > 2 && rest.starts_with("//") => {
                if cfg!(feature = "postgres") {
                    Ok(Self::Postgres { url: url.to_owned() })
                } else {
                    bad(not_built("postgres", "postgres"))
                }
            }
            "mysql" | "mariadb" if rest.len() > 2 && rest.starts_with("//") => {
                if cfg!(feature = "mysql") {
                    Ok(Self::MySql { url: format!("mysql:{rest}") })
                } else {
                    bad(not_built("mysql", "mysql"))
                }
            }
            // Without the // there is no telling where a password begins: nothing of the rest is repeated.
            "postgres" | "postgresql" | "mysql" | "mariadb" => bad(format!("{scheme}: names no server")),
            other => bad(format!("{other:?} is not a store Towpath knows")),
        }
    }
}

/// Without the password: URLs end up in logs.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite { path } => write!(f, "sqlite://{path}"),
            Self::Postgres { url } | Self::MySql { url } => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn not_built(scheme: &str, feature: &str) -> String {
    format!("this build has no support for {scheme}:// stores; build with `--features {feature}`")
}

/// Whether an @ comes where the user and the password are over.
fn has_an_at_behind_its_server(rest: &str) -> bool {
    let authority = rest.trim_start_matches('/');
    authority.find(['/', '?', '#']).is_some_and(|end| authority[end..].contains('@'))
}

/// Replaces the password, and any password-like parameter, by dots.
fn without_password(url: &str) -> String {
    let (url, parameters) = match url.split_once('?') {
        Some((url, parameters)) => (url, Some(parameters)),
        None => (url, None),
    };
    let mut shown = match url.split_once("://") {
        Some((scheme, rest)) => {
            let authority_end = rest.find('/').unwrap_or(rest.len());
            // A password may itself hold an @: the last one separates.
            match rest[..authority_end].rfind('@') {
                Some(at) => {
                    let user = rest[..at].split(':').next().unwrap_or_default();
                    let dots = if rest[..at].contains(':') { ":…" } else { "" };
                    format!("{scheme}://{user}{dots}{}", &rest[at..])
                }
                None => url.to_owned(),
            }
        }
        None => url.to_owned(),
    };
    if let Some(parameters) = parameters {
        let parameters: Vec<String> = parameters
            .split('&')
            .map(|parameter| match parameter.split_once('=') {
                Some((name, _)) if name.contains("password") || name.contains("secret") => {
                    format!("{name}=…")
                }
                _ => parameter.to_owned(),
            })
            .collect();
        shown = format!("{shown}?{}", parameters.join("&"));
    }
    shown
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;
    use towpath_core::retry::Coded as _;

    #[test]
    fn the_three_schemes_are_understood() {
        assert_eq!(
            StoreUrl::parse("sqlite://data/towpath.db").unwrap(),
            StoreUrl::Sqlite { path: "data/towpath.db".into() }
        );
        assert!(matches!(StoreUrl::parse("postgres://u@h/d").unwrap(), StoreUrl::Postgres { .. }));
        assert!(matches!(StoreUrl::parse("postgresql://u@h/d").unwrap(), StoreUrl::Postgres { .. }));
        assert_eq!(
            StoreUrl::parse("mariadb://u@h/d").unwrap(),
            StoreUrl::MySql { url: "mysql://u@h/d".into() }
        );
    }

    #[test]
    fn a_wrong_url_is_refused_with_what_to_write_instead() {
        for url in
            ["", "towpath.db", "redis://localhost", "sqlite:", "sqlite://:memory:", "postgres:", "mysql://"]
        {
            let error = StoreUrl::parse(url).unwrap_err();
            assert_eq!(error.code(), "bad-url", "{url}");
            assert!(error.next_step().contains("postgres://"), "{url}");
        }
    }

    #[test]
    fn passwords_are_never_shown() {
        let url = StoreUrl::parse("postgres://me:s3cr:e@t@db.example/app?sslpassword=s3cret&sslmode=require")
            .unwrap();
        assert_eq!(url.to_string(), "postgres://me:…@db.example/app?sslpassword=…&sslmode=require");
        assert!(!format!("{url:?}").contains("s3cr"));
        for wrong in ["postgres:me:s3cret@host/db", "me:s3cret@host", "pg://me:s3cret@host"] {
            assert!(!StoreUrl::parse(wrong).unwrap_err().to_string().contains("s3cret"), "{wrong}");
        }
        for unclear in [
            "postgres://me:s3/cret@db/app",
            "postgres://me:s3?cret@db",
            "mysql://me:s3#cret@db/app",
            "mariadb://me:s@3/cret@db/app",
            "postgres://me:s@3?cret@db/app",
        ] {
            let error = StoreUrl::parse(unclear).unwrap_err().to_string();
            assert!(!error.contains("s3") && !error.contains("cret"), "{unclear}: {error}");
            assert!(error.contains("%2F"), "{unclear}: {error}");
        }
        assert!(StoreUrl::parse("postgres:///app?host=/run/postgresql").is_ok());
        let written = StoreUrl::parse("postgres://me:s3%2Fcret@db/app").unwrap();
        assert_eq!(written.to_string(), "postgres://me:…@db/app");
    }
}
