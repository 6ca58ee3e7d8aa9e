//! Volumes of a single host that a guest reads and writes: files of the node, one of which is made, and a DataVolume, which is a
//! claim there.

use vireo_tests::guest::Guest;
use vireo_tests::{Host, HostError};

use crate::SOON;
use crate::scenarios::standalone::Standalone;

/// The disks, by their serial numbers.
pub(crate) const DISKS: &str = "      - {name: there, serial: THERE, disk: {bus: virtio}}
      - {name: made, serial: MADE, disk: {bus: virtio}}
      - {name: filled, serial: FILLED, disk: {bus: virtio}}
";

/// The claim of the DataVolume.
const CLAIM: &str = "\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: filled}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";

/// Where each volume is on the host.
fn files(standalone: &Standalone<'_>) -> [(&'static str, String); 3] {
    let data = standalone.host().work("data");
    [
        ("THERE", format!("{data}/there.img")),
        ("MADE", format!("{data}/made.img")),
        ("FILLED", standalone.file("claims/default/filled/disk.img")),
    ]
}

/// The volumes of the disks.
pub(crate) fn volumes(host: &Host) -> String {
    let data = host.work("data");
    format!(
        "  - {{name: there, hostDisk: {{path: '{data}/there.img', type: Disk}}}}
  - {{name: made, hostDisk: {{path: '{data}/made.img', type: DiskOrCreate, capacity: 2Mi}}}}
  - {{name: filled, dataVolume: {{name: filled}}}}
"
    )
}

/// Makes what has to be there before the guest starts.
pub(crate) fn prepare(standalone: &Standalone<'_>) -> Result<(), HostError> {
    standalone.kubectl("apply -f -", Some(CLAIM))?.ok();
    standalone.kubectl("wait pvc filled --for=jsonpath={.status.phase}=Bound --timeout=60s", None)?.ok();
    let [(_, there), (_, made), (_, filled)] = files(standalone);
    let data = standalone.host().work("data");
    standalone.shell(&format!(
        "mkdir -p {data}; rm -f {made}; truncate -s 1M {there}; \
         for file in {there} {filled}; do printf host | dd of=$file conv=notrunc 2>&1; done"
    ))?;
    Ok(())
}

/// The guest reads what is on the volumes, and the host what the guest has written.
pub(crate) fn are_used(standalone: &Standalone<'_>, guest: &mut Guest<'_>) -> Result<(), HostError> {
    for (serial, file) in files(standalone) {
        let find = format!("disk=/dev/$(grep -lx {serial} /sys/block/vd*/serial | cut -d/ -f4)");
        let read = guest.run(&format!("{find}; head -c 4 $disk | tr -d '\\0'"), SOON)?;
        assert_eq!(read.trim(), if serial == "MADE" { "" } else { "host" }, "{serial}");
        guest.run(&format!("{find}; printf guest-{serial} | dd of=$disk seek=1 conv=sync; sync"), SOON)?;
        let written = standalone.shell(&format!("dd if={file} skip=1 count=1 2>/dev/null | tr -d '\\0'"))?;
        assert_eq!(written, format!("guest-{serial}"));
    }
    let size = guest.run("cat /sys/block/$(grep -lx MADE /sys/block/vd*/serial | cut -d/ -f4)/size", SOON)?;
    assert_eq!(size.trim(), "4096", "2 MiB");
    Ok(())
}
