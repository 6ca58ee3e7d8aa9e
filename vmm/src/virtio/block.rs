//! The block device (section 5.2).

mod device;
mod request;
#[cfg(test)]
mod tests;

pub use device::Block;
