//! A launcher in a Pod: it is under rules of landlock, and so is what it starts.
#![expect(clippy::unwrap_used, reason = "a test ends where its scenery fails")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use vireo_privileges::landlock::Rules;
use vireo_proto::launcher::extra_device::{Device, Tpm};
use vireo_proto::launcher::outcome::Kind;
use vireo_proto::launcher::*;

use crate::guest;
use crate::launched::{LaunchedVm, read_until};

/// A launcher that writes beside its socket, and in another directory.
async fn restricted(writable: &Path) -> LaunchedVm {
    LaunchedVm::start_with(&["--landlock", "--writable", writable.to_str().unwrap()]).await
}

/// Whether the kernel has landlock. Its rules hold for the thread that sets them.
fn has_landlock() -> bool {
    let allowed = || Rules::new().unwrap().restrict().unwrap();
    let has = std::thread::spawn(allowed).join().unwrap();
    if !has {
        eprintln!("skipped: the kernel has no landlock");
    }
    has
}

fn with_variables(request: LaunchRequest, path: &Path) -> LaunchRequest {
    let variables_path = path.to_string_lossy().into_owned();
    let efi = Efi { variables_path, ..Efi::default() };
    LaunchRequest {
        firmware: Some(Firmware { boot: Some(firmware::Boot::Efi(efi)) }),
        memory_bytes: 256 << 20,
        start_paused: true,
        ..request
    }
}

#[tokio::test]
async fn qemu_and_what_runs_beside_it_work_under_rules() {
    let shared = tempfile::tempdir().unwrap();
    let mut launcher = restricted(shared.path()).await;
    let disk = guest::disk(launcher.directory.path());
    let request = LaunchRequest {
        extra_devices: vec![ExtraDevice {
            field: "spec.domain.devices.tpm".into(),
            what: "a TPM".into(),
            device: Some(Device::Tpm(Tpm {})),
        }],
        filesystems: vec![Filesystem {
            name: "shared".into(),
            field: "spec.domain.devices.filesystems[0].virtiofs".into(),
            directory: shared.path().to_string_lossy().into_owned(),
            read_only: false,
        }],
        rng: true,
        graphics: true,
        vnc_socket: launcher.path("vnc.sock").to_string_lossy().into_owned(),
        ..launcher.request(&disk)
    };
    launcher.up(request).await;
    read_until(&mut launcher.console().await, guest::READY).await;
    let answer = launcher.client.screenshot(ScreenshotRequest { move_cursor: false }).await.unwrap();
    assert_eq!(answer.into_inner().fault, None);
    launcher.shut_down(50).await;
    assert_eq!(launcher.outcome().await.kind(), Kind::ShutDown);
    assert!(launcher.path("run/tpm/tpm2-00.permall").exists(), "the TPM has stored its state");
    launcher.dismiss().await;
}

#[tokio::test]
async fn only_its_directories_are_written_to() {
    if !has_landlock() {
        return;
    }
    let (shared, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut launcher = restricted(shared.path()).await;
    let request = with_variables(launcher.empty(), &outside.path().join("variables.fd"));
    let fault = launcher.launch(request).await.fault.unwrap();
    assert!(fault.detail.contains("Permission denied"), "{}", fault.detail);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);

    let mut launcher = restricted(shared.path()).await;
    let request = with_variables(launcher.empty(), &shared.path().join("variables.fd"));
    assert_eq!(launcher.launch(request).await.fault, None);
    assert!(shared.path().join("variables.fd").exists());
    launcher.client.kill(KillRequest {}).await.unwrap();
    assert_eq!(launcher.outcome().await.kind(), Kind::Killed);
}

/// What QEMU would do, if a guest had taken it over.
#[tokio::test]
async fn what_it_starts_is_under_the_same_rules() {
    if !has_landlock() {
        return;
    }
    let (programs, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = outside.path().join("there");
    std::fs::write(&secret, "text").unwrap();
    let qemu = programs.path().join("qemu");
    let script = format!(
        "#!/bin/sh\ncat {secret} >&2; echo other >{secret}; echo >{new}; rm {secret}; exit 3\n",
        secret = secret.display(),
        new = outside.path().join("new").display(),
    );
    std::fs::write(&qemu, script).unwrap();
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut launcher = LaunchedVm::start_with(&["--landlock", "--qemu", qemu.to_str().unwrap()]).await;
    let fault = launcher.launch(launcher.empty()).await.fault.unwrap();
    // It ran, and read.
    assert!(fault.detail.contains("exited with code 3") && fault.detail.contains("text"), "{}", fault.detail);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "text");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}
