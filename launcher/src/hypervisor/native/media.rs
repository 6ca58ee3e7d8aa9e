//! Media of CD-ROM drives, which are inserted and ejected while the VM runs.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tracing::{debug, error};
use vireo_proto::launcher::{Fault, PluggedVolume};
use vireo_vmconfig::{CacheMode, DiskSource};
use vireo_vmm::config::{CdDrive, MediumLocked, VmConfig};

use super::super::guest::{UNPLUG_TIMEOUT, drive_locked, plugged_volume};
use super::super::target::empty_drives;
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
    /// Takes the medium out once the host has answered the guest's read.
    ejecting: Option<JoinHandle<Result<(), MediumLocked>>>,
}

impl Media {
    pub(super) fn of(launch: &Launch, config: &VmConfig) -> Self {
        let drives = config.cd_drives().into_iter().filter_map(|(index, drive)| {
            let (_, disk, target) = empty_drives(launch).find(|(at, ..)| *at == index)?;
            Some(Drive { name: disk.name.clone(), target, drive, volume: None, ejecting: None })
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
        if !matches!(disk.source, DiskSource::Raw(_)) {
            return Err(unsupported("only raw images are inserted"));
        }
        if found.ejecting.is_some()
            && let Err(fault) = found.eject().await
            && found.ejecting.is_some()
        {
            return Err(fault);
        }
        // The caller may not have waited for the answer.
        if found.volume.is_some() {
            return Ok(());
        }
        let (drive, direct) = (found.drive.clone(), disk.cache == CacheMode::None);
        // The host's storage may take its time.
        let inserted = spawn_blocking(move || drive.insert(&files.image, direct)).await;
        let failed = |detail| fault_at(Code::HostResource, &disk.field, detail);
        inserted
            .map_err(|error| failed(chain(&error)))?
            .map_err(|error| failed(format!("volume {}: {}", disk.name, chain(&error))))?;
        found.volume = Some(plugged_volume(disk, found.target.clone()));
        Ok(())
    }

    /// Waits for the end of an eject for which its caller has not waited.
    pub(super) async fn ejected(&mut self) {
        poll_fn(|context| {
            for drive in &mut self.drives {
                let Some(task) = &mut drive.ejecting else { continue };
                let Poll::Ready(ejected) = Pin::new(task).poll(context) else { continue };
                drive.ejecting = None;
                match ejected {
                    Ok(Ok(())) => drive.volume = None,
                    Ok(Err(MediumLocked)) => debug!(drive = drive.name, "the guest has locked the drive"),
                    Err(error) => error!(drive = drive.name, %error, "an eject broke off"),
                }
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// Takes the medium out of a drive, unless the guest has locked it.
    pub(super) async fn eject(&mut self, name: &str) -> Result<(), Fault> {
        let found = self.drives.iter_mut().find(|drive| drive.name == name && drive.volume.is_some());
        match found {
            Some(found) => found.eject().await,
            None => Ok(()),
        }
    }
}

impl Drive {
    /// Takes the medium out, or goes on with that.
    async fn eject(&mut self) -> Result<(), Fault> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let drive = self.drive.clone();
        let mut task = self.ejecting.take().unwrap_or_else(|| spawn_blocking(move || drive.eject()));
        let Ok(ejected) = timeout(UNPLUG_TIMEOUT, &mut task).await else {
            self.ejecting = Some(task);
            let detail = format!(
                "volume {} stays attached: its storage has not answered a read of the guest",
                volume.name
            );
            return Err(fault(Code::Conflict, detail));
        };
        ejected.map_err(|error| fault(Code::Internal, chain(&error)))?.map_err(|_| drive_locked(volume))?;
        self.volume = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

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
            ejecting: None,
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
        media.insert(&drive("two"), files(&[])).await.expect("it is in already");
        media.insert(&drive("one"), files(&[0; 2048])).await.unwrap();
        assert_eq!(names(&media), ["one sr-one", "two sr-two"]);
        for _ in 0..2 {
            media.eject("two").await.expect("it is out already the second time");
            assert_eq!(names(&media), ["one sr-one"]);
            assert!(media.has("one") && !media.has("two"));
        }
    }

    #[tokio::test]
    async fn an_eject_that_takes_long_is_noticed_at_its_end() {
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let drive = Drive {
            name: "one".to_owned(),
            target: "sr0".to_owned(),
            drive: Arc::default(),
            volume: Some(PluggedVolume::default()),
            ejecting: Some(tokio::spawn(async { answered.await.map_err(|_| MediumLocked) })),
        };
        let mut media = Media { drives: vec![drive] };
        assert!(timeout(Duration::from_millis(1), media.ejected()).await.is_err() && media.has("one"));
        answer.send(()).unwrap();
        media.ejected().await;
        assert!(!media.has("one"));
    }
}
