//! Hotplug of NICs: the QMP command that follows each response and event.
//!
//! One at a time. In: the descriptors of the tap's queues, the back end over them, the device on the back end. Out: the device, whose
//! removal the guest must confirm, then the back end. A failed attachment is rolled back.

use std::fs::File;
use std::os::fd::OwnedFd;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;
use vireo_proto::launcher::Fault;

use super::args::Args;
use super::device::{Backend, backend, nic_device};
use super::hotplug::QmpCommand;
use super::pci::hotplug_port;
use super::qmp;
use crate::fault::{Code, fault, fault_at};
use crate::host::NicFiles;
use crate::hypervisor::guest::{NicChange, UNPLUG_TIMEOUT, nic_stays};
use crate::launch::{Interface, Launch};

/// The id of its commands: one is outstanding at a time.
pub(super) const ID: &str = "plug-nic";
/// Ports for NICs. They share a slot with those of volumes, which have the functions before them.
const PORTS: usize = 4;

type Reply = oneshot::Sender<Option<Fault>>;

/// A NIC that is attached, or on its way.
#[derive(Clone, Debug)]
struct Nic {
    interface: Box<Interface>,
    /// Part of the names of its QEMU objects; never reused.
    number: u32,
    port: usize,
    /// QEMU has no device of it any more.
    device_gone: bool,
}

impl Nic {
    fn backend(&self) -> String {
        format!("plugged-net{}", self.number)
    }

    fn device(&self) -> String {
        format!("device-{}", self.backend())
    }
}

/// The command that QEMU was sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For the descriptor at a position.
    TakeFile(usize),
    AddBackend,
    AddDevice,
    SwitchLink,
    RemoveDevice,
    /// Waiting for the guest to release the device.
    Wait(Instant),
    RemoveBackend,
    /// Of a failed attachment, at a position.
    CloseFile(usize),
}

/// One NIC's way in or out.
#[derive(Debug)]
struct Operation {
    nic: Nic,
    stage: Stage,
    files: Files,
    reply: Option<Reply>,
    /// What went wrong on the way in.
    fault: Option<Fault>,
}

/// The descriptors of a NIC, by the names that QEMU knows them by.
#[derive(Debug, Default)]
struct Files {
    queues: Vec<String>,
    vhost: Vec<String>,
    /// Those that QEMU is still to be given, the last one first.
    left: Vec<OwnedFd>,
}

impl Files {
    fn of(number: u32, NicFiles { queues, vhost }: NicFiles) -> Self {
        // With fewer, QEMU moves all queues.
        let vhost = if vhost.len() < queues.len() { Vec::new() } else { vhost };
        let names = |kind: &str, files: &[OwnedFd]| -> Vec<String> {
            (0..files.len()).map(|index| format!("{kind}{number}-{index}")).collect()
        };
        let (of_queues, of_vhost) = (names("tap", &queues), names("vhost", &vhost));
        let left = queues.into_iter().chain(vhost).rev().collect();
        Self { queues: of_queues, vhost: of_vhost, left }
    }

    fn name(&self, position: usize) -> Option<&String> {
        self.queues.iter().chain(&self.vhost).nth(position)
    }
}

/// All NICs that are attached to a VM while it runs.
#[derive(Debug)]
pub(super) struct NicHotplug {
    has_ports: bool,
    nics: Vec<Nic>,
    operation: Option<Operation>,
    count: u32,
    changes: Vec<NicChange>,
}

impl NicHotplug {
    pub(super) fn of(launch: &Launch) -> Self {
        let has_ports = has_ports(launch);
        Self { has_ports, nics: Vec::new(), operation: None, count: 0, changes: Vec::new() }
    }

    /// Whether it could begin with another NIC.
    pub(super) fn is_idle(&self) -> bool {
        self.operation.is_none()
    }

