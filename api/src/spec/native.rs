//! What a VMI requests that the hypervisor native does not support.

use vireo_vmconfig::{NativeNic, NativeRequest, Requirement};

use super::{
    BootSource, Cause, Field, HYPERVISOR_ANNOTATION, HypervisorChoice, Interface, Problem, Vm, field_paths,
};

/// Every requested feature that the hypervisor native does not support; launchers choose by the same list.
pub(super) fn unsupported_by_native(vm: &Vm) -> Vec<Requirement> {
    let fields = field_paths();
    let hotplug = vm.disks().iter().find(|disk| disk.is_hotpluggable());
    let request = NativeRequest {
        fields: &fields,
        cpu: vm.cpu(),
        // Those of the node that it will run on.
        numa_nodes: 0,
        memory_bytes: vm.memory().guest().get(),
        bios: matches!(vm.firmware().boot(), BootSource::Bios { .. }),
        secure_boot: matches!(vm.firmware().boot(), BootSource::Efi { secure_boot: true, .. }),
        disks: vm.fixed_disks().map(|disk| disk.config().with_source(())).collect(),
        nics: vm.interfaces().iter().map(nic).collect(),
        filesystems: vm.filesystems().len(),
        rng: vm.rng(),
        balloon: vm.has_balloon(),
        video: vm.video(),
        tablets: vm.tablets(),
        io_threads: vm.io_threads(),
        hotplug: hotplug
            .map(|disk| (disk.source_field().as_str(), vm.disks_with_hotpluggable_volumes().count())),
        extra_devices: vm.extra_devices(),
    };
    let host_device =
        |device: &super::HostDevice| Requirement::new(device.field().as_str(), "a device of the host");
    let mut requirements = vireo_vmconfig::unsupported_by_native(&request);
    requirements.extend(vm.host_devices().iter().map(host_device));
    requirements
}

fn nic(interface: &Interface) -> NativeNic<'_> {
    NativeNic {
        field: interface.field().as_str(),
        model: interface.model(),
        pci_slot: interface.pci_slot(),
        acpi_index: interface.acpi_index(),
        boot_order: interface.boot_order(),
    }
}

/// What is wrong with a VM whose manifest requests the hypervisor native. `found` are its other problems: too many devices are
/// not reported twice.
pub(super) fn problems(vm: &Vm, found: &[Problem]) -> Vec<Problem> {
    if vm.hypervisor() != HypervisorChoice::Native {
        return Vec::new();
    }
    let is_counted = |field: &Field| {
        found.iter().any(|known| known.cause() == Cause::TooMany && field.is_within(known.field()))
    };
    let requirements = unsupported_by_native(vm).into_iter();
    let fields = requirements.map(|requirement| (Field::new(requirement.field), requirement.what));
    fields
        .filter(|(field, _)| !is_counted(field))
        .map(|(field, what)| {
            let message = format!(
                "the hypervisor native, which metadata.annotations[{HYPERVISOR_ANNOTATION}] requests, does not support \
                 {what}: remove the annotation or change this field"
            );
            Problem::new(field, Cause::NotSupported, message)
        })
        .collect()
}
