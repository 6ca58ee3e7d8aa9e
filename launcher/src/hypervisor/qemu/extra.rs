//! Devices and chipset features that only QEMU has.

use std::path::PathBuf;

use serde_json::json;
use vireo_vmconfig::{ExtraDevice, HostDevice, PanicModel, SoundModel, WatchdogAction};

use super::args::Args;
use super::escaped;
use crate::launch::Launch;

/// All extra devices, in the order of the launch message. `tpm` is the inherited socket of swtpm, `vsock` the
/// inherited vhost-vsock with its context ID.
pub(super) fn devices(args: &mut Args, launch: &Launch, tpm: Option<i32>, vsock: Option<(i32, u32)>) {
    let (mut tablets, mut hosts) = (0, 0);
    for request in &launch.extra_devices {
        match request.device {
            ExtraDevice::Host(device) => {
                host(args, device, hosts);
                hosts += 1;
            }
            // A port beside that of the guest agent, and properties of the board and its CPUs.
            ExtraDevice::DownwardMetrics | ExtraDevice::HyperV(_) | ExtraDevice::Platform(_) => {}
            ExtraDevice::Hpet => args.option("-machine", "hpet=on"),
            ExtraDevice::Panic(PanicModel::Isa) => args.option("-device", "pvpanic"),
            ExtraDevice::Panic(PanicModel::Pci) => args.option("-device", "pvpanic-pci"),
            ExtraDevice::Smm => args.option("-machine", "smm=on"),
            ExtraDevice::Sound(model) => sound(args, model),
            ExtraDevice::Tpm => {
                if let Some(fd) = tpm {
                    args.option("-chardev", format!("socket,id=tpm,fd={fd}"));
                    args.option("-tpmdev", "emulator,id=tpm,chardev=tpm");
                    args.option("-device", "tpm-crb,tpmdev=tpm");
                }
            }
            ExtraDevice::UsbRedirection => usb_redirection(args, &launch.usb_redirection_sockets),
            ExtraDevice::UsbTablet => {
                args.option("-device", format!("qemu-xhci,id=input{tablets}"));
                args.option("-device", format!("usb-tablet,bus=input{tablets}.0"));
                tablets += 1;
            }
            ExtraDevice::Vsock => {
                if let Some((fd, cid)) = vsock {
                    args.option("-device", format!("vhost-vsock-pci,id=vsock,guest-cid={cid},vhostfd={fd}"));
                }
            }
            ExtraDevice::Watchdog(action) => {
                args.option("-device", "i6300esb");
                let action = match action {
                    WatchdogAction::PowerOff => "poweroff",
                    WatchdogAction::Reset => "reset",
                    WatchdogAction::Shutdown => "shutdown",
                };
                args.option("-action", format!("watchdog={action}"));
            }
        }
    }
}

/// The first chassis of the ports of host devices; those of hotplugged volumes have the lower ones.
const CHASSIS: usize = 64;

/// A device of the host. PCI devices have a port of their own: drivers expect PCI Express devices behind one.
fn host(args: &mut Args, device: HostDevice, index: usize) {
    let port = format!("hostport{index}");
    let mut vfio = |device: String| {
        let chassis = CHASSIS + index;
        args.option("-device", format!("pcie-root-port,id={port},chassis={chassis},slot={chassis}"));
        args.option("-device", format!("vfio-pci,id=host{index},bus={port},{device}"));
    };
    match device {
        HostDevice::Pci(address) => vfio(format!("host={address}")),
        // The display of a virtual GPU is not shown by VNC.
        HostDevice::Mediated(uuid) => vfio(format!("sysfsdev=/sys/bus/mdev/devices/{uuid},display=off")),
        HostDevice::Usb(address) => {
            let (bus, device) = (address.bus(), address.device());
            args.option("-device", format!("qemu-xhci,id={port}"));
            args.option(
                "-device",
                format!("usb-host,id=host{index},bus={port}.0,hostbus={bus},hostaddr={device}"),
            );
        }
    }
}

/// Slots for USB devices of clients, on a controller of their own with a port for each. QEMU serves the socket of a slot to one
/// client at a time, and the guest has the client's device while it is connected.
fn usb_redirection(args: &mut Args, sockets: &[PathBuf]) {
    let count = sockets.len();
    args.json("-device", &json!({ "driver": "qemu-xhci", "id": "usbredir", "p2": count, "p3": count }));
    for (port, path) in (1..).zip(sockets) {
        let id = format!("usbredir{port}");
        args.option("-chardev", format!("socket,id={id},path={},server=on,wait=off", escaped(path)));
        // Without a port, QEMU keeps the last one for a hub of USB 1.1.
        let slot =
            json!({ "driver": "usb-redir", "bus": "usbredir.0", "port": port.to_string(), "chardev": id });
        args.json("-device", &slot);
    }
}

