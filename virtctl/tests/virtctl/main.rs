//! The real `virtctl` against a handler's endpoint played by the test.

mod console;
mod handler;
mod port_forward;
mod vnc;
