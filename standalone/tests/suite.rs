//! `vireo standalone` as a process, and its clients.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by its panic")]

#[path = "suite/clients.rs"]
mod clients;
#[path = "suite/flood.rs"]
mod flood;
#[path = "suite/hostile.rs"]
mod hostile;
#[path = "suite/kill.rs"]
mod kill;
#[path = "suite/place.rs"]
mod place;
#[path = "suite/rotation.rs"]
mod rotation;
#[path = "suite/server.rs"]
mod server;
#[path = "suite/thousand.rs"]
mod thousand;
