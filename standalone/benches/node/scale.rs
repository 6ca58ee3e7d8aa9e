//! Many VMIs on simulated nodes. The API server, virt-controller and the garbage collector work in this process, as
//! `vireo standalone` composes them; no node agent and no launchers run.

mod nodes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use kube::api::{DynamicObject, PostParams};
use serde_json::json;
use tokio::time::timeout;
use vireo_apiserver::auth::{Signer, Tokens, User};
use vireo_apiserver::client::InProcess;
use vireo_apiserver::flow_control::FlowControl;
use vireo_apiserver::http::{Measures, Server};
use vireo_apiserver::resource::Registry;
use vireo_apiserver::store::Store;
use vireo_apiserver::{accounts, definitions, garbage_collector, rbac};
use vireo_client::Kind;
use vireo_handler::jobs::Jobs;
use vireo_handler::storage::{AllowedPaths, Claims};
use vireo_install::policy;
use vireo_operators::Controllers;
use vireo_operators::config::{ClusterConfig, LiveConfig};
use vireo_operators::vmi::{Launcher, StartedBy};
use vireo_standalone::bootstrap;
use vireo_standalone::cdi::CdiApi;
use vireo_standalone::compose::{Parts, client, part_client, scheduler};
use vireo_standalone::resource;
use vireo_standalone::uploads::Uploads;

use self::nodes::Nodes;
use super::{Error, cost, table, vmis};

/// Simulated nodes.
const NODES: usize = 100;
/// Namespaces that the VMIs are in.
const NAMESPACES: usize = 4;
/// Requests at the same time.
const CLIENTS: usize = 16;
/// The parts of all VMIs whose times are shown apart: equal ones show that the cost of a VMI does not grow.
const PARTS: usize = 4;
/// How long a part may take.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Measures `count` VMIs, created by themselves or through VirtualMachines.
pub(super) fn measure(count: usize, kind: Kind) -> Result<(), Error> {
    if count == 0 {
        return Ok(());
    }
    // As that of `vireo`.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(run(count, kind));
    runtime.shutdown_background();
    done
}

async fn run(count: usize, kind: Kind) -> Result<(), Error> {
    let directory = tempfile::tempdir()?;
    let registry = Arc::new(Registry::new(resource::rows()));
    let store = Store::open(&directory.path().join("store.redb"))?;
    let store = Arc::new(store.recorded_by(Arc::clone(&registry) as _));
    let policy = policy::policy();
    bootstrap::prepare(&store, &nodes::name(0))?;
    rbac::bootstrap::prepare(&store, &policy)?;
    let signer = Signer::of(&directory.path().join("sa.key"))?;
    let tokens = Arc::new(Tokens::new("administrator".to_owned(), signer, Arc::clone(&store)));
    let server = Arc::new_cyclic(|server| {
        let uploads = Uploads {
            client: part_client(server, policy::CDI_API, "cdi-apiserver"),
            files: Claims::below(
                directory.path().join("claims"),
                vireo_handler::storage::ImageReader::InProcess,
            ),
            url: "https://127.0.0.1:6443".to_owned(),
            jobs: Jobs::default(),
        };
        let parts = Parts {
            store: Arc::clone(&store),
            registry: Arc::clone(&registry),
            state_dir: directory.path().to_owned(),
            allowed: AllowedPaths::any(),
            cdi: Arc::new(CdiApi { tokens, uploads }),
            node: Router::new(),
            measures: Measures::default(),
            flow_control: FlowControl::default(),
        };
        parts.server(server)
    });
    let launcher = Launcher::new("vireo/virt-launcher:bench", StartedBy::Kubelet);
    // The nodes have no KVM.
    let config = LiveConfig::fixed(ClusterConfig { use_emulation: true, ..ClusterConfig::default() });
    let virt_controller = client(&server, policy::VIRT_CONTROLLER, "virt-controller");
    let controllers = Controllers::new(&virt_controller, launcher, config);
    let nodes = Nodes::new(scheduler(&server), &client(&server, policy::VIRT_HANDLER, "virt-handler"));
    let administrator = administrator(&server);
    tokio::select! {
        done = load(&administrator, &nodes, count, kind) => done,
        () = nodes.run() => Err("the nodes ended".into()),
        () = controllers.run() => Err("the controllers ended".into()),
        () = definitions::run(Arc::clone(&store)) => Err("a controller ended".into()),
        () = rbac::bootstrap::run(Arc::clone(&store), policy) => Err("a controller ended".into()),
        () = accounts::run(Arc::clone(&store)) => Err("a controller ended".into()),
        () = garbage_collector::run(Arc::clone(&store), registry) => Err("the garbage collector ended".into()),
    }
}

