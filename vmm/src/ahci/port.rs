//! The registers of one port (AHCI 1.3.1, section 3.3), between the vCPUs that write them and the worker of its drive.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use vm_memory::{Bytes, GuestAddress};

use super::drive::{BUSY, DATA_REQUEST, Outcome};
use super::fis::{PIO_SETUP_AT, REGISTER_AT, SET_BITS_AT, Shadow};
use super::hba::Hba;
use super::taskfile::Protocol;
use crate::memory::GuestMemory;

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

/// A port.
pub(super) struct Port {
    index: usize,
    hba: Arc<Hba>,
    /// The registers of its drive after a reset; none without a drive.
    drive: Option<Shadow>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
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
    busy: bool,
    /// After an error, until the driver stops the port.
    halted: bool,
    /// Counts what makes commands on the way obsolete.
    epoch: u64,
    reset_drive: bool,
    /// The first register FIS is still to be posted.
    greet: bool,
    bus_master: bool,
    stopping: bool,
}

/// A slot that is to be carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) slot: u8,
    pub(super) list: u64,
    /// The drive has to be reset before.
    pub(super) reset: bool,
    epoch: u64,
}

/// How a job ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Done(Outcome),
    /// The slot, or what it names, is not in RAM.
    BusError,
    /// A change of the control register: only the slot is given back.
    Control,
    /// A software reset is over; the drive shows its signature.
    Reset,
}

