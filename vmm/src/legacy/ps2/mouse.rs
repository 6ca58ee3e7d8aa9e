use serde::{Deserialize, Serialize};

use super::device::{ACK, RESEND, SELF_TEST_PASSED, Sender};
use crate::display::Pointing;

/// Sample rates that a driver sets one after the other to learn whether there is a wheel, or more buttons.
const WHEEL_KNOCK: [u8; 3] = [200, 100, 80];
const BUTTONS_KNOCK: [u8; 3] = [200, 200, 80];
/// What the mouse is then.
const PLAIN: u8 = 0;
const WHEEL: u8 = 3;
const BUTTONS: u8 = 4;
const DEFAULT_RATE: u8 = 100;
const DEFAULT_RESOLUTION: u8 = 2;
/// Farther than any display is wide: movement that waits is bounded.
const FAR: i32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Awaited {
    Rate,
    Resolution,
}

/// A mouse that turns pointer positions into movement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mouse {
    pub(super) sender: Sender,
    awaited: Option<Awaited>,
    reporting: bool,
    remote: bool,
    wrap: bool,
    scaling: bool,
    resolution: u8,
    rate: u8,
    /// The last three rates.
    knock: [u8; 3],
    identity: u8,
    /// Where the pointer was; `None` until it is first seen.
    position: Option<(i32, i32)>,
    /// Movement not reported yet: right, up, and the wheel towards the user.
    moved: (i32, i32, i32),
    /// Left, right, middle.
    buttons: u8,
    reported_buttons: u8,
    /// The wheel's buttons, of which each press is a notch.
    notches: u8,
}

impl Default for Mouse {
    fn default() -> Self {
        Self {
            sender: Sender::default(),
            awaited: None,
            reporting: false,
            remote: false,
            wrap: false,
            scaling: false,
            resolution: DEFAULT_RESOLUTION,
            rate: DEFAULT_RATE,
            knock: [0; 3],
            identity: PLAIN,
            position: None,
            moved: (0, 0, 0),
            buttons: 0,
            reported_buttons: 0,
            notches: 0,
        }
    }
}

impl Mouse {
    /// Whether a guest and viewers can bring a mouse to this state.
    pub(super) fn is_possible(&self) -> bool {
        let near = |value: i32| (-FAR..=FAR).contains(&value);
        let (right, up, towards) = self.moved;
        self.sender.is_possible()
            && [right, up, towards].into_iter().all(near)
            && self.position.is_none_or(|(x, y)| near(x) && near(y))
            && self.buttons < 8
    }

    /// Every button comes up.
    pub(super) fn release_all(&mut self) {
        (self.buttons, self.notches) = (0, 0);
    }

    pub(super) fn is_listened_to(&self) -> bool {
        self.reporting
    }

    /// The pointer is somewhere now.
    pub(super) fn point(&mut self, pointing: Pointing) {
        let (x, y) = (i32::from(pointing.x), i32::from(pointing.y));
        let (old_x, old_y) = self.position.replace((x, y)).unwrap_or((x, y));
        let buttons = pointing.buttons;
        self.buttons = buttons & 1 | (buttons & 4) >> 1 | (buttons & 2) << 1;
        let pressed = buttons & !self.notches;
        self.notches = buttons & 0b1_1000;
        if !self.reporting {
            return;
        }
        let wheel = i32::from(pressed >> 4 & 1) - i32::from(pressed >> 3 & 1);
        let sum = |before: i32, more: i32| (before + more).clamp(-FAR, FAR);
        let (right, up, towards) = self.moved;
        self.moved = (sum(right, x - old_x), sum(up, old_y - y), sum(towards, wheel));
        self.report();
    }

    /// Queues packets as long as there is movement to report and the guest reads them.
    pub(super) fn report(&mut self) {
        while self.reporting && !self.remote && !self.sender.has_events() && self.has_news() {
            let packet = self.packet();
            self.sender.event(&packet, 0);
        }
    }

