//! `metadata.managedFields`: who has set what.

use serde_json::{Value, json};

use super::set::Set;
use super::walk::Difference;
use crate::meta;

/// Entries of updates that are kept apart; older ones become one. As a Kubernetes API server does.
const MOST_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// Who writes, as `managedFields` names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// The field manager.
    pub manager: String,
    /// Group and version of what is written.
    pub api_version: String,
    /// `status`, or empty.
    pub subresource: String,
}

/// The fields that a manager has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Who.
    pub author: Author,
    /// By applying, else by an update.
    pub applies: bool,
    /// When last.
    pub time: String,
    /// What.
    pub set: Set,
}

impl Entry {
    /// Whether it is this author's. Who applies is the same in all versions.
    pub fn is_of(&self, author: &Author, applies: bool) -> bool {
        self.applies == applies
            && (&self.author.manager, &self.author.subresource) == (&author.manager, &author.subresource)
            && (applies || self.author.api_version == author.api_version)
    }

    /// As in messages: `"kubectl" with subresource "status" using v1 at …`; those who apply by name only.
    pub fn describe(&self) -> String {
        let name = &self.author.manager;
        let part = match self.author.subresource.as_str() {
            "" => String::new(),
            subresource => format!(" with subresource {subresource:?}"),
        };
        if self.applies {
            return format!("{name:?}{part}");
        }
        let at = if self.time.is_empty() { String::new() } else { format!(" at {}", self.time) };
        format!("{name:?}{part} using {}{at}", self.author.api_version)
    }

    fn write(&self) -> Value {
        let mut entry = json!({
            "manager": self.author.manager, "operation": if self.applies { "Apply" } else { "Update" },
            "apiVersion": self.author.api_version, "fieldsType": "FieldsV1", "fieldsV1": self.set.write(),
        });
        for (name, text) in [("time", &self.time), ("subresource", &self.author.subresource)] {
            if !text.is_empty() {
                entry[name] = json!(text);
            }
        }
        entry
    }

    fn read(entry: &Value) -> Option<Self> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let applies = match text("operation").as_str() {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        let author = Author {
            manager: text("manager"),
            api_version: text("apiVersion"),
            subresource: text("subresource"),
        };
        let set = match entry.get("fieldsV1") {
            None => Set::default(),
            Some(fields) => Set::read(fields).filter(|_| text("fieldsType") == "FieldsV1")?,
        };
        Some(Self { author, applies, time: text("time"), set })
    }
}

/// All managers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managers {
    /// In no order.
    pub entries: Vec<Entry>,
}

impl Managers {
    /// Reads them from an object. None where one of them makes no sense.
    pub fn read(object: &Value) -> Option<Self> {
        let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        let entries = entries.into_iter().flatten().map(Entry::read).collect::<Option<_>>()?;
        Some(Self { entries })
    }

    /// Those that a written object shall have: those of the request, unless they are absent or malformed. One
    /// entry without any words takes them all away.
    pub fn requested(written: &Value, before: Option<&Value>) -> Self {
        let given = written.pointer("/metadata/managedFields").and_then(Value::as_array);
        if given.is_some_and(|given| matches!(given.as_slice(), [Value::Object(one)] if one.is_empty())) {
            return Self::default();
        }
        let requested = Self::read(written).filter(|requested| !requested.entries.is_empty());
        requested.or_else(|| before.and_then(Self::read)).unwrap_or_default()
    }

    /// Writes them to an object.
    pub fn write(&self, object: &mut Value) {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        let order = |entry: &Entry| {
            (
                !entry.applies,
                entry.time.clone(),
                entry.author.manager.clone(),
                entry.author.subresource.clone(),
            )
        };
        entries.sort_by_key(|entry| order(entry));
        let entries: Vec<Value> = entries.into_iter().map(Entry::write).collect();
        let metadata = meta::of(object);
        if entries.is_empty() {
            metadata.remove("managedFields");
        } else {
            metadata.insert("managedFields".to_owned(), Value::Array(entries));
        }
    }

    /// What all of them have set.
    pub fn all(&self) -> Set {
        self.entries.iter().fold(Set::default(), |all, entry| all.union(&entry.set))
    }

