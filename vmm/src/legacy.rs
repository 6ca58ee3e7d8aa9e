//! Legacy PC devices on I/O ports, as far as firmware and kernels use them.

mod debug;
mod i8042;
mod pm;
mod ps2;
mod reset;
mod rtc;

pub(crate) use debug::DebugPort;
pub(crate) use i8042::I8042;
pub(crate) use pm::{PowerEvents, PowerManagement};
pub(crate) use ps2::Ps2;
pub(crate) use reset::{ResetControl, SystemControlA};
pub(crate) use rtc::Rtc;
