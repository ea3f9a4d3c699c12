//! What a service is to be: the specification that is asked for, and its hash.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Where a service is on the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceName {
    /// The namespace.
    pub namespace: String,
    /// The name in it.
    pub name: String,
}

impl ResourceName {
    /// A name in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is to run. Where it runs is its [`ResourceName`], and is no part of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// The container's image.
    pub image: String,
    /// The container's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, EnvValue>,
    /// The fewest instances (`autoscaling.knative.dev/min-scale`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_scale: Option<u32>,
    /// The most instances (`autoscaling.knative.dev/max-scale`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_scale: Option<u32>,
    /// How many requests an instance takes at a time (`containerConcurrency`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// The mark of a replacement that was forced. Two specifications that differ only in it run the same, in different
    /// revisions: the mark goes into the revision template (as the annotation [`REPLACEMENT_ANNOTATION`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<String>,
}

/// The value of a variable: written out, or kept in a secret of the platform, which hive never reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a value is a text, or {\"valueFrom\": {\"secret\": …, \"key\": …}}")]
pub enum EnvValue {
    /// Written out.
    Plain(String),
    /// Kept elsewhere.
    From(ValueFrom),
}

/// Where a value is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValueFrom {
    /// In a secret.
    pub value_from: SecretKey,
}

/// A key of a secret in the service's own namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKey {
    /// The name of the secret.
    pub secret: String,
    /// The key in it.
    pub key: String,
}

impl EnvValue {
    /// What a secret keeps under a key.
    pub fn from_secret(secret: impl Into<String>, key: impl Into<String>) -> Self {
        let value_from = SecretKey { secret: secret.into(), key: key.into() };
        Self::From(ValueFrom { value_from })
    }

    /// How many bytes it takes.
    pub fn size(&self) -> usize {
        match self {
            Self::Plain(value) => value.len(),
            Self::From(ValueFrom { value_from: SecretKey { secret, key } }) => secret.len() + key.len(),
        }
    }
}

impl From<&str> for EnvValue {
    fn from(value: &str) -> Self {
        Self::Plain(value.to_owned())
    }
}

/// The annotation of the resource that keeps the hash of what was applied. The revision template has it, too: from there it
/// comes to each revision.
pub const SPEC_HASH_ANNOTATION: &str = "towpath.dev/spec-hash";

/// The label of the resource that names the service of ours it belongs to; an annotation of the same name has the id itself.
pub const SERVICE_ID_LABEL: &str = "towpath.dev/service-id";

/// The annotation of the resource that names the installation of hive which made it: two of them on one cluster may have
/// services of the same names.
pub const INSTALLATION_ANNOTATION: &str = "towpath.dev/installation";

/// The annotation of the revision template that keeps the mark of a forced replacement.
pub const REPLACEMENT_ANNOTATION: &str = "towpath.dev/replacement";

/// The hash of a [`ServiceSpec`]: SHA-256 in hexadecimal digits. Equal exactly when the specifications are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SpecHash(String);

impl SpecHash {
    /// A hash that was stored: in an event, or in an annotation.
    pub fn from_stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SpecHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ServiceSpec {
    /// Its hash. The form that is hashed never changes, because hashes are stored on clusters: a line for its version,
    /// then a line per field that is set, each with its length, so that no two specifications give the same text.
    pub fn hash(&self) -> SpecHash {
        let mut digest = Sha256::new();
        digest.update(b"towpath.hive.spec/1\n");
        let mut field = |name: &str, value: &str| {
            digest.update(format!("{name} {} {value}\n", value.len()).as_bytes());
        };
        field("image", &self.image);
        for (name, value) in &self.env {
            field("env-name", name);
            match value {
                EnvValue::Plain(value) => field("env-value", value),
                EnvValue::From(ValueFrom { value_from: SecretKey { secret, key } }) => {
                    field("env-secret", secret);
                    field("env-key", key);
                }
            }
        }
        let numbers =
            [("min-scale", self.min_scale), ("max-scale", self.max_scale), ("concurrency", self.concurrency)];
        for (name, number) in numbers {
            if let Some(number) = number {
                field(name, &number.to_string());
            }
        }
        if let Some(mark) = &self.replacement {
            field("replacement", mark);
        }
        let digits = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        SpecHash(digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ServiceSpec {
        ServiceSpec {
            image: "registry.example/shop:1".to_owned(),
            env: [("B".to_owned(), "2".into()), ("A".to_owned(), "1".into())].into(),
            min_scale: Some(1),
            max_scale: Some(3),
            concurrency: Some(50),
            replacement: None,
        }
    }

    #[test]
    fn a_hash_never_changes() {
        // Stored on clusters: if this fails, every service out there would count as edited by hand.
        let expected = "b30352d2fe2e67ed2b5cf8834b809c1dcad95541c7c682c21518eda8485ed0c7";
        assert_eq!(spec().hash().as_str(), expected);
    }

    #[test]
    fn every_field_counts() {
        let hashes: std::collections::BTreeSet<_> = [
            spec(),
            ServiceSpec { image: "registry.example/shop:2".to_owned(), ..spec() },
            ServiceSpec { env: BTreeMap::new(), ..spec() },
            ServiceSpec { env: [("A".to_owned(), "1B2".into())].into(), ..spec() },
            ServiceSpec { env: [("A".to_owned(), EnvValue::from_secret("s", "k"))].into(), ..spec() },
            ServiceSpec { env: [("A".to_owned(), EnvValue::from_secret("sk", ""))].into(), ..spec() },
            ServiceSpec { min_scale: None, ..spec() },
            ServiceSpec { min_scale: None, max_scale: Some(1), ..spec() },
            ServiceSpec { min_scale: Some(0), ..spec() },
            ServiceSpec { max_scale: Some(4), ..spec() },
            ServiceSpec { concurrency: Some(51), ..spec() },
            ServiceSpec { replacement: Some("a".to_owned()), ..spec() },
        ]
        .iter()
        .map(ServiceSpec::hash)
        .collect();
        assert_eq!(hashes.len(), 12);
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let mut spec = spec();
        spec.env.insert("TOKEN".to_owned(), EnvValue::from_secret("tokens", "cart"));
        let text = serde_json::to_string(&spec).unwrap();
        assert!(text.contains(r#""TOKEN":{"valueFrom":{"secret":"tokens","key":"cart"}}"#), "{text}");
        assert_eq!(serde_json::from_str::<ServiceSpec>(&text).unwrap().hash(), spec.hash());
    }
}
