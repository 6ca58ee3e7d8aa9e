//! The real `virt-launcher` with real VMs under QEMU: a boot sector that echoes and obeys its power button.

mod guest;
mod hotplug;
mod landlock;
mod launched;
mod requests;

use std::os::unix::fs::PermissionsExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vireo_proto::launcher::fault::Code;
use vireo_proto::launcher::outcome::Kind;
use vireo_proto::launcher::*;

use launched::{LaunchedVm, read_until, soon};

#[tokio::test]
async fn a_guest_lives_and_powers_off() {
    let mut launcher = LaunchedVm::start().await;
    let hello = HelloRequest { version: Some(vireo_proto::VERSION) };
    let before = launcher.client.hello(hello).await.unwrap().into_inner();
    assert_eq!((before.vmi, before.pid), (None, launcher.pid()));
    let disk = guest::disk(launcher.directory.path());
    launcher.up(launcher.request(&disk)).await;

    let after = launcher.client.hello(hello).await.unwrap().into_inner();
    assert_eq!(after.vmi.unwrap().name, "web");
    let hypervisor = after.state.unwrap().hypervisor.unwrap();
    assert_eq!(hypervisor.kind(), hypervisor::Kind::Qemu);
    assert!(!hypervisor.reason.is_empty());

    // One client types; one that comes later sees what was before, and both see what comes.
    let mut first = launcher.console().await;
    read_until(&mut first, guest::READY).await;
    first.write_all(b"hello").await.unwrap();
    read_until(&mut first, b"hello").await;
    let mut second = launcher.console().await;
    let history = read_until(&mut second, b"hello").await;
    assert!(history.ends_with(&[guest::READY, b"hello"].concat()), "{history:?}");
    second.write_all(b"all").await.unwrap();
    for console in [&mut first, &mut second] {
        read_until(console, b"all").await;
    }

    first.write_all(guest::REBOOT).await.unwrap();
    // SeaBIOS resets the machine once more then: both may be there at once.
    launcher.until("a reboot", |state| state.reboots >= 1).await;
    read_until(&mut first, guest::READY).await;

    let refused = launcher.client.dismiss(DismissRequest {}).await.unwrap().into_inner();
    assert_eq!(refused.fault.unwrap().code(), Code::Conflict);
    launcher.shut_down(50).await;
    assert_eq!(launcher.outcome().await.kind(), Kind::ShutDown);
    // Nothing more comes; the history is still there.
    let mut rest = Vec::new();
    soon("the console's end", first.read_to_end(&mut rest)).await.unwrap();
    let mut late = launcher.console().await;
    read_until(&mut late, b"all").await;
    launcher.dismiss().await;
}

/// Starts stopped, goes on, is paused, is reset while it does, and reboots by its power button; then a stop finds it
/// paused.
#[tokio::test]
async fn a_guest_is_steered() {
    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    let request = LaunchRequest { start_paused: true, ..launcher.request(&disk) };
    assert_eq!(launcher.launch(request).await.fault, None);
    launcher.until("the stopped VM", |state| state.phase() == state::Phase::Paused).await;
    let refused = launcher.lifecycle(LifecycleCommand::Pause).await.unwrap();
    assert_eq!((refused.code(), refused.detail.as_str()), (Code::Conflict, "VMI is already paused"));
    assert_eq!(launcher.lifecycle(LifecycleCommand::Unpause).await, None);
    launcher.until("the guest", |state| state.phase() == state::Phase::Running).await;
    let mut console = launcher.console().await;
    read_until(&mut console, guest::READY).await;

    assert_eq!(launcher.lifecycle(LifecycleCommand::Pause).await, None);
    launcher.until("a pause", |state| state.phase() == state::Phase::Paused).await;
    assert_eq!(launcher.lifecycle(LifecycleCommand::Reset).await, None);
    let reset = launcher.until("a reset", |state| state.reboots == 1).await;
    assert_eq!(reset.phase(), state::Phase::Paused);
    assert_eq!(launcher.lifecycle(LifecycleCommand::Unpause).await, None);
    read_until(&mut console, guest::READY).await;

    // SeaBIOS has reset the machine by itself, too, before the guest was ready.
    let before = launcher.client.hello(HelloRequest { version: Some(vireo_proto::VERSION) }).await.unwrap();
    let before = before.into_inner().state.unwrap().reboots;
    assert_eq!(launcher.lifecycle(LifecycleCommand::SoftReboot).await, None);
    launcher.until("a reboot", |state| state.reboots > before).await;
    read_until(&mut console, guest::READY).await;
    assert_eq!(launcher.lifecycle(LifecycleCommand::Pause).await, None);
    launcher.shut_down(50).await;
    assert_eq!(launcher.outcome().await.kind(), Kind::ShutDown, "its button is heard again");
    assert_eq!(launcher.lifecycle(LifecycleCommand::Reset).await.unwrap().detail, "VMI is not running");
    launcher.dismiss().await;
}