    /// When it is to be called [`Self::overdue`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.operation.as_ref()?.stage {
            Stage::Wait(until) => Some(until),
            _ => None,
        }
    }

    /// What has changed since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<NicChange> {
        std::mem::take(&mut self.changes)
    }

    /// The device of an attached NIC.
    pub(super) fn device_of(&self, name: &str) -> Option<String> {
        self.nics.iter().find(|nic| nic.interface.name == name).map(Nic::device)
    }

    /// Begins to attach a NIC.
    pub(super) fn attach(
        &mut self,
        interface: Box<Interface>,
        files: NicFiles,
        reply: Reply,
    ) -> Option<QmpCommand> {
        // The caller may not have waited for the answer.
        if self.nics.iter().any(|nic| nic.interface.name == interface.name) {
            answer(reply, None);
            return None;
        }
        let taken = |port: &usize| self.nics.iter().any(|nic| nic.port == *port);
        let refused = match (0..PORTS).find(|port| !taken(port)) {
            Some(port) if self.has_ports => {
                self.count += 1;
                let files = Files::of(self.count, files);
                let nic = Nic { interface, number: self.count, port, device_gone: false };
                return self.take_file(
                    Operation { nic, stage: Stage::AddBackend, files, reply: Some(reply), fault: None },
                    0,
                );
            }
            Some(_) => (
                Code::Unsupported,
                "the VM was started without ports for NICs: it has them after its next start",
            ),
            None => (Code::Conflict, "no port is free for another NIC: detach one first"),
        };
        answer(reply, Some(fault_at(refused.0, &interface.field, refused.1)));
        self.changes.push(NicChange::Gone(interface.name));
        None
    }

    /// Begins to detach a NIC.
    pub(super) fn detach(&mut self, name: &str, reply: Reply) -> Option<QmpCommand> {
        let Some(nic) = self.nics.iter().find(|nic| nic.interface.name == name).cloned() else {
            answer(reply, None);
            return None;
        };
        let line = line("device_del", &json!({ "id": nic.device() }));
        let files = Files::default();
        self.operation =
            Some(Operation { nic, stage: Stage::RemoveDevice, files, reply: Some(reply), fault: None });
        Some(line.into())
    }

    /// Gives QEMU the descriptor at a position, or goes on where there are no more.
    fn take_file(&mut self, mut operation: Operation, position: usize) -> Option<QmpCommand> {
        let next = operation.files.left.pop().zip(operation.files.name(position).cloned());
        let Some((file, name)) = next else {
            let line = add_backend(&operation);
            return self.advance(operation, Stage::AddBackend, line);
        };
        self.operation = Some(Operation { stage: Stage::TakeFile(position), ..operation });
        Some(QmpCommand { line: line("getfd", &json!({ "fdname": name })), file: Some(File::from(file)) })
    }

    /// Has QEMU close the descriptor at a position of a NIC that it did not take. Those that it has closed are none any more.
    fn close_file(&mut self, operation: Operation, position: usize) -> Option<QmpCommand> {
        match operation.files.name(position) {
            Some(name) => {
                let line = line("closefd", &json!({ "fdname": name }));
                self.advance(operation, Stage::CloseFile(position), line)
            }
            None => self.end_gone(operation),
        }
    }

    /// QEMU has answered the last command.
    pub(super) fn answered(&mut self, answer: Result<(), &str>) -> Option<QmpCommand> {
        let mut operation = self.operation.take()?;
        match (operation.stage, answer) {
            (Stage::TakeFile(position), Ok(())) => self.take_file(operation, position + 1),
            (Stage::AddBackend, Ok(())) => {
                let line = add_device(&operation.nic, operation.files.queues.len());
                self.advance(operation, Stage::AddDevice, line)
            }
            (Stage::AddDevice, Ok(())) if !operation.nic.interface.link_up => {
                let line = qmp::set_link_as(ID, &operation.nic.device(), false);
                self.advance(operation, Stage::SwitchLink, line)
            }
            (Stage::AddDevice, Ok(())) | (Stage::SwitchLink, _) => {
                let nic = operation.nic;
                self.changes.push(NicChange::Attached(nic.interface.name.clone()));
                self.nics.push(nic);
                reply_to(operation.reply, None);
                self.clean_up()
            }
            (Stage::TakeFile(_) | Stage::AddBackend, Err(why)) => {
                operation.fault = Some(qemu_error(&operation.nic, why));
                self.close_file(operation, 0)
            }
            (Stage::CloseFile(position), _) => self.close_file(operation, position + 1),
            (Stage::AddDevice, Err(why)) => {
                operation.fault = Some(qemu_error(&operation.nic, why));
                self.remove_backend(operation)
            }
            (Stage::RemoveDevice, Ok(())) if !operation.nic.device_gone => self.wait(operation),
            (Stage::RemoveDevice, Err(why)) if why.contains("process of unplug") => self.wait(operation),
            (Stage::RemoveDevice, Err(why)) if !why.contains("not found") && !operation.nic.device_gone => {
                reply_to(operation.reply, Some(qemu_error(&operation.nic, why)));
                self.clean_up()
            }
            (Stage::RemoveDevice, _) => self.remove_backend(operation),
            // The next request to detach the NIC retries.
            (Stage::RemoveBackend, Err(why)) if operation.fault.is_none() => {
                reply_to(operation.reply, Some(qemu_error(&operation.nic, why)));
                self.clean_up()
            }
            (Stage::RemoveBackend, _) => self.end_gone(operation),
            // No command is outstanding.
            (Stage::Wait(_), _) => {
                self.operation = Some(operation);
                None
            }
        }
    }

    fn advance(&mut self, operation: Operation, stage: Stage, line: String) -> Option<QmpCommand> {
        self.operation = Some(Operation { stage, ..operation });
        Some(line.into())
    }

    fn wait(&mut self, operation: Operation) -> Option<QmpCommand> {
        self.operation = Some(Operation { stage: Stage::Wait(Instant::now() + UNPLUG_TIMEOUT), ..operation });
        None
    }

    fn remove_backend(&mut self, operation: Operation) -> Option<QmpCommand> {
        let line = line("netdev_del", &json!({ "id": operation.nic.backend() }));
        self.advance(operation, Stage::RemoveBackend, line)
    }

    /// QEMU has nothing of a NIC any more.
    fn end_gone(&mut self, operation: Operation) -> Option<QmpCommand> {
        self.nics.retain(|nic| nic.number != operation.nic.number);
        self.changes.push(NicChange::Gone(operation.nic.interface.name));
        reply_to(operation.reply, operation.fault);
        self.clean_up()
    }

    /// Removes what is left of a NIC that the guest let go of by itself.
    fn clean_up(&mut self) -> Option<QmpCommand> {
        let nic = self.nics.iter_mut().find(|nic| nic.device_gone)?;
        // Once: a request to detach the NIC retries a failure.
        nic.device_gone = false;
        let (nic, files) = (nic.clone(), Files::default());
        self.remove_backend(Operation { nic, stage: Stage::RemoveBackend, files, reply: None, fault: None })
    }

    /// QEMU has no device of this name any more.
    pub(super) fn deleted(&mut self, device: &str) -> Option<QmpCommand> {
        if let Some(operation) = self.operation.as_mut().filter(|operation| operation.nic.device() == device)
        {
            operation.nic.device_gone = true;
            return match operation.stage {
                Stage::Wait(_) => {
                    let operation = self.operation.take()?;
                    self.remove_backend(operation)
                }
                _ => None,
            };
        }
        self.nics.iter_mut().find(|nic| nic.device() == device)?.device_gone = true;
        if self.is_idle() { self.clean_up() } else { None }
    }

    /// The guest has refused to let go of a device.
    pub(super) fn unplug_rejected(&mut self, device: &str) -> Option<QmpCommand> {
        let is_of = |operation: &mut Operation| {
            matches!(operation.stage, Stage::Wait(_)) && operation.nic.device() == device
        };
        self.give_up("refuses", is_of)
    }

    /// The guest has had its time.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<QmpCommand> {
        self.give_up(
            "has not released it yet",
            |operation| matches!(operation.stage, Stage::Wait(until) if until <= now),
        )
    }

    fn give_up(&mut self, how: &str, is_over: impl FnOnce(&mut Operation) -> bool) -> Option<QmpCommand> {
        let operation = self.operation.take_if(is_over)?;
        reply_to(operation.reply, Some(nic_stays(&operation.nic.interface.name, how)));
        self.clean_up()
    }
}

