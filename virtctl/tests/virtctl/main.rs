//! The real `virtctl` against a handler's endpoint played by the test.

mod console;
mod handler;
mod vnc;
