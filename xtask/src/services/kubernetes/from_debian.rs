//! Gets the sources of the API server from Debian unstable and builds them, without touching this machine's packages.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::Failure;
use crate::services::archive::{self, KEYRING};
use crate::services::home::indented_tail;
use crate::services::progress::Progress;

/// The server's sources with all that they need, the compiler, and the database, which is a program already.
const PACKAGES: [&str; 3] = ["golang-k8s-apiextensions-apiserver-dev", "golang-go", "etcd-server"];

/// The package whose version is the server's.
const SERVER_PACKAGE: &str = PACKAGES[0];

/// What to build.
const GO_PACKAGE: &str = "k8s.io/apiextensions-apiserver";

/// Downloads some hundred megabytes and compiles for some minutes, once. What is needed afterwards stays in the cache.
pub(super) fn build(cache: &Path, data_root: &Path, progress: &Progress) -> Result<(), Failure> {
    let work = Work { folder: cache.join("building"), log: data_root.join("kubernetes-build.log") };
    let what = format!(
        "building it once, for 5 to 15 minutes, from 400 MB of packages; `tail -f {}` shows how far it is",
        work.log.display()
    );
    progress.step("kube", &what);
    let attempt = format!("write {}", work.log.display());
    File::create(&work.log).map_err(Failure::while_trying(&attempt))?;
    build_in(&work, cache).map_err(|cause| {
        let said = fs::read(&work.log).unwrap_or_default();
        let tail = indented_tail(&String::from_utf8_lossy(&said));
        let what = format!("the Kubernetes API server cannot be built: {cause}; the end of its log:\n{tail}");
        Failure::new(what).next_step(
            "set TOWPATH_TEST_KUBECONFIG to the file:// URL of a kubeconfig whose cluster tests may use",
        )
    })?;
    progress.step("kube", "built");
    fs::remove_dir_all(&work.folder)
        .map_err(Failure::while_trying(format!("remove {}", work.folder.display())))
}

struct Work {
    folder: PathBuf,
    log: PathBuf,
}

fn build_in(work: &Work, cache: &Path) -> Result<(), Failure> {
    let apt = work.folder.join("apt");
    let (unpacked, programs) = (work.folder.join("root"), cache.join("bin"));
    for folder in [&apt.join("lists/partial"), &apt.join("archives/partial"), &unpacked, &programs] {
        fs::create_dir_all(folder).map_err(Failure::while_trying(format!("make {}", folder.display())))?;
    }
    let archive = archive::of_this_machine(|update| work.run(update))?;
    write(&apt.join("sources.list"), &format!("deb [signed-by={KEYRING}] {archive} unstable main\n"))?;
    // Nothing is installed here, so that everything is downloaded.
    write(&apt.join("status"), "")?;
    write(&apt.join("apt.conf"), &apt_settings(&apt))?;

    let private = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-o", "Acquire::Retries=3"]).args(arguments).env("APT_CONFIG", apt.join("apt.conf"));
        command
    };
    work.run(private(&["update"]))?;
    let mut download = private(&["install", "--yes", "--download-only", "--no-install-recommends"]);
    download.args(PACKAGES);
    work.run(download)?;
    let version = unpack(work, &apt.join("archives"), &unpacked)?;
    compile(work, &unpacked, &programs.join("kube-apiserver"))?;
    let etcd = unpacked.join("usr/bin/etcd");
    fs::copy(&etcd, programs.join("etcd"))
        .map_err(Failure::while_trying(format!("copy {}", etcd.display())))?;
    write(&cache.join("version"), &version)
}

fn apt_settings(apt: &Path) -> String {
    let apt = apt.display();
    format!(
        "Dir::State::Lists \"{apt}/lists\";\n\
         Dir::State::status \"{apt}/status\";\n\
         Dir::Cache \"{apt}\";\n\
         Dir::Cache::archives \"{apt}/archives\";\n\
         Dir::Etc::SourceList \"{apt}/sources.list\";\n\
         Dir::Etc::SourceParts \"/dev/null\";\n\
         Dir::Etc::Preferences \"/dev/null\";\n\
         Dir::Etc::PreferencesParts \"/dev/null\";\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n\
         Debug::NoLocking \"true\";\n"
    )
}

/// Unpacks what is needed to build and run; the answer is the server's version. The C library and the like that apt brought
/// along are left: programs run on this machine's own.
fn unpack(work: &Work, archives: &Path, unpacked: &Path) -> Result<String, Failure> {
    let attempt = format!("read {}", archives.display());
    let mut version = None;
    for entry in fs::read_dir(archives).map_err(Failure::while_trying(&attempt))? {
        let entry = entry.map_err(Failure::while_trying(&attempt))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".deb") || !(name.starts_with("golang-") || name.starts_with("etcd-")) {
            continue;
        }
        version = version.or_else(|| version_in(&name));
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.arg("-x").arg(entry.path()).arg(unpacked);
        work.run(dpkg)?;
    }
    version.ok_or_else(|| Failure::new(format!("{SERVER_PACKAGE} was not downloaded")))
}

fn version_in(file_name: &str) -> Option<String> {
    let rest = file_name.strip_prefix(SERVER_PACKAGE)?.strip_prefix('_')?;
    rest.split(['_', '-']).next().map(str::to_owned)
}

fn compile(work: &Work, unpacked: &Path, program: &Path) -> Result<(), Failure> {
    let compiler = unpacked.join("usr/lib/go");
    if !compiler.exists() {
        // The link comes with a package that may be of another name one day; the folder carries its version.
        let folder = fs::read_dir(unpacked.join("usr/lib")).ok().and_then(|entries| {
            let names = entries.flatten().map(|entry| entry.file_name());
            names.filter(|name| name.to_string_lossy().starts_with("go-")).max()
        });
        let folder = folder.ok_or_else(|| Failure::new("Debian's Go compiler is not where it was"))?;
        symlink(folder, &compiler).map_err(Failure::while_trying("name the Go compiler"))?;
    }
    // Beside its place, so that what is in its place is whole.
    let unfinished = program.with_extension("unfinished");
    let mut go = Command::new(compiler.join("bin/go"));
    go.arg("build").arg("-o").arg(&unfinished).arg(GO_PACKAGE);
    go.current_dir(&work.folder).env("GOROOT", &compiler).env("GOPATH", unpacked.join("usr/share/gocode"));
    go.env("GOCACHE", work.folder.join("gocache")).env("HOME", &work.folder);
    // Only what was unpacked: no modules, no C, no other compiler from the network.
    go.env("GO111MODULE", "off").env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local").env_remove("GOFLAGS");
    work.run(go)?;
    fs::rename(&unfinished, program).map_err(Failure::while_trying(format!("make {}", program.display())))
}

impl Work {
    /// Runs a command with its output in the log.
    fn run(&self, mut command: Command) -> Result<(), Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let attempt = format!("run {name}");
        let log = File::options().append(true).open(&self.log).map_err(Failure::while_trying(&attempt))?;
        let log_for_errors = log.try_clone().map_err(Failure::while_trying(&attempt))?;
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command.stdin(Stdio::null()).stdout(log).stderr(log_for_errors);
        let status = command.status().map_err(Failure::while_trying(&attempt))?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("`{name}` failed ({status})"))) }
    }
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    fs::write(path, content).map_err(Failure::while_trying(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_in_the_files_name() {
        let name = "golang-k8s-apiextensions-apiserver-dev_0.36.4-1_all.deb";
        assert_eq!(version_in(name).as_deref(), Some("0.36.4"));
        assert_eq!(version_in("golang-go_2%3a1.27~1_amd64.deb"), None);
    }
}
