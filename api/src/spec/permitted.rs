//! The devices of nodes that guests may have: `permittedHostDevices` of the KubeVirt object.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::labels::label_name;
use super::report::Findings;
use super::{Field, Problem};
use crate::v1;

/// The vendor of a device, and which of its devices it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    /// Such as 0x10de.
    pub vendor: u16,
    /// Such as 0x1eb8.
    pub product: u16,
}

/// The devices of nodes that a resource consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// PCI devices with one of these IDs.
    Pci(Vec<DeviceId>),
    /// Mediated devices of one of these types. In their names, spaces are underscores.
    Mediated(Vec<String>),
    /// Sets of USB devices, with one device for each ID.
    Usb(Vec<Vec<DeviceId>>),
}

/// A resource of nodes that guests may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermittedResource {
    /// Its devices.
    pub devices: DeviceSelector,
    /// Whether a device plugin that is not the node agent's offers them.
    pub is_external: bool,
}

/// The resources that guests may have, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermittedHostDevices(BTreeMap<String, PermittedResource>);

impl PermittedHostDevices {
    /// Reads the setting at `at`: what is not valid is as if it were not set, and named by the problems.
    pub fn read(given: &v1::PermittedHostDevices, at: &Field) -> (Self, Vec<Problem>) {
        let (mut permitted, mut found) = (Self::default(), Findings::default());
        for (index, device) in given.pci_host_devices.iter().enumerate() {
            let at = at.at("pciHostDevices").index(index);
            let selector = at.at("pciVendorSelector");
            let id =
                device.pci_vendor_selector.split_once(':').and_then(|(vendor, product)| id(vendor, product));
            if id.is_none() {
                let why =
                    "must be the vendor and the device of a PCI device in hexadecimal, such as 10DE:1EB8";
                found.invalid_value(&selector, &device.pci_vendor_selector, why);
            }
            let devices = id.map(|id| DeviceSelector::Pci(vec![id]));
            let resource = (device.resource_name.as_str(), device.external_resource_provider, devices);
            permitted.add(resource, &at, &mut found);
        }
        for (index, device) in given.mediated_devices.iter().enumerate() {
            let at = at.at("mediatedDevices").index(index);
            let name = device.mdev_name_selector.replace(' ', "_");
            if name.is_empty() {
                found.required_value(
                    &at.at("mdevNameSelector"),
                    "write the name of a type of mediated devices",
                );
            }
            let devices = (!name.is_empty()).then(|| DeviceSelector::Mediated(vec![name]));
            let resource = (device.resource_name.as_str(), device.external_resource_provider, devices);
            permitted.add(resource, &at, &mut found);
        }
        for (index, device) in given.usb.iter().enumerate() {
            let at = at.at("usb").index(index);
            let devices = usb_set(&device.selectors, &at.at("selectors"), &mut found);
            // Its own provider knows what it consists of.
            let is_known = !device.selectors.is_empty() || device.external_resource_provider;
            if !is_known {
                found.required_value(&at.at("selectors"), "write the vendor and the product of a USB device");
            }
            let devices = devices.filter(|_| is_known).map(|set| DeviceSelector::Usb(vec![set]));
            let resource = (device.resource_name.as_str(), device.external_resource_provider, devices);
            permitted.add(resource, &at, &mut found);
        }
        (permitted, found.problems)
    }

    fn add(
        &mut self,
        (name, is_external, devices): (&str, bool, Option<DeviceSelector>),
        at: &Field,
        found: &mut Findings,
    ) {
        let field = at.at("resourceName");
        let before = found.problems.len();
        match name.contains('/') {
            true => label_name(name, &field, found),
            false => {
                found.invalid_value(&field, name, "must be a name with a domain, such as example.com/nvme")
            }
        }
        let Some(devices) = devices.filter(|_| found.problems.len() == before) else { return };
        match self.0.entry(name.to_owned()) {
            Entry::Vacant(entry) => drop(entry.insert(PermittedResource { devices, is_external })),
            Entry::Occupied(mut entry) => {
                let resource = entry.get_mut();
                let is_same = resource.is_external == is_external;
                if !is_same || !resource.devices.extend(devices) {
                    let why = "a resource has devices of one kind and one provider";
                    found.invalid_value(&field, name, why);
                }
            }
        }
    }

    /// A resource, if guests may have it.
    pub fn get(&self, name: &str) -> Option<&PermittedResource> {
        self.0.get(name)
    }

    /// All of them with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &PermittedResource)> {
        self.0.iter().map(|(name, resource)| (name.as_str(), resource))
    }
}

impl DeviceSelector {
    /// Adds devices of the same kind. Returns whether they are.
    fn extend(&mut self, others: Self) -> bool {
        match (self, others) {
            (Self::Pci(all), Self::Pci(others)) => all.extend(others),
            (Self::Mediated(all), Self::Mediated(others)) => all.extend(others),
            (Self::Usb(all), Self::Usb(others)) => all.extend(others),
            (Self::Pci(_) | Self::Mediated(_) | Self::Usb(_), _) => return false,
        }
        true
    }
}