    fn has_news(&self) -> bool {
        let wheel = self.identity != PLAIN && self.moved.2 != 0;
        self.moved.0 != 0 || self.moved.1 != 0 || wheel || self.buttons != self.reported_buttons
    }

    fn packet(&mut self) -> Vec<u8> {
        let step = |value: i32, most: i32| value.clamp(-most, most);
        let (right, up) = (step(self.moved.0, 255), step(self.moved.1, 255));
        let towards = step(self.moved.2, 7);
        self.moved = (self.moved.0 - right, self.moved.1 - up, self.moved.2 - towards);
        self.reported_buttons = self.buttons;
        let low = |value: i32| value.to_le_bytes()[0];
        let sign = |value: i32, bit: u8| u8::from(value < 0) << bit;
        let mut packet = vec![1 << 3 | self.buttons | sign(right, 4) | sign(up, 5), low(right), low(up)];
        match self.identity {
            PLAIN => self.moved.2 = 0,
            BUTTONS => packet.push(low(towards) & 0xf),
            _ => packet.push(low(towards)),
        }
        packet
    }

    /// A byte from the host.
    pub(super) fn receive(&mut self, byte: u8) {
        self.sender.begin_answer();
        if self.wrap && !matches!(byte, 0xec | 0xff) {
            return self.sender.answer(&[byte]);
        }
        match self.awaited.take() {
            Some(Awaited::Rate) => {
                self.set_rate(byte);
                self.sender.answer(&[ACK]);
            }
            Some(Awaited::Resolution) => {
                self.resolution = byte & 3;
                self.sender.answer(&[ACK]);
            }
            None => self.command(byte),
        }
    }

    fn set_rate(&mut self, rate: u8) {
        self.rate = rate;
        self.knock = [self.knock[1], self.knock[2], rate];
        match self.knock {
            WHEEL_KNOCK => self.identity = WHEEL,
            BUTTONS_KNOCK => self.identity = BUTTONS,
            _ => {}
        }
    }

    fn command(&mut self, command: u8) {
        match command {
            0xe6 => self.scaling = false,
            0xe7 => self.scaling = true,
            0xe8 => self.awaited = Some(Awaited::Resolution),
            0xe9 => {
                let (remote, on, scaling) = (self.remote, self.reporting, self.scaling);
                let mode = u8::from(remote) << 6 | u8::from(on) << 5 | u8::from(scaling) << 4;
                // Left, middle, right from bit 2 down.
                let buttons = (self.buttons & 1) << 2 | (self.buttons & 4) >> 1 | (self.buttons & 2) >> 1;
                return self.sender.answer(&[ACK, mode | buttons, self.resolution, self.rate]);
            }
            0xea => self.remote = false,
            0xeb => {
                let packet = self.packet();
                self.sender.answer(&[ACK]);
                return self.sender.answer(&packet);
            }
            0xec => self.wrap = false,
            0xee => self.wrap = true,
            0xf0 => self.remote = true,
            0xf2 => return self.sender.answer(&[ACK, self.identity]),
            0xf3 => self.awaited = Some(Awaited::Rate),
            0xf4 => self.reporting = true,
            0xf5 => {
                self.reporting = false;
                self.sender.forget_events();
            }
            0xf6 => self.restore(),
            0xfe => return self.sender.resend(),
            0xff => {
                self.restore();
                (self.identity, self.knock) = (PLAIN, [0; 3]);
                return self.sender.answer(&[ACK, SELF_TEST_PASSED, PLAIN]);
            }
            _ => return self.sender.answer(&[RESEND]),
        }
        self.sender.answer(&[ACK]);
    }

