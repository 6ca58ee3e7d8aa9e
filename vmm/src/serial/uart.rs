use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::bus::BusDevice;
use crate::irq::IrqLine;
use crate::serial::SerialOutput;
use crate::state::{Section, SectionError};

/// Bytes kept beyond the UART's own FIFO: a pasted page, not a file.
const BACKLOG: usize = 4096;

/// Register offset of the receive buffer (and of the divisor latch, which reads do no harm to).
const DATA: u8 = 0;
/// Interrupt enable, and its bit for received data.
const ENABLE: u8 = 1;
const ENABLE_RECEIVED: u8 = 1 << 0;
/// Interrupt identification: lower half for no interrupt, and for received data.
const IDENTIFICATION: u8 = 2;
const NOTHING: u8 = 0b0001;
const RECEIVED: u8 = 0b0100;
/// Line control, and its bit that maps the divisor over other registers.
const LINE_CONTROL: u8 = 3;
const DIVISOR: u8 = 1 << 7;
/// Line status, and its bit for data in the FIFO.
const LINE_STATUS: u8 = 5;
const DATA_READY: u8 = 1 << 0;
/// Line status: the byte in front is a break.
const BREAK: u8 = 1 << 4;
/// Bytes in the chip's FIFO.
const FIFO: usize = 64;

/// A 16550A.
pub(crate) struct Uart {
    state: Mutex<State>,
    room: EventFd,
    room_again: Condvar,
}

struct State {
    /// `None` once the VM is gone: the line and the output are dropped.
    chip: Option<Serial<Line, NoEvents, Output>>,
    backlog: VecDeque<u8>,
    /// How many bytes are in front of a break, which is a zero with a mark in the line status.
    breaks_after: Option<usize>,
    /// A `push` was short, and the caller was not notified of room since.
    starved: bool,
}

struct Line(Arc<dyn IrqLine>);

impl Trigger for Line {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.pulse()
    }
}