    /// Removes from the other managers the fields that one has changed. Entries without fields are removed.
    pub fn give_up(&mut self, difference: &Difference, keeps: impl Fn(&Entry) -> bool) {
        let lost = difference.changed().union(&difference.removed);
        for entry in self.entries.iter_mut().filter(|entry| !keeps(entry)) {
            entry.set = entry.set.difference(&lost);
        }
        self.entries.retain(|entry| !entry.set.is_empty());
    }

    /// Writes down an update.
    pub fn update(&mut self, difference: &Difference, author: &Author, now: &str) {
        let gained = difference.changed();
        self.give_up(difference, |_| false);
        if gained.is_empty() {
            return;
        }
        match self.entries.iter_mut().find(|entry| entry.is_of(author, false)) {
            Some(entry) => {
                entry.set = entry.set.union(&gained);
                now.clone_into(&mut entry.time);
            }
            None => {
                let time = now.to_owned();
                self.entries.push(Entry { author: author.clone(), applies: false, time, set: gained });
            }
        }
        self.cap();
    }

    fn cap(&mut self) {
        while self.entries.iter().filter(|entry| !entry.applies).count() > MOST_UPDATERS {
            let old = self
                .entries
                .iter()
                .enumerate()
                .filter(|(_, entry)| !entry.applies && entry.author.manager != ANCIENT);
            let Some((oldest, _)) = old.min_by(|one, other| one.1.time.cmp(&other.1.time)) else { return };
            let mut entry = self.entries.remove(oldest);
            entry.author = Author { manager: ANCIENT.to_owned(), subresource: String::new(), ..entry.author };
            match self.entries.iter_mut().find(|known| known.is_of(&entry.author, false)) {
                Some(ancient) => {
                    ancient.set = ancient.set.union(&entry.set);
                    ancient.time = ancient.time.clone().max(entry.time);
                }
                None => self.entries.push(entry),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(manager: &str) -> Author {
        Author { manager: manager.to_owned(), api_version: "v1".to_owned(), subresource: String::new() }
    }

    fn set(fields: Value) -> Set {
        Set::read(&fields).unwrap()
    }

    #[test]
    fn what_an_update_changes_changes_hands() {
        let mut managers = Managers::default();
        let added = |fields| Difference { added: set(fields), ..Difference::default() };
        managers.update(&added(json!({"f:a": {}, "f:b": {}})), &author("one"), "1");
        let change = Difference {
            modified: set(json!({"f:a": {}})),
            removed: set(json!({"f:b": {}})),
            ..Difference::default()
        };
        managers.update(&change, &author("other"), "2");
        let described: Vec<_> =
            managers.entries.iter().map(|entry| (entry.describe(), entry.set.write())).collect();
        assert_eq!(described, [("\"other\" using v1 at 2".to_owned(), json!({"f:a": {}}))]);
        managers.update(&Difference::default(), &author("idle"), "3");
        assert_eq!(managers.entries.len(), 1);
        for number in 0..20 {
            managers.update(&added(json!({format!("f:{number}"): {}})), &author(&format!("m{number}")), "4");
        }
        assert_eq!(managers.entries.len(), MOST_UPDATERS);
        assert_eq!(managers.all().write().as_object().map(|all| all.len()), Some(21), "nothing is forgotten");
        assert!(managers.entries.iter().any(|entry| entry.author.manager == ANCIENT));
    }

    #[test]
    fn well_formed_managed_fields_of_clients_are_kept() {
        let entry = json!({"manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "1", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": {}}});
        let object = |entries: Value| json!({"metadata": {"managedFields": entries}});
        let before = object(json!([entry]));
        let mut written = json!({"metadata": {}});
        Managers::requested(&written, Some(&before)).write(&mut written);
        assert_eq!(written, before, "absent managed fields keep them");
        for nonsense in [
            json!([]),
            json!([{"operation": "Invent"}]),
            json!([{"operation": "Update", "fieldsType": "X", "fieldsV1": {}}]),
        ] {
            assert_eq!(Managers::requested(&object(nonsense), Some(&before)).entries.len(), 1);
        }
        assert!(
            Managers::requested(&object(json!([{}])), Some(&before)).entries.is_empty(),
            "taken away on purpose"
        );
    }
}