#[tokio::test]
async fn a_guest_that_ignores_its_button_dies_after_the_grace() {
    let mut launcher = LaunchedVm::start().await;
    launcher.up(launcher.empty()).await;
    launcher.shut_down(3600).await;
    launcher.shut_down(1).await;
    assert_eq!(launcher.outcome().await.kind(), Kind::GraceExpired);
    launcher.dismiss().await;
}

#[tokio::test]
async fn a_killed_guest_is_gone_at_once() {
    let mut launcher = LaunchedVm::start().await;
    launcher.up(launcher.empty()).await;
    let response = launcher.client.kill(KillRequest {}).await.unwrap().into_inner();
    assert_eq!(response.fault, None);
    assert_eq!(launcher.outcome().await.kind(), Kind::Killed);
    launcher.dismiss().await;
}

#[tokio::test]
async fn qemu_that_dies_by_itself_is_a_failure() {
    let mut launcher = LaunchedVm::start().await;
    launcher.up(launcher.empty()).await;
    kill_process(Pid::from_raw(launcher.qemu()).unwrap(), Signal::KILL).unwrap();
    let outcome = launcher.outcome().await;
    assert_eq!(outcome.kind(), Kind::Failed);
    let fault = outcome.fault.unwrap();
    assert_eq!(fault.code(), Code::Hypervisor);
    assert!(fault.detail.contains("signal 9"), "{}", fault.detail);
    launcher.dismiss().await;
}

#[tokio::test]
async fn qemu_does_not_outlive_its_launcher() {
    let mut launcher = LaunchedVm::start().await;
    launcher.up(launcher.empty()).await;
    let qemu = pidfd_open(Pid::from_raw(launcher.qemu()).unwrap(), PidfdFlags::empty()).unwrap();
    let pid = i32::try_from(launcher.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(!launcher.exit().await.success());
    // A pidfd is readable once its process is gone.
    let gone = tokio::task::spawn_blocking(move || poll(&mut [PollFd::new(&qemu, PollFlags::IN)], None));
    assert_eq!(soon("QEMU's end", gone).await.unwrap(), Ok(1));
}

#[tokio::test]
async fn sigterm_shuts_the_guest_down() {
    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    launcher.up(launcher.request(&disk)).await;
    read_until(&mut launcher.console().await, guest::READY).await;
    let pid = i32::try_from(launcher.pid()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::HUP).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert_eq!(launcher.outcome().await.kind(), Kind::ShutDown);
    assert!(launcher.exit().await.success());
}

#[tokio::test]
async fn a_reboot_ends_a_guest_that_must_not() {
    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    let request = launcher.request(&disk);
    launcher.up(LaunchRequest { reboot_policy: RebootPolicy::Terminate.into(), ..request }).await;
    let mut console = launcher.console().await;
    read_until(&mut console, guest::READY).await;
    console.write_all(guest::REBOOT).await.unwrap();
    assert_eq!(launcher.outcome().await.kind(), Kind::RebootTerminated);
    launcher.dismiss().await;
}

/// QEMU itself says whether the command line is right, for every device we know how to ask for.
#[tokio::test]
async fn every_disk_bus_and_device_is_one_qemu_takes() {
    use disk::Bus;
    let mut launcher = LaunchedVm::start().await;
    let mut disks = Vec::new();
    for (index, bus) in [Bus::Virtio, Bus::Sata, Bus::Scsi, Bus::Usb].into_iter().enumerate() {
        for (cdrom, cache) in [(false, disk::Cache::Writethrough), (true, disk::Cache::Unspecified)] {
            let path = launcher.path(&format!("{index}{cdrom}.raw"));
            std::fs::write(&path, vec![0; 1 << 20]).unwrap();
            let disk = launcher.disk("d", &path, bus);
            let serial = "a,b\"c".to_owned();
            disks.push(Disk { cdrom, cache: cache.into(), serial, ..disk });
        }
    }
    for (index, io) in [disk::IoMode::Native, disk::IoMode::Threads].into_iter().enumerate() {
        let path = launcher.path(&format!("io{index}.raw"));
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let (cache, disk) = (disk::Cache::None.into(), launcher.disk("d", &path, Bus::Virtio));
        disks.push(Disk { cache, io: io.into(), ..disk });
    }
    let request = LaunchRequest {
        disks,
        rng: true,
        graphics: true,
        vnc_socket: launcher.path("vnc.sock").to_string_lossy().into_owned(),
        memory_balloon: true,
        cpu: Some(Cpu { sockets: 2, cores: 1, threads: 2, ..Default::default() }),
        smbios: Some(Smbios {
            uuid: "0f0e0d0c-0b0a-4908-8706-050403020100".into(),
            product: "a,b=c".into(),
            ..Default::default()
        }),
        start_paused: true,
        ..launcher.empty()
    };
    let response = launcher.launch(request).await;
    assert_eq!(response.fault, None);
    launcher.until("the stopped VM", |state| state.phase() == state::Phase::Paused).await;
    let screenshot =
        launcher.client.screenshot(ScreenshotRequest { move_cursor: true }).await.unwrap().into_inner();
    assert_eq!((screenshot.fault, screenshot.png.get(1..4)), (None, Some(&b"PNG"[..])));
    launcher.client.kill(KillRequest {}).await.unwrap();
    assert_eq!(launcher.outcome().await.kind(), Kind::Killed);
}

#[tokio::test]
async fn efi_firmware_starts() {
    let mut launcher = LaunchedVm::start().await;
    let efi = Efi { secure_boot: true, ..Efi::default() };
    let request = LaunchRequest {
        firmware: Some(Firmware { boot: Some(firmware::Boot::Efi(efi)) }),
        memory_bytes: 256 << 20,
        ..launcher.empty()
    };
    launcher.up(request).await;
    assert!(launcher.path("run/efi-variables.fd").exists());
    launcher.client.kill(KillRequest {}).await.unwrap();
    launcher.outcome().await;
}

#[tokio::test]
async fn a_disk_has_one_writer() {
    let mut first = LaunchedVm::start().await;
    let disk = guest::disk(first.directory.path());
    first.up(first.request(&disk)).await;
    let mut second = LaunchedVm::start().await;
    let response = second.launch(second.request(&disk)).await;
    let fault = response.fault.unwrap();
    assert_eq!(fault.code(), Code::HostResource);
    assert_eq!(fault.field, "spec.domain.devices.disks[root].disk.bus");
    assert!(fault.detail.contains("in use"), "{}", fault.detail);
    assert_eq!(second.outcome().await.kind(), Kind::NotStarted);
    second.dismiss().await;
}

#[tokio::test]
async fn errors_of_qemu_are_in_the_fault() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("qemu");
    std::fs::write(&script, "#!/bin/sh\necho 'no such luck' >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut launcher = LaunchedVm::start_with(&["--qemu", script.to_str().unwrap()]).await;
    let fault = launcher.launch(launcher.empty()).await.fault.unwrap();
    assert_eq!(fault.code(), Code::Hypervisor);
    assert!(fault.detail.contains("exited with code 3"), "{}", fault.detail);
    assert!(fault.detail.contains("no such luck"), "{}", fault.detail);

    let mut launcher = LaunchedVm::start_with(&["--qemu", "/nonexistent/qemu"]).await;
    let fault = launcher.launch(launcher.empty()).await.fault.unwrap();
    assert_eq!(fault.code(), Code::NoQemu);
}

/// What is logged is lost where its disk is full, and nothing else is.
#[tokio::test]
async fn an_unwritable_log_ends_no_guest() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut launcher = LaunchedVm::start_logging_to(full.into(), &["--log-level", "trace"]).await;
    let disk = guest::disk(launcher.directory.path());
    launcher.up(launcher.request(&disk)).await;
    let mut console = launcher.console().await;
    read_until(&mut console, guest::READY).await;
    launcher.shut_down(50).await;
    assert_eq!(launcher.outcome().await.kind(), Kind::ShutDown);
    launcher.dismiss().await;
}

