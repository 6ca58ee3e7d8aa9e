//! The block device (section 5.2).

mod backend;
mod device;
mod request;
#[cfg(test)]
mod tests;

pub use backend::ImageError;
pub use device::Block;
