use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Plugged {
    /// Name of the virtual machine, or of an instance without an owning virtual machine
    #[arg(value_name = "VM")]
    pub(crate) vmi: String,
    /// Name of the DataVolume or the PersistentVolumeClaim; to remove, that of the disk if it has another
    #[arg(long, value_name = "NAME")]
    pub(crate) volume_name: String,
    /// Has no effect: the virtual machine is changed wherever there is one
    #[arg(long, hide = true)]
    pub(crate) persist: bool,
    /// Only validate the request on the server
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AddVolume {
    #[command(flatten)]
    pub(crate) plugged: Plugged,
    /// Name of the disk in the virtual machine, such as that of an empty CD-ROM drive [default: the volume's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) disk_name: Option<String>,
    /// Serial number of the disk in the guest [default: the volume's name]
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
