use crate::pci::Address;

/// What firmware starts from, in order: the file `bootorder` (Open Firmware paths, one a line).
///
/// Without any boot order every bootable device takes part, in their order. With one, only
/// does, only the devices that ask do. SeaBIOS looks at addresses alone, OVMF at the names of nodes, too.
#[derive(Debug, Default)]
pub(crate) struct BootOrder {
    asked: Vec<(u32, String)>,
    others: Vec<String>,
}

impl BootOrder {
    /// A virtio disk.
    pub(crate) fn virtio_disk(&mut self, at: Address, order: Option<u32>) {
        self.add(order, at, "scsi", "/disk@0,0", true);
    }

    /// What is at a port of the SATA controller.
    pub(crate) fn sata_drive(&mut self, at: Address, port: usize, order: Option<u32>) {
        self.add(order, at, "pci8086,2922", &format!("/drive@{port:x}/disk@0"), true);
    }

    /// A target of a virtio SCSI controller.
    pub(crate) fn scsi_drive(&mut self, at: Address, target: usize, order: Option<u32>) {
        self.add(order, at, "scsi", &format!("/channel@0/disk@{target:x},0"), true);
    }

    /// A virtio NIC. It takes part only with an order.
    pub(crate) fn nic(&mut self, at: Address, order: Option<u32>) {
        self.add(order, at, "ethernet", "/ethernet-phy@0", false);
    }

    /// `below` is what follows the controller at `at`, which Open Firmware calls `kind`.
    fn add(&mut self, order: Option<u32>, at: Address, kind: &str, below: &str, unasked: bool) {
        let slot = at.device();
        let path = match at.function() {
            0 => format!("/pci@i0cf8/{kind}@{slot:x}{below}"),
            function => format!("/pci@i0cf8/{kind}@{slot:x},{function:x}{below}"),
        };
        match order {
            Some(order) => self.asked.push((order, path)),
            None if unasked => self.others.push(path),
            None => {}
        }
    }

    /// The file. Its last line keeps firmware from trying anything else.
    pub(crate) fn file(mut self) -> Vec<u8> {
        self.asked.sort_by_key(|(order, _)| *order);
        let mut lines: Vec<_> = self.asked.into_iter().map(|(_, path)| path).collect();
        if lines.is_empty() {
            lines = self.others;
        }
        lines.push("HALT".to_owned());
        let mut bytes = lines.join("\n").into_bytes();
        bytes.push(0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(order: BootOrder) -> String {
        String::from_utf8(order.file()).unwrap()
    }

    #[test]
    fn without_boot_order_all_disks_take_part() {
        let mut order = BootOrder::default();
        order.virtio_disk(Address::root(1), None);
        order.nic(Address::root(2), None);
        order.virtio_disk(Address::root(17), None);
        order.sata_drive(Address::root_function(31, 2), 1, None);
        order.scsi_drive(Address::root(5), 3, None);
        let want = "/pci@i0cf8/scsi@1/disk@0,0\n/pci@i0cf8/scsi@11/disk@0,0\n\
            /pci@i0cf8/pci8086,2922@1f,2/drive@1/disk@0\n/pci@i0cf8/scsi@5/channel@0/disk@3,0\nHALT\0";
        assert_eq!(file(order), want);
    }

    #[test]
    fn with_boot_order_only_those_devices_take_part() {
        let mut order = BootOrder::default();
        order.virtio_disk(Address::root(1), None);
        order.virtio_disk(Address::root(2), Some(10));
        order.nic(Address::root(3), Some(9));
        assert_eq!(file(order), "/pci@i0cf8/ethernet@3/ethernet-phy@0\n/pci@i0cf8/scsi@2/disk@0,0\nHALT\0");
        assert_eq!(file(BootOrder::default()), "HALT\0");
    }
}
