//! A DHCP server for one guest on one tap device.

mod answer;
mod request;
mod server;

pub(crate) use answer::labels;
pub use answer::{Answer, Offer, answer};
pub use server::{DhcpError, Server};
