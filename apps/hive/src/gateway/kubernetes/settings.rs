//! How hive gets to a cluster.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// How hive gets to a cluster, and how it behaves there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// Who hive is to the cluster, and where that is.
    pub credentials: Credentials,
    /// What the names begin with under which hive's services own fields of their resources; the service follows, after a
    /// slash. At most 64 characters.
    pub field_manager: String,
    /// Watch this namespace alone. For credentials that may not watch all of them.
    pub namespace: Option<String>,
    /// How long one request may take.
    pub call_timeout: Duration,
    /// After how long a watch is renewed; a connection that died silently is noticed a little later.
    pub watch_timeout: Duration,
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self {
            credentials: Credentials::Found,
            field_manager: "towpath-hive".to_owned(),
            namespace: None,
            call_timeout: Duration::from_secs(5),
            watch_timeout: Duration::from_secs(290),
        }
    }
}

/// Where credentials are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The kubeconfig that `KUBECONFIG` names or that is in the home folder; without one, the service account of the pod.
    Found,
    /// A kubeconfig.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context in it; without one, the current one.
        context: Option<String>,
    },
    /// The service account of the pod that hive runs in.
    InCluster,
}

/// Why there is no way to a cluster. Causes are told in words and not as values: some of them quote the credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// A kubeconfig that is not usable.
    #[error("the kubeconfig cannot be used: {cause}")]
    Kubeconfig {
        /// What is wrong.
        cause: String,
    },
    /// No service account.
    #[error("there is no service account to be used: {cause}; hive has one in a pod of the cluster")]
    InCluster {
        /// What is wrong.
        cause: String,
    },
    /// Neither.
    #[error(
        "there is no kubeconfig ({cause}), and no service account; write hive.kubernetes.kubeconfig or set KUBECONFIG"
    )]
    Nothing {
        /// What is wrong with a kubeconfig.
        cause: String,
    },
    /// Credentials that no connection can be made with.
    #[error("no connection can be made with these credentials; `kubectl` with the same kubeconfig says more")]
    Client,
}

impl KubernetesSettings {
    /// A client with these credentials. Who repeats a call, and when, is hive's decision and not the client's.
    pub(super) async fn client(&self) -> Result<Client, ConnectError> {
        let mut config = self.credentials.config().await?;
        config.default_retry = false;
        config.connect_timeout = Some(self.call_timeout);
        config.write_timeout = Some(self.call_timeout);
        // Calls are bounded one by one. This ends a watch whose server says nothing any more, not even that it is quiet.
        config.read_timeout = Some(self.watch_timeout.saturating_add(self.call_timeout));
        config.reset_reader_on_write = true;
        Client::try_from(config).map_err(|_| ConnectError::Client)
    }
}

impl Credentials {
    async fn config(&self) -> Result<Config, ConnectError> {
        let unusable = |error: KubeconfigError| ConnectError::Kubeconfig { cause: in_words(&error) };
        match self {
            Self::Kubeconfig { path, context } => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(unusable)
            }
            Self::InCluster => {
                Config::incluster().map_err(|error| ConnectError::InCluster { cause: error.to_string() })
            }
            Self::Found => match Config::from_kubeconfig(&KubeConfigOptions::default()).await {
                Ok(config) => Ok(config),
                // What somebody has named on purpose is not silently passed by.
                Err(error) if std::env::var_os("KUBECONFIG").is_some() => Err(unusable(error)),
                Err(error) => {
                    Config::incluster().map_err(|_| ConnectError::Nothing { cause: in_words(&error) })
                }
            },
        }
    }
}

/// A parser's complaint shows the lines around the flaw, and a kubeconfig holds tokens and keys.
fn in_words(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(_) => "it is no YAML, or not of a kubeconfig's shape".to_owned(),
        other => other.to_string(),
    }
}
