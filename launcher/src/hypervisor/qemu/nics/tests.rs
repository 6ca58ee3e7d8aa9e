use vireo_vmconfig::NicModel;

use super::*;
use crate::launch::{NicPeer, sample};

/// What QEMU answers to a command.
type Answer = Result<(), &'static str>;

/// A VM that NICs are attached to, and what who asked for that is answered.
struct World {
    nics: NicHotplug,
    reply: oneshot::Receiver<Option<Fault>>,
}

impl World {
    fn new() -> Self {
        let launch = Launch { hotplug: true, nic_hotplug: true, ..sample::kernel_boot() };
        Self { nics: NicHotplug::of(&launch), reply: oneshot::channel().1 }
    }

    fn attach(&mut self, interface: Interface, vhost: usize) -> String {
        let (reply, answer) = oneshot::channel();
        self.reply = answer;
        let open = || OwnedFd::from(tempfile::tempfile().unwrap());
        let files = NicFiles {
            queues: (0..interface.queue_pairs).map(|_| open()).collect(),
            vhost: (0..vhost).map(|_| open()).collect(),
        };
        command(self.nics.attach(Box::new(interface), files, reply))
    }

    fn detach(&mut self, name: &str) -> String {
        let (reply, answer) = oneshot::channel();
        self.reply = answer;
        command(self.nics.detach(name, reply))
    }

    /// The commands that follow these answers.
    fn answered(&mut self, answers: &[Answer]) -> Vec<String> {
        answers.iter().map(|answer| command(self.nics.answered(*answer))).collect()
    }

    fn reply(&mut self) -> Option<Fault> {
        assert!(self.nics.is_idle());
        self.reply.try_recv().expect("an answer")
    }

    /// Attaches a NIC on virtio.
    fn attached(&mut self, name: &str) {
        self.attach(nic(name), 0);
        self.answered(&[Ok(()), Ok(()), Ok(())]);
        assert_eq!((self.reply(), self.nics.take_changes()), (None, vec![NicChange::Attached(name.into())]));
    }
}

fn nic(name: &str) -> Interface {
    let interface = sample::kernel_boot().interfaces.remove(0);
    let peer = NicPeer::Tap { device: "tapX".into(), dhcp_device: "k6t-X".into() };
    Interface { name: name.into(), model: NicModel::Virtio, peer, link_up: true, ..interface }
}

/// A command with its arguments.
fn command(command: Option<QmpCommand>) -> String {
    let Some(QmpCommand { line, file }) = command else { return String::new() };
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&value["id"], line.ends_with('\n')), (&json!(ID), true));
    let name = value["execute"].as_str().unwrap();
    assert_eq!(file.is_some(), name == "getfd", "{line}");
    let arguments = &value["arguments"];
    let named = ["fdname", "name", "bus", "id"].iter().find_map(|key| arguments[key].as_str());
    format!("{name} {}", named.unwrap_or_default())
}

fn gone(name: &str) -> Vec<NicChange> {
    vec![NicChange::Gone(name.into())]
}

#[test]
fn a_nic_comes_and_goes() {
    let mut world = World::new();
    assert_eq!(world.attach(Interface { queue_pairs: 2, ..nic("lan") }, 2), "getfd tap1-0");
    let commands = world.answered(&[Ok(()); 4]);
    assert_eq!(commands, ["getfd tap1-1", "getfd vhost1-0", "getfd vhost1-1", "netdev_add plugged-net1"]);
    assert_eq!(world.answered(&[Ok(()), Ok(())]), ["device_add nic-port0", ""]);
    assert_eq!((world.reply(), world.nics.take_changes()), (None, vec![NicChange::Attached("lan".into())]));
    assert_eq!(world.nics.device_of("lan").as_deref(), Some("device-plugged-net1"));

    assert_eq!(world.detach("lan"), "device_del device-plugged-net1");
    assert_eq!(world.answered(&[Ok(())]), [""], "the guest is to release it");
    assert!(world.nics.deadline().is_some() && !world.nics.is_idle());
    let next = world.nics.deleted("device-plugged-net1");
    assert_eq!(command(next), "netdev_del plugged-net1");
    assert_eq!(world.answered(&[Ok(())]), [""]);
    assert_eq!((world.reply(), world.nics.take_changes()), (None, gone("lan")));
    assert_eq!(world.detach("lan"), "");
    assert_eq!(world.reply(), None);
}