struct Output(Box<dyn SerialOutput>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Uart {
    /// A port that interrupts on `line` and sends to `output`.
    pub(crate) fn new(line: Arc<dyn IrqLine>, output: Box<dyn SerialOutput>) -> io::Result<Self> {
        let state = State {
            chip: Some(Serial::new(Line(line), Output(output))),
            backlog: VecDeque::new(),
            breaks_after: None,
            starved: false,
        };
        Ok(Self { state: Mutex::new(state), room: EventFd::new(EFD_NONBLOCK)?, room_again: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`crate::serial::SerialInput::push`].
    pub(crate) fn push(&self, bytes: &[u8]) -> usize {
        let mut state = self.state();
        if state.chip.is_none() {
            return bytes.len();
        }
        state.refill();
        let mut taken = 0;
        if state.backlog.is_empty() {
            taken = state.enqueue(bytes);
        }
        let rest = bytes.get(taken..).unwrap_or_default();
        let kept = rest.len().min(BACKLOG.saturating_sub(state.backlog.len()));
        state.backlog.extend(rest.iter().take(kept));
        taken += kept;
        if taken < bytes.len() {
            state.starved = true;
            // Would block means that nothing was signalled, which is what is wanted.
            let _unread = self.room.read();
        }
        taken
    }

    /// See [`crate::serial::SerialInput::send_break`].
    pub(crate) fn send_break(&self) {
        let mut state = self.state();
        // One that was not read yet is as good as two.
        if state.chip.is_none() || state.breaks_after.is_some() {
            return;
        }
        state.breaks_after = Some(state.received() + state.backlog.len());
        state.backlog.push_back(0);
        state.refill();
    }

    /// See [`crate::serial::SerialInput::room`].
    pub(crate) fn room(&self) -> &EventFd {
        &self.room
    }

    /// See [`crate::serial::SerialInput::wait_room`].
    pub(crate) fn wait_room(&self) {
        let waiting = self.room_again.wait_while(self.state(), |state| state.starved);
        drop(waiting.unwrap_or_else(PoisonError::into_inner));
    }

    /// The VM is gone: wakes all that wait for room.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.chip = None;
        state.backlog = VecDeque::new();
        state.starved = false;
        self.signal_room();
    }

    fn signal_room(&self) {
        self.room_again.notify_all();
        if let Err(error) = self.room.write(1) {
            tracing::warn!(%error, "cannot signal room in the serial port");
        }
    }
}

impl State {
    fn enqueue(&mut self, bytes: &[u8]) -> usize {
        // A full FIFO takes nothing, and so does one in loop-back mode.
        self.chip.as_mut().and_then(|chip| chip.enqueue_raw_bytes(bytes).ok()).unwrap_or(0)
    }

    /// Bytes in the chip's FIFO.
    fn received(&self) -> usize {
        self.chip.as_ref().map_or(0, |chip| FIFO.saturating_sub(chip.fifo_capacity()))
    }

    /// The driver has read the line status: a break in front is told once.
    fn take_break(&mut self) -> bool {
        let told = self.breaks_after == Some(0);
        self.breaks_after = self.breaks_after.filter(|after| *after > 0);
        told
    }

    /// The driver has taken `count` bytes.
    fn pass(&mut self, count: usize) {
        self.breaks_after = self.breaks_after.and_then(|after| after.checked_sub(count));
    }

    fn refill(&mut self) {
        let room = self.chip.as_ref().map_or(0, Serial::fifo_capacity);
        if room == 0 || self.backlog.is_empty() {
            return;
        }
        let (front, _) = self.backlog.as_slices();
        let next: Vec<u8> = front.iter().take(room).copied().collect();
        let taken = self.enqueue(&next);
        self.backlog.drain(..taken);
    }
}

/// Whether a driver that asks shall learn of received data. The chip says so once for what came at once; a driver that
/// takes only a part of it, as Linux does of more than 256 bytes, asks again before it leaves.
fn still_received(chip: &mut Serial<Line, NoEvents, Output>) -> bool {
    chip.read(LINE_CONTROL) & DIVISOR == 0
        && chip.read(ENABLE) & ENABLE_RECEIVED != 0
        && chip.read(LINE_STATUS) & DATA_READY != 0
}

/// The chip's registers in their order, what it received, and what waits beyond its FIFO, as they are saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UartState {
    registers: [u8; 9],
    received: Vec<u8>,
    backlog: Vec<u8>,
    breaks_after: Option<u32>,
}

#[cfg(test)]
impl UartState {
    /// More than a port can have received.
    pub(crate) fn overfill(&mut self) {
        self.received = vec![0; FIFO + 1];
    }
}

impl Section for Uart {
    const TAG: &'static str = "uart-16550a";
    const VERSION: u16 = 1;
    type State = UartState;

    fn save(&self) -> Result<UartState, SectionError> {
        let state = self.state();
        let chip = state.chip.as_ref().ok_or(SectionError::Unsavable("the VM has ended"))?.state();
        Ok(UartState {
            registers: [
                chip.baud_divisor_low,
                chip.baud_divisor_high,
                chip.interrupt_enable,
                chip.interrupt_identification,
                chip.line_control,
                chip.line_status,
                chip.modem_control,
                chip.modem_status,
                chip.scratch,
            ],
            received: chip.in_buffer,
            backlog: state.backlog.iter().copied().collect(),
            breaks_after: state.breaks_after.and_then(|after| u32::try_from(after).ok()),
        })
    }

    fn load(
        &self,
        UartState { registers, received, backlog, breaks_after }: UartState,
    ) -> Result<(), SectionError> {
        if received.len() > FIFO || backlog.len() > BACKLOG + 1 {
            return Err(SectionError::Invalid("more was received than there is room for"));
        }
        let [
            low,
            high,
            enable,
            identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
        ] = registers;
        let chip = SerialState {
            baud_divisor_low: low,
            baud_divisor_high: high,
            interrupt_enable: enable,
            interrupt_identification: identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
            in_buffer: received,
        };
        let mut state = self.state();
        let Some(old) = state.chip.take() else { return Err(SectionError::Invalid("the VM has ended")) };
        let line = Line(old.interrupt_evt().0.clone());
        let chip = Serial::from_state(&chip, line, NoEvents, old.into_writer());
        state.chip = Some(chip.map_err(|_| SectionError::Invalid("the serial port cannot interrupt"))?);
        state.breaks_after = breaks_after.and_then(|after| usize::try_from(after).ok());
        state.backlog = backlog.into();
        Ok(())
    }

    /// An edge that the interrupt controllers had not seen is lost, and one too many does no harm.
    fn loaded(&self) {
        if let Some(chip) = self.state().chip.as_ref()
            && let Err(error) = chip.interrupt_evt().trigger()
        {
            tracing::warn!(%error, "the serial port cannot interrupt");
        }
    }
}

impl BusDevice for Uart {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let ([byte], Ok(offset)) = (data, u8::try_from(offset)) else { return };
        let mut state = self.state();
        let received = state.received();
        let Some(chip) = state.chip.as_mut() else { return };
        *byte = chip.read(offset);
        if offset == IDENTIFICATION && *byte & 0xf == NOTHING && still_received(chip) {
            *byte = *byte & 0xf0 | RECEIVED;
        }
        if offset == LINE_STATUS && state.take_break() {
            *byte |= BREAK;
        }
        if offset == DATA {
            let taken = received.saturating_sub(state.received());
            state.pass(taken);
            state.refill();
            if state.starved && state.backlog.len() <= BACKLOG / 2 {
                state.starved = false;
                self.signal_room();
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let (&[byte], Ok(offset)) = (data, u8::try_from(offset)) else { return };
        if let Some(chip) = self.state().chip.as_mut()
            && let Err(error) = chip.write(offset, byte)
        {
            tracing::warn!(%error, "the serial port cannot interrupt");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl IrqLine for Counter {
        fn pulse(&self) -> io::Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        fn set_level(&self, _high: bool) -> io::Result<()> {
            Ok(())
        }
    }

    fn uart() -> (Uart, Arc<Counter>, Arc<Mutex<Vec<u8>>>) {
        let (line, sink) = (Arc::new(Counter::default()), Arc::new(Mutex::new(Vec::new())));
        let writer = sink.clone();
        let output = move |bytes: &[u8]| writer.lock().unwrap().extend_from_slice(bytes);
        (Uart::new(line.clone(), Box::new(output)).unwrap(), line, sink)
    }

    fn read(uart: &Uart, offset: u64) -> u8 {
        let mut byte = [0];
        uart.read(offset, &mut byte);
        byte[0]
    }

    #[test]
    fn what_the_guest_sends_arrives_in_order() {
        let (uart, _, sink) = uart();
        for byte in b"login: " {
            uart.write(0, &[*byte]);
        }
        assert_eq!(*sink.lock().unwrap(), b"login: ");
    }

    #[test]
    fn the_gate_takes_what_fits_and_opens_again_when_the_guest_reads() {
        let (uart, line, _) = uart();
        uart.write(1, &[1]);
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let taken = uart.push(&bytes);
        assert_eq!(taken, 64 + BACKLOG);
        assert_eq!(uart.push(&bytes[taken..]), 0);
        assert!(uart.room().read().is_err(), "no room is signalled while there is none");
        assert_eq!(line.0.load(Ordering::Relaxed), 1);
        let mut got = Vec::new();
        while read(&uart, 5) & 1 == 1 {
            got.push(read(&uart, 0));
        }
        assert_eq!(got, bytes[..taken]);
        uart.wait_room();
        assert_eq!(uart.room().read().unwrap(), 1);
        assert_eq!(uart.push(&bytes[taken..taken + 10]), 10);
    }

    #[test]
    fn a_driver_that_takes_256_bytes_at_a_time_gets_all() {
        let (uart, ..) = uart();
        uart.write(1, &[1]);
        let bytes: Vec<u8> = (0..=255).cycle().take(257).collect();
        assert_eq!(uart.push(&bytes), bytes.len());
        // One interrupt, and Linux' handler for it.
        let mut got = Vec::new();
        while read(&uart, 2) & 1 == 0 {
            got.extend((0..256).map_while(|_| (read(&uart, 5) & 1 == 1).then(|| read(&uart, 0))));
        }
        assert_eq!(got, bytes);
        uart.write(1, &[0]);
        uart.push(b"x");
        assert_eq!(read(&uart, 2) & 0xf, 1, "the driver has not enabled the interrupt");
    }

    #[test]
    fn a_break_keeps_its_place_and_is_marked_once() {
        let (uart, ..) = uart();
        uart.push(b"ab");
        uart.send_break();
        uart.push(b"h");
        for (marked, byte) in [(0, b'a'), (0, b'b'), (BREAK, 0), (0, b'h')] {
            assert_eq!(read(&uart, 5) & (BREAK | DATA_READY), marked | DATA_READY, "before {byte}");
            assert_eq!(read(&uart, 0), byte);
        }
        uart.send_break();
        assert_eq!([read(&uart, 5) & BREAK, read(&uart, 5) & BREAK], [BREAK, 0]);
        // A driver that does not look takes it for a zero.
        read(&uart, 0);
        uart.push(&[1; 5000]);
        uart.send_break();
        let zeros = std::iter::from_fn(|| (read(&uart, 5) & 1 == 1).then(|| read(&uart, 0)));
        assert_eq!(zeros.filter(|byte| *byte == 0).count(), 1);
    }

    #[test]
    fn a_closed_port_lets_everyone_go() {
        let (uart, ..) = uart();
        uart.push(&[0; 10_000]);
        uart.close();
        uart.wait_room();
        assert_eq!(uart.push(&[0; 10_000]), 10_000);
    }

    #[test]
    fn wide_and_wild_accesses_do_nothing() {
        let (uart, _, sink) = uart();
        let mut word = [0; 2];
        uart.read(0, &mut word);
        assert_eq!(word, [0xff; 2]);
        uart.write(0, b"no");
        uart.write(0x1_0000, b"n");
        assert!(sink.lock().unwrap().is_empty());
    }
}
