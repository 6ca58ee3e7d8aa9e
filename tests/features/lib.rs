//! Nothing but dependencies. Cargo builds a crate once for each set of features that is asked of it, and tests ask for more
//! than programs do: tokio alone, with all that depends on it, would be built for `cargo build --workspace`, again for
//! the tests, and be checked twice more for clippy and rustdoc. As ordinary dependencies of a member, these features are on in
//! each of them. A release is built of its own packages instead, so that none of this is in it; see `hack/release-images`.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::process::Command;

    use serde_json::Value;

    /// For each crate, the features that the members ask for, for some kind of dependency: `null`, `dev` or `build`.
    fn features(members: &[Value], kind: &Value) -> BTreeMap<String, BTreeSet<String>> {
        let mut found = BTreeMap::<_, BTreeSet<_>>::new();
        let dependencies = members.iter().filter_map(|member| member["dependencies"].as_array()).flatten();
        for dependency in dependencies.filter(|dependency| dependency["kind"] == *kind) {
            let name = dependency["name"].as_str().unwrap_or_default().to_owned();
            let features = found.entry(name).or_default();
            features.extend(dependency["features"].as_array().into_iter().flatten().map(Value::to_string));
            if dependency["uses_default_features"] == true {
                features.insert("default".to_owned());
            }
        }
        found
    }

    #[test]
    fn tests_ask_for_nothing_that_programs_have_not() {
        let metadata = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .output()
            .expect("cargo runs");
        assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
        let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("cargo prints JSON");
        let members = metadata["packages"].as_array().expect("packages");
        let (always, in_tests) = (features(members, &Value::Null), features(members, &"dev".into()));
        for (name, features) in in_tests {
            // One that tests alone use is built once anyway.
            let Some(others) = always.get(&name) else { continue };
            let more: Vec<_> = features.difference(others).collect();
            assert!(more.is_empty(), "tests/features/Cargo.toml lacks features of {name}: {more:?}");
        }
    }
}
