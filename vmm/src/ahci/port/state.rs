//! The state of a port: its registers, and what the driver and the drive make of them.

use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};

use super::super::drive::{BUSY, DATA_REQUEST, FAILED, Outcome};
use super::super::fis::{PIO_SETUP_AT, REGISTER_AT, SET_BITS_AT, Shadow};
use super::super::taskfile::Protocol;
use super::{End, Job};
use crate::memory::GuestMemory;
use crate::state::SectionError;

// PxIS.
const GOT_REGISTER: u32 = 1 << 0;
const GOT_PIO_SETUP: u32 = 1 << 1;
const GOT_SET_BITS: u32 = 1 << 3;
const CONNECT_CHANGE: u32 = 1 << 6;
const BUS_ERROR: u32 = 1 << 29;
const TASK_FILE_ERROR: u32 = 1 << 30;
// PxCMD.
const START: u32 = 1 << 0;
const OVERRIDE: u32 = 1 << 3;
const RECEIVE: u32 = 1 << 4;
const RECEIVING: u32 = 1 << 14;
const RUNNING: u32 = 1 << 15;
const CMD_FIXED: u32 = 0x6;
const CMD_WRITABLE: u32 = 0x0300_0000 | RECEIVE | START;
/// PxSSTS: a drive with an active link at 6 Gbit/s.
const LINK_UP: u32 = 0x133;
/// PxSERR: COMINIT was received.
const EXCHANGED: u32 = 1 << 26;
const NO_DRIVE: u32 = 0x7f;
const NO_SIGNATURE: u32 = u32::MAX;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// The registers of its drive after a reset; none without a drive.
    #[serde(skip)]
    drive: Option<Shadow>,
    list: u64,
    received: u64,
    interrupts: u32,
    enabled: u32,
    command: u32,
    task_file: u32,
    signature: u32,
    status: u32,
    control: u32,
    errors: u32,
    active: u32,
    issued: u32,
    /// The slot that the worker carries out, or did last.
    current: u8,
    #[serde(skip)]
    pub(super) busy: bool,
    /// After an error, until the driver stops the port.
    halted: bool,
    /// Counts what makes commands on the way obsolete.
    #[serde(skip)]
    epoch: u64,
    reset_drive: bool,
    /// The first register FIS is still to be posted.
    greet: bool,
    #[serde(skip)]
    pub(super) bus_master: bool,
    #[serde(skip)]
    pub(super) stopping: bool,
    /// The VM is paused: nothing is begun.
    #[serde(skip)]
    pub(super) paused: bool,
    /// The command that is carried out waits, and changes nothing meanwhile.
    #[serde(skip)]
    pub(super) held: bool,
}

impl State {
    pub(super) fn new(drive: Option<Shadow>) -> Self {
        Self {
            drive,
            list: 0,
            received: 0,
            interrupts: 0,
            enabled: 0,
            command: 0,
            task_file: drive.map_or(NO_DRIVE, Shadow::task_file),
            signature: drive.map_or(NO_SIGNATURE, Shadow::signature),
            status: if drive.is_some() { LINK_UP } else { 0 },
            control: 0,
            errors: 0,
            active: 0,
            issued: 0,
            current: 31,
            busy: false,
            halted: false,
            epoch: 0,
            reset_drive: false,
            greet: drive.is_some(),
            bus_master: false,
            stopping: false,
            paused: false,
            held: false,
        }
    }

    /// Takes saved registers over. Nothing is begun until the VM continues.
    pub(super) fn load(&mut self, saved: Self) -> Result<(), SectionError> {
        if saved.current > 31 || saved.list & 0x3ff != 0 || saved.received & 0xff != 0 {
            return Err(SectionError::Invalid("a port has registers that no driver can write"));
        }
        *self = Self {
            drive: self.drive,
            busy: false,
            epoch: self.epoch,
            bus_master: self.bus_master,
            stopping: self.stopping,
            paused: true,
            held: false,
            command: saved.command & CMD_WRITABLE,
            control: saved.control & 0xfff,
            ..saved
        };
        Ok(())
    }

