use super::*;
use crate::manifests::document;

fn key(name: &str) -> Key {
    Key { namespace: "default".to_owned(), name: name.to_owned() }
}

fn good(name: &str) -> String {
    format!(
        "---\napiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{name: {name}}}\nspec: {{domain: {{memory: {{guest: 128Mi}}, devices: {{}}}}}}\n"
    )
}

fn bad(name: &str) -> String {
    good(name).replace("128Mi", "none")
}

fn files(files: &[(&str, String)]) -> BTreeMap<String, FileRead> {
    let read =
        |(name, text): &(&str, String)| ((*name).to_owned(), FileRead::Documents(document::read(text)));
    files.iter().map(read).collect()
}

fn owners(owners: &[(&str, &str)]) -> BTreeMap<Key, String> {
    owners.iter().map(|(name, file)| (key(name), (*file).to_owned())).collect()
}

/// "name@file" for what is present, "name?" for what is held.
fn entries(desired: &DesiredVmis) -> Vec<String> {
    let describe = |(key, entry): (&Key, &Entry)| match entry {
        Entry::Present { origin: Origin::File(file), .. } => format!("{}@{file}", key.name),
        Entry::Present { origin: Origin::Object(uid), .. } => format!("{}@{uid}", key.name),
        Entry::Held => format!("{}?", key.name),
    };
    desired.entries.iter().map(describe).collect()
}

fn refused(desired: &DesiredVmis) -> Vec<(String, String)> {
    desired.rejections.iter().map(|rejection| (rejection.file.clone(), rejection.name.clone())).collect()
}

#[test]
fn each_row_of_what_can_happen_to_files() {
    type Row<'a> =
        (&'a str, &'a [(&'a str, String)], &'a [(&'a str, &'a str)], &'a [&'a str], &'a [(&'a str, &'a str)]);
    let two = good("one") + &good("two");
    let rows: [Row<'_>; 12] = [
        ("new", &[("a.yaml", good("one"))], &[], &["one@a.yaml"], &[]),
        ("two documents", &[("a.yaml", two.clone())], &[], &["one@a.yaml", "two@a.yaml"], &[]),
        ("refused and new", &[("a.yaml", bad("one"))], &[], &["one?"], &[("a.yaml", "one")]),
        (
            "refused and running",
            &[("a.yaml", bad("one"))],
            &[("one", "a.yaml")],
            &["one?"],
            &[("a.yaml", "one")],
        ),
        (
            "broken syntax holds all of the file's",
            &[("a.yaml", "a: [".to_owned()), ("b.yaml", good("three"))],
            &[("one", "a.yaml"), ("two", "a.yaml"), ("gone", "c.yaml")],
            &["one?", "three@b.yaml", "two?"],
            &[("a.yaml", "")],
        ),
        (
            "emptied by accident",
            &[("a.yaml", String::new())],
            &[("one", "a.yaml")],
            &["one?"],
            &[("a.yaml", "")],
        ),
        ("deleted", &[], &[("one", "a.yaml")], &[], &[]),
        (
            "one of two taken out",
            &[("a.yaml", good("one"))],
            &[("one", "a.yaml"), ("two", "a.yaml")],
            &["one@a.yaml"],
            &[],
        ),
        (
            "twice: the first by name",
            &[("b.yaml", good("one")), ("a.yaml", good("one"))],
            &[],
            &["one@a.yaml"],
            &[("b.yaml", "one")],
        ),
        (
            "twice: the first in time",
            &[("b.yaml", good("one")), ("a.yaml", good("one"))],
            &[("one", "b.yaml")],
            &["one@b.yaml"],
            &[("a.yaml", "one")],
        ),
        (
            "twice in one file",
            &[("a.yaml", good("one") + &good("one"))],
            &[],
            &["one@a.yaml"],
            &[("a.yaml", "one")],
        ),
        ("renamed", &[("b.yaml", good("one"))], &[("one", "a.yaml")], &["one@b.yaml"], &[]),
    ];
    for (what, given, owned, expected, problems) in rows {
        let desired = desired_vmis(&files(given), &owners(owned));
        assert_eq!(entries(&desired), expected, "{what}");
        let problems: Vec<_> =
            problems.iter().map(|(file, name)| ((*file).to_owned(), (*name).to_owned())).collect();
        assert_eq!(refused(&desired), problems, "{what}");
    }
}

#[test]
fn a_duplicate_names_the_file_that_was_first() {
    let desired = desired_vmis(&files(&[("a.yaml", good("one")), ("b.yaml", bad("one"))]), &BTreeMap::new());
    let problems = &desired.rejections[0].problems;
    assert!(problems[0].to_string().contains("a.yaml"), "{problems:?}");
    assert!(problems.len() > 1, "its own problems are reported, too: {problems:?}");
}

#[test]
fn an_unreadable_file_holds_its_vmis() {
    let files =
        BTreeMap::from([("a.yaml".to_owned(), FileRead::Unreadable(Problem::whole("no permission")))]);
    let desired = desired_vmis(&files, &owners(&[("one", "a.yaml")]));
    assert_eq!(entries(&desired), ["one?"]);
    assert_eq!(desired.rejections[0].document, None);
}
