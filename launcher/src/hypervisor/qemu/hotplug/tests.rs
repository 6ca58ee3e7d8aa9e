use super::*;
use crate::host::DiskFiles;
use crate::launch::sample;
use vireo_vmconfig::{CacheMode, DiskBus, DiskDevice, DiskSource, ErrorPolicy};

fn disk(name: &str, bus: DiskBus) -> Disk {
    Disk {
        name: name.into(),
        field: "spec.domain.devices.disks[0].disk.bus".into(),
        bus,
        read_only: false,
        device: DiskDevice::Disk,
        serial: "S1".into(),
        boot_order: None,
        source: DiskSource::Raw("/claims/disk.img".into()),
        cache: CacheMode::WriteBack,
        io: None,
        error_policy: ErrorPolicy::Stop,
        tuning: vireo_vmconfig::DiskTuning::default(),
    }
}

/// What QEMU says to a command.
type Answer = Result<(), &'static str>;

/// A VM that plugs, and what its owner hears.
struct World {
    hotplug: Hotplug,
    reply: oneshot::Receiver<Option<Fault>>,
}

impl World {
    fn new() -> Self {
        let launch = Launch { hotplug: true, ..sample::kernel_boot() };
        Self { hotplug: Hotplug::of(&launch, GrowingImages::default()), reply: oneshot::channel().1 }
    }

    fn begin(&mut self, action: VolumeAction) -> String {
        let (reply, answer) = oneshot::channel();
        self.reply = answer;
        said(self.hotplug.begin(action, reply))
    }

    fn plug_in(&mut self, disk: Disk) -> String {
        let image = tempfile::tempfile().unwrap();
        self.begin(VolumeAction::Attach(Box::new(disk), DiskFiles { image, backing: None }))
    }

    /// Answers until nothing more is said; what was said.
    fn answers(&mut self, answers: &[Answer]) -> Vec<String> {
        answers.iter().map(|answer| said(self.hotplug.answered(*answer))).collect()
    }

    fn settled(&mut self) -> Option<Fault> {
        assert!(self.hotplug.is_idle());
        self.reply.try_recv().expect("an answer")
    }

    fn target(&mut self) -> Vec<(String, String)> {
        let volumes = self.hotplug.take_changes().expect("a change");
        volumes.into_iter().map(|volume| (volume.name, volume.target)).collect()
    }
}

/// The command, and what of its arguments matters here.
fn said(saying: Option<QmpCommand>) -> String {
    let Some(QmpCommand { line, file }) = saying else { return String::new() };
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&value["id"], line.ends_with('\n')), (&serde_json::json!(ID), true));
    let command = value["execute"].as_str().unwrap().to_owned();
    assert_eq!(file.is_some(), command == "add-fd");
    let arguments = &value["arguments"];
    let about = ["bus", "id", "node-name"].iter().find_map(|key| arguments[key].as_str());
    format!("{command} {}", about.map_or(arguments["fdset-id"].to_string(), str::to_owned))
}

fn owned(target: &[(&str, &str)]) -> Vec<(String, String)> {
    target.iter().map(|(name, target)| ((*name).to_owned(), (*target).to_owned())).collect()
}

#[test]
fn in_and_out_again() {
    let mut world = World::new();
    assert_eq!(world.plug_in(disk("data", DiskBus::Scsi)), "add-fd 1048577");
    assert_eq!(world.answers(&[Ok(()), Ok(()), Ok(())]), ["blockdev-add plugged1", "device_add scsi.0", ""]);
    assert_eq!(world.settled(), None);
    assert_eq!(world.target(), owned(&[("data", "sda")]));
    assert_eq!(world.plug_in(disk("data", DiskBus::Scsi)), "", "it is there");
    assert_eq!(world.settled(), None);
    world.plug_in(disk("more", DiskBus::Virtio));
    assert_eq!(world.answers(&[Ok(()), Ok(()), Ok(())]), ["blockdev-add plugged2", "device_add port0", ""]);
    assert_eq!(world.target(), owned(&[("data", "sda"), ("more", "vdb")]), "vda is there from the start");

    assert_eq!(world.begin(VolumeAction::Detach("more".into())), "device_del device-plugged2");
    assert_eq!(world.answers(&[Ok(())]), [""], "the guest has a say");
    assert!(world.hotplug.deadline().is_some() && !world.hotplug.is_idle());
    assert_eq!(said(world.hotplug.deleted("device-plugged2")), "blockdev-del plugged2");
    assert_eq!(world.answers(&[Ok(()), Ok(())]), ["remove-fd 1048578", ""]);
    assert_eq!(world.settled(), None);
    assert_eq!(world.target(), owned(&[("data", "sda")]));
    // A SCSI disk may be gone before the command is answered.
    world.begin(VolumeAction::Detach("data".into()));
    assert_eq!(said(world.hotplug.deleted("device-plugged1")), "");
    assert_eq!(world.answers(&[Ok(()), Ok(()), Ok(())]), ["blockdev-del plugged1", "remove-fd 1048577", ""]);
    assert_eq!((world.settled(), world.target()), (None, Vec::new()));
}

