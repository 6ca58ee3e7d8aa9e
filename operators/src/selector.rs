//! Label selectors as specs have them.

use std::collections::BTreeMap;

use vireo_api::v1::{LabelSelector, LabelSelectorRequirement};

/// Whether a selector chooses what has these labels. One that says nothing chooses nothing, as its owner would otherwise
/// take everything there is.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let says_something = !selector.match_labels.is_empty() || !selector.match_expressions.is_empty();
    let equal = |(name, value): (&String, &String)| labels.get(name) == Some(value);
    says_something
        && selector.match_labels.iter().all(equal)
        && selector.match_expressions.iter().all(|demand| holds(demand, labels))
}

fn holds(demand: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    requirement_holds((&demand.key, &demand.operator, &demand.values), labels)
}

/// Whether labels meet a requirement of a selector.
pub(crate) fn requirement_holds(
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
    }
}
