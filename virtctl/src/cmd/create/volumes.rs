use vireo_api::v1::{
    ClaimVolumeSource, ContainerDiskSource, Disk, LocalObjectReference, SysprepSource, Volume,
};

use super::FlagError;
use super::params::Params;
use crate::cli::Volumes;

/// As upstream calls the disk with answer files.
const SYSPREP: &str = "sysprepdisk";
const KEYS: [&str; 3] = ["src", "name", "bootorder"];

/// Volumes, and a disk for each with its boot order; the others become disks of their own.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) volumes: Vec<Volume>,
    pub(super) disks: Vec<Disk>,
}

impl Storage {
    pub(super) fn of(vm: &str, args: &Volumes) -> Result<Self, FlagError> {
        let mut storage = Self::default();
        for (index, text) in args.volume_containerdisk.iter().enumerate() {
            let flag = "volume-containerdisk";
            let params = Params::read(flag, text, &KEYS)?;
            let image = params.needed("src")?.to_owned();
            let name =
                params.get("name").map_or_else(|| format!("{vm}-containerdisk-{index}"), str::to_owned);
            let source = ContainerDiskSource { image, ..ContainerDiskSource::default() };
            let volume = Volume { name, container_disk: Some(Box::new(source)), ..Volume::default() };
            storage.add(flag, volume, params.number("bootorder")?)?;
        }
        for text in &args.volume_pvc {
            let flag = "volume-pvc";
            let params = Params::read(flag, text, &KEYS)?;
            let claim_name = params.needed("src")?.to_owned();
            let name = params.get("name").unwrap_or(&claim_name).to_owned();
            let source = ClaimVolumeSource { claim_name, ..ClaimVolumeSource::default() };
            let volume =
                Volume { name, persistent_volume_claim: Some(Box::new(source)), ..Volume::default() };
            storage.add(flag, volume, params.number("bootorder")?)?;
        }
        if let Some(text) = &args.volume_sysprep {
            storage.add("volume-sysprep", answers(text)?, None)?;
        }
        Ok(storage)
    }

    /// The boot volume: the first one with a boot order, else the first one.
    pub(super) fn first(&self) -> Option<&str> {
        let ordered = self.disks.iter().min_by_key(|disk| disk.boot_order).map(|disk| disk.name.as_str());
        ordered.or_else(|| self.volumes.first().map(|volume| volume.name.as_str()))
    }

    /// Adds a volume with a unique name and a unique boot order.
    pub(super) fn add(
        &mut self,
        flag: &'static str,
        volume: Volume,
        boot_order: Option<u32>,
    ) -> Result<(), FlagError> {
        if self.volumes.iter().any(|other| other.name == volume.name) {
            return Err(FlagError::new(flag, format!("there is a volume {:?} already", volume.name)));
        }
        if let Some(order) = boot_order {
            if let Some(other) = self.disks.iter().find(|other| other.boot_order == boot_order) {
                let message = format!("bootorder: {order} is that of {:?} already", other.name);
                return Err(FlagError::new(flag, message));
            }
            let name = volume.name.clone();
            self.disks.push(Disk { name, boot_order, ..Disk::default() });
        }
        self.volumes.push(volume);
        Ok(())
    }
}

fn answers(text: &str) -> Result<Volume, FlagError> {
    let flag = "volume-sysprep";
    let params = Params::read(flag, text, &["src", "type"])?;
    let source = Some(LocalObjectReference { name: params.needed("src")?.to_owned(), ..Default::default() });
    let sysprep = match params.get("type") {
        None | Some("configmap") => SysprepSource { config_map: source, ..SysprepSource::default() },
        Some("secret") => SysprepSource { secret: source, ..SysprepSource::default() },
        Some(other) => {
            return Err(FlagError::new(flag, format!("type: {other:?} is neither configmap nor secret")));
        }
    };
    Ok(Volume { name: SYSPREP.to_owned(), sysprep: Some(Box::new(sysprep)), ..Volume::default() })
}
