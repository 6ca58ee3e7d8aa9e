//! Volumes and NICs that are attached to a real VM, and out of it.
#![expect(clippy::unwrap_used, reason = "a test ends where its scenery fails")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use vireo_proto::files::{self, FILES_SOCKET};
use vireo_proto::launcher::fault::Code;
use vireo_proto::launcher::*;

use crate::guest;
use crate::launched::{LaunchedVm, read_until, soon};

impl LaunchedVm {
    /// As the node agent does it: what is there is passed open.
    async fn attach(&mut self, name: &str, path: &Path, bus: disk::Bus) -> Option<Fault> {
        if let Ok(file) = File::options().read(true).write(true).open(path) {
            let file = (path.to_str().unwrap().to_owned(), file.into());
            files::pass(&self.path(FILES_SOCKET), &[file]).unwrap();
        }
        let cache = disk::Cache::None.into();
        let request = AttachVolumeRequest { disk: Some(Disk { cache, ..self.disk(name, path, bus) }) };
        soon("an answer to AttachVolume", self.client.attach_volume(request))
            .await
            .unwrap()
            .into_inner()
            .fault
    }

    async fn detach(&mut self, name: &str) -> Option<Fault> {
        let request = DetachVolumeRequest { name: name.into() };
        soon("an answer to DetachVolume", self.client.detach_volume(request))
            .await
            .unwrap()
            .into_inner()
            .fault
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        path
    }
}

/// The tap of the tests, which is gone once it is closed.
const TAP: &str = "vireo-test-nic";

impl LaunchedVm {
    /// As the node agent does it: the tap is passed open, if there is one.
    async fn attach_nic(&mut self, name: &str, tap: Option<OwnedFd>) -> Option<Fault> {
        if let Some(tap) = tap {
            files::pass(&self.path(FILES_SOCKET), &[(files::tap_name(TAP, 0), tap)]).unwrap();
        }
        let interface = Interface {
            name: name.to_owned(),
            mac: "02:00:00:00:00:07".to_owned(),
            tap: TAP.to_owned(),
            link_down: true,
            ..Interface::default()
        };
        let request = AttachInterfaceRequest { interface: Some(interface) };
        let answer = soon("an answer to AttachInterface", self.client.attach_interface(request)).await;
        answer.unwrap().into_inner().fault
    }

    async fn detach_nic(&mut self, name: &str) -> Option<Fault> {
        let request = DetachInterfaceRequest { name: name.to_owned() };
        let answer = soon("an answer to DetachInterface", self.client.detach_interface(request)).await;
        answer.unwrap().into_inner().fault
    }
}

/// The names of the NICs whose links are down.
fn down(state: &State) -> &[String] {
    state.links.as_ref().map_or(&[], |links| &links.down)
}

/// A NIC goes with the guest's consent, or its reset.
#[tokio::test]
async fn a_nic_comes_and_goes() {
    let open = || vireo_vmm::sys::tap::open(TAP);
    if let Err(error) = open() {
        eprintln!("SKIPPED: no tap can be made: {error}");
        return;
    }
    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    launcher.up(LaunchRequest { hotplug: true, nic_hotplug: true, ..launcher.request(&disk) }).await;
    let fault = launcher.attach_nic("lan", None).await.expect("a fault");
    assert_eq!(fault.code(), Code::HostResource, "{fault:?}");
    let file = tempfile::tempfile().unwrap();
    let fault = launcher.attach_nic("lan", Some(file.into())).await.expect("a fault");
    assert_eq!(fault.code(), Code::Hypervisor, "{fault:?}");
    assert_eq!(launcher.attach_nic("lan", Some(open().unwrap())).await, None);
    assert_eq!(launcher.attach_nic("lan", None).await, None, "it is there");
    let state = launcher.until("a NIC", |state| !down(state).is_empty()).await;
    assert_eq!(down(&state), ["lan"]);

    let mut console = launcher.console().await;
    read_until(&mut console, guest::READY).await;
    let kept = launcher.detach_nic("lan").await.expect("a boot sector lets go of nothing");
    assert!(kept.code() == Code::Conflict && kept.detail.contains("the guest"), "{kept:?}");
    assert_eq!(launcher.lifecycle(LifecycleCommand::Reset).await, None);
    launcher.until("the end of the NIC", |state| down(state).is_empty()).await;
    assert_eq!(launcher.attach_nic("again", Some(open().unwrap())).await, None, "the tap is free");
    launcher.client.kill(KillRequest {}).await.unwrap();
    launcher.outcome().await;
    launcher.dismiss().await;
}

