//! What users send: the bodies of create and update, and whether they can be.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::{EnvValue, ResourceName, SecretKey, ServiceSpec, ValueFrom};

const MOST_VARIABLES: usize = 256;
const LONGEST_NAME: usize = 256;
const LONGEST_VALUE: usize = 32 << 10;
/// How many bytes all names and values have together at most. A specification is in several facts and rows, and on a
/// cluster in every revision.
const LARGEST_ENVIRONMENT: usize = 256 << 10;
/// The longest name of a secret, and of a key in it.
const LONGEST_SECRET: usize = 253;

/// The body of a create.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAsked {
    /// The name: a DNS label of RFC 1035, which begins with a letter.
    pub name: String,
    /// The namespace: a DNS label of RFC 1123, which may begin with a digit.
    pub namespace: String,
    pub image: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_scale: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_scale: Option<u32>,
    /// How many requests an instance takes at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Take over what others have set on the platform, and make a new revision in any case.
    #[serde(default)]
    pub force_replace: bool,
    /// Answer when the outcome is known, or when that takes too long.
    #[serde(default)]
    pub wait: bool,
}

/// The body of an update. The place may be left out; it cannot be changed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdateAsked {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub image: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_scale: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_scale: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    #[serde(default)]
    pub force_replace: bool,
    #[serde(default)]
    pub wait: bool,
    /// Only if this is the specification that it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_spec_version: Option<u64>,
}

/// The body of a delete.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteAsked {
    /// Only if this is the specification that it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_spec_version: Option<u64>,
}

/// What is wrong with what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SpecFlaw {
    code: &'static str,
    message: String,
}

impl SpecFlaw {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        self.code
    }

    fn invalid(message: String) -> Self {
        Self { code: "invalid-service-spec", message }
    }
}

impl ServiceAsked {
    /// Where it is to be.
    pub fn resource(&self) -> Result<ResourceName, SpecFlaw> {
        let Self { namespace, name, .. } = self;
        if !is_label(namespace) {
            return Err(SpecFlaw::invalid(format!(
                "namespace {namespace:?} is no DNS label (RFC 1123): write 1 to 63 of a-z, 0-9 and -, beginning and \
                 ending with a letter or digit"
            )));
        }
        // Knative gives the name to a Kubernetes Service and to revisions, whose names must begin with a letter.
        if !is_label(name) || name.starts_with(|one: char| one.is_ascii_digit()) {
            return Err(SpecFlaw::invalid(format!(
                "name {name:?} is no DNS label (RFC 1035): write 1 to 63 of a-z, 0-9 and -, beginning with a letter and \
                 ending with a letter or digit"
            )));
        }
        Ok(ResourceName::new(namespace, name))
    }

    /// What it is to be.
    pub fn spec(&self) -> Result<ServiceSpec, SpecFlaw> {
        let Self { image, env, min_scale, max_scale, concurrency, .. } = self.clone();
        checked(ServiceSpec { image, env, min_scale, max_scale, concurrency, replacement: None })
    }
}

impl UpdateAsked {
    /// What it is to be.
    pub fn spec(&self) -> Result<ServiceSpec, SpecFlaw> {
        let Self { image, env, min_scale, max_scale, concurrency, .. } = self.clone();
        checked(ServiceSpec { image, env, min_scale, max_scale, concurrency, replacement: None })
    }
}

fn checked(spec: ServiceSpec) -> Result<ServiceSpec, SpecFlaw> {
    let image = &spec.image;
    if image.is_empty() || image.len() > 1024 || !image.chars().all(|one| one.is_ascii_graphic()) {
        let message = format!("image {image:?} is none: write one such as registry.example/shop:1");
        return Err(SpecFlaw::invalid(message));
    }
    check_environment(&spec.env)?;
    match (spec.min_scale, spec.max_scale) {
        // To Knative, at most 0 is no limit.
        (Some(min), Some(max)) if min > max && max > 0 => {
            Err(SpecFlaw::invalid(format!("minScale {min} is more than maxScale {max}")))
        }
        _ => Ok(spec),
    }
}

