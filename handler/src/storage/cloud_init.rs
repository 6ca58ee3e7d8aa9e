//! The disk that cloud-init's NoCloud or ConfigDrive source reads.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use vireo_api::spec::{DeviceSource, Vm};
use vireo_vmconfig::{DiskBus, MacAddr, PciSlot, SATA_PORTS};

use super::iso::{self, File, IsoError};

/// The volume label, the paths and the names of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Files at the top of a volume `cidata`.
    NoCloud,
    /// Files below `openstack/latest` of a volume `config-2`.
    ConfigDrive,
}

impl Layout {
    /// The volume's name: lower case as cloud-init looks for it, although ISO 9660 asks for upper case.
    fn label(self) -> &'static str {
        match self {
            Self::NoCloud => "cidata",
            Self::ConfigDrive => "config-2",
        }
    }
}

/// The metadata and user data of a guest.
#[derive(Clone, Debug)]
pub struct Seed<'a> {
    /// How the guest reads it.
    pub layout: Layout,
    /// The firmware's UUID: with another one, cloud-init treats the guest as a new instance.
    pub uuid: String,
    /// The VMI's name and namespace, with a dot between.
    pub name: String,
    /// The guest's host name.
    pub hostname: &'a str,
    /// The user data of the manifest.
    pub user_data: &'a [u8],
    /// The network data of the manifest.
    pub network_data: Option<&'a [u8]>,
    /// The SSH keys of the guest's first user.
    pub public_keys: &'a [String],
    /// The devices that have tags.
    pub devices: Vec<TaggedDevice<'a>>,
}

/// A device that the guest finds by its tag, in KubeVirt's form of OpenStack's device role tagging.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TaggedDevice<'a> {
    /// A NIC. The guest knows it by its MAC address.
    Nic {
        bus: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        mac: String,
        tags: [&'a str; 1],
    },
    /// A disk. KubeVirt documents its tag and leaves it out; OpenStack has it.
    Disk {
        bus: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        #[serde(skip_serializing_if = "str::is_empty")]
        serial: &'a str,
        tags: [&'a str; 1],
    },
}

impl<'a> TaggedDevice<'a> {
    /// Those of a VM by which its guest finds a device.
    pub fn all(vm: &'a Vm) -> Vec<Self> {
        [Self::nics(vm), Self::disks(vm)].concat()
    }

    /// Those with known MAC addresses. Their PCI addresses are known where the manifest chooses them.
    fn nics(vm: &'a Vm) -> Vec<Self> {
        let own = vm.interfaces().iter().map(|nic| (nic.tag(), nic.pci_slot(), nic.mac()));
        let functions = vm.host_devices().iter().filter_map(|device| match device.source() {
            DeviceSource::Network(function) => Some((function.tag(), None, function.mac())),
            DeviceSource::Resource(_) => None,
        });
        let tagged = own.chain(functions).filter(|(tag, ..)| !tag.is_empty());
        let nic = |(tag, slot, mac): (&'a str, Option<PciSlot>, Option<MacAddr>)| {
            let (address, mac) = (slot.map(|slot| slot.to_string()), mac?.to_string());
            Some(Self::Nic { bus: "pci", address, mac, tags: [tag] })
        };
        tagged.filter_map(nic).collect()
    }

    /// Those with an address or a serial number that are there when the guest starts. Both hypervisors number the drives of a
    /// SATA and of a SCSI controller in their order; the slots of virtio disks, which depend on the hypervisor, are known where the
    /// manifest chooses them.
    fn disks(vm: &'a Vm) -> Vec<Self> {
        let (mut sata, mut scsi) = (0.., 0..);
        let mut devices = Vec::new();
        for disk in vm.disks().iter().filter(|disk| !disk.is_hotpluggable()) {
            let config = disk.config();
            let (bus, address) = match config.bus {
                DiskBus::Virtio => ("pci", config.tuning.pci_slot.map(|slot| slot.to_string())),
                // Controller and port.
                DiskBus::Sata => {
                    let drive = sata.next().unwrap_or(0);
                    ("sata", Some(format!("{}:{}", drive / SATA_PORTS, drive % SATA_PORTS)))
                }
                // Controller, channel, target and unit.
                DiskBus::Scsi => ("scsi", scsi.next().map(|target| format!("0:0:{target}:0"))),
                DiskBus::Usb => ("usb", None),
            };
            let (serial, tags) = (config.serial.as_str(), [disk.tag()]);
            if !disk.tag().is_empty() && (address.is_some() || !serial.is_empty()) {
                devices.push(Self::Disk { bus, address, serial, tags });
            }
        }
        devices
    }
}

/// Why the disk could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CloudInitError {
    /// What the guest reads about itself.
    #[error("cannot write the cloud-init metadata")]
    MetaData(#[from] serde_json::Error),
    /// The disk.
    #[error(transparent)]
    Iso(#[from] IsoError),
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct NoCloud<'a> {
    instance_id: &'a str,
    local_hostname: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    public_keys: BTreeMap<String, &'a str>,
}

/// OpenStack's `meta_data.json`, as far as KubeVirt fills it.
#[derive(Serialize)]
struct ConfigDrive<'a> {
    instance_id: &'a str,
    local_hostname: &'a str,
    hostname: &'a str,
    uuid: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    devices: &'a [TaggedDevice<'a>],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    public_keys: BTreeMap<String, &'a str>,
}

