//! Devices of this node that guests may have, as sysfs shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use vireo_api::spec::{DeviceId, DeviceSelector};
use vireo_vmconfig::{HostDevice, MdevUuid, PciAddress, UsbAddress};

/// The driver that lets user space have PCI devices.
const VFIO_PCI: &str = "vfio-pci";
/// By which a process gets devices of groups.
const VFIO: &str = "/dev/vfio/vfio";

/// Devices of this node that go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The ID of the kubelet's device.
    pub(super) id: String,
    /// Their addresses.
    pub(super) addresses: Vec<String>,
    /// The files that a process needs for them.
    pub(super) files: Vec<String>,
    /// The node of their memory.
    pub(super) numa_node: Option<i64>,
}

/// What the kernel shows of devices.
#[derive(Clone, Debug)]
pub(crate) struct Sysfs(PathBuf);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

impl Sysfs {
    #[cfg(test)]
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Those devices that are selected, in the order of their addresses. Blocks.
    pub(super) fn find(&self, selector: &DeviceSelector) -> Vec<Found> {
        match selector {
            DeviceSelector::Pci(ids) => self.pci(ids),
            DeviceSelector::Mediated(types) => self.mediated(types),
            DeviceSelector::Usb(sets) => self.usb(sets),
        }
    }

    /// The file of a device, which a process must have to use it: that of its group, or its own.
    pub(crate) fn file(&self, device: HostDevice) -> Option<String> {
        let group = |directory: &str, name: String| vfio(&self.0.join(directory).join(name));
        match device {
            HostDevice::Pci(address) => group("bus/pci/devices", address.to_string()),
            HostDevice::Mediated(uuid) => group("bus/mdev/devices", uuid.to_string()),
            HostDevice::Usb(address) => Some(usb_file(address)),
        }
    }

    /// The devices of a bus by their addresses.
    fn devices<T: FromStr + Ord>(&self, bus: &str) -> BTreeMap<T, PathBuf> {
        let entries = fs::read_dir(self.0.join("bus").join(bus).join("devices")).into_iter().flatten();
        let named = entries
            .flatten()
            .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
        named.collect()
    }

    /// PCI devices that are bound to `vfio-pci`. Of those in one group only one process can have any, so the first of
    /// them stands for the group, as in KubeVirt.
    fn pci(&self, ids: &[DeviceId]) -> Vec<Found> {
        let (mut found, mut groups) = (Vec::new(), BTreeSet::new());
        for (address, path) in self.devices::<PciAddress>("pci") {
            let id = || Some(DeviceId { vendor: hex(&path, "vendor")?, product: hex(&path, "device")? });
            if link(&path, "driver").as_deref() != Some(VFIO_PCI) || !id().is_some_and(|id| ids.contains(&id))
            {
                continue;
            }
            let Some(file) = vfio(&path) else { continue };
            if groups.insert(file.clone()) {
                found.push(of_group(address.to_string(), file, numa_node(&path)));
            }
        }
        found
    }

    fn mediated(&self, types: &[String]) -> Vec<Found> {
        let of_type = |path: &Path| {
            let name = fs::read_to_string(path.join("mdev_type/name")).ok();
            let name = name.or_else(|| link(path, "mdev_type"))?;
            types.contains(&name.trim().replace(' ', "_")).then_some(())
        };
        let devices = self.devices::<MdevUuid>("mdev").into_iter();
        let found = devices.filter_map(|(uuid, path)| {
            of_type(&path)?;
            let parent = fs::canonicalize(&path).ok()?;
            Some(of_group(uuid.to_string(), vfio(&path)?, parent.parent().and_then(numa_node)))
        });
        found.collect()
    }

    /// Sets of USB devices. A device is in one of them only.
    fn usb(&self, sets: &[Vec<DeviceId>]) -> Vec<Found> {
        let mut devices = self.usb_devices();
        let mut found = Vec::new();
        for set in sets.iter().filter(|set| !set.is_empty()) {
            while let Some(addresses) = take(&mut devices, set) {
                let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                found.push(Found {
                    id: texts.join("+"),
                    addresses: texts,
                    files: addresses.into_iter().map(usb_file).collect(),
                    numa_node: None,
                });
            }
        }
        found
    }

