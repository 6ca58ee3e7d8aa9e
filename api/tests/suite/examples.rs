//! The manifests in `examples/`: the valid ones become VMs, each invalid one gets a report of all its problems.

use std::fs;
use std::path::{Path, PathBuf};

use vireo_api::decode;
use vireo_api::v1::VirtualMachineInstance;

fn manifests(directory: &str) -> Vec<(String, Vec<decode::Decoded<VirtualMachineInstance>>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(directory);
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let mut vmis = decode::manifest(&text).unwrap();
        for vmi in &mut vmis {
            // As the node agent does when it accepts a VMI.
            vmi.object.metadata.uid = "5d307ca9-b3ef-428c-8861-06e72d69f223".to_owned();
        }
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), vmis)
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn valid_manifests_are_accepted() {
    let manifests = manifests(".");
    assert!(manifests.len() >= 3);
    for (name, vmis) in manifests {
        for vmi in vmis {
            let vm = vmi.check_request().unwrap_or_else(|report| panic!("{name}:\n{report}"));
            assert_eq!(vm.notices(), [], "{name}");
        }
    }
}

#[test]
fn invalid_manifests_get_every_problem_at_once() {
    let expected: [(&str, &[&str]); 9] = [
        ("boot-order-twice", &["spec.domain.devices.disks[1].bootOrder"]),
        ("cloud-init-too-long", &["spec.volumes[1].cloudInitNoCloud.userData"]),
        (
            "everything-at-once",
            &[
                "spec.domain.cpu.cores",
                "spec.terminationGracePeriodSeconds",
                "spec.hostname",
                "spec.domain.device",
                "spec.domain.memory.guest",
                "spec.domain.firmware.kernelBoot.container.kernelPath",
                "spec.volumes[1].name",
                "spec.domain.devices.disks[1].name",
                "spec.domain.devices.disks[2].serial",
                "spec.domain.devices.interfaces[0].ports[0].port",
                "spec.domain.devices.watchdog.diag288",
            ],
        ),
        ("missing-volume", &["spec.domain.devices.disks[1].name"]),
        ("pull-policy", &["spec.volumes[0].containerDisk.imagePullPolicy"]),
        ("two-sources", &["spec.volumes[0]"]),
        (
            "unknown-binding",
            &["spec.domain.devices.interfaces[0].macvtap", "spec.domain.devices.interfaces[1].teleport"],
        ),
        (
            "wrong-types",
            &[
                "spec.domain.cpu.cores",
                "spec.domain.devices.disks[0]",
                "spec.domain.devices.rng",
                "spec.domain.memory.guest",
            ],
        ),
        ("zero-memory", &["spec.domain.memory.guest"]),
    ];
    let found = manifests("broken");
    for (name, fields) in expected {
        let (_, vmis) = found.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name}"));
        let report = vmis[0].check_request().expect_err(name);
        let mut reported: Vec<_> =
            report.problems().iter().map(|problem| problem.field().to_string()).collect();
        let mut fields: Vec<_> = fields.iter().map(|field| (*field).to_owned()).collect();
        reported.sort();
        fields.sort();
        assert_eq!(reported, fields, "{name}:\n{report}");
    }
    // The others are right as far as a VMI can tell: only the node knows that an image is not there.
    let of_the_node = ["image-not-there"];
    for name in of_the_node {
        let (_, vmis) = found.iter().find(|(found, _)| found == name).unwrap();
        vmis[0].check_request().unwrap();
    }
    assert_eq!(found.len(), expected.len() + of_the_node.len(), "every broken manifest is in the table");
}
