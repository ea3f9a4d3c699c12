//! How hive gets to a cluster.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// The most letters of a field manager: those of a service follow, and a server takes 128.
const LONGEST_FIELD_MANAGER: usize = 64;

const NO_URL: &str = "it is no URL; write http://host:port, or leave it out";
const OTHER_PROTOCOL: &str = "hive speaks to HTTP proxies alone; write http://host:port, or leave it out";

/// How hive gets to a cluster, and how it behaves there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesSettings {
    /// Who hive is to the cluster, and where that is.
    pub credentials: Credentials,
    /// The name of this installation of hive. No two on one cluster have the same: what another one has made is left alone.
    /// The names begin with it under which hive's services own fields of their resources; the service follows, after a
    /// slash. 1 to 64 printable ASCII characters without a slash.
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
    /// A proxy that is not usable. Its address is never shown: it may hold a password.
    #[error("{name} cannot be used for the way to the cluster: {cause}")]
    Proxy {
        /// Where it is named.
        name: &'static str,
        /// What is wrong, and what to write.
        cause: &'static str,
    },
    /// A name that cannot be one of an installation.
    #[error("the field manager has 1 to 64 printable ASCII characters without a slash")]
    FieldManager,
    /// Credentials that no connection can be made with.
    #[error("no connection can be made with these credentials; `kubectl` with the same kubeconfig says more")]
    Client,
}

impl KubernetesSettings {
    /// A client with these credentials. Who repeats a call, and when, is hive's decision and not the client's.
    pub(super) async fn client(&self) -> Result<Client, ConnectError> {
        if !is_field_manager(&self.field_manager) {
            return Err(ConnectError::FieldManager);
        }
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
        match self {
            Self::Kubeconfig { path, context } => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(unusable)?;
                configured(kubeconfig, context.clone()).await
            }
            Self::InCluster => {
                Config::incluster().map_err(|error| ConnectError::InCluster { cause: error.to_string() })
            }
            Self::Found => {
                let found = match Kubeconfig::read() {
                    Ok(kubeconfig) => configured(kubeconfig, None).await,
                    Err(error) => Err(unusable(error)),
                };
                match found {
                    // What somebody has named on purpose is not silently passed by.
                    Err(ConnectError::Kubeconfig { cause }) if std::env::var_os("KUBECONFIG").is_none() => {
                        Config::incluster().map_err(|_| ConnectError::Nothing { cause })
                    }
                    found => found,
                }
            }
        }
    }
}

/// What a kubeconfig says, with the proxy that leads there.
async fn configured(kubeconfig: Kubeconfig, context: Option<String>) -> Result<Config, ConnectError> {
    let named = match named_proxy(&kubeconfig, context.as_deref()) {
        Some(address) => Some(address_of(address, "proxy-url in the kubeconfig")?),
        None => None,
    };
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(unusable)?;
    // kube holds NO_PROXY against the address of the proxy itself, and not against that of the cluster.
    config.proxy_url = match named {
        Some(address) => Some(address),
        None => proxy_to(&config.cluster_url, |name| std::env::var(name).ok())?,
    };
    Ok(config)
}

/// The proxy that a kubeconfig names for the cluster of a context. As with kubectl, it is used whatever the environment says.
fn named_proxy<'k>(kubeconfig: &'k Kubeconfig, context: Option<&str>) -> Option<&'k str> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|known| known.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|known| known.name == context.cluster)?;
    cluster.cluster.as_ref()?.proxy_url.as_deref().filter(|address| !address.is_empty())
}

