//! The block device (section 5.2).

mod config;
#[cfg(test)]
mod config_tests;
mod device;
mod flight;
#[cfg(test)]
mod flight_tests;
mod request;
#[cfg(test)]
mod tests;

pub use device::Block;
