//! The `[hive.kubernetes]` section of a file, and the gateway that it describes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath::retry::duration_text;
use towpath_hive::gateway::ServingGateway;

use crate::Failure;

/// The section. What it leaves out is as kubectl does it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[cfg_attr(not(feature = "kubernetes"), allow(dead_code, reason = "read by builds with Kubernetes alone"))]
pub(super) struct KubernetesSection {
    /// The kubeconfig. Without it: what KUBECONFIG names, the one in the home folder, the service account of the pod.
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; without it, the current one.
    context: Option<String>,
    /// The service account of the pod, whatever kubeconfig there is.
    in_cluster: bool,
    /// The only namespace that is watched; without it, all are.
    namespace: Option<String>,
    field_manager: String,
    #[serde(with = "duration_text")]
    call_timeout: Duration,
    #[serde(with = "duration_text")]
    watch_timeout: Duration,
}

impl Default for KubernetesSection {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            in_cluster: false,
            namespace: None,
            field_manager: "towpath-hive".to_owned(),
            call_timeout: Duration::from_secs(5),
            watch_timeout: Duration::from_secs(290),
        }
    }
}

impl KubernetesSection {
    /// Refuses what cannot be meant.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.in_cluster && (self.kubeconfig.is_some() || self.context.is_some()) {
            return Err(Failure::usage(
                "hive.kubernetes.in-cluster is true, and a kubeconfig or context is given; write one of them",
            ));
        }
        if self.context.is_some() && self.kubeconfig.is_none() {
            return Err(Failure::usage(
                "hive.kubernetes.context is given without a kubeconfig; write hive.kubernetes.kubeconfig, too",
            ));
        }
        // A slash ends it in the names of field managers.
        let is_plain = |letter: char| matches!(letter, ' '..='~') && letter != '/';
        if !(1..=64).contains(&self.field_manager.len()) || !self.field_manager.chars().all(is_plain) {
            return Err(Failure::usage(
                "hive.kubernetes.field-manager has 1 to 64 printable ASCII characters, and no slash",
            ));
        }
        for (name, given) in [("call-timeout", self.call_timeout), ("watch-timeout", self.watch_timeout)] {
            if given < Duration::from_secs(1) {
                return Err(Failure::usage(format!("hive.kubernetes.{name} is too short; write 1s or more")));
            }
        }
        Ok(())
    }

    /// The gateway. Nothing is asked of the cluster yet: one that is away at the start is away like later.
    #[cfg(feature = "kubernetes")]
    pub(super) async fn gateway(self) -> Result<Arc<dyn ServingGateway>, Failure> {
        use towpath_hive::gateway::kubernetes::{Credentials, KubernetesGateway, KubernetesSettings};

        let credentials = match self.kubeconfig {
            _ if self.in_cluster => Credentials::InCluster,
            Some(path) => Credentials::Kubeconfig { path, context: self.context },
            None => Credentials::Found,
        };
        let settings = KubernetesSettings {
            credentials,
            field_manager: self.field_manager,
            namespace: self.namespace,
            call_timeout: self.call_timeout,
            watch_timeout: self.watch_timeout,
        };
        let gateway = KubernetesGateway::connect(settings)
            .await
            .map_err(|error| Failure::usage(format!("hive cannot use Kubernetes: {error}")))?;
        Ok(Arc::new(gateway))
    }

    /// This build cannot.
    #[cfg(not(feature = "kubernetes"))]
    pub(super) async fn gateway(self) -> Result<Arc<dyn ServingGateway>, Failure> {
        Err(Failure::usage(
            "hive.gateway is kubernetes, and this build has no Kubernetes; build it with --features kubernetes",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<KubernetesSection> {
        let section: KubernetesSection = toml::from_str(text).ok()?;
        section.check().is_ok().then_some(section)
    }

    #[test]
    fn nothing_needs_to_be_written() {
        assert_eq!(read(""), Some(KubernetesSection::default()));
    }

    #[test]
    fn what_contradicts_itself_or_cannot_work_is_refused() {
        assert!(read("kubeconfig = 'k'\ncontext = 'c'\nnamespace = 'shop'\ncall-timeout = '2s'").is_some());
        for wrong in [
            "in-cluster = true\nkubeconfig = 'k'",
            "in-cluster = true\ncontext = 'c'",
            "context = 'c'",
            "field-manager = ''",
            "field-manager = 'towpath/hive'",
            "field-manager = \"tow\\u0007path\"",
            "field-manager = 'Bienenstöcke'",
            "field-manager = 'a-name-that-is-much-too-long-for-what-may-stand-before-the-service'",
            "call-timeout = '0s'",
            "watch-timeout = '10ms'",
            "kube-config = 'k'",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[cfg(feature = "kubernetes")]
    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_told_at_the_start() {
        let section = read("kubeconfig = '/nonexistent/kubeconfig'").unwrap();
        let Err(failure) = section.gateway().await else { panic!("there is no such file") };
        assert!(failure.message.contains("/nonexistent/kubeconfig"), "{}", failure.message);
    }
}
