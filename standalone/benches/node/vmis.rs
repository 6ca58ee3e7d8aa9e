//! VMIs from their creation until they run, on QEMU's own emulation: VMs whose firmware finds nothing to start, for
//! guests that do more would measure this host's CPUs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::server::Server;
use super::{Error, cost, table};

/// Requests at the same time.
const CLIENTS: usize = 8;

pub(super) async fn measure(server: &Server, counts: &[usize]) -> Result<(), Error> {
    let counts: Vec<usize> = counts.iter().copied().filter(|count| *count > 0).collect();
    if counts.is_empty() {
        return Ok(());
    }
    println!("\nVMIs of 32 MiB that find nothing to start, on QEMU without KVM, without a network:");
    let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
    let vmis: Api<DynamicObject> =
        Api::default_namespaced_with(server.client().await, &ApiResource::from_gvk(&kind));
    for count in counts {
        round(&vmis, server, count).await?;
    }
    Ok(())
}

async fn round(vmis: &Api<DynamicObject>, server: &Server, count: usize) -> Result<(), Error> {
    let version = vmis.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    let mut events = vmis.watch(&WatchParams::default(), &version).await?.boxed();
    let (memory, cpu_time, begin) = (cost::memory(server), cost::cpu_time(server)?, Instant::now());
    let creating = async {
        let each = stream::iter(0..count).map(|number| async move {
            let began = Instant::now();
            vmis.create(&PostParams::default(), &vmi(number)?).await?;
            Ok::<_, Error>((name(number), began))
        });
        each.buffer_unordered(CLIENTS).try_collect::<HashMap<_, _>>().await
    };
    let running = async {
        let mut seen = HashMap::new();
        while seen.len() < count {
            let event = events.try_next().await?.ok_or("the watch ended")?;
            if let WatchEvent::Added(vmi) | WatchEvent::Modified(vmi) = event {
                match vmi.data["status"]["phase"].as_str() {
                    Some("Running") => drop(seen.entry(vmi.name_any()).or_insert_with(Instant::now)),
                    Some("Failed") => return Err(format!("{} failed: {}", vmi.name_any(), vmi.data).into()),
                    _ => {}
                }
            }
        }
        Ok::<_, Error>(seen)
    };
    let (began, seen) = tokio::try_join!(creating, running)?;
    let took = seen.iter().filter_map(|(name, at)| Some(at.saturating_duration_since(*began.get(name)?)));
    let mut took: Vec<Duration> = took.collect();
    println!("  {count}: all run after {:.2?}; each {}", begin.elapsed(), table::spread(&mut took));
    let (memory, cpu_time) =
        (cost::memory(server).since(memory), cost::cpu_time(server)?.saturating_sub(cpu_time));
    let each = cpu_time.checked_div(u32::try_from(count)?).unwrap_or_default();
    println!("     of vireo for each: {}, and {each:.2?} of a CPU", memory.each(count));
    let begin = Instant::now();
    vmis.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    let mut left = seen.len();
    while left > 0 {
        let event = events.try_next().await?.ok_or("the watch ended")?;
        left -= usize::from(matches!(event, WatchEvent::Deleted(_)));
    }
    println!("     all are gone after {:.2?}", begin.elapsed());
    Ok(())
}

fn name(number: usize) -> String {
    format!("vmi-{number}")
}

/// A VMI that finds nothing to start.
pub(super) fn vmi(number: usize) -> Result<DynamicObject, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name(number)},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "memory": {"guest": "32Mi"},
                // They do nothing, and so do not take a tenth of a CPU each.
                "resources": {"requests": {"cpu": "1m"}},
                "devices": {
                    "autoattachGraphicsDevice": false,
                    "autoattachPodInterface": false,
                    "disks": [{"name": "empty", "disk": {"bus": "virtio"}}],
                },
            },
            "volumes": [{"name": "empty", "emptyDisk": {"capacity": "1Mi"}}],
        },
    }))
}
