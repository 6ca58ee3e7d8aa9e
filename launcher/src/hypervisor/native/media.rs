//! Media of CD-ROM drives, which are inserted and ejected while the VM runs.

use std::sync::Arc;

use tokio::time::timeout;
use vireo_proto::launcher::{Fault, PluggedVolume};
use vireo_vmconfig::{CacheMode, DiskSource};
use vireo_vmm::config::{CdDrive, VmConfig};

use super::super::guest::UNPLUG_TIMEOUT;
use crate::fault::{Code, chain, fault, fault_at};
use crate::host::DiskFiles;
use crate::launch::{Disk, Launch};

/// The drives that have no medium at the start.
#[derive(Default)]
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

    /// The media that are in drives.
    pub(super) fn volumes(&self) -> Vec<PluggedVolume> {
        self.drives.iter().filter_map(|drive| drive.volume.clone()).collect()
    }

    /// Whether a volume is in a drive.
    pub(super) fn has(&self, name: &str) -> bool {
        self.drives.iter().any(|drive| drive.name == name && drive.volume.is_some())
    }

    /// Puts a medium into the drive of its name.
    pub(super) async fn insert(&mut self, disk: &Disk, files: DiskFiles) -> Result<(), Fault> {
        let unsupported = |detail| fault_at(Code::Unsupported, &disk.field, detail);
        let found = self.drives.iter_mut().find(|drive| drive.name == disk.name);
        let found = found.ok_or_else(|| unsupported("the VM was started without this drive"))?;
        let DiskSource::Raw(path) = &disk.source else {
            return Err(unsupported("only raw images are inserted"));
        };
        // The caller may not have waited for the answer.
        if found.volume.is_some() {
            return Ok(());
        }
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

    /// Takes the medium out of a drive, unless the guest has locked it.
    pub(super) async fn eject(&mut self, name: &str) -> Result<(), Fault> {
        let found = self.drives.iter_mut().find(|drive| drive.name == name && drive.volume.is_some());
        let Some(found) = found else { return Ok(()) };
        let drive = found.drive.clone();
        let ejected = tokio::task::spawn_blocking(move || drive.eject());
        let Ok(ejected) = timeout(UNPLUG_TIMEOUT, ejected).await else {
            let detail =
                format!("volume {name} stays attached: its storage has not answered a read of the guest");
            return Err(fault(Code::Conflict, detail));
        };
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
        let mut media = Media { drives: drives.into() };
        let files = |content: &[u8]| {
            let mut image = tempfile::tempfile().unwrap();
            image.write_all(content).unwrap();
            DiskFiles { image, backing: None }
        };
        let names = |media: &Media| -> Vec<_> {
            media.volumes().iter().map(|one| format!("{} {}", one.name, one.target)).collect()
        };
        for (name, content, code) in
            [("three", &[0; 2048][..], Code::Unsupported), ("one", &[], Code::HostResource)]
        {
            let fault = media.insert(&drive(name), files(content)).await.expect_err("a fault");
            assert_eq!((fault.code(), names(&media)), (code, Vec::new()));
        }
        media.insert(&drive("two"), files(&[0; 2048])).await.unwrap();
        assert_eq!(names(&media), ["two sr-two"]);
        media.insert(&drive("one"), files(&[0; 2048])).await.unwrap();
        assert_eq!(names(&media), ["one sr-one", "two sr-two"]);
        for _ in 0..2 {
            media.eject("two").await.expect("it is out already the second time");
            assert_eq!(names(&media), ["one sr-one"]);
            assert!(media.has("one") && !media.has("two"));
        }
    }
}
