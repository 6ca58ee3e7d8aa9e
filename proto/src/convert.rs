//! Conversion between messages and the types of `vireo-vmconfig`, both ways.
//!
//! A message may have an absent part, an unknown enum number or an invalid text. Conversion from a message collects
//! all such problems.

mod boot;
mod choices;
mod cpu;
mod cpu_placement;
mod disk;
mod extra;
mod fields;
mod io_threads;
mod problems;
mod smbios;

pub use boot::boot_source;
pub use cpu::cpu;
pub use cpu_placement::cpu_placement;
pub use disk::{disk, pci_slot};
pub use extra::{UnknownDevice, extra_device};
pub use io_threads::io_threads;
pub use problems::Problems;
pub use smbios::smbios;

/// Implements the conversion between an enum of the protocol and an enum of the vocabulary, both ways. The protocol's
/// `Unspecified` is `None`.
macro_rules! enums {
    ($message:ty, $value:ty, { $($number:ident = $variant:ident),+ $(,)? }) => {
        impl From<$value> for $message {
            fn from(value: $value) -> Self {
                match value {
                    $(<$value>::$variant => Self::$number),+
                }
            }
        }

        impl From<$message> for Option<$value> {
            fn from(number: $message) -> Self {
                match number {
                    <$message>::Unspecified => None,
                    $(<$message>::$number => Some(<$value>::$variant)),+
                }
            }
        }
    };
}

pub(crate) use enums;
