//! The container with the guest's serial console as its log, `guest-console-log` as KubeVirt's.

use k8s_openapi::api::core::v1::Container;
use vireo_api::names::{SOCKETS_DIRECTORY, SOCKETS_VOLUME};
use vireo_api::v1::VirtualMachineInstance;

use super::images::small;
use super::volumes::mount;
use crate::config::ClusterConfig;

/// Its name; KubeVirt's.
const NAME: &str = "guest-console-log";

/// The container, if the instance asks for it and has a console. `launcher` are the image and the socket of its launcher.
pub(super) fn container(
    vmi: &VirtualMachineInstance,
    (image, socket): (&str, &str),
    config: &ClusterConfig,
) -> Option<Container> {
    let devices = &vmi.spec.domain.devices;
    if devices.log_serial_console != Some(true) || devices.autoattach_serial_console == Some(false) {
        return None;
    }
    let command = ["/usr/bin/virt-launcher", "tail-console", "--launcher", socket];
    Some(Container {
        name: NAME.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(config.image_pull_policy.clone()),
        command: Some(command.map(str::to_owned).into()),
        volume_mounts: Some(vec![mount(SOCKETS_VOLUME, SOCKETS_DIRECTORY, true)]),
        ..small(&config.console_log)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(devices: &Value) -> Option<Container> {
        let vmi = json!({"metadata": {"name": "demo"}, "spec": {"domain": {"devices": devices}}});
        let launcher = ("launcher:1", "/s/launcher.sock");
        container(&serde_json::from_value(vmi).unwrap(), launcher, &ClusterConfig::default())
    }

    #[test]
    fn a_console_is_logged_where_that_is_asked_for() {
        let made = of(&json!({"logSerialConsole": true})).unwrap();
        assert_eq!((made.name.as_str(), made.image.as_deref()), (NAME, Some("launcher:1")));
        for devices in [
            json!({}),
            json!({"logSerialConsole": false}),
            json!({"logSerialConsole": true, "autoattachSerialConsole": false}),
        ] {
            assert_eq!(of(&devices), None, "{devices}");
        }
    }
}