    /// Whether the outcome of a job has to wait until the function may access memory.
    pub(super) fn is_waiting(&self, job: Job) -> bool {
        !self.bus_master && !self.stopping && self.epoch == job.epoch
    }

    pub(super) fn read(&self, register: u64) -> u32 {
        let [list_low, list_high] = halves(self.list);
        let [received_low, received_high] = halves(self.received);
        match register {
            0x00 => list_low,
            0x04 => list_high,
            0x08 => received_low,
            0x0c => received_high,
            0x10 => self.pending(),
            0x14 => self.enabled,
            0x18 => self.command(),
            0x20 => self.task_file,
            0x24 => self.signature,
            0x28 => self.status,
            0x2c => self.control,
            0x30 => self.errors,
            0x34 => self.active,
            0x38 => self.issued,
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, register: u64, value: u32) {
        let with = |old: u64, low: bool| match low {
            true => old & !0xffff_ffff | u64::from(value),
            false => old & 0xffff_ffff | u64::from(value) << 32,
        };
        match register {
            0x00 => self.list = with(self.list, true) & !0x3ff,
            0x04 => self.list = with(self.list, false),
            0x08 => self.received = with(self.received, true) & !0xff,
            0x0c => self.received = with(self.received, false),
            0x10 => self.interrupts &= !value,
            0x14 => self.enabled = value,
            0x18 => self.set_command(value),
            0x2c => self.set_control(value),
            0x30 => self.errors &= !value,
            0x34 if self.command & START != 0 => self.active |= value,
            0x38 if self.command & START != 0 => self.issued |= value,
            _ => {}
        }
    }

    /// COMRESET while DET is 1, and the link comes up again when it is 0 (section 10.4.2).
    fn set_control(&mut self, value: u32) {
        let (before, after) = (self.control & 0xf, value & 0xf);
        self.control = value & 0xfff;
        match (before, after) {
            (1, 0) | (4, 0) => {
                let fresh = Self::new(self.drive);
                self.status = fresh.status;
                self.signature = fresh.signature;
                self.task_file = fresh.task_file;
                self.greet = fresh.greet;
                if self.drive.is_some() {
                    self.errors |= EXCHANGED;
                }
            }
            (_, 1 | 4) => {
                self.abandon();
                self.reset_drive = true;
                self.status = if after == 4 { 4 } else { 0 };
                self.signature = NO_SIGNATURE;
                self.task_file = NO_DRIVE;
            }
            _ => {}
        }
    }

    /// Reset of the whole controller. The worker is not waited for, and its results are dropped.
    pub(super) fn reset(&mut self) {
        *self = Self {
            epoch: self.epoch.wrapping_add(1),
            busy: self.busy,
            bus_master: self.bus_master,
            stopping: self.stopping,
            paused: self.paused,
            held: self.held,
            reset_drive: true,
            ..Self::new(self.drive)
        };
    }

    pub(super) fn interrupts(&self) -> bool {
        self.pending() & self.enabled != 0
    }

    fn pending(&self) -> u32 {
        let changed = if self.errors & EXCHANGED != 0 { CONNECT_CHANGE } else { 0 };
        self.interrupts | changed
    }

    fn command(&self) -> u32 {
        let receiving = if self.command & RECEIVE != 0 { RECEIVING } else { 0 };
        // A stopped port runs until its worker is done with what it has.
        let running = if self.command & START != 0 || self.busy { RUNNING } else { 0 };
        self.command | CMD_FIXED | receiving | running | u32::from(self.current & 0x1f) << 8
    }

    fn set_command(&mut self, value: u32) {
        if value & OVERRIDE != 0 {
            self.task_file &= !u32::from(BUSY | DATA_REQUEST);
        }
        if self.command & START != 0 && value & START == 0 {
            self.abandon();
        }
        self.command = value & CMD_WRITABLE;
    }

    /// What was issued is not carried out, or at least not answered.
    fn abandon(&mut self) {
        self.issued = 0;
        self.active = 0;
        self.halted = false;
        self.current = 31;
        self.epoch = self.epoch.wrapping_add(1);
        self.task_file &= !u32::from(BUSY);
    }

    /// The next slot in order after the current one (section 5.3.12).
    fn runnable(&self) -> Option<u8> {
        let running =
            self.command & START != 0 && !self.halted && !self.busy && self.bus_master && !self.paused;
        let linked = self.status == LINK_UP;
        if !running || !linked || self.issued == 0 {
            return None;
        }
        let first = (self.current + 1) % 32;
        (first..32).chain(0..first).find(|slot| self.issued & 1 << slot != 0)
    }

    /// The drive sends its signature, without an interrupt, once FIS receive is enabled.
    pub(super) fn greet(&mut self, memory: &GuestMemory) {
        if self.bus_master && self.command & RECEIVE != 0 && std::mem::take(&mut self.greet) {
            let shadow = self.drive.unwrap_or_default();
            self.post(memory, REGISTER_AT, &shadow.register());
        }
    }

    /// Takes the next slot, if one may run.
    pub(super) fn begin(&mut self) -> Option<Job> {
        let slot = self.runnable()?;
        self.current = slot;
        self.busy = true;
        self.task_file |= u32::from(BUSY);
        let reset = std::mem::take(&mut self.reset_drive);
        Some(Job { slot, list: self.list, reset, epoch: self.epoch })
    }

    /// Posts how a job ended; `false` if it became obsolete.
    pub(super) fn complete(&mut self, memory: &GuestMemory, job: Job, end: End) -> bool {
        self.busy = false;
        if self.epoch != job.epoch {
            return false;
        }
        let slot = 1 << job.slot;
        match end {
            End::Done(outcome) => self.finish(memory, slot, outcome),
            End::BusError => {
                self.halted = true;
                self.interrupts |= BUS_ERROR;
                self.task_file &= !u32::from(BUSY);
            }
            End::Control => {
                self.issued &= !slot;
                self.task_file &= !u32::from(BUSY);
            }
            End::Reset => {
                let shadow = self.drive.unwrap_or_default();
                self.issued &= !slot;
                self.task_file = shadow.task_file();
                self.signature = shadow.signature();
                self.post(memory, REGISTER_AT, &shadow.register());
            }
        }
        true
    }

    fn finish(
        &mut self,
        memory: &GuestMemory,
        slot: u32,
        Outcome { shadow, protocol, transferred }: Outcome,
    ) {
        let failed = shadow.status & FAILED != 0;
        self.task_file = shadow.task_file();
        match protocol {
            Protocol::PioIn if !failed => {
                let count = u16::try_from(transferred).unwrap_or(0);
                self.post(memory, PIO_SETUP_AT, &shadow.pio_setup(shadow.status | DATA_REQUEST, count));
                self.interrupts |= GOT_PIO_SETUP;
            }
            Protocol::Queued(_) => {
                let complete = if failed { 0 } else { slot };
                self.post(memory, SET_BITS_AT, &shadow.set_bits(complete));
                self.interrupts |= GOT_SET_BITS;
                self.active &= !complete;
                // Queued, the slot is given back when the drive took the command.
                self.issued &= !slot;
            }
            Protocol::Plain | Protocol::PioIn => {
                self.post(memory, REGISTER_AT, &shadow.register());
                self.interrupts |= GOT_REGISTER;
            }
        }
        if failed {
            self.interrupts |= TASK_FILE_ERROR;
            self.halted = true;
        } else {
            self.issued &= !slot;
        }
    }

    fn post(&self, memory: &GuestMemory, at: u64, fis: &[u8]) {
        let address = self.received.checked_add(at).filter(|_| self.command & RECEIVE != 0);
        if let Some(address) = address
            && let Err(error) = memory.write_slice(fis, GuestAddress(address))
        {
            tracing::debug!(%error, "a FIS cannot be posted");
        }
    }
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}
