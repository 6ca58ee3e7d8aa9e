//! Manifests that cannot become a VM, and the fields that must be reported.

/// A manifest with something wrong in it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The spec, indented by two; `IMAGE` stands for a kernel image that exists.
    spec: &'static str,
    pub(crate) fields: &'static [&'static str],
}

impl Case {
    pub(crate) fn manifest(&self, image: &str) -> String {
        let head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata:\n  name: ";
        format!("{head}{}\nspec:\n{}", self.name, self.spec.replace("IMAGE", image))
    }
}

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "wrong-type",
        spec: "  domain:\n    cpu:\n      cores: many\n    devices: {}\n",
        fields: &["spec.domain.cpu.cores"],
    },
    Case {
        name: "no-volume",
        spec: "  domain:\n    memory: {guest: 64Mi}\n    devices:\n      disks:\n      - {name: gone, disk: {bus: virtio}}\n",
        fields: &["spec.domain.devices.disks[0].name"],
    },
    Case {
        name: "same-boot-order",
        spec: "  domain:\n    memory: {guest: 64Mi}\n    devices:\n      disks:\n      - {name: a, bootOrder: 1, disk: {bus: virtio}}\n      - {name: b, bootOrder: 1, disk: {bus: virtio}}\n  volumes:\n  - {name: a, emptyDisk: {capacity: 1Mi}}\n  - {name: b, emptyDisk: {capacity: 1Mi}}\n",
        fields: &["spec.domain.devices.disks[1].bootOrder"],
    },
    Case {
        name: "unknown-binding",
        spec: "  domain:\n    memory: {guest: 64Mi}\n    devices:\n      interfaces:\n      - {name: default, teleport: {}}\n  networks:\n  - {name: default, pod: {}}\n",
        fields: &["spec.domain.devices.interfaces[0]"],
    },
    Case {
        name: "zero-memory",
        spec: "  domain:\n    memory: {guest: \"0\"}\n    devices: {}\n",
        fields: &["spec.domain.memory.guest"],
    },
    Case {
        name: "no-such-image",
        spec: "  domain:\n    memory: {guest: 64Mi}\n    devices:\n      disks:\n      - {name: root, disk: {bus: virtio}}\n  volumes:\n  - {name: root, containerDisk: {image: \"oci:/absent/at/all\"}}\n",
        fields: &["/absent/at/all"],
    },
    Case {
        name: "pull-policy",
        spec: "  domain:\n    memory: {guest: 64Mi}\n    devices:\n      disks:\n      - {name: root, disk: {bus: virtio}}\n  volumes:\n  - {name: root, containerDisk: {image: \"registry.invalid/guest:1\", imagePullPolicy: Sometimes}}\n",
        fields: &["spec.volumes[0].containerDisk.imagePullPolicy", "IfNotPresent"],
    },
    Case {
        name: "no-network",
        spec: "  domain:\n    memory: {guest: 64Mi}\n    devices:\n      interfaces:\n      - {name: blue, masquerade: {}}\n  networks:\n  - {name: red, pod: {}}\n",
        fields: &["spec.domain.devices.interfaces[0].name", "spec.networks[0]"],
    },
    Case {
        name: "no-kernel-path",
        spec: "  domain:\n    memory: {guest: 64Mi}\n    firmware:\n      kernelBoot:\n        container: {image: \"oci:IMAGE\", kernelPath: /boot/nothing}\n    devices: {}\n",
        fields: &["/boot/nothing"],
    },
    Case {
        name: "many-at-once",
        spec: "  domain:\n    memory: {guest: \"0\"}\n    devices:\n      disks:\n      - {name: gone, disk: {bus: virtio}}\n      - {name: a, bootOrder: 1, disk: {bus: floppy}}\n      interfaces:\n      - {name: default, masquerade: {}}\n  volumes:\n  - {name: a, emptyDisk: {capacity: 1Mi}}\n",
        fields: &[
            "spec.domain.memory.guest",
            "spec.domain.devices.disks[0].name",
            "spec.domain.devices.disks[1].disk.bus",
            "spec.domain.devices.interfaces[0].name",
        ],
    },
];