/// A VM with a disk, a drive that has a medium, and an empty one.
fn with_drives() -> World {
    let mut launch = Launch { hotplug: true, ..sample::kernel_boot() };
    launch.disks.truncate(1);
    launch.disks.push(cdrom("fixed"));
    launch.disks.push(Disk { source: DiskSource::NoMedium, ..cdrom("cd") });
    World { hotplug: Hotplug::of(&launch, GrowingImages::default()), reply: oneshot::channel().1 }
}

fn cdrom(name: &str) -> Disk {
    Disk { device: DiskDevice::CdRom, read_only: true, ..disk(name, DiskBus::Sata) }
}

#[test]
fn a_medium_goes_through_the_tray() {
    let mut world = with_drives();
    for name in ["fixed", "absent"] {
        assert_eq!(world.plug_in(cdrom(name)), "");
        assert_eq!(world.settled().expect("a fault").code(), Code::Unsupported);
    }
    assert_eq!(world.plug_in(cdrom("cd")), "add-fd 1048577");
    let says = world.answers(&[Ok(()), Ok(()), Ok(()), Ok(()), Ok(())]);
    let tray = |what: &str| format!("blockdev-{what} device-disk2");
    let expected = ["open-tray", "insert-medium", "close-tray"].map(tray);
    assert_eq!(says[0], "blockdev-add plugged1");
    assert_eq!((&says[1..4], says[4].as_str()), (&expected[..], ""));
    assert_eq!((world.settled(), world.target()), (None, owned(&[("cd", "sr1")])));

    // The guest has locked it, then not.
    assert_eq!(world.begin(VolumeAction::Detach("cd".into())), tray("open-tray"));
    let locked = Err("Tray of device 'device-disk2' is not open");
    assert_eq!(world.answers(&[Ok(()), locked]), [tray("remove-medium"), String::new()]);
    let fault = world.settled().expect("a fault");
    assert!(fault.code() == Code::Conflict && fault.detail.contains("has locked the drive"), "{fault:?}");
    assert_eq!(world.target(), owned(&[("cd", "sr1")]));
    world.begin(VolumeAction::Detach("cd".into()));
    let says = world.answers(&[Ok(()), Ok(()), Ok(()), Ok(()), Ok(())]);
    let expected =
        [&*tray("remove-medium"), &*tray("close-tray"), "blockdev-del plugged1", "remove-fd 1048577", ""];
    assert_eq!(says, expected);
    assert_eq!((world.settled(), world.target()), (None, Vec::new()));

    // What QEMU does not take is closed again.
    world.plug_in(cdrom("cd"));
    let says = world.answers(&[Ok(()), Ok(()), Ok(()), Err("no"), Ok(()), Ok(()), Ok(())]);
    assert_eq!(says[3..], [&*tray("close-tray"), "blockdev-del plugged2", "remove-fd 1048578", ""]);
    assert_eq!((world.settled().expect("a fault").code(), world.target()), (Code::Hypervisor, Vec::new()));
}