/// The proxy of the environment that leads to a cluster, as with kubectl: not to this machine, and not to what `NO_PROXY`
/// names.
fn proxy_to(cluster: &Uri, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Uri>, ConnectError> {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let names = match cluster.scheme_str() {
        Some("http") => ["HTTP_PROXY", "http_proxy"],
        _ => ["HTTPS_PROXY", "https_proxy"],
    };
    let found = names.into_iter().find_map(|name| Some((name, set(&name)?)));
    let Some((name, address)) = found else { return Ok(None) };
    let without = ["NO_PROXY", "no_proxy"].iter().find_map(set).unwrap_or_default();
    let excepted = Matcher::builder().all("http://proxy").no(without).build().intercept(cluster).is_none();
    if excepted || cluster.host().is_some_and(is_this_machine) {
        return Ok(None);
    }
    address_of(&address, name).map(Some)
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn address_of(text: &str, name: &'static str) -> Result<Uri, ConnectError> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let address = text.parse::<Uri>().map_err(|_| ConnectError::Proxy { name, cause: NO_URL })?;
    match address.scheme_str() {
        Some("http" | "https") => Ok(address),
        _ => Err(ConnectError::Proxy { name, cause: OTHER_PROTOCOL }),
    }
}

fn is_field_manager(name: &str) -> bool {
    let is_plain = |letter: char| matches!(letter, ' '..='~') && letter != '/';
    !name.is_empty() && name.len() <= LONGEST_FIELD_MANAGER && name.chars().all(is_plain)
}

fn unusable(error: KubeconfigError) -> ConnectError {
    match error {
        // That of a kubeconfig has been read before.
        KubeconfigError::ParseProxyUrl(_) => ConnectError::Proxy { name: "HTTPS_PROXY", cause: NO_URL },
        KubeconfigError::ParseNoProxy(_) => {
            let cause = "write names and addresses with one comma between them";
            ConnectError::Proxy { name: "NO_PROXY", cause }
        }
        other => ConnectError::Kubeconfig { cause: in_words(&other) },
    }
}

/// A parser's complaint shows the lines around the flaw, and a kubeconfig holds tokens and keys.
fn in_words(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(_) => "it is no YAML, or not of a kubeconfig's shape".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leads(cluster: &str, set: &[(&str, &str)]) -> Result<Option<String>, ConnectError> {
        let variable =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let proxy = proxy_to(&cluster.parse().unwrap(), variable)?;
        Ok(proxy.map(|proxy| proxy.to_string()))
    }

    #[test]
    fn a_proxy_of_the_environment_leads_to_all_but_what_it_is_not_for() {
        let proxy = ("HTTPS_PROXY", "http://proxy.example:3128");
        let through = Ok(Some("http://proxy.example:3128/".to_owned()));
        let cluster = "https://cluster.example:6443";
        assert_eq!(leads(cluster, &[]), Ok(None));
        assert_eq!(leads(cluster, &[("HTTPS_PROXY", "")]), Ok(None));
        assert_eq!(leads(cluster, &[proxy]), through);
        assert_eq!(leads(cluster, &[("https_proxy", "proxy.example:3128")]), through);
        assert_eq!(leads("http://cluster.example", &[proxy]), Ok(None), "that one is for https");
        assert_eq!(leads("http://cluster.example", &[("HTTP_PROXY", proxy.1)]), through);
        for without in ["cluster.example", ".example", "*", "10.0.0.0/8, example"] {
            assert_eq!(leads(cluster, &[proxy, ("NO_PROXY", without)]), Ok(None), "{without}");
            assert_eq!(leads(cluster, &[proxy, ("no_proxy", without)]), Ok(None), "{without}");
        }
        assert_eq!(leads("https://10.1.2.3:6443", &[proxy, ("NO_PROXY", "10.0.0.0/8")]), Ok(None));
        // That the proxy itself is named there says nothing about the cluster.
        assert_eq!(leads(cluster, &[proxy, ("NO_PROXY", "proxy.example")]), through);
        for here in ["https://localhost:6443", "https://127.0.0.1:6443", "https://[::1]:6443"] {
            assert_eq!(leads(here, &[proxy]), Ok(None), "{here}");
        }
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_without_its_password() {
        for wrong in ["socks5://me:secret@proxy.example", "http://me:secret@:a proxy", "http://"] {
            let error = leads("https://cluster.example", &[("HTTPS_PROXY", wrong)]).unwrap_err();
            let told = format!("{error} {error:?}");
            assert!(told.contains("HTTPS_PROXY") && !told.contains("secret"), "{told}");
            // One that is not used is not looked at.
            let set = [("HTTPS_PROXY", wrong), ("NO_PROXY", "cluster.example")];
            assert_eq!(leads("https://cluster.example", &set), Ok(None));
        }
    }

    #[test]
    fn the_name_of_an_installation_fits_before_a_service() {
        for name in ["towpath-hive", "a", "team one", &"a".repeat(64)] {
            assert!(is_field_manager(name), "{name}");
        }
        for name in ["", "a/b", "/", "a\n", "ä", &"a".repeat(65)] {
            assert!(!is_field_manager(name), "{name}");
        }
    }
}
