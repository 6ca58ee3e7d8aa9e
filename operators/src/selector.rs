//! Label selectors as specs have them.

use std::collections::BTreeMap;

use vireo_api::v1::{LabelSelector, LabelSelectorRequirement};

pub(crate) use vireo_api::v1::requirement_holds;

/// Whether a selector chooses what has these labels. One that says nothing chooses nothing, as its owner would otherwise
/// take everything there is.
pub fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let says_something = !selector.match_labels.is_empty() || !selector.match_expressions.is_empty();
    says_something && selector.chooses(labels)
}

/// The selector as queries have it.
pub fn text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().map(|(name, value)| format!("{name}={value}"));
    let requirements = selector.match_expressions.iter().map(|requirement| {
        let LabelSelectorRequirement { key, values, .. } = requirement;
        let values = values.join(",");
        match requirement.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    labels.chain(requirements).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(key: &str, operator: &str, values: &[&str]) -> LabelSelectorRequirement {
        LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
            ..LabelSelectorRequirement::default()
        }
    }

    fn of(requirements: &[LabelSelectorRequirement]) -> LabelSelector {
        LabelSelector { match_expressions: requirements.to_vec(), ..LabelSelector::default() }
    }

    #[test]
    fn all_that_is_said_must_hold() {
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let web = labels(&[("tier", "web")]);
        for (requirements, expected) in [
            (vec![], false),
            (vec![requirement("tier", "In", &["web", "db"])], true),
            (vec![requirement("tier", "NotIn", &["web"])], false),
            (vec![requirement("zone", "NotIn", &["a"]), requirement("zone", "DoesNotExist", &[])], true),
            (vec![requirement("tier", "Exists", &[]), requirement("zone", "Exists", &[])], false),
            (vec![requirement("tier", "Like", &["web"])], false),
        ] {
            assert_eq!(matches(&of(&requirements), &web), expected, "{requirements:?}");
        }
        let exact = LabelSelector { match_labels: web.clone(), ..LabelSelector::default() };
        assert!(matches(&exact, &labels(&[("tier", "web"), ("a", "b")])));
        assert!(!matches(&exact, &labels(&[])));
    }

    #[test]
    fn a_selector_is_written_as_queries_have_it() {
        let mut selector =
            of(&[requirement("zone", "In", &["a", "b"]), requirement("old", "DoesNotExist", &[])]);
        selector.match_labels.insert("tier".to_owned(), "web".to_owned());
        assert_eq!(text(&selector), "tier=web,zone in (a,b),!old");
    }
}