    fn restore(&mut self) {
        self.sender.forget_events();
        (self.reporting, self.remote, self.wrap, self.scaling) = (false, false, false, false);
        (self.resolution, self.rate) = (DEFAULT_RESOLUTION, DEFAULT_RATE);
        self.moved = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(mouse: &mut Mouse) -> Vec<u8> {
        std::iter::from_fn(|| {
            let byte = mouse.sender.next(false).map(|sent| sent.byte);
            mouse.report();
            byte
        })
        .collect()
    }

    fn send(mouse: &mut Mouse, bytes: &[u8]) -> Vec<u8> {
        bytes
            .iter()
            .flat_map(|byte| {
                mouse.receive(*byte);
                sent(mouse)
            })
            .collect()
    }

    fn at(x: u16, y: u16, buttons: u8) -> Pointing {
        Pointing { x, y, width: 1000, height: 1000, buttons }
    }

    #[test]
    fn movement_is_reported_in_steps() {
        let mut mouse = Mouse::default();
        mouse.point(at(100, 100, 0));
        assert_eq!(send(&mut mouse, &[0xf4]), [ACK]);
        mouse.point(at(110, 105, 0));
        assert_eq!(sent(&mut mouse), [0x28, 10, 0xfb]);
        mouse.point(at(410, 105, 1));
        assert_eq!(sent(&mut mouse), [0x09, 255, 0, 0x09, 45, 0]);
        mouse.point(at(410, 105, 0b110));
        assert_eq!(sent(&mut mouse), [0x0e, 0, 0]);
    }

    #[test]
    fn a_wheel_is_there_for_those_who_knock() {
        let mut mouse = Mouse::default();
        mouse.point(at(1, 1, 0));
        assert_eq!(send(&mut mouse, &[0xf2, 0xf4]), [ACK, PLAIN, ACK]);
        mouse.point(at(1, 1, 0b1000));
        assert!(sent(&mut mouse).is_empty());
        mouse.point(at(1, 1, 0));
        send(&mut mouse, &[0xf3, 200, 0xf3, 100, 0xf3, 80]);
        assert_eq!(send(&mut mouse, &[0xf2]), [ACK, WHEEL]);
        mouse.moved = (0, 0, 0);
        mouse.point(at(1, 1, 0b1000));
        assert_eq!(sent(&mut mouse), [0x08, 0, 0, 0xff]);
        mouse.point(at(1, 1, 0b1_0000));
        assert_eq!(sent(&mut mouse), [0x08, 0, 0, 1]);
        assert_eq!(send(&mut mouse, &[0xff, 0xf2]), [ACK, SELF_TEST_PASSED, PLAIN, ACK, PLAIN]);
    }

    #[test]
    fn a_guest_that_does_not_read_gets_the_sum() {
        let mut mouse = Mouse::default();
        mouse.point(at(0, 0, 0));
        send(&mut mouse, &[0xf4]);
        for x in 0..200 {
            mouse.point(at(x, 0, 0));
        }
        let packets: Vec<_> = sent(&mut mouse).chunks(3).map(|packet| u16::from(packet[1])).collect();
        assert_eq!((packets.len(), packets.iter().sum::<u16>()), (2, 199));
    }

    #[test]
    fn each_button_has_its_bit_in_the_status() {
        let mut mouse = Mouse::default();
        // Buttons of a viewer: left, middle, right.
        for (pressed, told) in [(1, 0b100), (2, 0b010), (4, 0b001), (7, 0b111), (0, 0)] {
            mouse.point(at(0, 0, pressed));
            assert_eq!(send(&mut mouse, &[0xe9])[1], told, "{pressed:#b}");
        }
    }

    #[test]
    fn other_commands_are_answered() {
        let mut mouse = Mouse::default();
        assert_eq!(send(&mut mouse, &[0xe8, 3, 0xf3, 40, 0xe7]), [ACK; 5]);
        assert_eq!(send(&mut mouse, &[0xe9]), [ACK, 0x10, 3, 40]);
        assert_eq!(send(&mut mouse, &[0xee, 0x12, 0xec]), [ACK, 0x12, ACK]);
        assert_eq!(send(&mut mouse, &[0xeb]), [ACK, 8, 0, 0]);
        assert_eq!(send(&mut mouse, &[0x01]), [RESEND]);
    }
}