fn check_environment(env: &BTreeMap<String, EnvValue>) -> Result<(), SpecFlaw> {
    let within = |what: &dyn Fn() -> String, is: usize, at_most: usize| match is > at_most {
        true => {
            let message = format!("{}: {is}, and at most {at_most} are taken", what());
            Err(SpecFlaw { code: "service-spec-too-large", message })
        }
        false => Ok(()),
    };
    within(&|| "variables in env".to_owned(), env.len(), MOST_VARIABLES)?;
    for (name, value) in env {
        let begins = || name.chars().take(64).collect::<String>();
        within(&|| format!("characters of the variable {}…", begins()), name.len(), LONGEST_NAME)?;
        if !is_variable(name) {
            return Err(SpecFlaw::invalid(format!(
                "{name:?} is no name of a variable: write letters, digits and _, not beginning with a digit"
            )));
        }
        match value {
            EnvValue::Plain(value) => {
                within(&|| format!("bytes in the value of {}", begins()), value.len(), LONGEST_VALUE)?;
            }
            EnvValue::From(ValueFrom { value_from: SecretKey { secret, key } }) => check_secret(secret, key)?,
        }
    }
    let size = env.iter().map(|(name, value)| name.len() + value.size()).sum();
    within(&|| "bytes in env".to_owned(), size, LARGEST_ENVIRONMENT)
}

fn check_secret(secret: &str, key: &str) -> Result<(), SpecFlaw> {
    let shown = |text: &str| text.chars().take(LONGEST_SECRET).collect::<String>();
    // A DNS subdomain: labels with dots between them.
    if secret.len() > LONGEST_SECRET || !secret.split('.').all(is_label) {
        return Err(SpecFlaw::invalid(format!(
            "{:?} is no name of a secret: write a-z, 0-9, - and ., beginning and ending with a letter or digit",
            shown(secret)
        )));
    }
    let fits = |one: u8| one.is_ascii_alphanumeric() || b"-_.".contains(&one);
    if !(1..=LONGEST_SECRET).contains(&key.len()) || !key.bytes().all(fits) {
        let key = shown(key);
        return Err(SpecFlaw::invalid(format!(
            "{key:?} is no key of a secret: write letters, digits, -, _ and ."
        )));
    }
    Ok(())
}

fn is_label(text: &str) -> bool {
    let inside = |one: u8| one.is_ascii_lowercase() || one.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|one| inside(one) || one == b'-')
        && text.bytes().next().is_some_and(inside)
        && text.bytes().last().is_some_and(inside)
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|one| one.is_ascii_alphanumeric() || one == b'_')
        && !name.starts_with(|one: char| one.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> ServiceAsked {
        ServiceAsked {
            name: "cart".to_owned(),
            namespace: "shop".to_owned(),
            image: "registry.example/cart:1".to_owned(),
            ..ServiceAsked::default()
        }
    }

    #[test]
    fn what_the_platform_would_not_take_is_refused() {
        assert!(asked().resource().is_ok() && asked().spec().is_ok());
        let named = |name: &str| ServiceAsked { name: name.to_owned(), ..asked() }.resource();
        let within = |namespace: &str| ServiceAsked { namespace: namespace.to_owned(), ..asked() }.resource();
        for label in ["", "Cart", "-cart", "cart-", "ca rt", "ca.rt", "cärt", &"c".repeat(64)] {
            assert!(named(label).is_err() && within(label).is_err(), "{label:?}");
        }
        for label in ["c", "c4", "c-4", &"c".repeat(63)] {
            assert!(named(label).is_ok() && within(label).is_ok(), "{label:?}");
        }
        // A name that begins with a digit would be accepted here and refused by Knative; a namespace would not.
        for label in ["1", "1cart", "3d-cart"] {
            assert!(within(label).is_ok(), "{label:?}");
            let flaw = named(label).unwrap_err();
            assert!(flaw.to_string().contains("beginning with a letter"), "{flaw}");
        }
        for image in ["", "a b", "a\u{7}", "ä"] {
            assert!(ServiceAsked { image: image.to_owned(), ..asked() }.spec().is_err(), "{image:?}");
        }
        let env = |name: &str| [(name.to_owned(), "".into())].into();
        for name in ["", "1A", "A-B", "Ä"] {
            assert!(ServiceAsked { env: env(name), ..asked() }.spec().is_err(), "{name:?}");
        }
        let of_secret = |secret: &str, key: &str| {
            let env = [("TOKEN".to_owned(), EnvValue::from_secret(secret, key))].into();
            ServiceAsked { env, ..asked() }.spec()
        };
        assert!(of_secret("tokens.of-cart", "API_token.1").is_ok());
        for (secret, key) in
            [("", "k"), ("A", "k"), ("a_b", "k"), ("a..b", "k"), ("a", ""), ("a", "k/k"), ("a", "ä")]
        {
            assert!(of_secret(secret, key).is_err(), "{secret:?} {key:?}");
        }
        let scale = |min, max| ServiceAsked { min_scale: Some(min), max_scale: Some(max), ..asked() }.spec();
        assert!(scale(2, 1).is_err() && scale(2, 0).is_ok() && scale(1, 1).is_ok());
    }
}
