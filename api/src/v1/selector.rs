use std::collections::BTreeMap;

use super::shape::shapes;

shapes! {
    /// Chooses objects by their labels: all that is said must hold.
    pub struct LabelSelector: atomic {
        /// Labels with exactly these values.
        pub match_labels: BTreeMap<String, String>,
        /// Further demands.
        pub match_expressions: Vec<LabelSelectorRequirement>,
    }

    /// One demand on a label.
    pub struct LabelSelectorRequirement {
        /// The label's name.
        pub key: String,
        /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
        pub operator: String,
        /// For `In` and `NotIn`.
        pub values: Vec<String>,
    }
}
