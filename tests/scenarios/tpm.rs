//! A guest with a TPM: it measures into it, and ends with it.

use std::time::Duration;

use vireo_tests::HostError;

use crate::SOON;
use crate::scenarios::node::manifest;
use crate::scenarios::probes::condition;
use crate::scenarios::standalone::{Standalone, host_with_vireo};

/// TPM2_NV_DefineSpace of 8 bytes at 0x01500001, which the owner reads and writes.
pub(crate) const DEFINE: &str = "80020000002d 0000012a 40000001 00000009 40000009 0000 00 0000 0000 000e 01500001 000b 00020002 0000 0008";
/// TPM2_NV_ReadPublic of it.
pub(crate) const READ: &str = "80010000000e 00000169 01500001";
/// What [`READ`] is answered where there is none, and where there is.
pub(crate) const ABSENT: &str = "00 00 01 8b";
pub(crate) const SUCCESS: &str = "00 00 00 00";

/// A guest under emulation.
const BOOT: Duration = Duration::from_secs(240);

#[test]
fn a_guest_has_a_tpm_and_ends_with_it_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.deadline(BOOT).here()?;
    let standalone = Standalone::start(&host)?;
    let vmi = manifest(&host, "one").replace("      rng: {}\n", "      rng: {}\n      tpm: {}\n");
    standalone.apply_without_warnings(&vmi)?;
    let mut guest = standalone.console("one")?;
    guest.ready()?;
    for (line, expected) in [
        ("test -c /dev/tpm0 && echo there", "there"),
        ("cat /sys/class/tpm/tpm0/tpm_version_major", "2"),
        ("basename $(readlink -f /sys/class/tpm/tpm0/device/driver)", "tpm_crb"),
        // TPM2_GetRandom of 8 bytes, whose answer has 20.
        (
            "exec 3<>/dev/tpm0; printf '\\200\\001\\000\\000\\000\\014\\000\\000\\001\\173\\000\\010' >&3; \
             head -c 20 <&3 | wc -c; exec 3>&-",
            "20",
        ),
        // The firmware measured what it started.
        (
            "test -s /sys/kernel/security/tpm0/binary_bios_measurements || ls /sys/firmware/acpi/tables/TPM2 >/dev/null && echo known",
            "known",
        ),
    ] {
        assert_eq!(guest.run(line, SOON)?.trim(), expected, "{line}");
    }

    let uid = standalone.uid("one")?;
    let line = format!(
        "for pid in $(pidof swtpm); do if grep -q {uid} /proc/$pid/cgroup /proc/$pid/cmdline /proc/$pid/mountinfo; \
         then echo $pid; fi; done"
    );
    let pid = standalone.shell(&line)?;
    let pid: u32 = pid.trim().parse().unwrap_or_else(|_| panic!("not one swtpm: {pid:?}"));
    let user = standalone.shell(&format!("stat -c %u /proc/{pid}"))?;
    assert_ne!(user.trim(), "0", "it has the launcher's user");
    standalone.shell(&format!("kill -KILL {pid}"))?;
    standalone.kubectl("wait --for=jsonpath='{.status.phase}'=Failed --timeout=60s vmi/one", None)?.ok();
    let vmi = standalone.json("get vmi one")?;
    let status = vmi["status"].to_string();
    assert!(status.contains("the TPM (swtpm) was killed by signal 9"), "{:#}", condition(&vmi, "Ready"));
    Ok(())
}

/// A line for a guest's shell that sends its TPM a command and prints the code of the answer.
pub(crate) fn send(command: &str) -> String {
    let bytes: String = command.split(' ').collect();
    let octal: String = (0..bytes.len() / 2)
        .filter_map(|index| u8::from_str_radix(&bytes[2 * index..2 * index + 2], 16).ok())
        .map(|byte| format!("\\{byte:03o}"))
        .collect();
    format!(
        "exec 3<>/dev/tpm0; printf '{octal}' >&3; dd bs=4096 count=1 <&3 2>/dev/null | od -An -tx1 -j6 -N4; exec 3>&-"
    )
}

/// The next VMI of the name finds what the last one has put into the TPM.
#[test]
fn a_persistent_tpm_outlives_its_vmi_here() -> Result<(), HostError> {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let host = host_with_vireo(scratch.path())?.deadline(BOOT).here()?;
    let standalone = Standalone::start(&host)?;
    let tpm = "      rng: {}\n      tpm: {persistent: true}\n";
    let vmi = manifest(&host, "one").replace("      rng: {}\n", tpm);
    for (round, before) in [(1, ABSENT), (2, SUCCESS)] {
        standalone.kubectl("apply -f -", Some(&vmi))?.ok();
        let mut guest = standalone.console("one")?;
        guest.ready()?;
        assert_eq!(guest.run(&send(READ), SOON)?.trim(), before, "round {round}");
        if round == 1 {
            assert_eq!(guest.run(&send(DEFINE), SOON)?.trim(), SUCCESS);
        }
        standalone.kubectl("delete --grace-period=0 --timeout=60s vmi/one", None)?.ok();
    }
    Ok(())
}