fn usb_set(selectors: &[v1::UsbSelector], at: &Field, found: &mut Findings) -> Option<Vec<DeviceId>> {
    let before = found.problems.len();
    let mut set = Vec::new();
    for (index, selector) in selectors.iter().enumerate() {
        let at = at.index(index);
        for (name, value) in [("vendor", &selector.vendor), ("product", &selector.product)] {
            if number(value).is_none() {
                found.invalid_value(
                    &at.at(name),
                    value,
                    "must be up to four hexadecimal digits, such as 46f4",
                );
            }
        }
        set.extend(id(&selector.vendor, &selector.product));
    }
    (found.problems.len() == before).then_some(set)
}

fn id(vendor: &str, product: &str) -> Option<DeviceId> {
    Some(DeviceId { vendor: number(vendor)?, product: number(product)? })
}

fn number(text: &str) -> Option<u16> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u16::from_str_radix(text, 16).ok().filter(|_| is_hex && text.len() <= 4)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(given: Value) -> (PermittedHostDevices, Vec<String>) {
        let given = serde_json::from_value(given).unwrap();
        let (permitted, problems) = PermittedHostDevices::read(&given, &Field::new("p"));
        (permitted, problems.iter().map(|problem| problem.field().to_string()).collect())
    }

    #[test]
    fn devices_are_selected_by_kind() {
        let (permitted, problems) = read(json!({
            "pciHostDevices": [
                {"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"},
                {"pciVendorSelector": "10de:1eb9", "resourceName": "nvidia.com/T4"},
                {"pciVendorSelector": "8086:1", "resourceName": "intel.com/qat", "externalResourceProvider": true},
            ],
            "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}],
            "usb": [{"resourceName": "example.com/key", "selectors": [
                {"vendor": "46f4", "product": "0001"}, {"vendor": "627", "product": "1"}]}],
        }));
        assert_eq!(problems, [""; 0]);
        let id = |vendor, product| DeviceId { vendor, product };
        let of = |name| permitted.get(name).map(|one| (one.devices.clone(), one.is_external));
        let t4 = DeviceSelector::Pci(vec![id(0x10de, 0x1eb8), id(0x10de, 0x1eb9)]);
        assert_eq!(of("nvidia.com/T4"), Some((t4, false)));
        assert_eq!(of("intel.com/qat"), Some((DeviceSelector::Pci(vec![id(0x8086, 1)]), true)));
        let grid = DeviceSelector::Mediated(vec!["GRID_T4-1Q".to_owned()]);
        assert_eq!(of("nvidia.com/GRID_T4-1Q"), Some((grid, false)));
        let key = DeviceSelector::Usb(vec![vec![id(0x46f4, 1), id(0x627, 1)]]);
        assert_eq!(of("example.com/key"), Some((key, false)));
        assert_eq!(permitted.iter().count(), 4);
    }

    #[test]
    fn what_is_not_valid_is_named_and_left_out() {
        let pci = |selector: &str, name: &str| json!({"pciHostDevices": [{"pciVendorSelector": selector, "resourceName": name}]});
        for (given, field) in [
            (pci("10DE", "a.b/c"), "p.pciHostDevices[0].pciVendorSelector"),
            (pci("10DE:+1", "a.b/c"), "p.pciHostDevices[0].pciVendorSelector"),
            (pci("10DE:1EB80", "a.b/c"), "p.pciHostDevices[0].pciVendorSelector"),
            (pci("10DE:1EB8", ""), "p.pciHostDevices[0].resourceName"),
            (pci("10DE:1EB8", "nvme"), "p.pciHostDevices[0].resourceName"),
            (pci("10DE:1EB8", "a.b/c,x=1"), "p.pciHostDevices[0].resourceName"),
            (
                json!({"mediatedDevices": [{"resourceName": "a.b/c"}]}),
                "p.mediatedDevices[0].mdevNameSelector",
            ),
            (json!({"usb": [{"resourceName": "a.b/c"}]}), "p.usb[0].selectors"),
            (
                json!({"usb": [{"resourceName": "a.b/c", "selectors": [{"vendor": "x", "product": "1"}]}]}),
                "p.usb[0].selectors[0].vendor",
            ),
        ] {
            let (permitted, problems) = read(given.clone());
            assert_eq!(problems, [field], "{given}");
            assert_eq!(permitted, PermittedHostDevices::default(), "{given}");
        }
        let (permitted, problems) = read(json!({
            "pciHostDevices": [{"pciVendorSelector": "1:2", "resourceName": "a.b/c"}],
            "mediatedDevices": [{"mdevNameSelector": "x", "resourceName": "a.b/c"}],
        }));
        assert_eq!(problems, ["p.mediatedDevices[0].resourceName"]);
        assert_eq!(permitted.iter().count(), 1);
    }
}
