//! What hive wants, as the body of a server-side apply: the fields that it owns and no others.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::calls::{GROUP, VERSION};
use super::reading::{KnativeResource, Unwanted};
use crate::gateway::Apply;
use crate::spec::{
    EnvValue, INSTALLATION_ANNOTATION, REPLACEMENT_ANNOTATION, SERVICE_ID_LABEL, SPEC_HASH_ANNOTATION,
    SecretKey, ServiceSpec, ValueFrom,
};

/// The fewest instances.
pub(super) const MIN_SCALE: &str = "autoscaling.knative.dev/min-scale";
/// The most instances.
pub(super) const MAX_SCALE: &str = "autoscaling.knative.dev/max-scale";
/// The earlier names of both. Knative still goes by them; hive never writes them.
pub(super) const EARLIER_SCALES: [&str; 2] =
    ["autoscaling.knative.dev/minScale", "autoscaling.knative.dev/maxScale"];

/// The longest value of a label.
const LONGEST_LABEL: usize = 63;

/// The resource with hive's fields. A field that was there and is left out here is removed by the server, if nobody else
/// owns it. With `seen`, only that very resource is meant; by force, the lists of its pod that a specification does not know
/// are emptied in the same step, because the platform refuses a volume that nothing mounts any more.
pub(super) fn wanted(
    apply: &Apply,
    installation: &str,
    seen: Option<&KnativeResource>,
    force: bool,
) -> Value {
    let spec = &apply.spec;
    let mut template = Map::new();
    let annotations = [
        (SPEC_HASH_ANNOTATION, Some(apply.spec_hash.to_string())),
        (MIN_SCALE, spec.min_scale.map(|number| number.to_string())),
        (MAX_SCALE, spec.max_scale.map(|number| number.to_string())),
        (REPLACEMENT_ANNOTATION, spec.replacement.clone()),
    ];
    let annotations: Map<String, Value> = annotations
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), Value::String(value?))))
        .collect();
    template.insert("metadata".to_owned(), json!({ "annotations": annotations }));
    let mut container = json!({ "image": spec.image });
    if !spec.env.is_empty() {
        container["env"] = spec.env.iter().map(|(name, value)| variable(name, value)).collect();
    }
    let mut pod = json!({ "containers": [container] });
    if let Some(concurrency) = spec.concurrency {
        pod["containerConcurrency"] = json!(concurrency);
    }
    for list in seen.filter(|_| force).into_iter().flat_map(KnativeResource::unknown_lists) {
        pod[list] = json!([]);
    }
    template.insert("spec".to_owned(), pod);

    let mut metadata = json!({
        "name": apply.resource.name,
        "namespace": apply.resource.namespace,
        "labels": { SERVICE_ID_LABEL: label_of(&apply.service_id) },
        "annotations": {
            SERVICE_ID_LABEL: apply.service_id,
            INSTALLATION_ANNOTATION: installation,
            SPEC_HASH_ANNOTATION: apply.spec_hash.as_str(),
        },
    });
    if let Some(uid) = seen.and_then(KnativeResource::uid) {
        metadata["uid"] = json!(uid);
    }
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "Service",
        "metadata": metadata,
        "spec": { "template": template },
    })
}

/// A variable of a container. What a secret keeps is put there by the cluster itself.
fn variable(name: &str, value: &EnvValue) -> Value {
    match value {
        EnvValue::Plain(value) => json!({ "name": name, "value": value }),
        EnvValue::From(ValueFrom { value_from: SecretKey { secret, key } }) => {
            json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": secret, "key": key } } })
        }
    }
}

/// A merge patch that removes fields of somebody else's: from the very resource that was seen, as it was seen.
pub(super) fn without(seen: &KnativeResource, spec: &ServiceSpec) -> Value {
    let Unwanted { annotations, pod_fields, traffic } = seen.unwanted(spec);
    let nulls = |names: Vec<&str>| -> Map<String, Value> {
        names.into_iter().map(|name| (name.to_owned(), Value::Null)).collect()
    };
    let mut template = Map::new();
    if !annotations.is_empty() {
        template.insert("metadata".to_owned(), json!({ "annotations": nulls(annotations) }));
    }
    if !pod_fields.is_empty() {
        template.insert("spec".to_owned(), nulls(pod_fields).into());
    }
    let mut removed = json!({ "template": template });
    if traffic {
        // The platform then fills in that all requests follow the latest revision.
        removed["traffic"] = Value::Null;
    }
    let identity = [("uid", seen.uid()), ("resourceVersion", seen.resource_version())];
    let metadata: Map<String, Value> = identity
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), Value::from(value?))))
        .collect();
    json!({ "metadata": metadata, "spec": removed })
}

/// The value of the label that names a service. An id may be longer than a label, or have other characters; then it is the
/// hash of the id, and the id itself stands in the annotation of the same name.
pub(super) fn label_of(service_id: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let ends_well = |letter: Option<char>| letter.is_some_and(|letter| letter.is_ascii_alphanumeric());
    let mut letters = service_id.chars();
    let is_label = service_id.len() <= LONGEST_LABEL
        && service_id.chars().all(is_plain)
        && ends_well(letters.next())
        && ends_well(service_id.chars().last());
    if is_label {
        return service_id.to_owned();
    }
    let digits: String = Sha256::digest(service_id).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256-{}", &digits[..LONGEST_LABEL - "sha256-".len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ResourceName;

    #[test]
    fn only_what_was_asked_for_is_owned() {
        let spec = ServiceSpec { image: "registry.example/shop:1".to_owned(), ..ServiceSpec::default() };
        let apply = Apply {
            service_id: "shop.cart".to_owned(),
            resource: ResourceName::new("shop", "cart"),
            spec_hash: spec.hash(),
            spec,
            force: false,
        };
        let wanted = wanted(&apply, "towpath-hive", None, true);
        assert_eq!(
            wanted["spec"],
            json!({ "template": {
                "metadata": { "annotations": { "towpath.dev/spec-hash": apply.spec_hash.as_str() } },
                "spec": { "containers": [{ "image": "registry.example/shop:1" }] },
            } })
        );
        // The id itself is kept also where it is a label: labels get lost.
        assert_eq!(wanted["metadata"]["labels"], json!({ "towpath.dev/service-id": "shop.cart" }));
        assert_eq!(
            wanted["metadata"]["annotations"],
            json!({
                "towpath.dev/service-id": "shop.cart",
                "towpath.dev/installation": "towpath-hive",
                "towpath.dev/spec-hash": apply.spec_hash.as_str(),
            })
        );
        assert_eq!(wanted["metadata"].get("uid"), None);
    }

    #[test]
    fn an_id_that_is_no_label_is_named_by_its_hash() {
        assert_eq!(label_of("shop.cart_2-b"), "shop.cart_2-b");
        let all: std::collections::BTreeSet<String> =
            ["", "a/b", "-a", "a.", "ä", &"a".repeat(64), &"b".repeat(64)].map(label_of).into();
        assert_eq!(all.len(), 7, "{all:?}");
        for label in all {
            assert!(label.len() == LONGEST_LABEL && label.starts_with("sha256-"), "{label}");
        }
        // Stored on clusters: it must never change.
        assert_eq!(label_of("a/b"), "sha256-c14cddc033f64b9dea80ea675cf280a015e672516090a5626781153d");
    }
}
