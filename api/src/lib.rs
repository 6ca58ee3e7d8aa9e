//! KubeVirt's API objects, in two vocabularies.
//!
//! [`v1`] is what is served: lenient, every field optional, unknown fields kept. [`spec`] is what is meant: checked
//! once, private fields, sum types, nothing optional that is required. [`decode`] leads from text to the first,
//! `TryFrom` from the first to the second; both report every problem with its field path, and a manifest with a
//! wrong type in one field still has the rest of it checked. No I/O, nothing asynchronous.

pub mod cpu;
pub mod decode;
pub mod names;
pub mod spec;
pub mod v1;
