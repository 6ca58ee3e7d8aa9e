//! What the controllers of a cluster decide, without the cluster: each takes what is there and says what to do next,
//! and does nothing itself. Whoever watches the objects calls it after every change, and carries out the one step.

mod conditions;
pub mod instancetype;
pub mod placement;
pub mod pool;
pub mod replicaset;
pub mod selector;
pub mod vm;
