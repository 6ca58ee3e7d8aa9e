//! `metav1.LabelSelector`: `matchLabels` and `matchExpressions`.

use serde_json::{Map, Value, json};

use super::Requirement;
use crate::cause::Cause;

const OPERATORS: [&str; 4] = ["DoesNotExist", "Exists", "In", "NotIn"];

/// The requirements of a selector, or everything that is wrong with it. Fields are those below the selector.
pub(super) fn requirements(selector: &Value) -> Result<Vec<Requirement>, Vec<Cause>> {
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    let labels = labels.into_iter().flat_map(Map::iter).map(|(key, value)| label(key, value));
    let expressions = expressions.into_iter().flatten().enumerate();
    let expressions =
        expressions.map(|(index, given)| expression(given, &format!("matchExpressions[{index}]")));
    let (mut requirements, mut causes) = (Vec::new(), Vec::new());
    for one in labels.chain(expressions) {
        match one {
            Ok(requirement) => requirements.push(requirement),
            Err(cause) => causes.push(cause),
        }
    }
    if causes.is_empty() { Ok(requirements) } else { Err(causes) }
}

fn label(key: &str, value: &Value) -> Result<Requirement, Cause> {
    let field = format!("matchLabels[{key}]");
    let value = value.as_str().ok_or_else(|| invalid(&field, value, "must be a string"))?;
    Ok(Requirement::In(key.to_owned(), vec![value.to_owned()]))
}

fn expression(given: &Value, at: &str) -> Result<Requirement, Cause> {
    let text = |name: &str| given.get(name).and_then(Value::as_str).unwrap_or_default();
    let key = text("key").to_owned();
    if key.is_empty() {
        return Err(Cause::required(format!("{at}.key"), "Required value"));
    }
    let values = format!("{at}.values");
    let given_values = given.get("values").and_then(Value::as_array).cloned().unwrap_or_default();
    let words = given_values.iter().map(|value| {
        value.as_str().map(str::to_owned).ok_or_else(|| invalid(&values, value, "must be a string"))
    });
    let words: Vec<String> = words.collect::<Result<_, _>>()?;
    match (text("operator"), words.is_empty()) {
        ("In" | "NotIn", true) => {
            let why = "Required value: must be specified when `operator` is 'In' or 'NotIn'";
            Err(Cause::required(values, why))
        }
        ("Exists" | "DoesNotExist", false) => {
            let why = "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            Err(Cause::forbidden(values, why))
        }
        ("In", false) => Ok(Requirement::In(key, words)),
        ("NotIn", false) => Ok(Requirement::NotIn(key, words)),
        ("Exists", true) => Ok(Requirement::Exists(key)),
        ("DoesNotExist", true) => Ok(Requirement::Absent(key)),
        (other, _) => {
            let supported = OPERATORS.map(|word| format!("{word:?}")).join(", ");
            let why = format!("Unsupported value: {other:?}: supported values: {supported}");
            Err(Cause::unsupported(format!("{at}.operator"), why))
        }
    }
}

fn invalid(field: &str, value: &Value, why: &str) -> Cause {
    Cause::invalid(field, format!("Invalid value: {}: {why}", json!(value)))
}

#[cfg(test)]
mod tests {
    use super::super::Selector;
    use super::*;

    #[test]
    fn all_requirements_must_hold() {
        let labelled = |labels: Value| json!({"metadata": {"labels": labels}});
        let web = labelled(json!({"tier": "web"}));
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"tier": "web"}}), true),
            (json!({"matchLabels": {"tier": "web", "zone": "a"}}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["web", "db"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["web"]}]}), false),
            (json!({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}), true),
            (json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}), false),
            (json!({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}), true),
        ] {
            assert_eq!(Selector::of_labels(&selector).unwrap().selects(&web), expected, "{selector}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let odd = json!({"matchLabels": {"a": 1}, "matchExpressions": [
            {"key": "zone", "operator": "in", "values": ["a"]}, {"operator": "Exists"},
            {"key": "b", "operator": "In"}, {"key": "c", "operator": "Exists", "values": ["x"]}]});
        let causes = Selector::of_labels(&odd).unwrap_err();
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "matchLabels[a]",
                "matchExpressions[0].operator",
                "matchExpressions[1].key",
                "matchExpressions[2].values",
                "matchExpressions[3].values"
            ]
        );
    }
}
