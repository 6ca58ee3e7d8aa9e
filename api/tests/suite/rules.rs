//! Every rule refuses what it is for, by the field KubeVirt names, and nothing beside it.

use serde_json::{Value, json};
use vireo_api::spec::Cause::{
    self, Duplicate, Forbidden, Invalid, NotFound, NotSupported, Required, TooMany,
};
use vireo_api::spec::{Report, Vm};

use super::manifest::{changed, with_devices, with_domain, with_spec};

type Row = (Value, &'static str, Cause);

/// Each change alone leads to exactly one problem, at that field below `below`.
pub(super) fn each_is_refused(with: fn(Value) -> Result<Vm, Report>, below: &str, rows: Vec<Row>) {
    for (change, field, cause) in rows {
        let report = with(change.clone()).expect_err(&change.to_string());
        let reported: Vec<_> =
            report.problems().iter().map(|problem| (problem.field().to_string(), problem.cause())).collect();
        assert_eq!(reported, [(format!("{below}{field}"), cause)], "{change}\n{report}");
    }
}

#[test]
fn identity() {
    each_is_refused(
        |change| changed(change).check_request(),
        "",
        vec![
            (json!({"kind": "VirtualMachine"}), "kind", NotSupported),
            (json!({"apiVersion": "v1"}), "apiVersion", NotSupported),
            (json!({"metadata": {"name": null}}), "metadata.name", Required),
            (json!({"metadata": {"name": "Web_1"}}), "metadata.name", Invalid),
            (json!({"metadata": {"name": "x".repeat(254)}}), "metadata.name", Invalid),
            (json!({"metadata": {"namespace": "a.b"}}), "metadata.namespace", Invalid),
            (json!({"metadata": {"uid": null}}), "metadata.uid", Required),
            (json!({"metadata": {"uid": "../../etc"}}), "metadata.uid", Invalid),
            (
                json!({"metadata": {"annotations": {"vireo.io/hypervisor": "xen"}}}),
                "metadata.annotations[vireo.io/hypervisor]",
                Invalid,
            ),
            (
                json!({"metadata": {"annotations": {"hooks.kubevirt.io/hookSidecars": "[]"}}}),
                "metadata.annotations[hooks.kubevirt.io/hookSidecars]",
                NotSupported,
            ),
            (json!({"spec": {"hostname": "Web"}}), "spec.hostname", Invalid),
            (json!({"spec": {"hostname": "x".repeat(64)}}), "spec.hostname", Invalid),
        ],
    );
}

#[test]
fn only_a_request_is_refused_for_unknown_cpus() {
    let cpu = json!({"model": "haswel", "features": [{"name": "tscdeadline"}, {"name": "warp", "policy": "force"}]});
    let vmi = changed(json!({"spec": {"domain": {"cpu": cpu}}}));
    let report = vmi.check_request().unwrap_err();
    let messages: Vec<_> = report.problems().iter().map(ToString::to_string).collect();
    let expected = [
        "spec.domain.cpu.model: Invalid value: \"haswel\": must be host-model, host-passthrough or a CPU model of QEMU: \
         did you mean Haswell?",
        "spec.domain.cpu.features[0].name: Invalid value: \"tscdeadline\": must be a CPU feature of QEMU: did you mean \
         tsc-deadline?",
        "spec.domain.cpu.features[1].name: Invalid value: \"warp\": must be a CPU feature of QEMU",
    ];
    assert_eq!(messages, expected);
    assert!(vmi.check().is_ok(), "one that is stored is read");
    let known = json!({"model": "EPYC-Milan-v2", "features": [{"name": "tsc_deadline"},
        {"name": "kvm_pv_unhalt", "policy": "disable"}, {"name": "vmx-ept", "policy": "optional"}]});
    assert!(with_domain(json!({"cpu": known})).is_ok());
}

#[test]
fn top_level() {
    each_is_refused(
        with_spec,
        "spec.",
        vec![
            (json!({"subdomain": "a..b"}), "subdomain", Invalid),
            (json!({"dnsPolicy": "Mine"}), "dnsPolicy", NotSupported),
            (json!({"dnsPolicy": "None"}), "dnsConfig.nameservers", Required),
            (json!({"dnsConfig": {"nameservers": ["1.1.1.1", "1.1"]}}), "dnsConfig.nameservers[1]", Invalid),
            (
                json!({"dnsConfig": {"nameservers": ["::1", "::2", "::3", "::4"]}}),
                "dnsConfig.nameservers",
                Invalid,
            ),
            (json!({"dnsConfig": {"searches": ["a b"]}}), "dnsConfig.searches[0]", Invalid),
            (
                json!({"dnsConfig": {"searches": ["a", "a", "a", "a", "a", "a", "a"]}}),
                "dnsConfig.searches",
                Invalid,
            ),
            (json!({"dnsConfig": {"options": [{}]}}), "dnsConfig.options[0].name", Required),
            (json!({"architecture": "arm64"}), "architecture", NotSupported),
            (json!({"architecture": "vax"}), "architecture", Invalid),
            (json!({"evictionStrategy": "Never"}), "evictionStrategy", NotSupported),
            (json!({"evictionStrategy": ""}), "evictionStrategy", NotSupported),
            (json!({"startStrategy": "Later"}), "startStrategy", NotSupported),
            (json!({"startStrategy": ""}), "startStrategy", NotSupported),
            (json!({"serviceAccountName": "My_Account"}), "serviceAccountName", Invalid),
            (json!({"terminationGracePeriodSeconds": -1}), "terminationGracePeriodSeconds", Invalid),
            (json!({"utilityVolumes": [{"name": "x"}]}), "utilityVolumes", NotSupported),
            (json!({"resourceClaims": [{"name": "x"}]}), "resourceClaims", NotSupported),
            (json!({"hostName": "typo"}), "hostName", NotSupported),
        ],
    );
}

#[test]
fn memory_and_vcpus() {
    each_is_refused(
        with_domain,
        "spec.domain.",
        vec![
            (json!({"memory": null}), "memory.guest", Required),
            (json!({"memory": {"guest": "0"}}), "memory.guest", Invalid),
            (json!({"memory": {"guest": "-1Gi"}}), "memory.guest", Invalid),
            (json!({"memory": {"guest": "much"}}), "memory.guest", Invalid),
            (json!({"memory": {"maxGuest": "1Mi"}}), "memory.guest", Invalid),
            (json!({"memory": {"hugepages": {"pageSize": "much"}}}), "memory.hugepages.pageSize", Invalid),
            (
                json!({"memory": {"hugepages": {"pageSize": "4Mi"}}}),
                "memory.hugepages.pageSize",
                NotSupported,
            ),
            (json!({"memory": {"hugepages": {"pageSize": "1Gi"}}}), "memory.hugepages.pageSize", Invalid),
            (
                json!({"memory": {"guest": "257Mi", "hugepages": {"pageSize": "2Mi"}}}),
                "memory.hugepages.pageSize",
                Invalid,
            ),
            (
                json!({"memory": {"reservedOverhead": {"addedOverhead": "much"}}}),
                "memory.reservedOverhead.addedOverhead",
                Invalid,
            ),
            (
                json!({"memory": {"reservedOverhead": {"memLock": "Always"}}}),
                "memory.reservedOverhead.memLock",
                NotSupported,
            ),
            (json!({"resources": {"requests": {"memory": "999k"}}}), "resources.requests.memory", Invalid),
            (
                json!({"memory": null, "resources": {"limits": {"memory": "0"}}}),
                "resources.limits.memory",
                Invalid,
            ),
            (
                json!({"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}),
                "resources.requests.memory",
                Invalid,
            ),
            (json!({"resources": {"requests": {"cpu": "-1"}}}), "resources.requests.cpu", Invalid),
            (
                json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
                "resources.requests.cpu",
                Invalid,
            ),
            (json!({"resources": {"limits": {"storage": "much"}}}), "resources.limits.storage", Invalid),
            (json!({"cpu": {"sockets": 255}}), "cpu", Invalid),
            (json!({"cpu": {"sockets": 4_294_967_295u32, "cores": 4_294_967_295u32}}), "cpu", Invalid),
            (json!({"cpu": {"sockets": 4, "maxSockets": 2}}), "cpu.sockets", Invalid),
            (json!({"cpu": {"model": "x,y"}}), "cpu.model", Invalid),
            (json!({"cpu": {"model": "Haswel"}}), "cpu.model", Invalid),
            (json!({"cpu": {"model": "host"}}), "cpu.model", Invalid),
            (json!({"cpu": {"features": [{"name": "a b"}]}}), "cpu.features[0].name", Invalid),
            (json!({"cpu": {"features": [{"name": "avx3"}]}}), "cpu.features[0].name", Invalid),
            (
                json!({"cpu": {"features": [{"name": "vmx-ept", "policy": "require"}]}}),
                "cpu.features[0].policy",
                Invalid,
            ),
            (
                json!({"cpu": {"features": [{"name": "avx"}, {"name": "avx"}]}}),
                "cpu.features[1].name",
                Duplicate,
            ),
            (
                json!({"cpu": {"features": [{"name": "avx", "policy": "please"}]}}),
                "cpu.features[0].policy",
                NotSupported,
            ),
            (json!({"cpu": {"isolateEmulatorThread": true}}), "cpu.isolateEmulatorThread", Invalid),
            (
                json!({"cpu": {"cores": 2, "dedicatedCpuPlacement": true}, "resources": {"limits": {"cpu": 3}, "requests": {"cpu": 2}}}),
                "resources.limits.cpu",
                Invalid,
            ),
            (
                json!({"cpu": {"cores": 2, "dedicatedCpuPlacement": true}, "resources": {"limits": {"cpu": 2}, "requests": {"cpu": "1500m"}}}),
                "resources.requests.cpu",
                Invalid,
            ),
            (
                json!({"cpu": {"dedicatedCpuPlacement": true, "numa": {"guestMappingPassthrough": {}}}}),
                "cpu.numa.guestMappingPassthrough",
                Invalid,
            ),
            (
                json!({"cpu": {"numa": {"guestMappingPassthrough": {}}}, "memory": {"hugepages": {"pageSize": "2Mi"}}}),
                "cpu.numa.guestMappingPassthrough",
                Invalid,
            ),
            (
                json!({"cpu": {"dedicatedCpuPlacement": true, "realtime": {}}}),
                "cpu.numa.guestMappingPassthrough",
                Required,
            ),
            (
                json!({"cpu": {"dedicatedCpuPlacement": true, "numa": {"guestMappingPassthrough": {}}, "realtime": {"mask": "^"}},
                    "memory": {"hugepages": {"pageSize": "2Mi"}}}),
                "cpu.realtime.mask",
                Invalid,
            ),
        ],
    );
}

#[test]
fn real_time_needs_cpus_and_memory_of_its_own() {
    let fields = |cpu: Value| {
        let report = with_domain(json!({ "cpu": cpu })).unwrap_err();
        let problems = report.problems().iter().map(|problem| (problem.field().to_string(), problem.cause()));
        problems.collect::<Vec<_>>()
    };
    let [dedicated, nodes] = ["dedicatedCpuPlacement", "numa.guestMappingPassthrough"]
        .map(|field| format!("spec.domain.cpu.{field}"));
    assert_eq!(fields(json!({"realtime": {}})), [(dedicated.clone(), Required), (nodes.clone(), Required)]);
    assert_eq!(
        fields(json!({"realtime": {}, "numa": {"guestMappingPassthrough": {}}})),
        [(nodes.clone(), Invalid), (nodes, Invalid), (dedicated, Required)]
    );
}

#[test]
fn firmware() {
    let kernel = |container: Value| json!({"firmware": {"kernelBoot": {"container": container}}});
    each_is_refused(
        with_domain,
        "spec.domain.firmware.",
        vec![
            (json!({"firmware": {"uuid": "seven"}}), "uuid", Invalid),
            (json!({"firmware": {"serial": "a\nb"}}), "serial", Invalid),
            (json!({"firmware": {"acpi": {"slicNameRef": "x"}}}), "acpi.slicNameRef", Invalid),
            (json!({"firmware": {"acpi": {"msdmNameRef": "root"}}}), "acpi.msdmNameRef", Invalid),
            (json!({"firmware": {"acpi": {}}}), "acpi", Required),
            (json!({"firmware": {"bootloader": {"bios": {}, "efi": {}}}}), "bootloader", Invalid),
            (json!({"firmware": {"bootloader": {"efi": {}}}}), "bootloader.efi.secureBoot", Invalid),
            (json!({"firmware": {"kernelBoot": {"kernelArgs": "quiet"}}}), "kernelBoot.container", Required),
            (kernel(json!({"kernelPath": "/k"})), "kernelBoot.container.image", Required),
            (kernel(json!({"image": "oci:/i"})), "kernelBoot.container.kernelPath", Required),
            (
                kernel(json!({"image": "oci:/i", "kernelPath": "k"})),
                "kernelBoot.container.kernelPath",
                Invalid,
            ),
            (
                kernel(json!({"image": "oci:/i", "kernelPath": "/"})),
                "kernelBoot.container.kernelPath",
                Invalid,
            ),
            (
                kernel(json!({"image": "oci:/i", "kernelPath": "/k", "initrdPath": "/../i"})),
                "kernelBoot.container.initrdPath",
                Invalid,
            ),
            (
                kernel(json!({"image": "docker-archive:/k", "kernelPath": "/k"})),
                "kernelBoot.container.image",
                NotSupported,
            ),
            (
                kernel(json!({"image": "oci:/i", "kernelPath": "/k", "imagePullPolicy": "Sometimes"})),
                "kernelBoot.container.imagePullPolicy",
                NotSupported,
            ),
        ],
    );
}

#[test]
fn platform() {
    each_is_refused(
        with_domain,
        "spec.domain.",
        vec![
            (json!({"machine": {"type": "pc"}}), "machine.type", NotSupported),
            (json!({"rebootPolicy": "Never"}), "rebootPolicy", NotSupported),
            (json!({"rebootPolicy": ""}), "rebootPolicy", NotSupported),
            (json!({"ioThreadsPolicy": "many"}), "ioThreadsPolicy", NotSupported),
            (json!({"ioThreadsPolicy": ""}), "ioThreadsPolicy", NotSupported),
            (
                json!({"ioThreadsPolicy": "supplementalPool"}),
                "ioThreads.supplementalPoolThreadCount",
                Required,
            ),
            (
                json!({"ioThreadsPolicy": "supplementalPool", "ioThreads": {"supplementalPoolThreadCount": 0}}),
                "ioThreads.supplementalPoolThreadCount",
                Required,
            ),
            (json!({"launchSecurity": {"sev": {}}}), "launchSecurity.sev", NotSupported),
            (json!({"launchSecurity": {}}), "launchSecurity", NotSupported),
            (json!({"chassis": {"sku": "a\nb"}}), "chassis.sku", Invalid),
            (json!({"features": {"apic": {"enabled": false}}}), "features.apic.enabled", NotSupported),
            (json!({"features": {"hypervPassthrough": {}, "hyperv": {}}}), "features.hyperv", Invalid),
            (
                json!({"features": {"hyperv": {"spinlocks": {"spinlocks": 4095}}}}),
                "features.hyperv.spinlocks.spinlocks",
                Invalid,
            ),
            (
                json!({"features": {"hyperv": {"vendorid": {"vendorid": "a,b=c"}}}}),
                "features.hyperv.vendorid.vendorid",
                Invalid,
            ),
            (
                json!({"features": {"hyperv": {"synic": {}, "vpindex": {"enabled": false}}}}),
                "features.hyperv.vpindex",
                Invalid,
            ),
            (
                json!({"features": {"hyperv": {"synictimer": {}}},
                    "clock": {"timer": {"hyperv": {"present": false}}}}),
                "clock.timer.hyperv",
                Invalid,
            ),
            (
                json!({"features": {"hyperv": {"evmcs": {}}},
                    "cpu": {"features": [{"name": "vmx", "policy": "optional"}]}}),
                "cpu.features[0].policy",
                Invalid,
            ),
            (json!({"clock": {"timezone": "Europe/Atlantis"}}), "clock.timezone", Invalid),
            (json!({"clock": {"timezone": "UTC", "utc": {}}}), "clock", Invalid),
            (json!({"clock": {"utc": {"offsetSeconds": 316_224_001}}}), "clock.utc.offsetSeconds", Invalid),
            (
                json!({"clock": {"timer": {"pit": {"tickPolicy": "merge"}}}}),
                "clock.timer.pit.tickPolicy",
                NotSupported,
            ),
            (
                json!({"clock": {"timer": {"rtc": {"tickPolicy": "merge"}}}}),
                "clock.timer.rtc.tickPolicy",
                NotSupported,
            ),
            (json!({"clock": {"timer": {"rtc": {"track": "sun"}}}}), "clock.timer.rtc.track", NotSupported),
            (
                json!({"clock": {"timer": {"hpet": {"tickPolicy": "x"}}}}),
                "clock.timer.hpet.tickPolicy",
                NotSupported,
            ),
            (
                json!({"ioThreadsPolicy": "supplementalPool", "ioThreads": {"supplementalPoolThreadCount": 513}}),
                "ioThreads.supplementalPoolThreadCount",
                Invalid,
            ),
        ],
    );
}

#[test]
fn disks() {
    let disk = |properties: Value| {
        let mut disk = json!({"name": "root"});
        super::manifest::merge(&mut disk, properties);
        json!({"disks": [disk, {"name": "seed", "disk": {"bus": "virtio"}}]})
    };
    each_is_refused(
        with_devices,
        "spec.domain.devices.disks",
        vec![
            (json!({"disks": ["+", {"name": "more"}]}), "[2].name", NotFound),
            (json!({"disks": ["+", {"name": "root"}]}), "[2].name", Duplicate),
            (json!({"disks": ["+", {}]}), "[2].name", Required),
            (json!({"disks": ["+", {"name": "a_b"}]}), "[2].name", Invalid),
            (disk(json!({"bootOrder": 0})), "[0].bootOrder", Invalid),
            (disk(json!({"disk": {}, "cdrom": {}})), "[0]", Invalid),
            (disk(json!({"disk": {"bus": "ide"}})), "[0].disk.bus", NotSupported),
            (disk(json!({"disk": {"readonly": true}})), "[0].disk.bus", Invalid),
            (disk(json!({"disk": {"pciAddress": "0000:00:05.0"}})), "[0].disk.pciAddress", Invalid),
            (
                disk(json!({"disk": {"bus": "virtio", "pciAddress": "0000:81:05.0"}})),
                "[0].disk.pciAddress",
                Invalid,
            ),
            (
                json!({"disks": [
                    {"name": "root", "disk": {"bus": "virtio", "pciAddress": "0000:00:05.0"}},
                    {"name": "seed", "disk": {"bus": "virtio", "pciAddress": "0000:00:05.0"}}]}),
                "[1].disk.pciAddress",
                Duplicate,
            ),
            (disk(json!({"cdrom": {"bus": "virtio"}})), "[0].cdrom.bus", Invalid),
            (disk(json!({"cdrom": {"readonly": false}})), "[0].cdrom.readonly", NotSupported),
            (disk(json!({"cdrom": {"tray": "open"}})), "[0].cdrom.tray", NotSupported),
            (disk(json!({"cdrom": {"tray": "ajar"}})), "[0].cdrom.tray", Invalid),
            (disk(json!({"serial": "a b"})), "[0].serial", Invalid),
            (disk(json!({"serial": "x".repeat(257)})), "[0].serial", Invalid),
            (disk(json!({"disk": {"bus": "virtio"}, "serial": "x".repeat(21)})), "[0].serial", Invalid),
            (disk(json!({"cache": "some"})), "[0].cache", Invalid),
            (disk(json!({"io": "fast"})), "[0].io", Invalid),
            (disk(json!({"io": "native", "cache": "writeback"})), "[0].io", Invalid),
            (disk(json!({"io": "native", "cache": "writethrough"})), "[0].io", Invalid),
            (disk(json!({"errorPolicy": "panic"})), "[0].errorPolicy", NotSupported),
            (disk(json!({"errorPolicy": ""})), "[0].errorPolicy", NotSupported),
            (disk(json!({"dedicatedIOThread": true})), "[0]", NotSupported),
            (
                disk(json!({"blockSize": {"matchVolume": {}, "custom": {"logical": 512, "physical": 512}}})),
                "[0].blockSize",
                Invalid,
            ),
            (
                disk(json!({"blockSize": {"custom": {"logical": 512}}})),
                "[0].blockSize.custom.physical",
                Required,
            ),
            (
                disk(json!({"blockSize": {"custom": {"logical": 512, "physical": 1000}}})),
                "[0].blockSize.custom.physical",
                Invalid,
            ),
            (
                disk(
                    json!({"disk": {"bus": "scsi"}, "blockSize": {"custom": {"logical": 4096, "physical": 512}}}),
                ),
                "[0].blockSize.custom.logical",
                Invalid,
            ),
            (
                disk(json!({"blockSize": {"custom": {"logical": 4096, "physical": 4096}}})),
                "[0].blockSize.custom.logical",
                Invalid,
            ),
            (
                disk(
                    json!({"blockSize": {"custom": {"logical": 512, "physical": 512, "discardGranularity": 7}}}),
                ),
                "[0].blockSize.custom.discardGranularity",
                Invalid,
            ),
            (disk(json!({"shareable": true})), "[0].shareable", Invalid),
            (disk(json!({"changedBlockTracking": true})), "[0].changedBlockTracking", NotSupported),
        ],
    );
}

#[test]
fn boot_orders_are_shared_by_disks_and_interfaces() {
    let report = with_devices(json!({
        "disks": [{"name": "root", "bootOrder": 1}, {"name": "seed", "bootOrder": 1}],
        "interfaces": [{"name": "default", "masquerade": {}, "bootOrder": 1}],
    }))
    .unwrap_err();
    let reported: Vec<_> = report.problems().iter().map(|p| (p.field().as_str(), p.cause())).collect();
    assert_eq!(
        reported,
        [
            ("spec.domain.devices.disks[1].bootOrder", Duplicate),
            ("spec.domain.devices.interfaces[0].bootOrder", Duplicate),
        ]
    );
}

#[test]
fn networks() {
    let pod = |pod: Value| json!({"networks": [{"name": "default", "pod": pod}]});
    let multus = |multus: Value| json!({"networks": [{"name": "default", "multus": multus}]});
    let bridged = |source: Value| {
        let mut spec = multus(source);
        spec["domain"] = json!({"devices": {"interfaces": [{"name": "default", "bridge": {}}]}});
        spec
    };
    each_is_refused(
        with_spec,
        "spec.",
        vec![
            (json!({"networks": null}), "domain.devices.interfaces[0].name", NotFound),
            (pod(json!({"vmNetworkCIDR": "10.0.2.0"})), "networks[0].pod.vmNetworkCIDR", Invalid),
            (pod(json!({"vmNetworkCIDR": "10.0.2.0/31"})), "networks[0].pod.vmNetworkCIDR", Invalid),
            (pod(json!({"vmIPv6NetworkCIDR": "fd10::/127"})), "networks[0].pod.vmIPv6NetworkCIDR", Invalid),
            (pod(json!({"vmIPv6NetworkCIDR": "10.0.2.0/24"})), "networks[0].pod.vmIPv6NetworkCIDR", Invalid),
            (json!({"networks": [{"name": "default"}]}), "networks[0]", Required),
            (multus(json!({"networkName": "x"})), "domain.devices.interfaces[0].masquerade", Invalid),
            (bridged(json!({"networkName": ""})), "networks[0].multus.networkName", Required),
            (bridged(json!({"networkName": "a/b/c"})), "networks[0].multus.networkName", Invalid),
            (bridged(json!({"networkName": "a.b/c"})), "networks[0].multus.networkName", Invalid),
            (bridged(json!({"networkName": "X"})), "networks[0].multus.networkName", Invalid),
            (
                json!({"networks": [{"name": "default", "resourceClaim": {"claimName": "x", "requestName": "y"}}]}),
                "networks[0].resourceClaim",
                NotSupported,
            ),
        ],
    );
}

#[test]
fn a_network_that_nothing_is_on_is_refused() {
    let more = json!({"name": "other", "multus": {"networkName": "x"}});
    let report = with_spec(json!({"networks": ["+", more]})).unwrap_err();
    let reported: Vec<_> = report.problems().iter().map(|p| (p.field().as_str(), p.cause())).collect();
    assert_eq!(reported, [("spec.networks[1].name", NotFound)]);
}

#[test]
fn one_vmi_has_one_pod_network() {
    let report = with_spec(json!({
        "networks": [{"name": "default", "pod": {}}, {"name": "second", "pod": {}}],
        "domain": {"devices": {"interfaces": ["+", {"name": "second", "masquerade": {}}]}},
    }))
    .unwrap_err();
    assert_eq!(report.problems()[0].field().as_str(), "spec.networks[1].pod");
    assert_eq!(report.problems().len(), 1);
    let report = with_spec(json!({
        "networks": [{"name": "default", "pod": {}},
            {"name": "second", "multus": {"networkName": "x", "default": true}}],
        "domain": {"devices": {"interfaces": ["+", {"name": "second", "bridge": {}}]}},
    }))
    .unwrap_err();
    let reported: Vec<_> = report.problems().iter().map(|p| (p.field().as_str(), p.cause())).collect();
    assert_eq!(reported, [("spec.networks[1]", Duplicate)]);
}

#[test]
fn a_guest_on_a_bridge_is_not_reached_by_the_address_of_its_pod() {
    let on = |multus: bool| {
        let source = if multus { json!({"networkName": "x"}) } else { Value::Null };
        let pod = if multus { Value::Null } else { json!({}) };
        move |probe: Value| {
            with_spec(json!({
                "networks": [{"name": "default", "pod": pod, "multus": source}],
                "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
                "readinessProbe": probe,
            }))
        }
    };
    let (pods, multus) = (on(false), on(true));
    for probe in [json!({"tcpSocket": {"port": 80}}), json!({"tcpSocket": {"port": 80, "host": "192.0.2.1"}})]
    {
        let report = pods(probe).unwrap_err();
        let reported: Vec<_> = report.problems().iter().map(|p| (p.field().as_str(), p.cause())).collect();
        assert_eq!(reported, [("spec.readinessProbe.tcpSocket", NotSupported)]);
    }
    assert!(pods(json!({"guestAgentPing": {}})).is_ok());
    let report = multus(json!({"httpGet": {"port": 80}})).unwrap_err();
    assert_eq!(report.problems()[0].field().as_str(), "spec.readinessProbe.httpGet");
    assert!(multus(json!({"httpGet": {"port": 80, "host": "192.0.2.1"}})).is_ok());
}

#[test]
fn macs_are_unique() {
    let nic = |name: &str| json!({"name": name, "bridge": {}, "macAddress": "52:54:00:00:00:07"});
    let report = with_spec(json!({
        "networks": [{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "x"}}],
        "domain": {"devices": {"interfaces": [nic("a"), nic("b")]}},
    }))
    .unwrap_err();
    let reported: Vec<_> = report.problems().iter().map(|p| (p.field().as_str(), p.cause())).collect();
    assert_eq!(reported, [("spec.domain.devices.interfaces[1].macAddress", Duplicate)]);
}

#[test]
fn interfaces() {
    let nic = |properties: Value| {
        let mut nic = json!({"name": "default", "masquerade": {}});
        super::manifest::merge(&mut nic, properties);
        json!({"interfaces": [nic]})
    };
    let port = |port: Value| nic(json!({"ports": [{"name": "web", "port": 80}, port]}));
    let ranges = |ranges: Value| nic(json!({"portRanges": ranges}));
    let many_ranges = (1..=11).map(|port| json!({"protocol": "TCP", "start": port, "end": port})).collect();
    let dhcp = |options: Value| nic(json!({"dhcpOptions": options}));
    let mut rows = vec![
        (json!({"interfaces": ["+", {"name": "more", "masquerade": {}}]}), "[1].name", NotFound),
        (json!({"interfaces": ["+", {"name": "default", "masquerade": {}}]}), "[1].name", Duplicate),
        (nic(json!({"masquerade": null})), "[0]", Required),
        (nic(json!({"model": "ne2000"})), "[0].model", NotSupported),
        (nic(json!({"macAddress": "52:54:00"})), "[0].macAddress", Invalid),
        (nic(json!({"macAddress": "01:00:5e:00:00:01"})), "[0].macAddress", Invalid),
        (nic(json!({"macAddress": "02-00-00-00-00-00"})), "[0].macAddress", Invalid),
        (nic(json!({"bootOrder": 0})), "[0].bootOrder", Invalid),
        (port(json!({})), "[0].ports[1].port", Required),
        (port(json!({"port": 0})), "[0].ports[1].port", Invalid),
        (port(json!({"port": 65536})), "[0].ports[1].port", Invalid),
        (port(json!({"port": 81, "protocol": "SCTP"})), "[0].ports[1].protocol", Invalid),
        (port(json!({"port": 81, "name": "web"})), "[0].ports[1].name", Duplicate),
        (port(json!({"port": 81, "name": "80"})), "[0].ports[1].name", Invalid),
        (ranges(json!([{"protocol": "TCP", "start": 2}])), "[0].portRanges[0].end", Required),
        (ranges(json!([{"protocol": "TCP", "end": 2}])), "[0].portRanges[0].start", Required),
        (ranges(json!([{"start": 1, "end": 2}])), "[0].portRanges[0].protocol", Required),
        (ranges(json!([{"protocol": "SCTP", "start": 1, "end": 2}])), "[0].portRanges[0].protocol", Invalid),
        (ranges(json!([{"protocol": "TCP", "start": 0, "end": 2}])), "[0].portRanges[0].start", Invalid),
        (ranges(json!([{"protocol": "TCP", "start": 1, "end": 65536}])), "[0].portRanges[0].end", Invalid),
        (ranges(json!([{"protocol": "TCP", "start": 3, "end": 2}])), "[0].portRanges[0].end", Invalid),
        (
            ranges(
                json!([{"protocol": "TCP", "start": 1, "end": 5}, {"protocol": "TCP", "start": 5, "end": 9}]),
            ),
            "[0].portRanges[1]",
            Invalid,
        ),
        (ranges(many_ranges), "[0].portRanges", TooMany),
        (
            nic(json!({"ports": [{"port": 1}], "portRanges": [{"protocol": "TCP", "start": 1, "end": 2}]})),
            "[0].portRanges",
            Forbidden,
        ),
        (nic(json!({"pciAddress": "0000:00:1f.0"})), "[0].pciAddress", Invalid),
        (nic(json!({"acpiIndex": -1})), "[0].acpiIndex", Invalid),
        (nic(json!({"acpiIndex": 16384})), "[0].acpiIndex", Invalid),
        (nic(json!({"state": "gone"})), "[0].state", NotSupported),
        (nic(json!({"state": "absent"})), "[0].state", Invalid),
        (nic(json!({"bridge": {}})), "[0]", Invalid),
        (dhcp(json!({"ntpServers": ["time.example"]})), "[0].dhcpOptions.ntpServers[0]", Invalid),
        (dhcp(json!({"bootFileName": "a\nb"})), "[0].dhcpOptions.bootFileName", Invalid),
        (
            dhcp(json!({"privateOptions": [{"option": 223, "value": "x"}]})),
            "[0].dhcpOptions.privateOptions[0].option",
            Invalid,
        ),
        (
            dhcp(json!({"privateOptions": [{"option": 224, "value": "x"}, {"option": 224, "value": "y"}]})),
            "[0].dhcpOptions.privateOptions[1].option",
            Duplicate,
        ),
    ];
    for binding in ["slirp", "macvtap", "passt", "binding"] {
        let field: &'static str = format!("[0].{binding}").leak();
        rows.push((nic(json!({"masquerade": null, binding: {}})), field, NotSupported));
    }
    rows.push((nic(json!({"masquerade": null, "carrierPigeon": {}})), "[0].carrierPigeon", NotSupported));
    each_is_refused(with_devices, "spec.domain.devices.interfaces", rows);
}

#[test]
fn virtual_functions() {
    let with = |network: Value, change: Value| {
        let mut nic = json!({"name": "blue", "sriov": {}});
        change.as_object().unwrap().iter().for_each(|(name, value)| nic[name] = value.clone());
        let mut network = network;
        network["name"] = json!("blue");
        json!({"networks": [network], "domain": {"devices": {"interfaces": [nic]}}})
    };
    let lan = || json!({"multus": {"networkName": "lan"}});
    let first = json!({"multus": {"networkName": "lan", "default": true}});
    let rows = vec![
        (with(json!({"pod": {}}), json!({})), ".sriov", Invalid),
        (with(first, json!({})), ".sriov", Invalid),
        (with(lan(), json!({"bridge": {}})), "", Invalid),
        (with(lan(), json!({"bootOrder": 1})), ".bootOrder", NotSupported),
        (with(lan(), json!({"pciAddress": "0000:00:0a.0"})), ".pciAddress", NotSupported),
        (with(lan(), json!({"acpiIndex": 1})), ".acpiIndex", NotSupported),
        (with(lan(), json!({"state": "down"})), ".state", NotSupported),
        (
            with(lan(), json!({"portRanges": [{"protocol": "TCP", "start": 1, "end": 2}]})),
            ".portRanges",
            Forbidden,
        ),
    ];
    each_is_refused(with_spec, "spec.domain.devices.interfaces[0]", rows);
}

#[test]
fn other_devices() {
    each_is_refused(
        with_devices,
        "spec.domain.devices.",
        vec![
            (json!({"gpus": [{"name": "g"}]}), "gpus[0].deviceName", Required),
            (
                json!({"gpus": [{"name": "g", "deviceName": "a.b/c", "virtualGPUOptions": {"display": {}}}]}),
                "gpus[0].virtualGPUOptions.display",
                NotSupported,
            ),
            (json!({"hostDevices": [{"name": "h"}]}), "hostDevices[0].deviceName", Required),
            (json!({"hostDevices": [{"deviceName": "a.b/c"}]}), "hostDevices[0].name", Required),
            (
                json!({"hostDevices": [{"name": "h", "claimName": "c"}]}),
                "hostDevices[0].claimName",
                NotSupported,
            ),
            (
                json!({"hostDevices": [{"name": "h", "deviceName": "a.b/c"}, {"name": "h", "deviceName": "a.b/c"}]}),
                "hostDevices[1].name",
                Duplicate,
            ),
            (json!({"filesystems": [{"name": "f", "virtiofs": {}}]}), "filesystems[0].name", NotFound),
            (json!({"filesystems": [{"virtiofs": {}}]}), "filesystems[0].name", Required),
            (json!({"filesystems": [{"name": "a,b", "virtiofs": {}}]}), "filesystems[0].name", Invalid),
            (
                json!({"filesystems": [{"name": "f".repeat(37), "virtiofs": {}}]}),
                "filesystems[0].name",
                Invalid,
            ),
            (json!({"watchdog": {"i6300esb": {}}}), "watchdog.name", Required),
            (json!({"watchdog": {"name": "w"}}), "watchdog", Required),
            (json!({"watchdog": {"name": "w", "diag288": {}}}), "watchdog.diag288", NotSupported),
            (
                json!({"watchdog": {"name": "w", "i6300esb": {"action": "bark"}}}),
                "watchdog.i6300esb.action",
                Invalid,
            ),
            (json!({"inputs": [{"name": "i", "type": "keyboard"}]}), "inputs[0].type", NotSupported),
            (
                json!({"inputs": [{"name": "i", "type": "tablet", "bus": "ps2"}]}),
                "inputs[0].bus",
                NotSupported,
            ),
            (json!({"sound": {"model": "ac97"}}), "sound.name", Required),
            (json!({"sound": {"name": "s", "model": "sb16"}}), "sound.model", NotSupported),
            (json!({"video": {"type": "vga"}}), "video.type", Invalid),
            (json!({"autoattachGraphicsDevice": true, "video": {"type": "voodoo"}}), "video.type", Invalid),
            (json!({"panicDevices": [{"model": "loud"}]}), "panicDevices[0].model", NotSupported),
            (json!({"panicDevices": [{"model": ""}]}), "panicDevices[0].model", NotSupported),
            (json!({"disk": []}), "disk", NotSupported),
        ],
    );
}

#[test]
fn probes() {
    let probe = |probe: Value| json!({"readinessProbe": probe});
    each_is_refused(
        with_spec,
        "spec.",
        vec![
            (probe(json!({})), "readinessProbe", Required),
            (probe(json!({"tcpSocket": {"port": 1}, "httpGet": {"port": 1}})), "readinessProbe", Invalid),
            (probe(json!({"exec": {"command": []}})), "readinessProbe.exec.command", Required),
            (probe(json!({"exec": {"command": [""]}})), "readinessProbe.exec.command", Required),
            (probe(json!({"guestAgentPing": {}, "exec": {"command": ["true"]}})), "readinessProbe", Invalid),
            (
                probe(json!({"tcpSocket": {"port": 1, "host": "example.org:80"}})),
                "readinessProbe.tcpSocket.host",
                Invalid,
            ),
            (probe(json!({"tcpSocket": {"port": "web"}})), "readinessProbe.tcpSocket.port", NotFound),
            (
                probe(json!({"httpGet": {"port": 1, "httpHeaders": [{"name": "a b", "value": "c"}]}})),
                "readinessProbe.httpGet.httpHeaders[0].name",
                Invalid,
            ),
            (
                probe(json!({"httpGet": {"port": 1, "httpHeaders": [{"name": "a", "value": "b\r\nc: d"}]}})),
                "readinessProbe.httpGet.httpHeaders[0].value",
                Invalid,
            ),
            (
                json!({"livenessProbe": {"guestAgentPing": {}, "successThreshold": 2}}),
                "livenessProbe.successThreshold",
                Invalid,
            ),
            (probe(json!({"tcpSocket": {}})), "readinessProbe.tcpSocket.port", Required),
            (probe(json!({"tcpSocket": {"port": 0}})), "readinessProbe.tcpSocket.port", Invalid),
            (
                probe(json!({"httpGet": {"port": 80, "scheme": "ftp"}})),
                "readinessProbe.httpGet.scheme",
                Invalid,
            ),
            (
                probe(json!({"tcpSocket": {"port": 1}, "periodSeconds": -1})),
                "readinessProbe.periodSeconds",
                Invalid,
            ),
            (
                json!({"startStrategy": "Paused", "livenessProbe": {"tcpSocket": {"port": 1}}}),
                "startStrategy",
                Invalid,
            ),
            (
                json!({
                    "networks": null,
                    "domain": {"devices": {"interfaces": null, "autoattachPodInterface": false}},
                    "readinessProbe": {"tcpSocket": {"port": 1}},
                }),
                "readinessProbe.tcpSocket",
                Invalid,
            ),
        ],
    );
}
