//! The table itself.

use super::{FieldSupport, Support, SupportSection};

/// Sections of the table: lines of a class, a path and a note.
macro_rules! sections {
    ($($title:literal { $($support:ident $path:literal, $note:literal;)* })*) => {
        /// What becomes of each field of a VMI's spec.
        pub static SUPPORT_TABLE: &[SupportSection] = &[$(SupportSection {
            title: $title,
            fields: &[$(FieldSupport { path: $path, support: Support::$support, note: $note }),*],
        }),*];
    };
}

sections! {
    "Access credentials" {
        Both "accessCredentials[].sshPublicKey.propagationMethod.configDrive", "when the VMI starts";
        Both "accessCredentials[].sshPublicKey.propagationMethod.noCloud", "when the VMI starts";
        Both "accessCredentials[].sshPublicKey.propagationMethod.qemuGuestAgent.users[]", "follows the Secret; needs an agent with `guest-ssh-*`; other keys of the user are kept";
        Both "accessCredentials[].sshPublicKey.source.secret.secretName", "";
        Both "accessCredentials[].userPassword.propagationMethod.qemuGuestAgent", "follows the Secret";
        Both "accessCredentials[].userPassword.source.secret.secretName", "";
    }
    "Devices" {
        Both "domain.devices.autoattachGraphicsDevice", "";
        Qemu "domain.devices.autoattachInputDevice", "a USB tablet; false: no tablet, on both";
        Both "domain.devices.autoattachMemBalloon", "";
        Both "domain.devices.autoattachPodInterface", "";
        Both "domain.devices.autoattachSerialConsole", "an ISA serial port";
        Both "domain.devices.autoattachVSOCK", "needs vhost-vsock on the node";
        Both "domain.devices.blockMultiQueue", "a queue for each vCPU; virtio disks, on `native` at most 32 queues";
        Qemu "domain.devices.clientPassthrough", "four slots for `virtctl usbredir`";
        Both "domain.devices.disableHotplug", "";
        Qemu "domain.devices.downwardMetrics", "the port `org.github.vhostmd.1`";
        Both "domain.devices.inputs[].bus", "`virtio`; `usb`, the default, is on `qemu`";
        Both "domain.devices.inputs[].name", "";
        Both "domain.devices.inputs[].type", "";
        Both "domain.devices.logSerialConsole", "in clusters; on a single host `kubectl logs` shows the console always";
        Both "domain.devices.networkInterfaceMultiqueue", "a queue pair for each vCPU, at most 8; virtio NICs";
        Both "domain.devices.panicDevices[].model", "`isa` and `pvpanic`; `hyperv` on `qemu` alone, with KVM";
        Both "domain.devices.rng", "";
        Qemu "domain.devices.sound.model", "without a backend";
        Qemu "domain.devices.sound.name", "without a backend";
        Qemu "domain.devices.tpm.enabled", "TPM 2.0 of `swtpm`, which the node needs";
        Qemu "domain.devices.tpm.persistent", "as persistent EFI variables";
        Qemu "domain.devices.useVirtioTransitional", "";
        Both "domain.devices.video.type", "`vga`, `bochs` and `virtio`; `cirrus` and `ramfb` are on `qemu`";
        Refused "domain.devices.watchdog.diag288.action", "a watchdog of s390x alone";
        Both "domain.devices.watchdog.i6300esb.action", "";
        Both "domain.devices.watchdog.name", "";
    }
    "Disks" {
        Both "domain.devices.disks[].blockSize.custom.discardGranularity", "on `native` for virtio disks";
        Both "domain.devices.disks[].blockSize.custom.logical", "on `native` for virtio disks";
        Both "domain.devices.disks[].blockSize.custom.physical", "on `native` for virtio disks";
        Both "domain.devices.disks[].blockSize.matchVolume.enabled", "of files, the block size of their file system; on `native` for virtio disks";
        Both "domain.devices.disks[].bootOrder", "";
        Both "domain.devices.disks[].cache", "";
        Both "domain.devices.disks[].cdrom.bus", "`virtio` is refused, `usb` is on `qemu`";
        Both "domain.devices.disks[].cdrom.readonly", "false is refused";
        Both "domain.devices.disks[].cdrom.tray", "`open` is refused";
        Refused "domain.devices.disks[].changedBlockTracking", "there are no backups yet";
        Both "domain.devices.disks[].dedicatedIOThread", "on `native`, each virtio disk has a thread of its own";
        Both "domain.devices.disks[].disk.bus", "`virtio`, `sata` and `scsi`; `usb` and more than 6 drives on `sata` are on `qemu`";
        Qemu "domain.devices.disks[].disk.pciAddress", "slots 01 to 1d of the root bus; of disks on `virtio`";
        Both "domain.devices.disks[].disk.readonly", "refused on `sata`, as by KubeVirt";
        Both "domain.devices.disks[].errorPolicy", "of CD-ROM drives on `native` alone";
        Both "domain.devices.disks[].io", "it changes nothing on `native`";
        Qemu "domain.devices.disks[].lun.bus", "`scsi`; of claims of the mode Block whose devices take SCSI commands";
        Qemu "domain.devices.disks[].lun.readonly", "";
        Refused "domain.devices.disks[].lun.reservation", "SCSI persistent reservations are not passed on yet";
        Both "domain.devices.disks[].name", "";
        Both "domain.devices.disks[].serial", "";
        Both "domain.devices.disks[].shareable", "of claims and host disks; without cache";
        Both "domain.devices.disks[].tag", "in a config drive, with the serial number, and the address that is known; of `virtio` and `usb` with `serial` or `pciAddress` alone, not of hotplugged disks";
    }
    "Filesystems" {
        Both "domain.devices.filesystems[].name", "of `configMap`, `secret`, `serviceAccount` and `downwardAPI`; in clusters of claims, too";
        Both "domain.devices.filesystems[].virtiofs", "by `virtiofsd`, which the node needs";
    }
    "GPUs and host devices" {
        Refused "domain.devices.gpus[].claimName", "devices are not allocated by DRA";
        Qemu "domain.devices.gpus[].deviceName", "in clusters";
        Qemu "domain.devices.gpus[].name", "in clusters";
        Refused "domain.devices.gpus[].requestName", "devices are not allocated by DRA";
        NoEffect "domain.devices.gpus[].tag", "the config drive is made before the guest's firmware gives the device an address";
        Refused "domain.devices.gpus[].virtualGPUOptions.display.enabled", "the display of a virtual GPU is not shown";
        Refused "domain.devices.gpus[].virtualGPUOptions.display.ramFB.enabled", "the display of a virtual GPU is not shown";
        Refused "domain.devices.hostDevices[].claimName", "devices are not allocated by DRA";
        Qemu "domain.devices.hostDevices[].deviceName", "in clusters";
        Qemu "domain.devices.hostDevices[].name", "in clusters";
        Refused "domain.devices.hostDevices[].requestName", "devices are not allocated by DRA";
        NoEffect "domain.devices.hostDevices[].tag", "the config drive is made before the guest's firmware gives the device an address";
    }
    "Interfaces" {
        Qemu "domain.devices.interfaces[].acpiIndex", "";
        Refused "domain.devices.interfaces[].binding.name", "there are no binding plugins";
        Both "domain.devices.interfaces[].bootOrder", "a start through BIOS is on `qemu`";
        Both "domain.devices.interfaces[].bridge", "in clusters";
        Both "domain.devices.interfaces[].dhcpOptions.bootFileName", "DHCPv4";
        Both "domain.devices.interfaces[].dhcpOptions.ntpServers[]", "DHCPv4";
        Both "domain.devices.interfaces[].dhcpOptions.privateOptions[].option", "DHCPv4";
        Both "domain.devices.interfaces[].dhcpOptions.privateOptions[].value", "DHCPv4";
        Both "domain.devices.interfaces[].dhcpOptions.tftpServerName", "DHCPv4";
        Both "domain.devices.interfaces[].macAddress", "";
        Refused "domain.devices.interfaces[].macvtap", "KubeVirt has removed this binding";
        Both "domain.devices.interfaces[].masquerade", "";
        Both "domain.devices.interfaces[].model", "`virtio`; all others are on `qemu`";
        Both "domain.devices.interfaces[].name", "";
        Refused "domain.devices.interfaces[].passt", "KubeVirt has removed this binding";
        Both "domain.devices.interfaces[].passtBinding", "of the pod network, by `passt`, which the node needs";
        Qemu "domain.devices.interfaces[].pciAddress", "slots 01 to 1d of the root bus";
        Both "domain.devices.interfaces[].portRanges[].end", "";
        Both "domain.devices.interfaces[].portRanges[].protocol", "";
        Both "domain.devices.interfaces[].portRanges[].start", "at most 10, without `ports`; of masquerade and passt";
        Both "domain.devices.interfaces[].ports[].name", "";
        Both "domain.devices.interfaces[].ports[].port", "";
        Both "domain.devices.interfaces[].ports[].protocol", "";
        Refused "domain.devices.interfaces[].slirp", "KubeVirt has removed this binding";
        Qemu "domain.devices.interfaces[].sriov", "virtual functions that networks of Multus have, in clusters";
        Both "domain.devices.interfaces[].state", "also of a guest that runs; `absent` is for NICs that were hotplugged, on bridges in clusters";
        Both "domain.devices.interfaces[].tag", "in a config drive, with the MAC address; of `bridge` and `sriov` with `macAddress` alone";
    }
    "Names" {
        Both "dnsConfig.nameservers[]", "IPv6 addresses where the guest has IPv6";
        NoEffect "dnsConfig.options[].name", "DHCP has no resolver options";
        NoEffect "dnsConfig.options[].value", "DHCP has no resolver options";
        Both "dnsConfig.searches[]", "";
        Both "dnsPolicy", "name servers of the node, but for `None`";
        Both "hostname", "";
        Both "subdomain", "in clusters, as the name of the Pod";
    }
    "Machine" {
        Both "domain.chassis.asset", "SMBIOS type 3";
        Both "domain.chassis.manufacturer", "SMBIOS type 3";
        Both "domain.chassis.serial", "SMBIOS type 3";
        Both "domain.chassis.sku", "SMBIOS type 3";
        Both "domain.chassis.version", "SMBIOS type 3";
        Qemu "domain.ioThreads.supplementalPoolThreadCount", "";
        Both "domain.ioThreadsPolicy", "on `native`, each virtio disk has a thread of its own";
        Both "domain.machine.type", "`q35`; of `pc-q35-*` the version has no effect, others are refused";
        Both "domain.rebootPolicy", "";
    }
    "Clock" {
        Qemu "domain.clock.timer.hpet.present", "false is on both";
        NoEffect "domain.clock.timer.hpet.tickPolicy", "an HPET has no choice of what becomes of lost ticks";
        Qemu "domain.clock.timer.hyperv.present", "needs KVM";
        Both "domain.clock.timer.kvm.present", "false is on `qemu`";
        Both "domain.clock.timer.pit.present", "false is on `qemu`";
        Qemu "domain.clock.timer.pit.tickPolicy", "`discard`, with KVM; `delay` is on both, others are refused";
        Both "domain.clock.timer.rtc.present", "false is refused";
        Qemu "domain.clock.timer.rtc.tickPolicy", "`catchup`; `delay` is on both, others are refused";
        Qemu "domain.clock.timer.rtc.track", "`guest`; `wall` is on both";
        Both "domain.clock.timezone", "the offset of the time zone when the VM starts";
        Both "domain.clock.utc.offsetSeconds", "at most ten years";
    }
    "CPU" {
        Both "domain.cpu.cores", "at most 254 vCPUs";
        Both "domain.cpu.dedicatedCpuPlacement", "in clusters, of nodes with the static CPU manager";
        Qemu "domain.cpu.features[].name", "a name of QEMU or libvirt";
        Qemu "domain.cpu.features[].policy", "`require` and `forbid` select the node; with `force`, as with `optional`, QEMU leaves out what the node lacks";
        Both "domain.cpu.isolateEmulatorThread", "one more CPU";
        NoEffect "domain.cpu.maxSockets", "vCPUs are not hotplugged yet";
        Both "domain.cpu.model", "`host-model` is `host-passthrough`; named models are QEMU's, on `qemu`";
        Both "domain.cpu.numa.guestMappingPassthrough", "with dedicated CPUs and huge pages; on `native` where the host has at most 32 nodes";
        Both "domain.cpu.realtime.mask", "on nodes with the label `kubevirt.io/realtime`";
        Both "domain.cpu.sockets", "at most 254 vCPUs";
        Both "domain.cpu.threads", "at most 254 vCPUs";
    }
    "Features" {
        Both "domain.features.acpi.enabled", "false is on `qemu`";
        Both "domain.features.apic.enabled", "false is refused";
        Both "domain.features.apic.endOfInterrupt", "false is on `qemu`";
        Qemu "domain.features.hyperv.evmcs.enabled", "needs KVM and nested virtualization of Intel; with vapic and the CPU feature vmx, which it requires";
        Qemu "domain.features.hyperv.frequencies.enabled", "needs KVM";
        Qemu "domain.features.hyperv.ipi.enabled", "needs KVM; with vpindex, which it requires";
        Qemu "domain.features.hyperv.reenlightenment.enabled", "needs KVM";
        Qemu "domain.features.hyperv.relaxed.enabled", "needs KVM";
        Qemu "domain.features.hyperv.reset.enabled", "needs KVM";
        Qemu "domain.features.hyperv.runtime.enabled", "needs KVM";
        Qemu "domain.features.hyperv.spinlocks.enabled", "needs KVM";
        Qemu "domain.features.hyperv.spinlocks.spinlocks", "needs KVM";
        Qemu "domain.features.hyperv.synic.enabled", "needs KVM; with vpindex, which it requires";
        Qemu "domain.features.hyperv.synictimer.direct.enabled", "needs KVM";
        Qemu "domain.features.hyperv.synictimer.enabled", "needs KVM; with vpindex, synic and the reference clock, which it requires";
        Qemu "domain.features.hyperv.tlbflush.direct.enabled", "needs KVM; with vapic, which it requires";
        Qemu "domain.features.hyperv.tlbflush.enabled", "needs KVM; with vpindex, which it requires";
        Qemu "domain.features.hyperv.tlbflush.extended.enabled", "needs KVM";
        Qemu "domain.features.hyperv.vapic.enabled", "needs KVM";
        Qemu "domain.features.hyperv.vendorid.enabled", "needs KVM";
        Qemu "domain.features.hyperv.vendorid.vendorid", "needs KVM";
        Qemu "domain.features.hyperv.vpindex.enabled", "needs KVM";
        Qemu "domain.features.hypervPassthrough.enabled", "needs KVM";
        Qemu "domain.features.kvm.hidden", "";
        Both "domain.features.pvspinlock.enabled", "false is on `qemu`";
        Qemu "domain.features.smm.enabled", "false is on both";
    }
    "Firmware" {
        Both "domain.firmware.acpi.msdmNameRef", "at most 16 KiB";
        Both "domain.firmware.acpi.slicNameRef", "at most 16 KiB";
        Both "domain.firmware.bootloader.bios.useSerial", "";
        Both "domain.firmware.bootloader.efi.persistent", "";
        Qemu "domain.firmware.bootloader.efi.secureBoot", "false is on both";
        Both "domain.firmware.kernelBoot.container.image", "of registries; `oci:` and `oci-archive:` on a single host";
        Both "domain.firmware.kernelBoot.container.imagePullPolicy", "for images of registries";
        Both "domain.firmware.kernelBoot.container.imagePullSecret", "for images of registries";
        Both "domain.firmware.kernelBoot.container.initrdPath", "";
        Both "domain.firmware.kernelBoot.container.kernelPath", "required";
        Both "domain.firmware.kernelBoot.kernelArgs", "";
        Both "domain.firmware.serial", "";
        Both "domain.firmware.uuid", "";
    }
    "Launch security" {
        Refused "domain.launchSecurity.sev.attestation", "guests are not started with AMD SEV yet, whatever the node offers";
        Refused "domain.launchSecurity.sev.dhCert", "guests are not started with AMD SEV yet, whatever the node offers";
        Refused "domain.launchSecurity.sev.policy.encryptedState", "guests are not started with AMD SEV yet, whatever the node offers";
        Refused "domain.launchSecurity.sev.session", "guests are not started with AMD SEV yet, whatever the node offers";
        Refused "domain.launchSecurity.snp", "guests are not started with AMD SEV-SNP yet, whatever the node offers";
        Refused "domain.launchSecurity.tdx", "guests are not started with Intel TDX yet, whatever the node offers";
    }
    "Memory" {
        Both "domain.memory.guest", "";
        Both "domain.memory.hugepages.pageSize", "`2Mi` or `1Gi`, which the host has reserved";
        NoEffect "domain.memory.maxGuest", "memory is not hotplugged yet";
        Both "domain.memory.reservedOverhead.addedOverhead", "requested for the launcher Pod";
        Both "domain.memory.reservedOverhead.memLock", "the limit of the launcher's locked memory";
    }
    "Resources" {
        Both "domain.resources.limits{}", "in clusters those of [the launcher Pod](cluster.md#the-launcher-pod), of any resource; on a single host those of CPU and memory, and that of memory is for what the hypervisor takes, too";
        Both "domain.resources.overcommitGuestOverhead", "";
        Both "domain.resources.requests{}", "";
    }
    "Life cycle" {
        Both "evictionStrategy", "`LiveMigrate` keeps a VMI on its node";
        Both "startStrategy", "";
        Both "terminationGracePeriodSeconds", "";
    }
    "Networks" {
        Both "networks[].multus.default", "in clusters";
        Both "networks[].multus.networkName", "in clusters";
        Both "networks[].name", "";
        Both "networks[].pod.vmIPv6NetworkCIDR", "";
        Both "networks[].pod.vmNetworkCIDR", "";
        Refused "networks[].resourceClaim.claimName", "devices are not allocated by DRA";
        Refused "networks[].resourceClaim.requestName", "devices are not allocated by DRA";
    }
    "Probes" {
        Both "livenessProbe.exec.command[]", "";
        Both "livenessProbe.failureThreshold", "";
        Both "livenessProbe.guestAgentPing", "";
        Both "livenessProbe.httpGet.host", "an IP address, or a name";
        Both "livenessProbe.httpGet.httpHeaders[].name", "";
        Both "livenessProbe.httpGet.httpHeaders[].value", "";
        Both "livenessProbe.httpGet.path", "";
        Both "livenessProbe.httpGet.port", "";
        Both "livenessProbe.httpGet.scheme", "";
        Both "livenessProbe.initialDelaySeconds", "";
        Both "livenessProbe.periodSeconds", "";
        Both "livenessProbe.successThreshold", "";
        Both "livenessProbe.tcpSocket.host", "an IP address, or a name";
        Both "livenessProbe.tcpSocket.port", "";
        Both "livenessProbe.timeoutSeconds", "";
        Both "readinessProbe.exec.command[]", "";
        Both "readinessProbe.failureThreshold", "";
        Both "readinessProbe.guestAgentPing", "";
        Both "readinessProbe.httpGet.host", "an IP address, or a name";
        Both "readinessProbe.httpGet.httpHeaders[].name", "";
        Both "readinessProbe.httpGet.httpHeaders[].value", "";
        Both "readinessProbe.httpGet.path", "";
        Both "readinessProbe.httpGet.port", "";
        Both "readinessProbe.httpGet.scheme", "";
        Both "readinessProbe.initialDelaySeconds", "";
        Both "readinessProbe.periodSeconds", "";
        Both "readinessProbe.successThreshold", "";
        Both "readinessProbe.tcpSocket.host", "an IP address, or a name";
        Both "readinessProbe.tcpSocket.port", "";
        Both "readinessProbe.timeoutSeconds", "";
    }
    "Resource claims" {
        Refused "resourceClaims[].name", "devices are not allocated by DRA";
        Refused "resourceClaims[].resourceClaimName", "devices are not allocated by DRA";
        Refused "resourceClaims[].resourceClaimTemplateName", "devices are not allocated by DRA";
    }
    "Scheduling" {
        Both "affinity", "affinity to Pods and preferences have their effect in clusters";
        Both "architecture", "`amd64`";
        Both "nodeSelector{}", "";
        Both "priorityClassName", "in clusters";
        Both "schedulerName", "in clusters";
        Both "serviceAccountName", "in clusters";
        Both "tolerations[]", "`tolerationSeconds` has its effect in clusters";
        Both "topologySpreadConstraints[]", "in clusters";
    }
    "Utility volumes" {
        Refused "utilityVolumes[].claimName", "memory is dumped to `memoryDump` volumes; there are no backups yet";
        Refused "utilityVolumes[].name", "memory is dumped to `memoryDump` volumes; there are no backups yet";
        Refused "utilityVolumes[].readOnly", "memory is dumped to `memoryDump` volumes; there are no backups yet";
        Refused "utilityVolumes[].type", "memory is dumped to `memoryDump` volumes; there are no backups yet";
    }
    "Volumes" {
        Both "volumes[].cloudInitConfigDrive.networkData", "at most 2048 bytes";
        Both "volumes[].cloudInitConfigDrive.networkDataBase64", "at most 2048 bytes";
        Both "volumes[].cloudInitConfigDrive.networkDataSecretRef.name", "";
        Both "volumes[].cloudInitConfigDrive.secretRef.name", "";
        Both "volumes[].cloudInitConfigDrive.userData", "at most 2048 bytes";
        Both "volumes[].cloudInitConfigDrive.userDataBase64", "at most 2048 bytes";
        Both "volumes[].cloudInitNoCloud.networkData", "at most 2048 bytes";
        Both "volumes[].cloudInitNoCloud.networkDataBase64", "at most 2048 bytes";
        Both "volumes[].cloudInitNoCloud.networkDataSecretRef.name", "";
        Both "volumes[].cloudInitNoCloud.secretRef.name", "";
        Both "volumes[].cloudInitNoCloud.userData", "at most 2048 bytes";
        Both "volumes[].cloudInitNoCloud.userDataBase64", "at most 2048 bytes";
        Both "volumes[].configMap.name", "";
        Both "volumes[].configMap.optional", "";
        Both "volumes[].configMap.volumeLabel", "";
        Both "volumes[].containerDisk.image", "of registries; `oci:` and `oci-archive:` on a single host";
        Both "volumes[].containerDisk.imagePullPolicy", "for images of registries";
        Both "volumes[].containerDisk.imagePullSecret", "for images of registries";
        Both "volumes[].containerDisk.path", "";
        Both "volumes[].containerPath.path", "in clusters; of file systems";
        Both "volumes[].containerPath.readOnly", "false is refused, as by KubeVirt";
        Both "volumes[].dataVolume.hotpluggable", "8 at most on `native`, media of CD-ROM drives apart";
        Both "volumes[].dataVolume.name", "its claim";
        Both "volumes[].downwardAPI.fields[].fieldRef.apiVersion", "";
        Both "volumes[].downwardAPI.fields[].fieldRef.fieldPath", "";
        NoEffect "volumes[].downwardAPI.fields[].mode", "files have no permission bits";
        Both "volumes[].downwardAPI.fields[].path", "";
        Both "volumes[].downwardAPI.fields[].resourceFieldRef.containerName", "in clusters";
        Both "volumes[].downwardAPI.fields[].resourceFieldRef.divisor", "in clusters";
        Both "volumes[].downwardAPI.fields[].resourceFieldRef.resource", "in clusters";
        Both "volumes[].downwardAPI.volumeLabel", "";
        Both "volumes[].downwardMetrics", "a disk that is read-only; needs another bus than sata";
        Both "volumes[].emptyDisk.capacity", "";
        Both "volumes[].ephemeral.persistentVolumeClaim.claimName", "of the StorageClass `local` on a single host";
        Both "volumes[].ephemeral.persistentVolumeClaim.readOnly", "no VM writes to the claim; in clusters, its volume is read-only in the Pod, too";
        Both "volumes[].hostDisk.capacity", "below a directory that `--host-disks` names; not in clusters";
        Both "volumes[].hostDisk.path", "below a directory that `--host-disks` names; not in clusters";
        NoEffect "volumes[].hostDisk.shared", "VMs do not migrate; `shareable` of the disk is for several VMs";
        Both "volumes[].hostDisk.type", "below a directory that `--host-disks` names; not in clusters";
        Both "volumes[].memoryDump.claimName", "by `virtctl memory-dump`; of the StorageClass `local` on a single host";
        Both "volumes[].memoryDump.hotpluggable", "always so";
        Refused "volumes[].memoryDump.readOnly", "the memory is written to the claim";
        Both "volumes[].name", "";
        Both "volumes[].persistentVolumeClaim.claimName", "of the StorageClass `local` on a single host";
        Both "volumes[].persistentVolumeClaim.hotpluggable", "8 at most on `native`, media of CD-ROM drives apart";
        Both "volumes[].persistentVolumeClaim.readOnly", "of the StorageClass `local` on a single host";
        Both "volumes[].secret.optional", "";
        Both "volumes[].secret.secretName", "";
        Both "volumes[].secret.volumeLabel", "";
        Both "volumes[].serviceAccount.serviceAccountName", "";
        Both "volumes[].sysprep.configMap.name", "";
        Both "volumes[].sysprep.secret.name", "";
    }
}
