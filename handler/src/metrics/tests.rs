use tokio::net::UnixListener;
use vireo_api::v1::{Condition, InterfaceStatus};
use vireo_proto::launcher::{
    BalloonStatistics, DiskStatistics, GuestFilesystem, GuestLoad, InterfaceStatistics, OperationStatistics,
    Statistics, TrafficStatistics, VcpuStatistics,
};

use super::*;
use crate::node::Node;

/// The answer of the node that [`node_of_three`] makes up.
const GOLDEN: &str = include_str!("tests/node.txt");

fn vmi(name: &str, phase: &str) -> VirtualMachineInstance {
    let mut vmi = VirtualMachineInstance::default();
    vmi.metadata.namespace = "default".to_owned();
    vmi.metadata.name = name.to_owned();
    vmi.status.phase = phase.to_owned();
    vmi
}

fn statistics() -> Statistics {
    let operations =
        |requests| Some(OperationStatistics { requests, bytes: requests * 512, nanoseconds: 1_500_000_000 });
    let traffic = |bytes| Some(TrafficStatistics { bytes, packets: 3, errors: 0, dropped: 1 });
    Statistics {
        user_nanoseconds: Some(2_500_000_000),
        system_nanoseconds: Some(500_000_000),
        resident_bytes: Some(90 << 20),
        domain_bytes: 64 << 20,
        vcpus: vec![
            VcpuStatistics {
                number: 0,
                nanoseconds: Some(1_250_000_000),
                delay_nanoseconds: Some(1_000_000),
                wait_nanoseconds: Some(2_000_000),
                host_cpus: Some(4),
            },
            VcpuStatistics {
                number: 1,
                nanoseconds: Some(250_000_000),
                host_cpus: Some(2),
                ..VcpuStatistics::default()
            },
        ],
        balloon: Some(BalloonStatistics {
            actual_bytes: Some(64 << 20),
            unused_bytes: Some(30 << 20),
            major_faults: Some(7),
            ..BalloonStatistics::default()
        }),
        disks: vec![DiskStatistics {
            name: "root".to_owned(),
            reads: operations(10),
            writes: operations(4),
            flushes: None,
        }],
        interfaces: vec![InterfaceStatistics {
            name: "default".to_owned(),
            received: traffic(1000),
            transmitted: traffic(2000),
        }],
    }
}

/// One that runs and is known, one that runs and hangs, one that waits.
fn node_of_three() -> Vec<VmiSample> {
    let mut one = vmi("one", "Running");
    let labels =
        [("app.kubernetes.io/name", "web"), ("app-kubernetes-io-name", "first"), ("tier", "a \"b\"\n")];
    one.metadata.labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    one.metadata.annotations.insert("vm.kubevirt.io/os".to_owned(), "debian".to_owned());
    one.status.guest_os_info.name = "Debian".to_owned();
    one.spec.eviction_strategy = Some("LiveMigrate".to_owned());
    one.status.interfaces = vec![InterfaceStatus {
        name: "default".to_owned(),
        ip_addresses: vec!["10.201.0.2".to_owned()],
        ..InterfaceStatus::default()
    }];
    let spec = serde_json::json!({
        "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
        "networks": [{"name": "default", "pod": {}}],
    });
    let spec: vireo_api::v1::VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
    (one.spec.domain, one.spec.networks) = (spec.domain, spec.networks);
    let root = GuestFilesystem {
        name: "vda1".to_owned(),
        mount_point: "/".to_owned(),
        kind: "ext4".to_owned(),
        used_bytes: 100,
        total_bytes: 200,
        ..GuestFilesystem::default()
    };
    let load = Some(GuestLoad { one: 0.5, five: 0.25, fifteen: 1.0 });
    let sample =
        |vmi, statistics| VmiSample { vmi: Arc::new(vmi), statistics, filesystems: Vec::new(), load: None };
    vec![
        VmiSample { filesystems: vec![root], load, ..sample(one, Some(statistics())) },
        sample(vmi("two", "Running"), None),
        sample(vmi("three", "Pending"), None),
    ]
}

#[test]
fn node_metrics_have_the_names_of_kubevirt() {
    let outdated = Outdated::from([Key::new("default", "two")]);
    let text = metrics::encode(of_node("node1", &node_of_three(), 1, &outdated), &[]).unwrap();
    assert_eq!(text, GOLDEN.replace("VERSION", env!("CARGO_PKG_VERSION")), "\n{text}");
}

async fn serve(node: &Node) -> Response {
    node.metrics.serve(&node.settings.node_name, node.vmis(), &node.state).await
}

async fn text(node: &Arc<Node>) -> String {
    let body = serve(node).await.into_body();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn launchers_that_hang_are_counted_and_delay_no_scrape() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of_a_test(dir.path());
    let mut deaf = Vec::new();
    for number in 0..3 {
        let uid = uuid::Uuid::new_v4();
        let mut vmi = vmi(&format!("deaf-{number}"), "Running");
        vmi.metadata.uid = uid.to_string();
        let agent = Condition {
            r#type: "AgentConnected".to_owned(),
            status: "True".to_owned(),
            ..Condition::default()
        };
        vmi.status.conditions = vec![agent];
        let socket = node.state.vmi_dir(uid).launcher_socket();
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        // It takes the connection, and says nothing.
        deaf.push(UnixListener::bind(&socket).unwrap());
        let key = Key { namespace: "default".to_owned(), name: vmi.metadata.name.clone() };
        node.show(&key, Some(vmi));
    }
    let begin = Instant::now();
    let text_of_node = text(&node).await;
    assert!(begin.elapsed() < std::time::Duration::from_secs(6), "{:?}", begin.elapsed());
    assert!(text_of_node.contains("vireo_metrics_vmis_missing{node=\"node1\"} 3\n"), "{text_of_node}");
    assert!(
        text_of_node.contains("process_resident_memory_bytes ") && text_of_node.ends_with("# EOF\n"),
        "{text_of_node}"
    );
    assert!(!text_of_node.contains("kubevirt_vmi_cpu"), "nothing is made up:\n{text_of_node}");
}

#[tokio::test(start_paused = true)]
async fn only_so_many_may_ask_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of_a_test(dir.path());
    let permits = node.metrics.permits.try_acquire_many(3).unwrap();
    let refused = serve(&node).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(permits);
    assert!(text(&node).await.contains("vireo_metrics_refused_total 1\n"));
}
