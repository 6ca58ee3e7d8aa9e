//! A screen for viewers: the Remote Framebuffer protocol (RFC 6143 and the community's `rfbproto`), server side.
//!
//! Security is None: who may connect is decided by who may reach the socket. Use a unix socket, or a loopback address
//! on a machine with one user.
//!
//! Viewers are hostile until proven otherwise. Each has two threads and a bounded share of memory; each message is
//! checked where it is read, and one that makes no sense ends its viewer and nobody else. A viewer is sent something
//! only when it asked, and what it is sent is taken from the screen at that moment: who is slow skips pictures and
//! holds up nobody, least of all the guest.

mod encode;
mod format;
mod handshake;
mod message;
mod server;
mod stream;
mod update;
mod viewer;
mod zrle;

pub use server::{Address, ParseAddressError, Server};
pub use stream::Stream;