    fn usb_devices(&self) -> BTreeMap<UsbAddress, DeviceId> {
        let entries = fs::read_dir(self.0.join("bus/usb/devices")).into_iter().flatten().flatten();
        let devices = entries.filter_map(|entry| {
            // Root hubs; interfaces of devices have no vendor.
            if entry.file_name().to_str()?.starts_with("usb") {
                return None;
            }
            let path = entry.path();
            let id = DeviceId { vendor: hex(&path, "idVendor")?, product: hex(&path, "idProduct")? };
            let number = |name| text(&path, name)?.parse().ok();
            Some((UsbAddress::new(number("busnum")?, number("devnum")?)?, id))
        });
        devices.collect()
    }
}

fn of_group(address: String, file: String, numa_node: Option<i64>) -> Found {
    Found { id: address.clone(), addresses: vec![address], files: vec![VFIO.to_owned(), file], numa_node }
}

/// Takes a device for each ID, if all are there.
fn take(devices: &mut BTreeMap<UsbAddress, DeviceId>, set: &[DeviceId]) -> Option<Vec<UsbAddress>> {
    let mut addresses = Vec::new();
    for wanted in set {
        let mut free = devices.iter().filter(|(address, id)| *id == wanted && !addresses.contains(*address));
        addresses.push(*free.next()?.0);
    }
    devices.retain(|address, _| !addresses.contains(address));
    Some(addresses)
}

fn usb_file(address: UsbAddress) -> String {
    format!("/dev/bus/usb/{:03}/{:03}", address.bus(), address.device())
}

/// The file of a device's group.
fn vfio(device: &Path) -> Option<String> {
    link(device, "iommu_group").map(|group| format!("/dev/vfio/{group}"))
}

