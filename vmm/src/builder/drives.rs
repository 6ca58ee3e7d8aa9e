//! The controllers that drives hang on.

use super::{Assembly, BuildError, pci};
use crate::ahci;
use crate::config::{Attachment, VmConfig};
use crate::pci::Address;
use crate::virtio;

/// The SATA controller, if a drive wants one.
pub(super) fn add_sata(
    config: &VmConfig,
    assembly: &Assembly,
    host: &virtio::DeviceContext,
) -> Result<(), BuildError> {
    let drives = config.disks.iter().filter_map(|disk| match disk.attachment() {
        Attachment::Sata(device) => Some((disk, device)),
        Attachment::Virtio | Attachment::Scsi(_) => None,
    });
    let drives: Vec<_> = drives.collect();
    if drives.is_empty() {
        return Ok(());
    }
    let controller = ahci::Controller::new(&drives, &host.memory, host.router.as_ref(), &host.threads)?;
    assembly.pci.add_at(ahci::ADDRESS, controller).map_err(pci("SATA controller"))
}

/// The SCSI controller, if a drive wants one; where it is.
pub(super) fn add_scsi(
    config: &VmConfig,
    add: &impl Fn(&'static str, Box<dyn virtio::Device>) -> Result<Address, BuildError>,
) -> Result<Option<Address>, BuildError> {
    let drives = config.disks.iter().enumerate().filter_map(|(number, disk)| match disk.attachment() {
        Attachment::Scsi(device) => Some((number, (disk, device))),
        Attachment::Virtio | Attachment::Sata(_) => None,
    });
    let (numbers, drives): (Vec<usize>, Vec<_>) = drives.unzip();
    if drives.is_empty() {
        return Ok(None);
    }
    let scsi = virtio::scsi::Scsi::new(&drives).map_err(|(at, source)| {
        let number = numbers.get(at).map_or(0, |number| number + 1);
        BuildError::Disk { number, source }
    })?;
    add("SCSI controller", Box::new(scsi)).map(Some)
}
