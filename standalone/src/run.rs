//! One server from start to stop.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{info, warn};
use vireo_apiserver::auth::{KeyError, Signer, Tokens};
use vireo_apiserver::files::FileError;
use vireo_apiserver::flow_control::FlowControl;
use vireo_apiserver::http::Measures;
use vireo_apiserver::pki::PkiError;
use vireo_apiserver::resource::Registry;
use vireo_apiserver::server::{self, ClientTimeouts, SecureServing};
use vireo_apiserver::store::{DiskError, Store};
use vireo_apiserver::{account_tokens, accounts, definitions, garbage_collector, rbac};
use vireo_client::metrics::{Collected, MetricSet};
use vireo_handler::cluster::{Cluster, Projector};
use vireo_handler::devices::check_kvm;
use vireo_handler::heartbeat::{self, Owner};
use vireo_handler::live_settings::LiveSettings;
use vireo_handler::manifests::Key;
use vireo_handler::node::Node;
use vireo_handler::provisioner;
use vireo_handler::reconcile::supervise::{self, SuperviseError};
use vireo_handler::settings::Settings;
use vireo_handler::state::{StateError, read_json, retry_while_held, write_json};
use vireo_operators::config::LiveConfig;
use vireo_operators::vmi::{Launcher, StartedBy};
use vireo_operators::{Controllers, placement};

use crate::bootstrap;
use crate::cdi::CdiApi;
use crate::compose::{Parts, client, part_client, scheduler};
use crate::credentials::{self, Credentials};
use crate::resource;
use crate::uploads::Uploads;
use vireo_install::policy;
use vireo_install::resource::kubevirt;

/// The options of a server.
#[derive(Debug)]
pub struct Options {
    /// The node agent's part.
    pub node: Settings,
    /// Where it listens; port 0 takes any.
    pub listen: SocketAddr,
    /// How long clients may take.
    pub timeouts: ClientTimeouts,
}