#[test]
fn what_fails_on_the_way_in_is_taken_back() {
    let table: [(&[Answer], &[&str]); 3] = [
        (&[Err("no")], &[""]),
        (&[Ok(()), Err("no"), Ok(())], &["blockdev-add plugged1", "remove-fd 1048577", ""]),
        (
            &[Ok(()), Ok(()), Err("no"), Ok(()), Ok(())],
            &["blockdev-add plugged1", "device_add scsi.0", "blockdev-del plugged1", "remove-fd 1048577", ""],
        ),
    ];
    for (answers, says) in table {
        let mut world = World::new();
        world.plug_in(disk("data", DiskBus::Scsi));
        assert_eq!(world.answers(answers), says);
        let fault = world.settled().expect("a fault");
        assert!(fault.code() == Code::Hypervisor && fault.detail.ends_with("rejects it: no"), "{fault:?}");
        assert_eq!(world.target(), []);
    }
}

#[test]
fn a_guest_that_keeps_a_volume_is_asked_again() {
    let mut world = World::new();
    world.plug_in(disk("data", DiskBus::Virtio));
    world.answers(&[Ok(()), Ok(()), Ok(())]);
    let ends: [fn(&mut Hotplug) -> Option<QmpCommand>; 2] = [
        |hotplug| hotplug.unplug_rejected("device-plugged1"),
        |hotplug| hotplug.overdue(Instant::now() + UNPLUG_TIMEOUT),
    ];
    for end in ends {
        world.begin(VolumeAction::Detach("data".into()));
        // What was asked before may still be under way.
        world.answers(&[Err("Device device-plugged1 is already in the process of unplug")]);
        assert!(end(&mut world.hotplug).is_none());
        assert_eq!(world.settled().expect("a fault").code(), Code::Conflict);
        assert_eq!(world.target(), owned(&[("data", "vdb")]));
    }
    // It lets go of it after all.
    assert_eq!(said(world.hotplug.deleted("device-plugged1")), "blockdev-del plugged1");
    assert_eq!(world.answers(&[Ok(()), Ok(())]), ["remove-fd 1048577", ""]);
    assert_eq!(world.target(), []);
}

#[test]
fn there_is_not_room_for_everything() {
    let mut world = World::new();
    for number in 0..5 {
        let begun = world.plug_in(disk(&format!("v{number}"), DiskBus::Virtio));
        assert_eq!(begun.is_empty(), number == 4, "four ports");
        if number < 4 {
            world.answers(&[Ok(()), Ok(()), Ok(())]);
        }
    }
    assert_eq!(world.settled().expect("a fault").code(), Code::Conflict);
    let mut world =
        World { hotplug: Hotplug::of(&sample::kernel_boot(), GrowingImages::default()), ..World::new() };
    assert_eq!(world.plug_in(disk("data", DiskBus::Scsi)), "");
    assert_eq!(world.settled().expect("a fault").code(), Code::Unsupported);
    assert_eq!(world.begin(VolumeAction::Detach("none".into())), "");
    assert_eq!(world.settled(), None);
}

#[test]
fn the_image_of_a_volume_is_looked_at_while_it_is_there() {
    for answers in [&[Ok(()), Ok(()), Ok(())][..], &[Err("no")], &[Ok(()), Err("no"), Ok(())]] {
        let mut world = World::new();
        let image = tempfile::tempfile().unwrap();
        let files = DiskFiles { image: image.try_clone().unwrap(), backing: None };
        world.begin(VolumeAction::Attach(Box::new(disk("data", DiskBus::Scsi)), files));
        image.set_len(4096).unwrap();
        let grown = |world: &World| {
            // A size counts once it stays.
            assert_eq!(world.hotplug.growing().grown(), []);
            world.hotplug.growing().grown()
        };
        assert_eq!(grown(&world), [("plugged1".to_owned(), 4096)]);
        world.answers(answers);
        image.set_len(8192).unwrap();
        let there = usize::from(answers == [Ok(()); 3]);
        assert_eq!(grown(&world).len(), there, "{answers:?}");
        if there == 1 {
            world.begin(VolumeAction::Detach("data".into()));
            world.answers(&[Ok(())]);
            assert_eq!(said(world.hotplug.deleted("device-plugged1")), "blockdev-del plugged1");
            world.answers(&[Ok(()), Ok(())]);
            image.set_len(12288).unwrap();
            assert_eq!(world.hotplug.growing().grown(), []);
        }
    }
}
