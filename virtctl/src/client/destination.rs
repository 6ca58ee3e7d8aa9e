//! Which server the command line and the environment select.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::cli::Server;

/// The default state directory of virt-handler.
const STATE_DIR: &str = "/var/lib/vireo";

/// What requests are sent to.
pub(super) enum Destination {
    /// The server that these kubeconfigs and the flags name.
    Server(Option<OsString>),
    /// The server of the cluster in whose pod this process runs.
    Pod,
    /// The virt-handler with this state directory.
    Handler(PathBuf),
}

impl Destination {
    /// The command line comes first, then `KUBECONFIG`, `VIREO_STATE_DIR`, the kubeconfig in the home directory and the
    /// pod in which this process runs; the default is the virt-handler of this node.
    pub(super) fn of(server: &Server) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = variable("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
        let home = home.filter(|path| path.exists()).map(PathBuf::into_os_string);
        if let Some(directory) = &server.state_dir {
            return Self::Handler(directory.clone());
        }
        if let Some(file) = &server.kubeconfig {
            return Self::Server(Some(file.clone().into_os_string()));
        }
        if let Some(files) = variable("KUBECONFIG") {
            return Self::Server(Some(files));
        }
        if server.names_a_server() {
            return Self::Server(home);
        }
        if let Some(directory) = variable("VIREO_STATE_DIR") {
            return Self::Handler(directory.into());
        }
        match home {
            Some(file) => Self::Server(Some(file)),
            None if variable("KUBERNETES_SERVICE_HOST").is_some() => Self::Pod,
            None => Self::Handler(STATE_DIR.into()),
        }
    }
}
