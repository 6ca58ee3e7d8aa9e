//! Labels and label selectors, as Kubernetes validates them.

use super::report::Findings;
use super::syntax::{is_dns_subdomain, is_label_text};
use super::{Field, Problem};
use crate::v1;

const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                     must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
                     regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// The longest name part of a label, and the longest value.
const LONGEST: usize = 63;

/// A label's name: at most 63 characters, after an optional DNS subdomain and a slash.
pub(super) fn label_name(text: &str, at: &Field, found: &mut Findings) {
    let (prefix, name) = match text.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            let detail = format!(
                "a qualified name {NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            );
            found.invalid_value(at, text, &detail);
            return;
        }
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    match prefix {
        Some("") => found.invalid_value(at, text, "prefix part must be non-empty"),
        Some(prefix) if !is_dns_subdomain(prefix) => {
            found.invalid_value(at, text, format!("prefix part {}", super::syntax::RFC_1123_SUBDOMAIN));
        }
        Some(_) | None => {}
    }
    if name.is_empty() {
        found.invalid_value(at, text, "name part must be non-empty");
    } else if name.len() > LONGEST {
        found.invalid_value(at, text, format!("name part must be no more than {LONGEST} bytes"));
    } else if !is_label_text(name) {
        found.invalid_value(at, text, format!("name part {NAME}"));
    }
}

/// A label's value: empty, or at most 63 characters.
pub(super) fn label_value(text: &str, at: &Field, found: &mut Findings) {
    if text.len() > LONGEST {
        found.invalid_value(at, text, format!("must be no more than {LONGEST} bytes"));
    } else if !text.is_empty() && !is_label_text(text) {
        found.invalid_value(at, text, VALUE);
    }
}

pub(super) fn label_selector(selector: &v1::LabelSelector, at: &Field, found: &mut Findings) {
    for (name, value) in &selector.match_labels {
        let at = at.at("matchLabels");
        label_name(name, &at, found);
        label_value(value, &at, found);
    }
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        let at = at.at("matchExpressions").index(index);
        let values = at.at("values");
        match (requirement.operator.as_str(), requirement.values.is_empty()) {
            ("In" | "NotIn", true) => {
                found.required_value(&values, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            ("Exists" | "DoesNotExist", false) => {
                found
                    .forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            (other, _) => found.invalid_value(&at.at("operator"), other, "not a valid selector operator"),
        }
        label_name(&requirement.key, &at.at("key"), found);
        for (index, value) in requirement.values.iter().enumerate() {
            label_value(value, &values.index(index), found);
        }
    }
}

/// Everything that is wrong with a label selector that is at `at`.
pub fn label_selector_problems(selector: &v1::LabelSelector, at: &Field) -> Vec<Problem> {
    let mut found = Findings::default();
    label_selector(selector, at, &mut found);
    found.problems
}
