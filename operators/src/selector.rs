//! Label selectors as specs have them.

use std::collections::BTreeMap;

use vireo_api::v1::{LabelSelector, LabelSelectorRequirement};

/// What is wrong with a selector: the field below it, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `matchExpressions[0].operator`.
    pub field: String,
    /// For people.
    pub message: String,
}

/// Whether a selector chooses what has these labels. One that says nothing chooses nothing, as its owner would otherwise
/// take everything there is.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let says_something = !selector.match_labels.is_empty() || !selector.match_expressions.is_empty();
    let equal = |(name, value): (&String, &String)| labels.get(name) == Some(value);
    says_something
        && selector.match_labels.iter().all(equal)
        && selector.match_expressions.iter().all(|demand| holds(demand, labels))
}

pub(crate) fn holds(demand: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let has = labels.get(&demand.key);
    let among = has.is_some_and(|has| demand.values.contains(has));
    match demand.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => has.is_some(),
        "DoesNotExist" => has.is_none(),
        _ => false,
    }
}

/// What cannot be meant.
pub fn problems(selector: &LabelSelector) -> Vec<Problem> {
    let mut found = Vec::new();
    for (index, demand) in selector.match_expressions.iter().enumerate() {
        let mut say = |field: &str, message: &str| {
            let field = format!("matchExpressions[{index}].{field}");
            found.push(Problem { field, message: message.to_owned() });
        };
        match (demand.operator.as_str(), demand.values.is_empty()) {
            ("In" | "NotIn", true) => say("values", "must be given for In and NotIn"),
            ("Exists" | "DoesNotExist", false) => {
                say("values", "may not be given for Exists and DoesNotExist")
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            _ => say("operator", "is none of In, NotIn, Exists and DoesNotExist"),
        }
        if demand.key.is_empty() {
            say("key", "is needed");
        }
    }
    found
}

/// The selector as queries have it.
pub fn text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(name, value)| format!("{name}={value}"));
    let demands = selector.match_expressions.iter().map(|demand| {
        let LabelSelectorRequirement { key, values, .. } = demand;
        let values = values.join(",");
        match demand.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    labels.chain(demands).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(key: &str, operator: &str, values: &[&str]) -> LabelSelectorRequirement {
        LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
            ..LabelSelectorRequirement::default()
        }
    }

    fn of(demands: &[LabelSelectorRequirement]) -> LabelSelector {
        LabelSelector { match_expressions: demands.to_vec(), ..LabelSelector::default() }
    }

    #[test]
    fn all_that_is_said_must_hold() {
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let web = labels(&[("tier", "web")]);
        for (demands, expected) in [
            (vec![], false),
            (vec![demand("tier", "In", &["web", "db"])], true),
            (vec![demand("tier", "NotIn", &["web"])], false),
            (vec![demand("zone", "NotIn", &["a"]), demand("zone", "DoesNotExist", &[])], true),
            (vec![demand("tier", "Exists", &[]), demand("zone", "Exists", &[])], false),
            (vec![demand("tier", "Like", &["web"])], false),
        ] {
            assert_eq!(matches(&of(&demands), &web), expected, "{demands:?}");
        }
        let exact = LabelSelector { match_labels: web.clone(), ..LabelSelector::default() };
        assert!(matches(&exact, &labels(&[("tier", "web"), ("a", "b")])));
        assert!(!matches(&exact, &labels(&[])));
    }

    #[test]
    fn a_selector_is_written_as_queries_have_it() {
        let mut selector = of(&[demand("zone", "In", &["a", "b"]), demand("old", "DoesNotExist", &[])]);
        selector.match_labels.insert("tier".to_owned(), "web".to_owned());
        assert_eq!(text(&selector), "tier=web,zone in (a,b),!old");
        assert_eq!(problems(&selector), []);
        let odd = of(&[demand("zone", "in", &["a"]), demand("", "In", &[])]);
        let fields: Vec<_> = problems(&odd).into_iter().map(|problem| problem.field).collect();
        assert_eq!(
            fields,
            ["matchExpressions[0].operator", "matchExpressions[1].values", "matchExpressions[1].key"]
        );
    }
}
