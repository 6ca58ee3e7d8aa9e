use std::collections::BTreeMap;

use super::shape::shapes;

shapes! {
    /// A label query over a set of objects. The results of matchLabels and matchExpressions are ANDed. An empty
    /// selector matches all objects; a null selector matches none.
    pub struct LabelSelector: atomic {
        /// Labels and values that an object must have. Each pair is equivalent to a matchExpressions entry with the
        /// operator In and this single value.
        pub match_labels: BTreeMap<String, String>,
        /// Label selector requirements, which are ANDed.
        pub match_expressions: Vec<LabelSelectorRequirement>,
    }

    /// A key, an operator, and the values to which the operator relates the key.
    pub struct LabelSelectorRequirement {
        /// Label key that the requirement applies to.
        pub key: String,
        /// Relation of the key to the values: In, NotIn, Exists or DoesNotExist.
        pub operator: String,
        /// Label values. Not empty if the operator is In or NotIn; empty if it is Exists or DoesNotExist.
        pub values: Vec<String>,
    }
}

impl LabelSelector {
    /// Whether it chooses what has these labels. An empty one chooses everything.
    pub fn chooses(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = |(name, value): (&String, &String)| labels.get(name) == Some(value);
        let holds = |one: &LabelSelectorRequirement| {
            requirement_holds((&one.key, &one.operator, &one.values), labels)
        };
        self.match_labels.iter().all(equal) && self.match_expressions.iter().all(holds)
    }
}

/// Whether labels meet a requirement of a selector: key, operator and values.
pub fn requirement_holds(
    (key, operator, values): (&str, &str, &[String]),
    labels: &BTreeMap<String, String>,
) -> bool {
    let has = labels.get(key);
    let among = has.is_some_and(|has| values.contains(has));
    match operator {
        "In" => among,
        "NotIn" => !among,
        "Exists" => has.is_some(),
        "DoesNotExist" => has.is_none(),
        _ => false,
    }
}
