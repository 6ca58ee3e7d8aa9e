use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Plugged {
    /// Name of the virtual machine, or of an instance that no machine owns
    #[arg(value_name = "VM")]
    pub(crate) vmi: String,
    /// Name of the volume, which is that of its PersistentVolumeClaim
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_name: String,
    /// Also for all starts to come: changes the virtual machine
    #[arg(long)]
    pub(crate) persist: bool,
    /// Only say whether it could be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AddVolume {
    #[command(flatten)]
    pub(crate) plugged: Plugged,
    /// What the guest reads as its serial number; the volume's name when it is not said
    #[arg(long)]
    pub(crate) serial: Option<String>,
    /// none, writethrough or writeback
    #[arg(long, value_parser = ["none", "writethrough", "writeback"])]
    pub(crate) cache: Option<String>,
    /// disk or lun
    #[arg(long, default_value = "disk", value_parser = ["disk", "lun"])]
    pub(crate) disk_type: String,
    /// scsi or virtio
    #[arg(long, default_value = "scsi", value_parser = ["scsi", "virtio"])]
    pub(crate) bus: String,
}