/// Writes the disk and replaces an older one, so that it follows the manifest.
pub fn write(at: &Path, seed: &Seed<'_>) -> Result<(), CloudInitError> {
    Ok(iso::write(at, seed.layout.label(), &files(seed)?)?)
}

fn files(seed: &Seed<'_>) -> Result<Vec<File>, CloudInitError> {
    let hostname = seed.hostname;
    // By their numbers, as KubeVirt has them.
    let keys = seed.public_keys.iter().enumerate();
    let public_keys = keys.map(|(number, key)| (number.to_string(), key.as_str())).collect();
    let (meta, directory, [meta_name, user_name, network_name]) = match seed.layout {
        Layout::NoCloud => (
            serde_json::to_vec(&NoCloud { instance_id: &seed.uuid, local_hostname: hostname, public_keys })?,
            "",
            ["meta-data", "user-data", "network-config"],
        ),
        Layout::ConfigDrive => {
            let (instance_id, uuid) = (&seed.name, &seed.uuid);
            let devices = &seed.devices;
            let meta =
                ConfigDrive { instance_id, local_hostname: hostname, hostname, uuid, devices, public_keys };
            let names = ["meta_data.json", "user_data", "network_data.json"];
            (serde_json::to_vec(&meta)?, "openstack/latest/", names)
        }
    };
    let file = |name: &str, content: &[u8]| File::new(format!("{directory}{name}"), content);
    let mut files = vec![file(meta_name, &meta), file(user_name, seed.user_data)];
    files.extend(seed.network_data.map(|network| file(network_name, network)));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Cursor;

    use serde_json::{Value, json};
    use vireo_api::v1::VirtualMachineInstance;

    use super::*;

    /// What the files hold by the names that a guest's kernel shows. Guests of the scenarios read them by Linux's own
    /// driver.
    fn read(layout: Layout, names: [&str; 3], network: &[u8]) -> [Vec<u8>; 3] {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("seed.iso");
        let seed = Seed {
            layout,
            uuid: "8a1c".to_owned(),
            name: "web.default".to_owned(),
            hostname: "web",
            user_data: b"#cloud-config\n",
            network_data: Some(network),
            public_keys: &["ssh-rsa A".to_owned(), "ssh-rsa B".to_owned()],
            devices: vec![TaggedDevice::Nic {
                bus: "pci",
                address: None,
                mac: "02:00".to_owned(),
                tags: ["lan"],
            }],
        };
        write(&at, &seed).unwrap();
        let image = fs::read(&at).unwrap();
        let label = &image[16 * 2048 + 40..16 * 2048 + 72];
        assert_eq!(String::from_utf8_lossy(label).trim_end(), layout.label(), "the primary volume's name");
        let mut read = hadris_iso::read::IsoReader::open(Cursor::new(image)).unwrap();
        names.map(|name| {
            let entry = read.find_path(name).unwrap().unwrap_or_else(|| panic!("no {name}"));
            let mut file = read.open_file(&entry).unwrap();
            let mut bytes = Vec::new();
            let mut chunk = [0; 1024];
            loop {
                let n = file.read_chunk(&mut chunk).unwrap();
                if n == 0 {
                    return bytes;
                }
                bytes.extend_from_slice(&chunk[..n]);
            }
        })
    }

    #[test]
    fn no_cloud_has_its_files_at_the_top() {
        let network = vec![b'n'; 5000];
        let files = read(Layout::NoCloud, ["meta-data", "user-data", "network-config"], &network);
        let meta = br#"{"instance-id":"8a1c","local-hostname":"web","public-keys":{"0":"ssh-rsa A","1":"ssh-rsa B"}}"#;
        assert_eq!(files, [meta.to_vec(), b"#cloud-config\n".to_vec(), network]);
    }

    #[test]
    fn a_config_drive_has_its_files_where_openstack_has_them() {
        let names = ["meta_data.json", "user_data", "network_data.json"];
        let names = names.map(|name| format!("openstack/latest/{name}"));
        let files = read(Layout::ConfigDrive, names.each_ref().map(String::as_str), b"{}");
        let meta = br#"{"instance_id":"web.default","local_hostname":"web","hostname":"web","uuid":"8a1c","devices":[{"type":"nic","bus":"pci","mac":"02:00","tags":["lan"]}],"public_keys":{"0":"ssh-rsa A","1":"ssh-rsa B"}}"#;
        assert_eq!(files, [meta.to_vec(), b"#cloud-config\n".to_vec(), b"{}".to_vec()]);
    }

    /// The metadata of a VM's devices.
    fn tagged(devices: &Value, networks: &Value, volumes: &Value) -> Value {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": devices},
                "networks": networks, "volumes": volumes,
            },
        }))
        .unwrap();
        let vm = Vm::try_from(&vmi).unwrap();
        serde_json::to_value(TaggedDevice::all(&vm)).unwrap()
    }

    #[test]
    fn tagged_nics_have_the_addresses_that_are_known() {
        let interfaces = json!([
            {"name": "default", "tag": "first", "masquerade": {}, "pciAddress": "0000:00:0a.0"},
            {"name": "lan", "tag": "second", "bridge": {}, "macAddress": "02:00:00:00:00:07"},
            {"name": "other", "tag": "third", "bridge": {}},
            {"name": "plain", "bridge": {}, "macAddress": "02:00:00:00:00:08"},
            {"name": "fast", "tag": "fourth", "sriov": {}, "macAddress": "02:00:00:00:00:09"},
            {"name": "unknown", "tag": "fifth", "sriov": {}},
        ]);
        let multus = |name: &str| json!({"name": name, "multus": {"networkName": name}});
        let pod = json!({"name": "default", "pod": {}});
        let networks =
            [vec![pod], ["lan", "other", "plain", "fast", "unknown"].map(multus).to_vec()].concat();
        let devices = tagged(&json!({"interfaces": interfaces}), &json!(networks), &json!([]));
        let derived = devices[0]["mac"].clone();
        assert!(derived.as_str().is_some_and(|mac| mac.len() == 17), "{devices}");
        let expected = json!([
            {"type": "nic", "bus": "pci", "address": "0000:00:0a.0", "mac": derived, "tags": ["first"]},
            {"type": "nic", "bus": "pci", "mac": "02:00:00:00:00:07", "tags": ["second"]},
            {"type": "nic", "bus": "pci", "mac": "02:00:00:00:00:09", "tags": ["fourth"]},
        ]);
        assert_eq!(devices, expected);
    }

    #[test]
    fn tagged_disks_have_what_a_guest_finds_them_by() {
        let sata =
            |index: usize| json!({"name": format!("sata{index}"), "disk": {"bus": "sata"}, "tag": "x"});
        let mut disks = vec![
            json!({"name": "slot", "disk": {"bus": "virtio", "pciAddress": "0000:00:0b.0"}, "tag": "root"}),
            json!({"name": "serial", "disk": {"bus": "virtio"}, "serial": "S-1", "tag": "data"}),
            json!({"name": "nothing", "disk": {"bus": "virtio"}, "tag": "lost"}),
            json!({"name": "later", "disk": {"bus": "scsi"}, "serial": "S-2", "tag": "hotplugged"}),
            json!({"name": "first", "disk": {"bus": "scsi"}}),
            json!({"name": "second", "disk": {"bus": "scsi"}, "serial": "S-3", "tag": "second"}),
            json!({"name": "usb", "cdrom": {"bus": "usb"}, "serial": "S-4", "tag": "stick"}),
        ];
        disks.extend((0..7).map(sata));
        let volume = |disk: &Value| match disk["name"].as_str() {
            Some("later") => {
                json!({"name": "later", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": true}})
            }
            name => json!({"name": name, "emptyDisk": {"capacity": "1Mi"}}),
        };
        let volumes: Vec<_> = disks.iter().map(volume).collect();
        let devices = json!({"disks": disks, "autoattachPodInterface": false});
        let devices = tagged(&devices, &json!([]), &json!(volumes));
        let sata = |address: &str| json!({"type": "disk", "bus": "sata", "address": address, "tags": ["x"]});
        let mut expected = vec![
            json!({"type": "disk", "bus": "pci", "address": "0000:00:0b.0", "tags": ["root"]}),
            json!({"type": "disk", "bus": "pci", "serial": "S-1", "tags": ["data"]}),
            json!({"type": "disk", "bus": "scsi", "address": "0:0:1:0", "serial": "S-3", "tags": ["second"]}),
            json!({"type": "disk", "bus": "usb", "serial": "S-4", "tags": ["stick"]}),
        ];
        expected.extend(["0:0", "0:1", "0:2", "0:3", "0:4", "0:5", "1:0"].map(sata));
        assert_eq!(devices, json!(expected));
    }
}