fn targets(state: &State) -> Vec<(&str, &str)> {
    state.volumes.iter().map(|volume| (volume.name.as_str(), volume.target.as_str())).collect()
}

/// A SCSI disk is detached on request. A virtio disk goes with the guest's consent, or its reset.
#[tokio::test]
async fn volumes_come_and_go() {
    use disk::Bus::{Sata, Scsi, Virtio};
    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    let mut request = LaunchRequest { hotplug: true, ..launcher.request(&disk) };
    request.disks[0].cache = disk::Cache::None.into();
    launcher.up(request).await;
    let (data, fast) = (launcher.file("data.img"), launcher.file("fast.img"));
    for _ in 0..2 {
        assert_eq!(launcher.attach("data", &data, Scsi).await, None, "also where it is in already");
    }
    let state = launcher.until("a volume", |state| !state.volumes.is_empty()).await;
    assert_eq!((targets(&state), &*state.volumes[0].path), (vec![("data", "sda")], data.to_str().unwrap()));
    for (name, path, bus, code) in [
        ("other", &data, Scsi, Code::HostResource),
        ("other", &launcher.path("none.img"), Scsi, Code::HostResource),
        ("other", &fast, Sata, Code::Invalid),
    ] {
        let fault = launcher.attach(name, path, bus).await.expect("a fault");
        assert_eq!(fault.code(), code, "{fault:?}");
    }
    assert_eq!(launcher.attach("fast", &fast, Virtio).await, None);
    let state = launcher.until("another volume", |state| state.volumes.len() == 2).await;
    assert_eq!(targets(&state), [("data", "sda"), ("fast", "vdb")]);

    assert_eq!(launcher.detach("data").await, None);
    assert_eq!(launcher.detach("data").await, None, "it is out already");
    let state = launcher.until("one volume less", |state| state.volumes.len() == 1).await;
    assert_eq!(targets(&state), [("fast", "vdb")]);
    assert_eq!(launcher.attach("again", &data, Scsi).await, None, "its file is free");

    let mut console = launcher.console().await;
    read_until(&mut console, guest::READY).await;
    let kept = launcher.detach("fast").await.expect("a boot sector lets go of nothing");
    assert!(kept.code() == Code::Conflict && kept.detail.contains("the guest"), "{kept:?}");
    assert_eq!(launcher.lifecycle(LifecycleCommand::Reset).await, None);
    let state =
        launcher.until("the volume's end", |state| state.volumes.iter().all(|one| one.name != "fast")).await;
    assert_eq!(targets(&state), [("again", "sda")]);
    read_until(&mut console, guest::READY).await;
    launcher.client.kill(KillRequest {}).await.unwrap();
    launcher.outcome().await;
    assert_eq!(launcher.attach("late", &fast, Scsi).await.expect("a fault").detail, "VMI is not running");
    launcher.dismiss().await;
}

#[tokio::test]
async fn a_vm_without_hotplug_slots_reports_it() {
    let mut launcher = LaunchedVm::start().await;
    launcher.up(launcher.empty()).await;
    let path = launcher.file("data.img");
    let fault = launcher.attach("data", &path, disk::Bus::Scsi).await.expect("a fault");
    assert_eq!(fault.code(), Code::Unsupported, "{fault:?}");
    launcher.client.kill(KillRequest {}).await.unwrap();
    launcher.outcome().await;
    launcher.dismiss().await;
}