#[tokio::test]
async fn another_major_version_is_refused() {
    let mut launcher = LaunchedVm::start().await;
    let hello = HelloRequest { version: Some(Version { major: 99, minor: 0 }) };
    let error = launcher.client.hello(hello).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::FailedPrecondition);
}

/// Forced native, on whatever KVM there is: the rejection names the field, and what is wrong with the kernel.
#[tokio::test]
async fn native_refuses_by_field() {
    use vireo_vmm::kvm::KvmUnusable;
    let native = |mut request: LaunchRequest, kernel: &std::path::Path| {
        let kernel = KernelBoot { kernel_path: kernel.to_string_lossy().into_owned(), ..Default::default() };
        request.firmware = Some(Firmware { boot: Some(firmware::Boot::Kernel(kernel)) });
        request.hypervisor = Some(HypervisorChoice {
            kind: hypervisor_choice::Kind::Native.into(),
            forced_by: "metadata.annotations[vireo.io/hypervisor]".into(),
        });
        request
    };
    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    let usable = matches!(vireo_vmm::kvm::probe(None), Ok(()) | Err(KvmUnusable::SoftwareOnly));

    let request = native(launcher.empty(), &disk);
    let fault = launcher.launch(request).await.fault.unwrap();
    if usable {
        assert_eq!(fault.code(), Code::BootSource, "{fault:?}");
        assert_eq!(fault.field, "kernelBoot");
    } else {
        assert_eq!(fault.code(), Code::NoKvm, "{fault:?}");
    }
    launcher.dismiss().await;

    let mut launcher = LaunchedVm::start().await;
    let disk = guest::disk(launcher.directory.path());
    let mut request = native(launcher.empty(), &disk);
    request.disks = vec![launcher.disk("root", &disk, disk::Bus::Usb)];
    let fault = launcher.launch(request).await.fault.unwrap();
    if usable {
        assert_eq!(fault.code(), Code::Unsupported, "{fault:?}");
        assert_eq!(fault.field, "spec.domain.devices.disks[root].disk.bus");
        assert!(fault.detail.contains("vireo.io/hypervisor"), "{}", fault.detail);
    } else {
        assert_eq!(fault.code(), Code::NoKvm, "{fault:?}");
    }
}
