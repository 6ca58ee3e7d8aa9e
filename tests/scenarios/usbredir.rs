//! `virtctl usbredir`: a guest has the USB devices of clients while they are connected, four at a time.

use std::time::Duration;

use vireo_tests::eventually::eventually;
use vireo_tests::guest::Guest;
use vireo_tests::relay::Relay;
use vireo_tests::usb_device::{Identity, UsbDevice};
use vireo_tests::{HostError, Process, Status};

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::standalone::{Standalone, host_with_vireo_and_the_full_kernel};

const HOST: Duration = Duration::from_secs(400);
/// The first of the devices; the others have the next products.
const PRODUCT: u16 = 0x0a00;
/// Of the redirected devices, vendor, product and name.
const DEVICES: &str = "cd /sys/bus/usb/devices; for at in [0-9]*-[0-9]; do test -e $at/product && \
    echo $(cat $at/idVendor $at/idProduct $at/product); done; true";

/// A device that is redirected for as long as this lives.
struct Redirected<'h> {
    device: UsbDevice,
    _relay: Relay,
    virtctl: Process<'h>,
}

impl<'h> Redirected<'h> {
    fn start(standalone: &Standalone<'h>, number: u16) -> Result<Self, HostError> {
        let mut virtctl = standalone.start_virtctl("usbredir usb --no-launch")?;
        let printed = virtctl.wait_for("\n", SOON)?;
        let port = printed.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port in {printed}: {}", virtctl.stderr()));
        let relay = Relay::to(standalone.host(), port).map_err(HostError::Start)?;
        let identity =
            Identity { vendor: 0x1209, product: PRODUCT + number, name: format!("Stick {number}") };
        let device = UsbDevice::connect(relay.address(), identity).map_err(HostError::Start)?;
        Ok(Self { device, _relay: relay, virtctl })
    }

    /// Unplugs it: its client ends well.
    fn unplug(mut self) -> Result<(), HostError> {
        drop(self.device);
        let output = self.virtctl.wait(SOON)?;
        assert_eq!(output.status, Status::Code(0), "{}", output.stderr);
        Ok(())
    }
}

/// The guest sees the devices of these numbers, and no others.
fn sees(guest: &mut Guest<'_>, numbers: &[u16]) -> Result<(), HostError> {
    let expected: Vec<String> =
        numbers.iter().map(|number| format!("1209 {:04x} Stick {number}", PRODUCT + number)).collect();
    let mut last = Vec::new();
    let seen = eventually(&format!("the guest has the devices {numbers:?}"), SOON, || {
        last = guest.run(DEVICES, SOON)?.lines().map(|line| line.trim().to_owned()).collect();
        last.retain(|line| line.starts_with("1209 "));
        last.sort();
        Ok(last == expected)
    });
    seen.inspect_err(|_| eprintln!("the guest has {last:?}"))
}

/// `virtctl usbredir` of a VMI is refused.
fn is_refused(standalone: &Standalone<'_>, name: &str, why: &str) -> Result<(), HostError> {
    let output = standalone.virtctl(&format!("usbredir {name} --no-launch"))?;
    assert_eq!(output.status, Status::Code(1), "{}", output.stdout);
    assert!(output.stderr.contains(why), "{}", output.stderr);
    Ok(())
}

#[test]
fn a_guest_has_the_usb_devices_of_clients_on_qemu_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo_and_the_full_kernel(scratch.path())?.deadline(HOST).here()?;
    let mut standalone = Standalone::start(&host)?;
    let with_slots =
        manifest(&host, "usb").replace("    devices:\n", "    devices:\n      clientPassthrough: {}\n");
    standalone.kubectl("apply -f -", Some(&with_slots))?.ok();
    standalone.kubectl("apply -f -", Some(&manifest(&host, "none")))?.ok();
    standalone.becomes_ready("vmi/usb")?;
    standalone.runs_on("usb", "qemu")?;
    let mut guest = standalone.console("usb")?;
    guest.ready()?;
    guest.run("modprobe xhci_pci", SOON)?;
    sees(&mut guest, &[])?;

    let first = Redirected::start(&standalone, 1)?;
    sees(&mut guest, &[1])?;
    let others = [2, 3, 4].map(|number| Redirected::start(&standalone, number));
    let [second, third, fourth] = others;
    let (second, third, fourth) = (second?, third?, fourth?);
    sees(&mut guest, &[1, 2, 3, 4])?;
    is_refused(&standalone, "usb", "All USB devices are in use.")?;
    second.unplug()?;
    sees(&mut guest, &[1, 3, 4])?;
    let fifth = Redirected::start(&standalone, 5)?;
    sees(&mut guest, &[1, 3, 4, 5])?;
    for one in [first, third, fourth, fifth] {
        one.unplug()?;
    }
    sees(&mut guest, &[])?;

    // A node agent that is lost takes its clients along; the guest lets go of their devices, and the next has them.
    let _lost = Redirected::start(&standalone, 6)?;
    sees(&mut guest, &[6])?;
    standalone.lose()?;
    let mut guest = standalone.console("usb")?;
    guest.ready()?;
    sees(&mut guest, &[])?;
    let last = Redirected::start(&standalone, 7)?;
    sees(&mut guest, &[7])?;
    last.unplug()?;

    standalone.becomes_ready("vmi/none")?;
    is_refused(&standalone, "none", "Not configured with USB Redirection")?;
    is_refused(&standalone, "absent", "not found")?;
    standalone.kubectl("delete vmi usb none --timeout=90s", None)?.ok();
    Ok(())
}