fn administrator(server: &Arc<Server>) -> Client {
    Client::new(InProcess::new(Arc::clone(server), User::administrator()), "default")
}

/// Creates the VMIs and waits until all run.
async fn load(client: &Client, nodes: &Nodes, count: usize, kind: Kind) -> Result<(), Error> {
    prepare(client).await?;
    nodes.synced().await;
    println!(
        "\n{count} {}s in {NAMESPACES} namespaces on {NODES} simulated nodes, {CLIENTS} clients; the API server, the \
         controllers and the simulated nodes are one process:",
        kind.kind
    );
    let (memory, cpu_time, begin) = (cost::own_memory()?, cost::own_cpu_time(), Instant::now());
    let creating = async {
        let each = stream::iter(0..count).map(|number| create(client, kind, number));
        each.buffer_unordered(CLIENTS).try_collect::<()>().await?;
        Ok(begin.elapsed())
    };
    let running = async {
        let mut parts = Vec::new();
        for part in 1..=PARTS {
            let wanted = count * part / PARTS;
            let waited = timeout(LIMIT, nodes.running(wanted)).await;
            waited.map_err(|_| format!("{wanted} of {count} do not run after another {LIMIT:?}"))??;
            parts.push(begin.elapsed());
        }
        Ok::<_, Error>(parts)
    };
    let (created, parts) = tokio::try_join!(creating, running)?;
    let (took, cpu_time) = (begin.elapsed(), cost::own_cpu_time().saturating_sub(cpu_time));
    println!("  all are created after {created:.2?} and run after {took:.2?}: {}", table::rate(count, took));
    println!("  a quarter of them runs after {}", intervals(&parts));
    println!("  memory of the process: {memory} before, {} at the end", cost::own_memory()?);
    let each = cpu_time.checked_div(u32::try_from(count)?).unwrap_or_default();
    println!("  of the process for each: {each:.2?} of a CPU");
    Ok(())
}

/// The time of each part.
fn intervals(ends: &[Duration]) -> String {
    let begins = [Duration::ZERO].into_iter().chain(ends.iter().copied());
    let parts = ends.iter().zip(begins).map(|(end, begin)| format!("{:.2?}", end.saturating_sub(begin)));
    parts.collect::<Vec<_>>().join(", then ")
}

fn namespace(number: usize) -> String {
    format!("scale-{}", number % NAMESPACES)
}

async fn prepare(client: &Client) -> Result<(), Error> {
    let namespaces = Kind::new(("", "v1"), "Namespace", "namespaces");
    let names = (0..NAMESPACES).map(|number| (namespaces, namespace(number)));
    // The first node is there from the start.
    let names = names.chain((1..NODES).map(|number| (Kind::NODE, nodes::name(number))));
    for (kind, name) in names {
        kind.all(client)
            .create(&PostParams::default(), &DynamicObject::new(&name, &kind.api_resource()))
            .await?;
    }
    Ok(())
}

async fn create(client: &Client, kind: Kind, number: usize) -> Result<(), Error> {
    let vmi = vmis::vmi(number)?;
    let object = match kind {
        Kind::VM => serde_json::from_value(json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "metadata": vmi.metadata,
            "spec": {"runStrategy": "Always", "template": {"spec": vmi.data["spec"]}},
        }))?,
        _ => vmi,
    };
    kind.namespaced(client, &namespace(number)).create(&PostParams::default(), &object).await?;
    Ok(())
}
