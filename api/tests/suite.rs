//! The crate as its users see it.

#![expect(clippy::unwrap_used, reason = "a test fails by its panic")]

#[path = "suite/capacity.rs"]
mod capacity;
#[path = "suite/credentials.rs"]
mod credentials;
#[path = "suite/examples.rs"]
mod examples;
#[path = "suite/golden.rs"]
mod golden;
#[path = "suite/manifest.rs"]
mod manifest;
#[path = "suite/meaning.rs"]
mod meaning;
#[path = "suite/native.rs"]
mod native;
#[path = "suite/properties.rs"]
mod properties;
#[path = "suite/rules.rs"]
mod rules;
#[path = "suite/scheduling.rs"]
mod scheduling;
#[path = "suite/support.rs"]
mod support;
#[path = "suite/upstream.rs"]
mod upstream;
#[path = "suite/volumes.rs"]
mod volumes;