fn sound(args: &mut Args, model: SoundModel) {
    args.option("-audiodev", "none,id=sound");
    match model {
        SoundModel::Ac97 => args.option("-device", "AC97,audiodev=sound"),
        SoundModel::Ich9 => {
            args.option("-device", "ich9-intel-hda");
            args.option("-device", "hda-duplex,audiodev=sound");
        }
    }
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::DeviceRequest;

    use super::*;
    use crate::launch::sample;

    #[test]
    fn every_device_has_its_arguments() {
        for (devices, expected) in [
            (vec![ExtraDevice::Hpet], "-machine hpet=on"),
            (
                vec![
                    ExtraDevice::Host(HostDevice::Pci("0000:01:00.0".parse().unwrap())),
                    ExtraDevice::Host(HostDevice::Mediated(
                        "0b2e4d3c-11aa-22bb-33cc-0123456789ab".parse().unwrap(),
                    )),
                    ExtraDevice::Host(HostDevice::Usb("3:4".parse().unwrap())),
                ],
                "-device pcie-root-port,id=hostport0,chassis=64,slot=64 \
                 -device vfio-pci,id=host0,bus=hostport0,host=0000:01:00.0 \
                 -device pcie-root-port,id=hostport1,chassis=65,slot=65 \
                 -device vfio-pci,id=host1,bus=hostport1,\
                 sysfsdev=/sys/bus/mdev/devices/0b2e4d3c-11aa-22bb-33cc-0123456789ab,display=off \
                 -device qemu-xhci,id=hostport2 \
                 -device usb-host,id=host2,bus=hostport2.0,hostbus=3,hostaddr=4",
            ),
            (vec![ExtraDevice::Smm], "-machine smm=on"),
            (vec![ExtraDevice::Panic(PanicModel::Isa)], "-device pvpanic"),
            (vec![ExtraDevice::Panic(PanicModel::Pci)], "-device pvpanic-pci"),
            (
                vec![ExtraDevice::Sound(SoundModel::Ich9)],
                "-audiodev none,id=sound -device ich9-intel-hda -device hda-duplex,audiodev=sound",
            ),
            (
                vec![ExtraDevice::Sound(SoundModel::Ac97)],
                "-audiodev none,id=sound -device AC97,audiodev=sound",
            ),
            (
                vec![ExtraDevice::Watchdog(WatchdogAction::PowerOff)],
                "-device i6300esb -action watchdog=poweroff",
            ),
            (
                vec![ExtraDevice::Tpm],
                "-chardev socket,id=tpm,fd=9 -tpmdev emulator,id=tpm,chardev=tpm -device tpm-crb,tpmdev=tpm",
            ),
            (vec![ExtraDevice::Vsock], "-device vhost-vsock-pci,id=vsock,guest-cid=77,vhostfd=8"),
            (
                vec![ExtraDevice::UsbTablet; 2],
                "-device qemu-xhci,id=input0 -device usb-tablet,bus=input0.0 \
                 -device qemu-xhci,id=input1 -device usb-tablet,bus=input1.0",
            ),
        ] {
            let request = |device| DeviceRequest { field: "spec.x".to_owned(), device };
            let extra_devices = devices.into_iter().map(request).collect();
            let mut args = Args::default();
            super::devices(
                &mut args,
                &Launch { extra_devices, ..sample::kernel_boot() },
                Some(9),
                Some((8, 77)),
            );
            assert_eq!(args.into_line().join(" "), expected);
        }
    }

    #[test]
    fn each_slot_for_usb_devices_has_a_port_and_a_socket() {
        let request = DeviceRequest { field: "spec.x".to_owned(), device: ExtraDevice::UsbRedirection };
        let launch = Launch {
            extra_devices: vec![request],
            usb_redirection_sockets: vec!["/vmi/a,b.sock".into(), "/vmi/c.sock".into()],
            ..sample::kernel_boot()
        };
        let mut args = Args::default();
        super::devices(&mut args, &launch, None, None);
        let slot = |port: &str| {
            let chardev = format!("usbredir{port}");
            json!({"driver": "usb-redir", "bus": "usbredir.0", "port": port, "chardev": chardev}).to_string()
        };
        let controller = json!({"driver": "qemu-xhci", "id": "usbredir", "p2": 2, "p3": 2}).to_string();
        let (first, second) = (slot("1"), slot("2"));
        let expected = [
            "-device",
            &controller,
            "-chardev",
            "socket,id=usbredir1,path=/vmi/a,,b.sock,server=on,wait=off",
            "-device",
            &first,
            "-chardev",
            "socket,id=usbredir2,path=/vmi/c.sock,server=on,wait=off",
            "-device",
            &second,
        ];
        assert_eq!(args.into_line(), expected);
    }
}
