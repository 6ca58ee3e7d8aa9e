use std::collections::BTreeMap;

use super::Quantity;
use super::shape::shapes;

shapes! {
    /// The guest's memory.
    pub struct Memory {
        /// What backs it.
        pub hugepages: Option<Hugepages>,
        /// What the guest sees.
        pub guest: Option<Quantity>,
        /// How far it can be plugged up.
        pub max_guest: Option<Quantity>,
        /// What the launcher needs beside it.
        pub reserved_overhead: Option<ReservedOverhead>,
    }

    /// Pages that back the guest.
    pub struct Hugepages {
        /// `2Mi` or `1Gi`.
        pub page_size: String,
    }

    /// What the launcher needs beside the guest's memory.
    pub struct ReservedOverhead {
        /// More than the formula says.
        pub added_overhead: Option<Quantity>,
        /// `Required` or `NotRequired`.
        pub mem_lock: Option<String>,
    }

    /// What the launcher's container is given.
    pub struct ResourceRequirements {
        /// At least.
        pub requests: BTreeMap<String, Quantity>,
        /// At most.
        pub limits: BTreeMap<String, Quantity>,
        /// The overhead is left out of the request.
        pub overcommit_guest_overhead: Option<bool>,
    }
}