fn text(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

fn hex(directory: &Path, name: &str) -> Option<u16> {
    let text = text(directory, name)?;
    u16::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
}

/// The last part of where a link leads.
fn link(directory: &Path, name: &str) -> Option<String> {
    Some(fs::read_link(directory.join(name)).ok()?.file_name()?.to_str()?.to_owned())
}

/// Absent where the kernel knows none, which it shows as -1.
fn numa_node(device: &Path) -> Option<i64> {
    text(device, "numa_node")?.parse().ok().filter(|node| *node >= 0)
}

/// A tree like `/sys`, for tests.
#[cfg(test)]
pub(crate) mod fake {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Adds a PCI device: address, IDs, driver and group.
    pub(crate) fn pci(sys: &Path, address: &str, ids: (&str, &str), driver: &str, group: &str) {
        let path = sys.join("bus/pci/devices").join(address);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("vendor"), format!("{}\n", ids.0)).unwrap();
        fs::write(path.join("device"), format!("{}\n", ids.1)).unwrap();
        fs::write(path.join("numa_node"), "1\n").unwrap();
        symlink(format!("../../../bus/pci/drivers/{driver}"), path.join("driver")).unwrap();
        symlink(format!("../../../kernel/iommu_groups/{group}"), path.join("iommu_group")).unwrap();
    }

    /// Adds a USB device: name, IDs, bus and number.
    pub(crate) fn usb(sys: &Path, name: &str, ids: (&str, &str), bus: u32, number: u32) {
        let path = sys.join("bus/usb/devices").join(name);
        fs::create_dir_all(&path).unwrap();
        for (file, text) in [("idVendor", ids.0), ("idProduct", ids.1)] {
            fs::write(path.join(file), format!("{text}\n")).unwrap();
        }
        fs::write(path.join("busnum"), format!("{bus}\n")).unwrap();
        fs::write(path.join("devnum"), format!("{number}\n")).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn addresses(found: &[Found]) -> Vec<&str> {
        found.iter().map(|one| one.id.as_str()).collect()
    }

    #[test]
    fn pci_devices_are_those_of_vfio_one_for_a_group() {
        let sys = tempfile::tempdir().unwrap();
        for (address, device, driver, group) in [
            ("0000:02:00.0", "0x1eb8", VFIO_PCI, "8"),
            ("0000:01:00.0", "0x1eb8", VFIO_PCI, "7"),
            ("0000:01:00.1", "0x1eb8", VFIO_PCI, "7"),
            ("0000:03:00.0", "0x1eb8", "nvidia", "9"),
            ("0000:04:00.0", "0x1111", VFIO_PCI, "10"),
        ] {
            fake::pci(sys.path(), address, ("0x10de", device), driver, group);
        }
        let sysfs = Sysfs::at(sys.path());
        let selector = DeviceSelector::Pci(vec![DeviceId { vendor: 0x10de, product: 0x1eb8 }]);
        let found = sysfs.find(&selector);
        assert_eq!(addresses(&found), ["0000:01:00.0", "0000:02:00.0"]);
        assert_eq!(
            (&*found[0].files, found[0].numa_node),
            (&["/dev/vfio/vfio", "/dev/vfio/7"].map(str::to_owned)[..], Some(1))
        );
        let file = |address: &str| sysfs.file(HostDevice::Pci(address.parse().unwrap()));
        assert_eq!(file("0000:02:00.0").as_deref(), Some("/dev/vfio/8"));
        assert_eq!(file("0000:05:00.0"), None);
        assert_eq!(Sysfs::at(Path::new("/nonexistent")).find(&selector), []);
    }

    #[test]
    fn mediated_devices_are_found_by_their_type() {
        let sys = tempfile::tempdir().unwrap();
        let uuids = ["0b2e4d3c-11aa-22bb-33cc-000000000001", "0b2e4d3c-11aa-22bb-33cc-000000000002"];
        let [named, unnamed] = uuids;
        let parent = sys.path().join("devices/pci0000:00/0000:00:01.0");
        fs::create_dir_all(sys.path().join("bus/mdev/devices")).unwrap();
        for (uuid, group) in [(named, "20"), (unnamed, "21")] {
            fs::create_dir_all(parent.join(uuid)).unwrap();
            symlink(parent.join(uuid), sys.path().join("bus/mdev/devices").join(uuid)).unwrap();
            symlink(format!("../groups/{group}"), parent.join(uuid).join("iommu_group")).unwrap();
        }
        fs::write(parent.join("numa_node"), "-1\n").unwrap();
        fs::create_dir(parent.join(named).join("mdev_type")).unwrap();
        fs::write(parent.join(named).join("mdev_type/name"), "GRID T4-1Q\n").unwrap();
        symlink("../types/i915-GVTg", parent.join(unnamed).join("mdev_type")).unwrap();
        let find = |name: &str| {
            let found = Sysfs::at(sys.path()).find(&DeviceSelector::Mediated(vec![name.to_owned()]));
            found.into_iter().map(|one| (one.id, one.files[1].clone(), one.numa_node)).collect::<Vec<_>>()
        };
        assert_eq!(find("GRID_T4-1Q"), [(named.to_owned(), "/dev/vfio/20".to_owned(), None)]);
        assert_eq!(find("i915-GVTg"), [(unnamed.to_owned(), "/dev/vfio/21".to_owned(), None)]);
        assert_eq!(find("GRID"), []);
    }

    #[test]
    fn usb_devices_go_together_and_to_one_set_only() {
        let sys = tempfile::tempdir().unwrap();
        let (disk, key) = (("46f4", "0001"), ("0627", "0001"));
        fake::usb(sys.path(), "usb1", disk, 1, 1);
        fake::usb(sys.path(), "1-1", disk, 1, 2);
        fake::usb(sys.path(), "1-2", key, 1, 3);
        fake::usb(sys.path(), "2-1.4", disk, 2, 10);
        fs::create_dir(sys.path().join("bus/usb/devices/1-1:1.0")).unwrap();
        let disk = DeviceId { vendor: 0x46f4, product: 1 };
        let key = DeviceId { vendor: 0x627, product: 1 };
        let find = |sets: Vec<Vec<DeviceId>>| Sysfs::at(sys.path()).find(&DeviceSelector::Usb(sets));
        let found = find(vec![vec![disk, key]]);
        assert_eq!(addresses(&found), ["1:2+1:3"]);
        assert_eq!(found[0].files, ["/dev/bus/usb/001/002", "/dev/bus/usb/001/003"]);
        assert_eq!(addresses(&find(vec![vec![disk]])), ["1:2", "2:10"]);
        assert_eq!(addresses(&find(vec![vec![disk, disk, disk]])), [""; 0]);
        assert_eq!(addresses(&find(vec![vec![disk, key], vec![disk]])), ["1:2+1:3", "2:10"]);
    }
}
