//! A Kubernetes API server with etcd: the stock server of custom resources, built from Debian's Go sources.
//!
//! It serves custom resources as every cluster does, and nothing else: no namespaces, no controllers, no access rules. It is
//! an extra that `cargo xtask test --kube` asks for, because its sources are of Debian unstable, which moves.

mod from_debian;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::failure::Failure;
use crate::services::home::Home;
use crate::services::installation::is_on_path;
use crate::services::progress::Progress;
use crate::services::server::{Address, Server};
use crate::services::{archive, certificates, data_root};

/// The server behind TOWPATH_TEST_KUBECONFIG.
pub(super) struct Kubernetes;

const PORT: u16 = 7443;
const ETCD_PORT: u16 = 7379;
const ETCD_PEER_PORT: u16 = 7380;

/// What would ask a cluster's other servers, which are not here.
const ADMISSION_OFF: &str = "NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,\
                             MutatingAdmissionPolicy,ValidatingAdmissionPolicy";

/// Whom the server's and the client's certificates are for: everything is allowed to this client.
const SERVER_SUBJECT: &str = "/CN=kube-apiserver";
const CLIENT_SUBJECT: &str = "/O=system:masters/CN=towpath-tests";

impl Server for Kubernetes {
    fn name(&self) -> &'static str {
        "kube"
    }

    fn title(&self) -> &'static str {
        "the Kubernetes API server"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["openssl", "debian-archive-keyring"]
    }

    fn has_packages(&self) -> bool {
        is_on_path("openssl") && archive::has_keyring()
    }

    fn build(&self, data_root: &Path, progress: &Progress) -> Result<(), Failure> {
        from_debian::build(&cache_in(data_root), data_root, progress)
    }

    fn user(&self) -> &'static str {
        // No package creates one for it; this one is on every Debian, with a group of the same name.
        "daemon"
    }

    fn main_process_name(&self) -> &'static str {
        "kube-apiserver"
    }

    fn stop_signal(&self) -> &'static str {
        "TERM"
    }

    fn companions(&self) -> &'static [&'static str] {
        &["etcd"]
    }

    fn addresses(&self) -> Vec<Address> {
        let kubeconfig = data_root().map(|root| root.join(self.name()).join("kubeconfig"));
        let url = format!("file://{}", kubeconfig.unwrap_or_default().display());
        vec![Address { variable: "TOWPATH_TEST_KUBECONFIG", url }]
    }

    fn ports(&self) -> &'static [u16] {
        &[PORT]
    }

    fn longest_start(&self) -> Duration {
        // Ten seconds on an idle machine.
        Duration::from_secs(180)
    }

    fn is_installed(&self) -> bool {
        ["kube-apiserver", "etcd"].iter().all(|name| program(name).is_some_and(|program| program.exists()))
    }

    fn version(&self) -> Option<String> {
        let cache = cache_in(&data_root().ok()?);
        Some(fs::read_to_string(cache.join("version")).ok()?.trim().to_owned())
    }

    fn answers(&self) -> bool {
        data_root().is_ok_and(|root| is_alive(&Home::at(&root, self)).unwrap_or(false))
    }

    fn prepare(&self, home: &Home, _progress: &Progress) -> Result<(), Failure> {
        let folder = home.folder();
        certificates::make(home, SERVER_SUBJECT, CLIENT_SUBJECT)?;
        home.write(&folder.join("kubeconfig"), &kubeconfig(folder))
    }

    fn daemon(&self, home: &Home) -> Result<Command, Failure> {
        let not_built = || Failure::new("the Kubernetes API server is not built");
        let (server, etcd) =
            (program("kube-apiserver").ok_or_else(not_built)?, program("etcd").ok_or_else(not_built)?);
        // One that is left from an earlier start keeps its port, and is used again.
        let script = format!(
            "'{etcd}' --data-dir etcd --listen-client-urls {client} --advertise-client-urls {client} \
             --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster default={peer} \
             >>log/etcd.log 2>&1 &\n\
             exec '{server}' --etcd-servers={client} --bind-address=127.0.0.1 --secure-port={PORT} \
             --tls-cert-file=server.crt --tls-private-key-file=server.key --client-ca-file=authority.crt \
             --kubeconfig=kubeconfig --authentication-kubeconfig=kubeconfig --authorization-kubeconfig=kubeconfig \
             --authentication-skip-lookup --enable-priority-and-fairness=false \
             --disable-admission-plugins={ADMISSION_OFF}",
            etcd = etcd.display(),
            server = server.display(),
            client = format_args!("http://127.0.0.1:{ETCD_PORT}"),
            peer = format_args!("http://127.0.0.1:{ETCD_PEER_PORT}"),
        );
        let mut daemon = home.daemon("bash");
        daemon.args(["-c", &script]);
        Ok(daemon)
    }
}

fn cache_in(data_root: &Path) -> PathBuf {
    data_root.join("cache").join("kubernetes")
}

fn program(name: &str) -> Option<PathBuf> {
    Some(cache_in(&data_root().ok()?).join("bin").join(name))
}

fn kubeconfig(folder: &Path) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: tests\n\
         clusters:\n- name: tests\n  cluster:\n    server: https://127.0.0.1:{PORT}\n    \
         certificate-authority: {authority}\n\
         users:\n- name: tests\n  user:\n    client-certificate: {certificate}\n    client-key: {key}\n\
         contexts:\n- name: tests\n  context:\n    cluster: tests\n    user: tests\n",
        authority = file("authority.crt"),
        certificate = file("client.crt"),
        key = file("client.key"),
    )
}

/// Asks `/livez` by openssl: this tool has no TLS of its own. (`/readyz` never passes: it wants the rest of a cluster.)
fn is_alive(home: &Home) -> std::io::Result<bool> {
    if !home.folder().join("client.crt").exists() {
        return Ok(false);
    }
    let mut question = Command::new("timeout")
        .args(["5", "openssl", "s_client", "-quiet", "-connect", &format!("127.0.0.1:{PORT}")])
        .args(["-CAfile", "authority.crt", "-cert", "client.crt", "-key", "client.key"])
        .current_dir(home.folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut input) = question.stdin.take() {
        input.write_all(b"GET /livez HTTP/1.0\r\n\r\n")?;
    }
    let answer = question.wait_with_output()?;
    Ok(answer.stdout.starts_with(b"HTTP/1.0 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_names_files_in_the_servers_folder() {
        let text = kubeconfig(Path::new("/srv/kube"));
        assert!(text.contains("    client-key: /srv/kube/client.key\n"), "{text}");
        assert!(text.contains("\n    certificate-authority: /srv/kube/authority.crt\n"), "{text}");
    }
}
