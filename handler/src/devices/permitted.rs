//! Devices of the host that guests may have: a device plugin for each resource that the KubeVirt object permits.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::info;
use vireo_api::spec::{DeviceSelector, PermittedResource};
use vireo_proto::device_plugin::{ContainerAllocateResponse, Device};

use super::discover::{Found, Sysfs};
use super::plugin::{Offer, device, offer_again, spec};
use crate::live_settings::LiveSettings;

/// How often it is looked for devices: sysfs has no notifications.
const INTERVAL: Duration = Duration::from_secs(10);
/// Prefixes of the variables with the addresses of a container's devices; KubeVirt's, which other device plugins set as well.
pub(crate) const PCI: &str = "PCI_RESOURCE";
pub(crate) const MEDIATED: &str = "MDEV_PCI_RESOURCE";
pub(crate) const USB: &str = "USB_RESOURCE";

/// The variable with the addresses of the devices of a resource.
pub(crate) fn variable(prefix: &str, resource: &str) -> String {
    format!("{prefix}_{}", resource.to_uppercase().replace(['/', '.'], "_"))
}

/// Offers the devices that are permitted until it is dropped.
pub(super) async fn run(directory: &Path, settings: &LiveSettings) {
    let changed = Arc::new(Notify::new());
    let notified = Arc::clone(&changed);
    settings.on_change(move || notified.notify_one());
    settings.synced().await;
    let mut plugins =
        Plugins { directory: directory.to_owned(), sysfs: Sysfs::default(), running: BTreeMap::new() };
    loop {
        let permitted = settings.permitted_host_devices();
        let wanted = permitted.iter().filter(|(_, resource)| !resource.is_external);
        plugins.update(&wanted.collect()).await;
        changed.notified().await;
    }
}

/// The plugins that run.
struct Plugins {
    directory: PathBuf,
    sysfs: Sysfs,
    running: BTreeMap<String, (PermittedResource, JoinSet<()>)>,
}

impl Plugins {
    /// Ends those that are not wanted any more, and starts others.
    async fn update(&mut self, wanted: &BTreeMap<&str, &PermittedResource>) {
        for (name, (resource, mut plugin)) in std::mem::take(&mut self.running) {
            if wanted.get(name.as_str()) == Some(&&resource) {
                self.running.insert(name, (resource, plugin));
                continue;
            }
            plugin.shutdown().await;
            // It is not there where the kubelet did not have it yet.
            let _ = std::fs::remove_file(self.directory.join(socket(&name)));
            info!(resource = name, "the devices are not permitted any more");
        }
        for (&name, &resource) in wanted {
            if !self.running.contains_key(name) {
                let plugin = offer(name.to_owned(), resource.devices.clone(), self.sysfs.clone());
                let directory = self.directory.clone();
                let mut tasks = JoinSet::new();
                tasks.spawn(async move { plugin.run(&directory).await });
                self.running.insert(name.to_owned(), (resource.clone(), tasks));
            }
        }
    }
}

/// The socket of a resource's plugin, in the kubelet's directory. KubeVirt's name.
fn socket(resource: &str) -> String {
    format!("kubevirt-{}.sock", resource.replace('/', "-"))
}

/// A plugin that knows which devices there are.
struct HostPlugin {
    offer: Arc<Offer>,
    devices: watch::Sender<Vec<Device>>,
    selector: Arc<DeviceSelector>,
    sysfs: Sysfs,
}

fn offer(resource: String, selector: DeviceSelector, sysfs: Sysfs) -> HostPlugin {
    let selector = Arc::new(selector);
    let devices = watch::Sender::new(Vec::new());
    let prefix = match *selector {
        DeviceSelector::Pci(_) => PCI,
        DeviceSelector::Mediated(_) => MEDIATED,
        DeviceSelector::Usb(_) => USB,
    };
    let variable = variable(prefix, &resource);
    let (found, selected) = (sysfs.clone(), Arc::clone(&selector));
    let offer = Offer {
        socket: socket(&resource),
        devices: devices.subscribe(),
        // What there is now: the kubelet may not know yet of a device that is gone.
        allocate: Box::new(move |ids| allocate(&variable, ids, &found.find(&selected))),
        resource,
    };
    HostPlugin { offer: Arc::new(offer), devices, selector, sysfs }
}

