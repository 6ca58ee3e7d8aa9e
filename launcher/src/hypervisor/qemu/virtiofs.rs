//! The file systems that a guest shares, as QEMU has them.

use serde_json::json;

use super::args::Args;
use super::escaped;
use crate::hypervisor::virtiofs::socket;
use crate::launch::Launch;

/// Requests that the queue of a device holds.
const QUEUE: u32 = 1024;

/// The guest's memory, which the servers map. Huge pages are memory of such a file already.
pub(super) fn memory(args: &mut Args, launch: &Launch) {
    if launch.filesystems.is_empty() || launch.huge_page.is_some() {
        return;
    }
    let memory = json!({
        "qom-type": "memory-backend-memfd", "id": "ram", "size": launch.memory_bytes, "share": true,
    });
    args.json("-object", &memory);
    args.option("-machine", "memory-backend=ram");
}

/// The devices, each with the tag by which the guest mounts it.
pub(super) fn devices(args: &mut Args, launch: &Launch) {
    for (index, filesystem) in launch.filesystems.iter().enumerate() {
        let id = format!("fs{index}");
        args.option("-chardev", format!("socket,id={id},path={}", escaped(&socket(launch, index))));
        let device = json!({
            "driver": "vhost-user-fs-pci", "id": id, "chardev": id, "tag": filesystem.name, "queue-size": QUEUE,
        });
        args.json("-device", &device);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::hypervisor::virtiofs::tests::launch;
    use crate::launch::sample;

    #[test]
    fn each_file_system_is_a_device_on_shared_memory() {
        let launch = launch(Path::new("/files"), Path::new("/run,x"));
        let mut args = Args::default();
        memory(&mut args, &launch);
        devices(&mut args, &launch);
        let expected = "-object {\"id\":\"ram\",\"qom-type\":\"memory-backend-memfd\",\"share\":true,\"size\":268435456} \
             -machine memory-backend=ram -chardev socket,id=fs0,path=/run,,x/fs0.sock \
             -device {\"chardev\":\"fs0\",\"driver\":\"vhost-user-fs-pci\",\"id\":\"fs0\",\"queue-size\":1024,\"tag\":\"config\"}";
        assert_eq!(args.into_line().join(" "), expected);
        let mut args = Args::default();
        memory(&mut args, &sample::kernel_boot());
        devices(&mut args, &sample::kernel_boot());
        assert_eq!(args.into_line(), [""; 0]);
    }
}
