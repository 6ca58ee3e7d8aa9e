//! The real `virtctl` against a handler's endpoint played by the test.

mod agent;
mod console;
mod create;
mod handler;
mod objects;
mod port_forward;
mod server;
mod usbredir;
mod vnc;
mod volumes;