/// Why it cannot run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The kubeconfig.
    #[error(transparent)]
    Kubeconfig(#[from] FileError),
    /// The store.
    #[error("cannot open the store")]
    Store(#[from] DiskError),
    /// The certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The key of tokens.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The address.
    #[error("cannot listen on {address}")]
    Listen {
        /// `--listen`.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something that should go on until the end did not.
    #[error("cannot serve")]
    Serve(#[from] io::Error),
    /// The node agent.
    #[error(transparent)]
    Node(#[from] SuperviseError),
}

/// Where a server keeps what is the API's.
pub fn directory(state: &Path) -> PathBuf {
    state.join("api")
}

/// Runs until `stop`. `ready` receives the URL and the kubeconfig. Guests go on when it returns.
///
/// # Errors
/// When it cannot start, or cannot go on.
pub async fn run(
    options: Options,
    ready: impl FnOnce(&str, &Path),
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let mut settings = options.node;
    settings.node_name = node_name(&settings.state_dir, &settings.node_name)?;
    let node = Arc::new(Node::new(settings));
    let _lock = node.state.take().await?;
    let directory = directory(&node.settings.state_dir);
    // A killed process releases the lock first, and its other files and sockets a little later.
    let open = async || Store::open(&directory.join("store.redb"));
    let registry = Arc::new(Registry::new(resource::rows()));
    let store = retry_while_held(open, DiskError::is_held).await?;
    let store = Arc::new(store.recorded_by(Arc::clone(&registry) as _));
    bootstrap::prepare(&store, &node.settings.node_name)?;
    let policy = policy::policy();
    rbac::bootstrap::prepare(&store, &policy)?;
    let listening = |source| RunError::Listen { address: options.listen, source };
    let bind = async || TcpListener::bind(options.listen).await;
    let is_held = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let listener = retry_while_held(bind, is_held).await.map_err(listening)?;
    let address = listener.local_addr().map_err(listening)?;
    let signer = Signer::of(&directory.join(credentials::SIGNING_KEY))?;
    let tokens = Arc::new(Tokens::new(credentials::token(&directory)?, signer, Arc::clone(&store)));
    let url = format!("https://{}", reachable(address));
    let credentials = Credentials::of(&directory, address, &node.settings.node_name, &url)?;
    let trusted = credentials.trusted();
    let serving =
        SecureServing { tls: credentials.tls(), tokens: Arc::clone(&tokens), timeouts: options.timeouts };
    let local = vireo_handler::http::bind(&node.state.endpoint())?;

    let config = credentials.write_kubeconfig()?;
    info!(url, state = %node.settings.state_dir.display(), node = node.settings.node_name, "vireo runs");
    ready(&url, &config);

    let router = vireo_handler::http::router(Arc::clone(&node));
    let measures = Measures::default();
    let flow_control = FlowControl::default();
    node.metrics.join(|registry| measures.register(registry, Arc::clone(&store), flow_control.clone()));
    let (for_accounts, for_credentials) = (Arc::clone(&tokens), Arc::clone(&tokens));
    let api = Arc::new_cyclic(|server| {
        let uploads = Uploads {
            client: part_client(server, policy::CDI_API, "cdi-apiserver"),
            files: node.claims(),
            url: url.clone(),
            jobs: node.jobs.clone(),
        };
        let parts = Parts {
            store: Arc::clone(&store),
            registry: Arc::clone(&registry),
            state_dir: node.settings.state_dir.clone(),
            allowed: node.settings.allowed.clone(),
            cdi: Arc::new(CdiApi { tokens, uploads }),
            node: router,
            measures,
            flow_control,
        };
        parts.server(server)
    });
    let provisioner = client(&api, policy::LOCAL_PROVISIONER, "local-provisioner");
    let virt_controller = client(&api, policy::VIRT_CONTROLLER, "virt-controller");
    let controllers =
        Arc::new(Controllers::new(&virt_controller, launcher(&node.settings), LiveConfig::default()));
    node.metrics.join(|registry| {
        let controllers = Arc::clone(&controllers);
        registry
            .register_collector(Box::new(Collected(move |set: &mut MetricSet| controllers.add_metrics(set))));
    });
    let placement = placement::controller::Controller::new(scheduler(&api), &node.settings.node_name);
    let kubelet = client(&api, policy::LOCAL_KUBELET, "local-kubelet");
    node.set_projector(Projector::new(kubelet, trusted.clone()));
    let virt_handler = client(&api, policy::VIRT_HANDLER, "virt-handler");
    let cluster = Cluster::new(virt_handler.clone(), Arc::clone(&node), unreadable_vmis(&store));
    tokio::select! {
        done = supervise::run(Arc::clone(&node), cluster.source(), stop) => done?,
        done = server::serve(listener, serving, api) => done?,
        done = vireo_handler::http::serve(local, Arc::clone(&node)) => done?,
        () = cluster.run() => {}
        () = controllers.run() => {}
        () = definitions::run(Arc::clone(&store)) => {}
        () = provisioner::run(provisioner, Arc::clone(&node)) => {}
        () = node.images.collect_garbage() => {}
        () = rbac::bootstrap::run(Arc::clone(&store), policy) => {}
        () = accounts::run(Arc::clone(&store)) => {}
        () = fill_account_tokens(Arc::clone(&store), for_accounts, trusted) => {}
        () = credentials.run(for_credentials) => {}
        () = heartbeat::run(
            virt_handler, &node.settings.node_name, Owner::NodeAgent, LiveSettings::fixed(),
        ) => {}
        () = placement.run() => {}
        () = garbage_collector::run(Arc::clone(&store), Arc::clone(&registry)) => {}
    }
    info!("vireo stops; its guests go on");
    Ok(())
}

/// Fills the Secrets of ServiceAccounts, and again when other authorities are trusted.
async fn fill_account_tokens(store: Arc<Store>, tokens: Arc<Tokens>, mut trusted: watch::Receiver<String>) {
    loop {
        let authority = trusted.borrow_and_update().clone();
        tokio::select! {
            () = account_tokens::run(Arc::clone(&store), Arc::clone(&tokens), authority) => return,
            changed = trusted.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// What launcher Pods have in common here.
pub(crate) fn launcher(settings: &Settings) -> Launcher {
    Launcher {
        hypervisor: settings.hypervisor,
        has_kvm: check_kvm().is_ok(),
        ..Launcher::new(concat!("vireo/virt-launcher:", env!("CARGO_PKG_VERSION")), StartedBy::NodeAgent)
    }
}

/// The VMIs that the store has and cannot serve.
pub(crate) fn unreadable_vmis(store: &Store) -> Vec<Key> {
    let vmis = kubevirt::VMIS.name();
    let unreadable = store.unreadable().filter(|key| key.resource == vmis);
    unreadable.map(|key| Key::new(&key.namespace, &key.name)).collect()
}

/// The name of this node, which it keeps: VMIs are bound to it, and their guests would be shut down under another one.
fn node_name(state: &Path, given: &str) -> Result<String, RunError> {
    let directory = directory(state);
    make_private(&directory)?;
    let path = directory.join("node.json");
    match read_json::<String>(&path)? {
        Some(name) => {
            if name != given {
                warn!(name, given, "the node keeps the name that its VMIs are bound to");
            }
            Ok(name)
        }
        None => {
            write_json(&path, &given)?;
            Ok(given.to_owned())
        }
    }
}

fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// The address under which this host reaches it.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_the_name_that_its_vmis_are_bound_to() {
        let dir = tempfile::tempdir().unwrap();
        for given in ["node1", "renamed"] {
            assert_eq!(node_name(dir.path(), given).unwrap(), "node1");
        }
    }
}
