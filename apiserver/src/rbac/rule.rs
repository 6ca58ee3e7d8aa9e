//! What one rule allows.

use serde::{Deserialize, Serialize};

use super::action::{Access, Action};

/// Stands for everything of its kind.
const ALL: &str = "*";

/// `PolicyRule`: what may be done, to what.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// What may be done.
    pub verbs: Vec<String>,
    /// In which groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// To which resources, and parts of such: `pods`, `pods/log`, `*/scale`, `*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// To which objects; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// To which paths; the last letter may be `*`.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// One thing that a rule allows. `*` and an empty name stand for all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// To objects: group, resource and name, then the verb.
    Object([String; 3], String),
    /// To a path, then the verb.
    Path(String, String),
}

/// Whether a list has a word, or stands for all.
fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|one| one == ALL || one == word)
}

/// Whether resources of a rule have one, or a part of one.
fn has_resource(list: &[String], resource: &str, part: &str) -> bool {
    list.iter().any(|one| match one.split_once('/') {
        _ if one == ALL => true,
        None => part.is_empty() && one == resource,
        Some((whole, named)) => !part.is_empty() && named == part && (whole == ALL || whole == resource),
    })
}

/// Whether paths of a rule have one, which may itself end in `*`.
fn has_path(list: &[String], path: &str) -> bool {
    list.iter().any(|one| one == path || one.strip_suffix(ALL).is_some_and(|start| path.starts_with(start)))
}

impl Rule {
    /// Everything there is.
    pub fn everything() -> [Self; 2] {
        let all = || vec![ALL.to_owned()];
        [
            Self { verbs: all(), api_groups: all(), resources: all(), ..Self::default() },
            Self { verbs: all(), paths: all(), ..Self::default() },
        ]
    }

    /// Whether it allows an action.
    pub fn allows(&self, action: &Action) -> bool {
        match action {
            Action::Path { verb, path } => has(&self.verbs, verb) && has_path(&self.paths, path),
            Action::Object(Access { verb, group, resource, subresource, name, .. }) => {
                has(&self.verbs, verb)
                    && has(&self.api_groups, group)
                    && has_resource(&self.resources, resource, subresource)
                    && (self.resource_names.is_empty() || self.resource_names.contains(name))
            }
        }
    }

    /// How many parts it has.
    pub fn size(&self) -> usize {
        let objects = self.api_groups.len().saturating_mul(self.resources.len());
        let objects = objects.saturating_mul(self.resource_names.len().max(1));
        self.verbs.len().saturating_mul(objects.saturating_add(self.paths.len()))
    }

    /// Each thing that it allows.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        let every = [String::new()];
        let names = if self.resource_names.is_empty() { &every } else { self.resource_names.as_slice() };
        let mut parts = Vec::new();
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    let of = |name: &String| [group.clone(), resource.clone(), name.clone()];
                    parts.extend(names.iter().map(|name| Part::Object(of(name), verb.clone())));
                }
            }
            parts.extend(self.paths.iter().map(|path| Part::Path(path.clone(), verb.clone())));
        }
        parts.into_iter()
    }

    /// Whether it allows all that a part does.
    pub fn covers(&self, part: &Part) -> bool {
        match part {
            Part::Path(path, verb) => has(&self.verbs, verb) && has_path(&self.paths, path),
            Part::Object([group, resource, name], verb) => {
                let (whole, piece) = resource.split_once('/').unwrap_or((resource, ""));
                has(&self.verbs, verb)
                    && has(&self.api_groups, group)
                    && has_resource(&self.resources, whole, piece)
                    && (self.resource_names.is_empty() || self.resource_names.contains(name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(value: Value) -> Rule {
        serde_json::from_value(value).unwrap()
    }

    fn act(verb: &str, group: &str, resource: &str, name: &str) -> Action {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Action::Object(Access {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            name: name.to_owned(),
            ..Access::default()
        })
    }

    #[test]
    fn a_rule_allows_what_it_names() {
        let plain = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["secrets", "secrets/x", "*/scale"]});
        let named =
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a", "b"]});
        for (given, action, allowed) in [
            (&plain, act("get", "", "secrets", "a"), true),
            (&plain, act("list", "", "secrets", ""), true),
            (&plain, act("watch", "", "secrets", ""), false),
            (&plain, act("*", "", "secrets", ""), false),
            (&plain, act("get", "apps", "secrets", ""), false),
            (&plain, act("get", "", "secrets/x", "a"), true),
            (&plain, act("get", "", "secrets/y", "a"), false),
            (&plain, act("get", "", "sets/scale", "a"), true),
            (&plain, act("get", "", "sets", "a"), false),
            (&plain, act("get", "", "scale", "a"), false),
            (&named, act("delete", "any", "thing/part", "b"), true),
            (&named, act("delete", "any", "thing", "c"), false),
            (&named, act("list", "any", "thing", ""), false),
        ] {
            assert_eq!(rule(given.clone()).allows(&action), allowed, "{given} {action:?}");
        }
    }

    #[test]
    fn paths_are_words_or_beginnings() {
        let given = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/version", "/apis/*"]}));
        for (verb, path, allowed) in [
            ("get", "/version", true),
            ("post", "/version", false),
            ("get", "/version/", false),
            ("get", "/apis/", true),
            ("get", "/apis/a/b", true),
            ("get", "/apis", false),
        ] {
            let action = Action::Path { verb: verb.to_owned(), path: path.to_owned() };
            assert_eq!(given.allows(&action), allowed, "{verb} {path}");
        }
        assert!(!given.allows(&act("get", "", "version", "")), "paths are not objects");
    }

    #[test]
    fn a_rule_covers_no_more_than_it_allows() {
        let part = |value: Value| rule(value).parts().next().unwrap();
        let held = rule(
            json!({"verbs": ["get"], "apiGroups": ["a"], "resources": ["*/x", "r"], "resourceNames": ["n"]}),
        );
        for (verb, group, resource, names, covered) in [
            ("get", "a", "r", json!(["n"]), true),
            ("get", "a", "r", json!([]), false),
            ("*", "a", "r", json!(["n"]), false),
            ("get", "*", "r", json!(["n"]), false),
            ("get", "a", "*", json!(["n"]), false),
            ("get", "a", "q/x", json!(["n"]), true),
            ("get", "a", "*/x", json!(["n"]), true),
        ] {
            let wanted = json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names});
            assert_eq!(held.covers(&part(wanted.clone())), covered, "{wanted}");
        }
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/a/*"]}));
        for (path, covered) in [("/a/b", true), ("/a/b*", true), ("/a*", false), ("*", false)] {
            let wanted = json!({"verbs": ["get"], "nonResourceURLs": [path]});
            assert_eq!(paths.covers(&part(wanted)), covered, "{path}");
        }
        let two = json!({"verbs": ["get", "list"], "apiGroups": ["a", "b"], "resources": ["r"], "resourceNames": ["m", "n"]});
        assert_eq!((rule(two.clone()).size(), rule(two).parts().count()), (8, 8));
    }
}
