//! Label and field selectors, as queries and specs write them.

mod label_selector;

use serde_json::Value;

use crate::cause::Cause;
use crate::json_path;
use crate::store::Object;

/// What a list or a watch is narrowed to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

/// A requirement on the labels.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    /// Also true where the label is absent.
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

impl Selector {
    /// Reads both kinds of selector; `selects_by` is whether the resource supports a field.
    ///
    /// # Errors
    /// What is wrong with it, as a message.
    pub fn read(selects_by: impl Fn(&str) -> bool, labels: &str, fields: &str) -> Result<Self, String> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(selects_by, fields)? })
    }

    /// Reads a `metav1.LabelSelector`, such as a spec has it. One that requires nothing selects everything.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn of_labels(selector: &Value) -> Result<Self, Vec<Cause>> {
        let labels = label_selector::requirements(selector)?;
        Ok(Self { labels, fields: Vec::new() })
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether a stored object is selected. What has no selector is not parsed.
    pub fn selects_stored(&self, object: &Object) -> bool {
        self.is_empty() || self.selects(&object.value_once())
    }

    /// Whether an object is selected.
    pub fn selects(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        let label = |name: &str| labels.and_then(|labels| labels.get(name)).and_then(Value::as_str);
        let number = |name: &str| label(name).and_then(|value| value.parse::<i64>().ok());
        let labelled = |requirement: &Requirement| match requirement {
            Requirement::In(name, values) => {
                label(name).is_some_and(|has| values.iter().any(|value| value == has))
            }
            Requirement::NotIn(name, values) => {
                label(name).is_none_or(|has| values.iter().all(|value| value != has))
            }
            Requirement::Exists(name) => label(name).is_some(),
            Requirement::Absent(name) => label(name).is_none(),
            Requirement::Greater(name, than) => number(name).is_some_and(|has| has > *than),
            Requirement::Less(name, than) => number(name).is_some_and(|has| has < *than),
        };
        let field = |(name, equal, value): &(String, bool, String)| {
            (json_path::text(object, &format!(".{name}")) == *value) == *equal
        };
        self.labels.iter().all(labelled) && self.fields.iter().all(field)
    }
}

fn parse_fields(
    selects_by: impl Fn(&str) -> bool,
    text: &str,
) -> Result<Vec<(String, bool, String)>, String> {
    let mut fields = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, equal, value) = match part.split_once("!=") {
            Some((name, value)) => (name, false, value),
            None => {
                let (name, value) = part
                    .split_once("==")
                    .or_else(|| part.split_once('='))
                    .ok_or_else(|| format!("invalid field selector {part:?}: can't understand '{part}'"))?;
                (name, true, value)
            }
        };
        if !selects_by(name) {
            return Err(format!("field label not supported: {name}"));
        }
        fields.push((name.to_owned(), equal, value.to_owned()));
    }
    Ok(fields)
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    for part in split_outside(text) {
        let part = part.trim();
        if !part.is_empty() {
            requirements.push(requirement(part).ok_or_else(|| {
                format!("unable to parse requirement: {part:?} must be a label selector, such as key=value, key!=value, key in (a,b), key notin (a,b), key or !key")
            })?);
        }
    }
    Ok(requirements)
}

/// Splits at commas that are not between parentheses.
fn split_outside(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(|letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .collect()
}

fn requirement(part: &str) -> Option<Requirement> {
    if let Some(name) = part.strip_prefix('!') {
        return key(name).map(Requirement::Absent);
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Some(Requirement::NotIn(key(name)?, vec![one(value)?]));
    }
    if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(Requirement::In(key(name)?, vec![one(value)?]));
    }
    if let Some((name, number)) = part.split_once('>') {
        return Some(Requirement::Greater(key(name)?, number.trim().parse().ok()?));
    }
    if let Some((name, number)) = part.split_once('<') {
        return Some(Requirement::Less(key(name)?, number.trim().parse().ok()?));
    }
    match part.split_once(char::is_whitespace) {
        None => key(part).map(Requirement::Exists),
        Some((name, rest)) => {
            let rest = rest.trim();
            let (operator, values) = rest.split_at(rest.find('(')?);
            let values = values.strip_prefix('(')?.strip_suffix(')')?;
            let values = values.split(',').map(one).collect::<Option<Vec<_>>>()?;
            match operator.trim() {
                "in" => Some(Requirement::In(key(name)?, values)),
                "notin" => Some(Requirement::NotIn(key(name)?, values)),
                _ => None,
            }
        }
    }
}

/// A label's name: an optional DNS prefix, a slash, a word.
fn key(text: &str) -> Option<String> {
    let text = text.trim();
    let word = text.rsplit('/').next()?;
    let well_formed = crate::meta::is_label_word(word) && !word.is_empty();
    let known = text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./".contains(letter));
    (well_formed && known && text.matches('/').count() < 2).then(|| text.to_owned())
}

fn one(text: &str) -> Option<String> {
    let text = text.trim();
    crate::meta::is_label_word(text).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selects_by(field: &str) -> bool {
        crate::resource::CONTROLLER_REVISIONS.selects_by(field)
    }

    #[test]
    fn labels_select_as_kubernetes_defines_it() {
        let object =
            json!({"metadata": {"name": "x", "labels": {"app": "web", "kubevirt.io/size": "3", "e": ""}}});
        let rows = [
            ("", true),
            ("app=web", true),
            ("app==web,kubevirt.io/size", true),
            ("app!=web", false),
            ("tier!=web", true),
            ("!tier", true),
            ("!app", false),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("tier notin (db)", true),
            ("kubevirt.io/size>2,kubevirt.io/size<4", true),
            ("kubevirt.io/size>3", false),
            ("app>1", false),
            ("e=", true),
            (" app in (web) , e", true),
        ];
        for (text, expected) in rows {
            let selector = Selector::read(selects_by, text, "").unwrap();
            assert_eq!(selector.selects(&object), expected, "{text}");
        }
    }

    #[test]
    fn invalid_selectors_are_rejected() {
        for text in
            ["a b", "=x", "a in web", "a in (x", "a,(", "a of (b)", "a=b=c", "x/y/z", "a=ü", "a>b", "-a"]
        {
            assert!(Selector::read(selects_by, text, "").is_err(), "{text}");
        }
        for text in ["spec.nonsense=1", "metadata.name", "status"] {
            assert!(Selector::read(selects_by, "", text).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_select_by_their_text() {
        let object = json!({"metadata": {"name": "x", "namespace": "n"}, "status": {"phase": "Running"}});
        for (text, expected) in [
            ("metadata.name=x", true),
            ("metadata.name==x,metadata.namespace=n", true),
            ("metadata.name!=x", false),
            ("metadata.namespace=other", false),
        ] {
            assert_eq!(Selector::read(selects_by, "", text).unwrap().selects(&object), expected, "{text}");
        }
    }
}
