//! The nested-KVM harness and what scenarios share.