impl Port {
    pub(super) fn new(index: usize, hba: Arc<Hba>, drive: Option<Shadow>) -> Self {
        let state = Mutex::new(State::new(drive, false));
        Self { index, hba, drive, state, changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, register: u64) -> u32 {
        let state = self.state();
        let [list_low, list_high] = halves(state.list);
        let [received_low, received_high] = halves(state.received);
        match register {
            0x00 => list_low,
            0x04 => list_high,
            0x08 => received_low,
            0x0c => received_high,
            0x10 => state.pending(),
            0x14 => state.enabled,
            0x18 => state.command(),
            0x20 => state.task_file,
            0x24 => state.signature,
            0x28 => state.status,
            0x2c => state.control,
            0x30 => state.errors,
            0x34 => state.active,
            0x38 => state.issued,
            _ => 0,
        }
    }

    pub(super) fn write(&self, register: u64, value: u32) {
        let mut state = self.state();
        let with = |old: u64, low: bool| match low {
            true => old & !0xffff_ffff | u64::from(value),
            false => old & 0xffff_ffff | u64::from(value) << 32,
        };
        match register {
            0x00 => state.list = with(state.list, true) & !0x3ff,
            0x04 => state.list = with(state.list, false),
            0x08 => state.received = with(state.received, true) & !0xff,
            0x0c => state.received = with(state.received, false),
            0x10 => {
                state.interrupts &= !value;
                self.tell(&state);
            }
            0x14 => {
                state.enabled = value;
                self.tell(&state);
            }
            0x18 => state.set_command(value),
            0x2c => self.set_control(&mut state, value),
            0x30 => state.errors &= !value,
            0x34 if state.command & START != 0 => state.active |= value,
            0x38 if state.command & START != 0 => state.issued |= value,
            _ => {}
        }
        drop(state);
        // The others are nothing to the worker, and some of them are written with every command.
        if matches!(register, 0x18 | 0x2c | 0x38) {
            self.changed.notify_all();
        }
    }

    /// COMRESET while DET is 1, and the link comes up again when it is 0 (section 10.4.2).
    fn set_control(&self, state: &mut State, value: u32) {
        let (before, after) = (state.control & 0xf, value & 0xf);
        state.control = value & 0xfff;
        match (before, after) {
            (1, 0) | (4, 0) => {
                let bus_master = state.bus_master;
                let fresh = State::new(self.drive, bus_master);
                state.status = fresh.status;
                state.signature = fresh.signature;
                state.task_file = fresh.task_file;
                state.greet = fresh.greet;
                if self.drive.is_some() {
                    state.errors |= EXCHANGED;
                    self.tell(state);
                }
            }
            (_, 1 | 4) => {
                state.abandon();
                state.reset_drive = true;
                state.status = if after == 4 { 4 } else { 0 };
                state.signature = NO_SIGNATURE;
                state.task_file = NO_DRIVE;
            }
            _ => {}
        }
    }

    /// Reset of the whole controller. What the worker does is not waited for, and goes nowhere.
    pub(super) fn reset(&self) {
        let mut state = self.state();
        let State { epoch, busy, bus_master, stopping, .. } = *state;
        *state = State::new(self.drive, bus_master);
        (state.epoch, state.busy, state.stopping) = (epoch.wrapping_add(1), busy, stopping);
        state.reset_drive = true;
    }

    pub(super) fn is_busy(&self) -> bool {
        self.state().busy
    }

    /// Without it no command is begun.
    pub(super) fn set_bus_master(&self, yes: bool) {
        self.state().bus_master = yes;
        self.changed.notify_all();
    }

    /// Tells the controller again what is pending.
    pub(super) fn signal(&self) {
        self.tell(&self.state());
    }

    fn tell(&self, state: &State) {
        if state.pending() & state.enabled != 0 {
            self.hba.raise(self.index);
        }
    }

    /// Has [`Self::next`] answer that there is nothing more.
    pub(super) fn stop(&self) {
        self.state().stopping = true;
        self.changed.notify_all();
    }

    /// Waits for a slot that was issued. `None` when the port is stopped.
    pub(super) fn next(&self, memory: &GuestMemory) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.stopping {
                return None;
            }
            if state.bus_master && state.command & RECEIVE != 0 && std::mem::take(&mut state.greet) {
                // The drive says what it is, without an interrupt.
                let shadow = self.drive.unwrap_or_default();
                state.post(memory, REGISTER_AT, &shadow.register());
            }
            if let Some(slot) = state.runnable() {
                state.current = slot;
                state.busy = true;
                state.task_file |= u32::from(BUSY);
                let reset = std::mem::take(&mut state.reset_drive);
                return Some(Job { slot, list: state.list, reset, epoch: state.epoch });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Posts how a job ended, unless it became obsolete.
    pub(super) fn complete(&self, memory: &GuestMemory, job: Job, end: End) {
        let mut state = self.state();
        state.busy = false;
        if state.epoch != job.epoch {
            return;
        }
        let slot = 1 << job.slot;
        match end {
            End::Done(outcome) => state.finish(memory, slot, outcome),
            End::BusError => {
                state.halted = true;
                state.interrupts |= BUS_ERROR;
                state.task_file &= !u32::from(BUSY);
            }
            End::Control => {
                state.issued &= !slot;
                state.task_file &= !u32::from(BUSY);
            }
            End::Reset => {
                let shadow = self.drive.unwrap_or_default();
                state.issued &= !slot;
                state.task_file = shadow.task_file();
                state.signature = shadow.signature();
                state.post(memory, REGISTER_AT, &shadow.register());
            }
        }
        self.tell(&state);
    }
}

impl State {
    fn new(drive: Option<Shadow>, bus_master: bool) -> Self {
        Self {
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
            bus_master,
            stopping: false,
        }
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
        let running = self.command & START != 0 && !self.halted && !self.busy && self.bus_master;
        let linked = self.status == LINK_UP;
        if !running || !linked || self.issued == 0 {
            return None;
        }
        let first = (self.current + 1) % 32;
        (first..32).chain(0..first).find(|slot| self.issued & 1 << slot != 0)
    }

    fn finish(
        &mut self,
        memory: &GuestMemory,
        slot: u32,
        Outcome { shadow, protocol, transferred }: Outcome,
    ) {
        let failed = shadow.status & super::drive::FAILED != 0;
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
