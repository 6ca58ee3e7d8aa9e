//! Sets of fields, and `FieldsV1`, which is how `managedFields` writes them.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A field of an object.
    Field(String),
    /// The element of a list that has these keys: an object in JSON, its names in order.
    Keyed(String),
    /// This element of a list of words or numbers, in JSON.
    Word(String),
    /// An element by its index.
    Index(u64),
}

impl Step {
    fn write(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Keyed(keys) => format!("k:{keys}"),
            Self::Word(word) => format!("v:{word}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        // Read and written once, so that the same keys are the same text.
        let same = || Some(serde_json::from_str::<Value>(rest).ok()?.to_string());
        Some(match kind {
            "f" => Self::Field(rest.to_owned()),
            "k" => Self::Keyed(same().filter(|keys| keys.starts_with('{'))?),
            "v" => Self::Word(same()?),
            "i" => Self::Index(rest.parse().ok()?),
            _ => return None,
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(formatter, ".{name}"),
            Self::Keyed(keys) => {
                let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(formatter, "[{}]", keys.join(","))
            }
            Self::Word(word) => write!(formatter, "[={word}]"),
            Self::Index(index) => write!(formatter, "[{index}]"),
        }
    }
}

/// A set of fields below one: whether it is a member itself, and those below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    /// Whether the field itself is a member.
    pub member: bool,
    children: BTreeMap<Step, Set>,
}

impl Set {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }

    /// Adds what is below a step.
    pub fn put(&mut self, step: Step, below: Self) {
        if !below.is_empty() {
            self.children.insert(step, below);
        }
    }

    /// What is below a step.
    pub fn below(&self, step: &Step) -> Option<&Self> {
        self.children.get(step)
    }

    /// What is below a field.
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.below(&Step::Field(name.to_owned()))
    }

    /// Without a field itself; what is below it stays.
    pub fn unmember(&mut self, name: &str) {
        let step = Step::Field(name.to_owned());
        if let Some(mut below) = self.children.remove(&step) {
            below.member = false;
            self.put(step, below);
        }
    }

    /// Without a field: a path of names.
    #[must_use]
    pub fn without(mut self, path: &[&str]) -> Self {
        if let [name, rest @ ..] = path {
            let step = Step::Field((*name).to_owned());
            if let Some(below) = self.children.remove(&step).filter(|_| !rest.is_empty()) {
                self.put(step, below.without(rest));
            }
        }
        self
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.member |= other.member;
        for (step, below) in &other.children {
            let joined = all.children.get(step).map_or_else(|| below.clone(), |has| has.union(below));
            all.children.insert(step.clone(), joined);
        }
        all
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = Self { member: self.member && other.member, ..Self::default() };
        for (step, below) in &self.children {
            if let Some(others) = other.children.get(step) {
                both.put(step.clone(), below.intersection(others));
            }
        }
        both
    }

    /// What is in this one only.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut left = Self { member: self.member && !other.member, ..Self::default() };
        for (step, below) in &self.children {
            let rest =
                other.children.get(step).map_or_else(|| below.clone(), |others| below.difference(others));
            left.put(step.clone(), rest);
        }
        left
    }

    /// The members, as readable paths.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.gather("", &mut paths);
        paths
    }

    fn gather(&self, at: &str, paths: &mut Vec<String>) {
        if self.member && !at.is_empty() {
            paths.push(at.to_owned());
        }
        for (step, below) in &self.children {
            below.gather(&format!("{at}{step}"), paths);
        }
    }

    /// As `FieldsV1`.
    pub fn write(&self) -> Value {
        let mut fields = Map::new();
        if self.member && !self.children.is_empty() {
            fields.insert(".".to_owned(), json!({}));
        }
        fields.extend(self.children.iter().map(|(step, below)| (step.write(), below.write())));
        Value::Object(fields)
    }

    /// Reads `FieldsV1`. None where it is none.
    pub fn read(fields: &Value) -> Option<Self> {
        let mut set = Self::below_of(fields)?;
        set.member = false;
        Some(set)
    }

    fn below_of(fields: &Value) -> Option<Self> {
        let fields = fields.as_object()?;
        let mut set = Self { member: fields.is_empty(), ..Self::default() };
        for (name, below) in fields {
            if name == "." {
                set.member = true;
            } else {
                set.children.insert(Step::read(name)?, Self::below_of(below)?);
            }
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(fields: Value) -> Set {
        Set::read(&fields).unwrap()
    }

    #[test]
    fn fields_read_back_as_they_are_written() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}, "f:finalizers": {"v:\"x\"": {}}},
            "f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}}}, "f:l": {"i:0": {}}}});
        assert_eq!(set(fields.clone()).write(), fields);
        assert_eq!(
            set(fields).paths(),
            [
                ".metadata.finalizers[=\"x\"]",
                ".metadata.labels",
                ".metadata.labels.a",
                ".status.conditions[type=\"Ready\"]",
                ".status.conditions[type=\"Ready\"].status",
                ".status.l[0]"
            ]
        );
        let spaced = set(json!({"k:{ \"b\": 1, \"a\": 2 }": {}}));
        assert_eq!(spaced, set(json!({"k:{\"a\":2,\"b\":1}": {}})));
        for wrong in [
            json!([]),
            json!({"x": {}}),
            json!({"f:a": 1}),
            json!({"k:x": {}}),
            json!({"i:-1": {}}),
            json!({"q:a": {}}),
        ] {
            assert_eq!(Set::read(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sets_are_added_and_taken_away_field_by_field() {
        let one = set(json!({"f:a": {".": {}, "f:b": {}, "f:c": {}}}));
        let other = set(json!({"f:a": {"f:b": {}, "f:d": {}}}));
        assert_eq!(one.union(&other), set(json!({"f:a": {".": {}, "f:b": {}, "f:c": {}, "f:d": {}}})));
        assert_eq!(one.intersection(&other), set(json!({"f:a": {"f:b": {}}})));
        assert_eq!(one.difference(&other), set(json!({"f:a": {".": {}, "f:c": {}}})));
        assert!(one.difference(&one).is_empty());
        assert_eq!(one.clone().without(&["a", "b"]), set(json!({"f:a": {".": {}, "f:c": {}}})));
        assert!(one.without(&["a"]).is_empty());
    }
}