/// Whether NICs can be attached to a VM.
fn has_ports(launch: &Launch) -> bool {
    launch.hotplug && launch.nic_hotplug
}

/// The ports of NICs, after those of volumes.
pub(super) fn ports(args: &mut Args, launch: &Launch, functions_before: usize) {
    for port in (0..PORTS).filter(|_| has_ports(launch)) {
        args.json("-device", &hotplug_port(&port_name(port), functions_before + port));
    }
}

fn port_name(port: usize) -> String {
    format!("nic-port{port}")
}

fn line(name: &str, arguments: &Value) -> String {
    format!("{}\n", json!({ "execute": name, "id": ID, "arguments": arguments }))
}

fn add_backend(Operation { nic, files, .. }: &Operation) -> String {
    let queues = Backend { queues: &files.queues, vhost: &files.vhost };
    line("netdev_add", &backend(&nic.interface, &nic.backend(), queues))
}

fn add_device(nic: &Nic, pairs: usize) -> String {
    let mut device = nic_device(&nic.interface, (&nic.device(), &nic.backend()), pairs);
    device["bus"] = json!(port_name(nic.port));
    line("device_add", &device)
}

fn qemu_error(nic: &Nic, why: &str) -> Fault {
    fault(Code::Hypervisor, format!("NIC {}: QEMU rejects it: {why}", nic.interface.name))
}

fn reply_to(reply: Option<Reply>, fault: Option<Fault>) {
    if let Some(reply) = reply {
        answer(reply, fault);
    }
}

fn answer(reply: Reply, fault: Option<Fault>) {
    // The caller may be gone.
    let _ = reply.send(fault);
}

#[cfg(test)]
mod tests;