#[test]
fn the_descriptors_of_a_back_end_are_named() {
    let files = Files {
        queues: vec!["tap1-0".into(), "tap1-1".into()],
        vhost: vec!["vhost1-0".into(), "vhost1-1".into()],
        left: Vec::new(),
    };
    let nic = Nic { interface: Box::new(nic("lan")), number: 1, port: 2, device_gone: false };
    let operation = Operation { nic, stage: Stage::AddBackend, files, reply: None, fault: None };
    let sent: Value = serde_json::from_str(&add_backend(&operation)).unwrap();
    let expected = json!({"type": "tap", "id": "plugged-net1", "fds": "tap1-0:tap1-1", "vhost": true,
        "vhostfds": "vhost1-0:vhost1-1"});
    assert_eq!(sent["arguments"], expected);
    let sent: Value = serde_json::from_str(&add_device(&operation.nic, 2)).unwrap();
    let device = &sent["arguments"];
    assert_eq!((&device["bus"], &device["mq"]), (&json!("nic-port2"), &json!(true)));
    assert_eq!((&device["driver"], &device["netdev"]), (&json!("virtio-net-pci"), &json!("plugged-net1")));
}

#[test]
fn a_link_that_is_down_is_down_at_once() {
    let mut world = World::new();
    world.attach(Interface { link_up: false, ..nic("lan") }, 0);
    let commands = world.answered(&[Ok(()), Ok(()), Ok(()), Ok(())]);
    assert_eq!(commands[1..], ["device_add nic-port0", "set_link device-plugged-net1", ""]);
    assert_eq!(world.reply(), None);
}

#[test]
fn a_failed_attachment_leaves_nothing_behind() {
    let table: [(&[Answer], &[&str]); 3] = [
        (&[Err("no"), Err("not found")], &["closefd tap1-0", ""]),
        (&[Ok(()), Err("no"), Ok(())], &["netdev_add plugged-net1", "closefd tap1-0", ""]),
        (
            &[Ok(()), Ok(()), Err("no"), Ok(())],
            &["netdev_add plugged-net1", "device_add nic-port0", "netdev_del plugged-net1", ""],
        ),
    ];
    for (answers, commands) in table {
        let mut world = World::new();
        world.attach(nic("lan"), 0);
        assert_eq!(world.answered(answers), commands);
        let fault = world.reply().expect("a fault");
        assert!(fault.code() == Code::Hypervisor && fault.detail.contains("no"), "{fault:?}");
        assert_eq!((world.nics.take_changes(), world.nics.device_of("lan")), (gone("lan"), None));
    }
}

#[test]
fn a_guest_that_keeps_a_nic_is_asked_again() {
    let mut world = World::new();
    world.attached("lan");
    let ends: [fn(&mut NicHotplug) -> Option<QmpCommand>; 2] = [
        |nics| nics.unplug_rejected("device-plugged-net1"),
        |nics| nics.overdue(Instant::now() + UNPLUG_TIMEOUT),
    ];
    for end in ends {
        world.detach("lan");
        // What it was asked before may still be under way.
        world.answered(&[Err("Device device-plugged-net1 is already in the process of unplug")]);
        assert!(end(&mut world.nics).is_none());
        assert_eq!(world.reply().expect("a fault").code(), Code::Conflict);
        assert!(world.nics.device_of("lan").is_some());
    }
    // It releases it after all.
    assert_eq!(command(world.nics.deleted("device-plugged-net1")), "netdev_del plugged-net1");
    assert_eq!(world.answered(&[Ok(())]), [""]);
    assert_eq!((world.nics.take_changes(), world.nics.device_of("lan")), (gone("lan"), None));
}

#[test]
fn there_are_so_many_ports_and_no_more() {
    let mut world = World::new();
    for number in 0..PORTS {
        world.attached(&format!("n{number}"));
    }
    assert_eq!(world.attach(nic("more"), 0), "");
    assert_eq!(world.reply().expect("a fault").code(), Code::Conflict);
    assert_eq!(world.nics.take_changes(), gone("more"));
    world.detach("n1");
    world.answered(&[Ok(())]);
    world.nics.deleted("device-plugged-net2");
    world.answered(&[Ok(())]);
    world.attach(nic("more"), 0);
    assert_eq!(world.answered(&[Ok(()), Ok(())])[1], "device_add nic-port1");

    let launch = Launch { hotplug: true, ..sample::kernel_boot() };
    let mut world = World { nics: NicHotplug::of(&launch), ..World::new() };
    assert_eq!(world.attach(nic("lan"), 0), "");
    assert_eq!(world.reply().expect("a fault").code(), Code::Unsupported);
}
