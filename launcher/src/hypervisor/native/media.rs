//! Media of CD-ROM drives, which are inserted and ejected while the VM runs.

use std::sync::Arc;

use tokio::sync::mpsc;
use vireo_proto::launcher::{Fault, PluggedVolume};
use vireo_vmconfig::{CacheMode, DiskSource};
use vireo_vmm::config::{CdDrive, VmConfig};

use crate::fault::{Code, chain, fault, fault_at};
use crate::host::DiskFiles;
use crate::hypervisor::{Event, HotplugAction, HotplugRequest};
use crate::launch::{Disk, Launch};

/// The drives that have no medium at the start.
pub(super) struct Media {
    drives: Vec<Drive>,
}

struct Drive {
    /// The name of its disk.
    name: String,
    /// Its name in the status of volumes.
    target: String,
    drive: Arc<CdDrive>,
    /// What is in it.
    volume: Option<PluggedVolume>,
}

impl Media {
    pub(super) fn of(launch: &Launch, config: &VmConfig) -> Self {
        let drives = config.cd_drives().into_iter().filter_map(|(index, drive)| {
            let name = launch.disks.get(index)?.name.clone();
            let before = launch.disks.iter().take(index).filter(|disk| disk.is_cdrom()).count();
            Some(Drive { name, target: format!("sr{before}"), drive, volume: None })
        });
        Self { drives: drives.collect() }
    }

    /// Serves requests for volumes until the session has dropped the VM.
    pub(super) async fn serve(
        mut self,
        mut requests: mpsc::Receiver<HotplugRequest>,
        events: mpsc::UnboundedSender<Event>,
    ) {
        while let Some(HotplugRequest { action, reply }) = requests.recv().await {
            let done = match action {
                HotplugAction::Attach(disk, files) => self.insert(&disk, files).await,
                HotplugAction::Detach(name) => self.eject(&name).await,
            };
            // Neither the session nor the requester may be there any more.
            let _ = events.send(Event::Plugged(self.volumes()));
            let _ = reply.send(done.err());
        }
    }

    fn volumes(&self) -> Vec<PluggedVolume> {
        self.drives.iter().filter_map(|drive| drive.volume.clone()).collect()
    }

    async fn insert(&mut self, disk: &Disk, files: DiskFiles) -> Result<(), Fault> {
        let unsupported = |detail| fault_at(Code::Unsupported, &disk.field, detail);
        if !disk.is_cdrom() {
            return Err(unsupported("the native hypervisor attaches no disks to a VM that runs"));
        }
        let found = self.drives.iter_mut().find(|drive| drive.name == disk.name);
        let found = found.ok_or_else(|| unsupported("the VM was started without this drive"))?;
        let DiskSource::Raw(path) = &disk.source else {
            return Err(unsupported("only raw images are inserted"));
        };
        let (drive, direct) = (found.drive.clone(), disk.cache == CacheMode::None);
        // The host's storage may take its time.
        let inserted = tokio::task::spawn_blocking(move || drive.insert(&files.image, direct)).await;
        let failed = |detail| fault_at(Code::HostResource, &disk.field, detail);
        inserted
            .map_err(|error| failed(chain(&error)))?
            .map_err(|error| failed(format!("volume {}: {}", disk.name, chain(&error))))?;
        let (name, target) = (disk.name.clone(), found.target.clone());
        found.volume = Some(PluggedVolume { name, target, path: path.to_string_lossy().into_owned() });
        Ok(())
    }

    async fn eject(&mut self, name: &str) -> Result<(), Fault> {
        let found = self.drives.iter_mut().find(|drive| drive.name == name && drive.volume.is_some());
        let Some(found) = found else { return Ok(()) };
        let drive = found.drive.clone();
        let ejected = tokio::task::spawn_blocking(move || drive.eject()).await;
        ejected.map_err(|error| fault(Code::Internal, chain(&error)))?.map_err(|_| {
            let detail = format!("volume {name} stays attached: the guest has locked the drive");
            fault(Code::Conflict, detail)
        })?;
        found.volume = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::sync::oneshot;
    use vireo_vmconfig::{DiskBus, DiskDevice};

    use super::*;
    use crate::launch::sample;

    fn drive(name: &str) -> Disk {
        Disk {
            name: name.to_owned(),
            bus: DiskBus::Sata,
            device: DiskDevice::CdRom,
            cache: CacheMode::WriteBack,
            source: DiskSource::Raw(format!("/claims/{name}.img").into()),
            ..sample::kernel_boot().disks[0].clone()
        }
    }

    #[tokio::test]
    async fn media_go_into_the_drives_of_their_names() {
        let drives = ["one", "two"].map(|name| Drive {
            name: name.to_owned(),
            target: format!("sr-{name}"),
            drive: Arc::default(),
            volume: None,
        });
        let (requests, receiver) = mpsc::channel(1);
        let (events, mut seen) = mpsc::unbounded_channel();
        let media = Media { drives: drives.into() };
        let served = tokio::spawn(media.serve(receiver, events));
        let mut ask = async |action| {
            let (reply, answer) = oneshot::channel();
            requests.send(HotplugRequest { action, reply }).await.unwrap();
            let fault: Option<Fault> = answer.await.unwrap();
            let Some(Event::Plugged(volumes)) = seen.recv().await else { panic!("no volumes") };
            let names: Vec<_> = volumes.iter().map(|one| format!("{} {}", one.name, one.target)).collect();
            (fault.map(|fault| fault.code()), names)
        };
        let attach = |disk: Disk, content: &[u8]| {
            let mut image = tempfile::tempfile().unwrap();
            image.write_all(content).unwrap();
            HotplugAction::Attach(Box::new(disk), DiskFiles { image, backing: None })
        };
        let plain = Disk { device: DiskDevice::Disk, ..drive("one") };
        let empty: Vec<String> = Vec::new();
        for (disk, content, code) in [
            (plain, &[0; 2048][..], Code::Unsupported),
            (drive("three"), &[0; 2048], Code::Unsupported),
            (drive("one"), &[], Code::HostResource),
        ] {
            assert_eq!(ask(attach(disk, content)).await, (Some(code), empty.clone()));
        }
        assert_eq!(ask(attach(drive("two"), &[0; 2048])).await, (None, vec!["two sr-two".to_owned()]));
        let both = vec!["one sr-one".to_owned(), "two sr-two".to_owned()];
        assert_eq!(ask(attach(drive("one"), &[0; 2048])).await, (None, both));
        let one = vec!["one sr-one".to_owned()];
        assert_eq!(ask(HotplugAction::Detach("two".into())).await, (None, one.clone()));
        assert_eq!(ask(HotplugAction::Detach("two".into())).await, (None, one), "it is out already");
        drop(requests);
        served.await.unwrap();
    }
}
