//! The disk that cloud-init's NoCloud or ConfigDrive source reads.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use vireo_api::spec::{Interface, Vm};

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
    /// The NICs that have tags.
    pub nics: Vec<TaggedNic<'a>>,
}

/// A NIC that the guest finds by its tag, in KubeVirt's form of OpenStack's device role tagging.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename = "nic")]
pub struct TaggedNic<'a> {
    bus: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    mac: String,
    tags: [&'a str; 1],
}

impl<'a> TaggedNic<'a> {
    /// The NICs of a VM that have tags and known MAC addresses. Their PCI addresses are known where the manifest chooses them.
    pub fn all(vm: &'a Vm) -> Vec<Self> {
        let tagged = vm.interfaces().iter().filter(|nic| !nic.tag().is_empty());
        let nic = |nic: &'a Interface| {
            let (address, mac) = (nic.pci_slot().map(|slot| slot.to_string()), nic.mac()?.to_string());
            Some(Self { bus: "pci", address, mac, tags: [nic.tag()] })
        };
        tagged.filter_map(nic).collect()
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
    devices: &'a [TaggedNic<'a>],
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
            let devices = &seed.nics;
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

    use serde_json::json;
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
            nics: vec![TaggedNic { bus: "pci", address: None, mac: "02:00".to_owned(), tags: ["lan"] }],
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

    #[test]
    fn tagged_nics_have_the_addresses_that_are_known() {
        let interfaces = json!([
            {"name": "default", "tag": "first", "masquerade": {}, "pciAddress": "0000:00:0a.0"},
            {"name": "lan", "tag": "second", "bridge": {}, "macAddress": "02:00:00:00:00:07"},
            {"name": "other", "tag": "third", "bridge": {}},
            {"name": "plain", "bridge": {}, "macAddress": "02:00:00:00:00:08"},
        ]);
        let multus = |name: &str| json!({"name": name, "multus": {"networkName": name}});
        let networks =
            json!([{"name": "default", "pod": {}}, multus("lan"), multus("other"), multus("plain")]);
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": interfaces}},
                "networks": networks,
            },
        }))
        .unwrap();
        let vm = Vm::try_from(&vmi).unwrap();
        let derived = vm.interfaces()[0].mac().unwrap().to_string();
        let expected = json!([
            {"type": "nic", "bus": "pci", "address": "0000:00:0a.0", "mac": derived, "tags": ["first"]},
            {"type": "nic", "bus": "pci", "mac": "02:00:00:00:00:07", "tags": ["second"]},
        ]);
        assert_eq!(serde_json::to_value(TaggedNic::all(&vm)).unwrap(), expected);
    }
}