impl HostPlugin {
    /// Offers devices from when there are some.
    async fn run(&self, directory: &Path) {
        let look = async {
            loop {
                self.look();
                tokio::time::sleep(INTERVAL).await;
            }
        };
        let serve = async {
            let mut devices = self.devices.subscribe();
            // It fails only where the sender is gone, which is here.
            let _ = devices.wait_for(|devices| !devices.is_empty()).await;
            offer_again(&self.offer, directory).await;
        };
        tokio::join!(look, serve);
    }

    /// Updates the devices.
    fn look(&self) {
        let found = self.sysfs.find(&self.selector);
        self.devices.send_if_modified(|devices| {
            let now = update(devices, &found);
            let is_changed = *devices != now;
            *devices = now;
            is_changed
        });
    }
}

/// The devices with those that were found. Those that are gone are unhealthy.
fn update(known: &[Device], found: &[Found]) -> Vec<Device> {
    let mut all: BTreeMap<&str, Device> = known
        .iter()
        .map(|one| (one.id.as_str(), Device { health: "Unhealthy".to_owned(), ..one.clone() }))
        .collect();
    for one in found {
        all.insert(&one.id, device(one.id.clone(), true, one.numa_node));
    }
    all.into_values().collect()
}

/// What a container gets: the files of devices, and their addresses in a variable.
fn allocate(variable: &str, ids: &[String], found: &[Found]) -> Result<ContainerAllocateResponse, String> {
    let (mut addresses, mut files) = (Vec::new(), Vec::new());
    for id in ids {
        let one = found.iter().find(|one| one.id == *id).ok_or_else(|| format!("the device {id} is gone"))?;
        addresses.extend(one.addresses.iter().cloned());
        for file in &one.files {
            if !files.contains(file) {
                files.push(file.clone());
            }
        }
    }
    Ok(ContainerAllocateResponse {
        envs: HashMap::from([(variable.to_owned(), addresses.join(","))]),
        devices: files.iter().map(|file| spec(file)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use vireo_api::spec::DeviceId;

    use super::*;
    use crate::devices::discover::fake;
    use crate::devices::plugin::fake::Kubelet;

    const T4: (&str, &str) = ("0x10de", "0x1eb8");

    fn t4() -> PermittedResource {
        let devices = DeviceSelector::Pci(vec![DeviceId { vendor: 0x10de, product: 0x1eb8 }]);
        PermittedResource { devices, is_external: false }
    }

    #[test]
    fn variables_have_the_names_of_kubevirt() {
        for (prefix, resource, expected) in [
            (PCI, "nvidia.com/TU104GL_Tesla_T4", "PCI_RESOURCE_NVIDIA_COM_TU104GL_TESLA_T4"),
            (MEDIATED, "nvidia.com/GRID_T4-1Q", "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q"),
            (USB, "kubevirt.io/storage", "USB_RESOURCE_KUBEVIRT_IO_STORAGE"),
        ] {
            assert_eq!(variable(prefix, resource), expected);
        }
        assert_eq!(socket("nvidia.com/T4"), "kubevirt-nvidia.com-T4.sock");
    }

    #[test]
    fn a_device_that_is_gone_is_unhealthy_until_it_is_back() {
        let found =
            |id: &str| Found { id: id.to_owned(), addresses: vec![], files: vec![], numa_node: Some(0) };
        let health = |devices: &[Device]| {
            devices.iter().map(|one| (one.id.clone(), one.health == "Healthy")).collect::<Vec<_>>()
        };
        let both = update(&[], &[found("a"), found("b")]);
        assert_eq!(both[0].topology.as_ref().map(|one| one.nodes[0].id), Some(0));
        let gone = update(&both, &[found("b")]);
        assert_eq!(health(&gone), [("a".to_owned(), false), ("b".to_owned(), true)]);
        assert_eq!(update(&gone, &[found("a"), found("b")]), both);
    }

    #[tokio::test]
    async fn a_kubelet_gets_devices_with_their_addresses() {
        let sys = tempfile::tempdir().unwrap();
        fake::pci(sys.path(), "0000:01:00.0", T4, "vfio-pci", "7");
        fake::pci(sys.path(), "0000:02:00.0", T4, "vfio-pci", "8");
        let mut kubelet = Kubelet::start();
        let directory = kubelet.directory.path().to_owned();
        let plugin = offer("nvidia.com/T4".to_owned(), t4().devices, Sysfs::at(sys.path()));
        let asked = async {
            let mut offered = kubelet.registered("nvidia.com/T4").await;
            let devices = offered.devices().await;
            let ids: Vec<String> = devices.iter().map(|one| one.id.clone()).collect();
            assert_eq!(ids, ["0000:01:00.0", "0000:02:00.0"]);
            let allocated = offered.allocate(&[ids.clone(), vec![ids[1].clone()]]).await.unwrap();
            let variable = "PCI_RESOURCE_NVIDIA_COM_T4";
            let given: Vec<_> = allocated
                .iter()
                .map(|one| {
                    let files =
                        one.devices.iter().map(|spec| (spec.host_path.as_str(), spec.permissions.as_str()));
                    (one.envs[variable].as_str(), files.collect::<Vec<_>>())
                })
                .collect();
            let [vfio, first, second] =
                ["/dev/vfio/vfio", "/dev/vfio/7", "/dev/vfio/8"].map(|file| (file, "rw"));
            let expected = [
                ("0000:01:00.0,0000:02:00.0", vec![vfio, first, second]),
                ("0000:02:00.0", vec![vfio, second]),
            ];
            assert_eq!(given, expected);

            // It is bound to another driver.
            let driver = sys.path().join("bus/pci/devices/0000:01:00.0/driver");
            std::fs::remove_file(&driver).unwrap();
            plugin.look();
            let health: Vec<String> = offered.devices().await.into_iter().map(|one| one.health).collect();
            assert_eq!(health, ["Unhealthy", "Healthy"]);
            let refused = offered.allocate(&[ids]).await.unwrap_err();
            assert!(refused.message().contains("0000:01:00.0 is gone"), "{refused}");
        };
        tokio::select! {
            () = plugin.run(&directory) => {}
            () = asked => {}
        }
    }

    #[tokio::test]
    async fn plugins_start_and_end_with_the_setting() {
        let sys = tempfile::tempdir().unwrap();
        fake::pci(sys.path(), "0000:01:00.0", T4, "vfio-pci", "7");
        let mut kubelet = Kubelet::start();
        let directory = kubelet.directory.path().to_owned();
        let sysfs = Sysfs::at(sys.path());
        let mut plugins = Plugins { directory: directory.clone(), sysfs, running: BTreeMap::new() };
        let t4 = t4();
        plugins.update(&BTreeMap::from([("a.b/first", &t4)])).await;
        let mut first = kubelet.registered("a.b/first").await;
        plugins.update(&BTreeMap::from([("a.b/first", &t4), ("a.b/second", &t4)])).await;
        let mut second = kubelet.registered("a.b/second").await;
        assert_eq!((first.devices().await.len(), second.devices().await.len()), (1, 1));
        plugins.update(&BTreeMap::from([("a.b/second", &t4)])).await;
        first.ended().await;
        assert!(!directory.join(socket("a.b/first")).exists());
        let ids = vec!["0000:01:00.0".to_owned()];
        assert_eq!(second.allocate(&[ids]).await.unwrap().len(), 1, "it is left alone");
    }
}
