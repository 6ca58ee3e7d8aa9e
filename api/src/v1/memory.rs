use std::collections::BTreeMap;

use super::Quantity;
use super::shape::shapes;

shapes! {
    /// Memory of the guest.
    pub struct Memory {
        /// Hugepages that back the memory of the guest.
        pub hugepages: Option<Hugepages>,
        /// Amount of memory that the guest sees. Defaults to the requested memory in `resources`.
        pub guest: Option<Quantity>,
        /// Maximum amount of memory to which the running VM can be hotplugged.
        pub max_guest: Option<Quantity>,
        /// Memory overhead of the VMI beyond the memory of the guest.
        pub reserved_overhead: Option<ReservedOverhead>,
    }

    /// Hugepages that back the memory of the guest.
    pub struct Hugepages {
        /// Size of a hugepage: `2Mi` or `1Gi` on x86.
        pub page_size: String,
    }

    /// Memory overhead of the VMI beyond the memory of the guest.
    pub struct ReservedOverhead {
        /// Amount of memory that is added to the calculated overhead.
        pub added_overhead: Option<Quantity>,
        /// Whether the VMI's memory is locked and cannot be swapped: `Required` or `NotRequired`.
        pub mem_lock: Option<String>,
    }

    /// Resource requirements of the VMI.
    pub struct ResourceRequirements {
        /// Minimum amount of resources required, such as `memory` and `cpu`.
        pub requests: BTreeMap<String, Quantity>,
        /// Maximum amount of resources allowed, such as `memory` and `cpu`.
        pub limits: BTreeMap<String, Quantity>,
        /// Leaves the overhead of the hypervisor out of the requested memory, which may let the node run out of memory.
        /// Defaults to false.
        pub overcommit_guest_overhead: Option<bool>,
    }
}
