//! What the repository says about fuzz targets and tests of security is so: files of inputs, tables in the documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Bytes of a file of inputs, but for its header: as `hack/fuzz` has it.
const MOST: usize = 32 << 10;
/// Bytes of an input.
const LONGEST: usize = 8192;
const PAGE: &str = "docs/testing.md";
/// The section with a table of tests.
const POINTS: &str = "## Tests of isolation, point by point";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

/// The names without extension of the files in a directory, which may be absent.
fn names(directory: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(repository().join(directory)).into_iter().flatten();
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    entries.map(|entry| name(entry.unwrap().path())).collect()
}

/// What is wrong with a file of inputs.
fn problem(target: &str, text: &str) -> Option<&'static str> {
    let Some((header, lines)) = text.split_once('\n') else { return Some("no header") };
    if header != format!("# Inputs of the fuzz target {target} in base64, written by hack/fuzz --keep.") {
        return Some("another header");
    }
    let inputs: Vec<&str> = lines.lines().collect();
    if lines.len() > MOST || inputs.is_empty() {
        return Some("too much, or nothing");
    }
    if !inputs.is_sorted_by(|one, next| one < next) {
        return Some("lines that are not sorted, or twice there");
    }
    let is_input =
        |line: &&str| STANDARD.decode(line).is_ok_and(|input| (1..=LONGEST).contains(&input.len()));
    (!inputs.iter().all(is_input)).then_some("a line that is no input")
}

#[test]
fn files_of_inputs_are_read_as_they_are_written() {
    let text = |lines: &str| {
        format!("# Inputs of the fuzz target x in base64, written by hack/fuzz --keep.\n{lines}")
    };
    assert_eq!(problem("x", &text("AA==\nAQ==\n")), None);
    for (lines, what) in [
        ("", "too much, or nothing"),
        ("AQ==\nAA==\n", "lines that are not sorted, or twice there"),
        ("AA==\nAA==\n", "lines that are not sorted, or twice there"),
        ("AA==\nB\n", "a line that is no input"),
    ] {
        assert_eq!(problem("x", &text(lines)), Some(what), "{lines}");
    }
    assert_eq!(problem("y", &text("AA==\n")), Some("another header"));
}

#[test]
fn every_file_of_inputs_is_that_of_a_target() {
    let targets = names("fuzz/fuzz_targets");
    for target in names("fuzz/corpus") {
        assert!(targets.contains(&target), "fuzz/corpus/{target}.txt has no target");
        assert_eq!(problem(&target, &read(&format!("fuzz/corpus/{target}.txt"))), None, "{target}");
    }
}

#[test]
fn every_fuzz_target_is_built_counted_and_documented() {
    let targets = names("fuzz/fuzz_targets");
    assert!(targets.len() > 20, "{targets:?}");
    let (manifest, runs, page) = (read("fuzz/Cargo.toml"), read("fuzz/runs.tsv"), read(PAGE));
    let bins: BTreeSet<_> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""))
        .collect();
    let counted: BTreeSet<_> = runs.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let all: BTreeSet<_> = targets.iter().map(String::as_str).collect();
    assert_eq!((bins, counted), (all.clone(), all));
    for target in &targets {
        assert!(page.contains(&format!("`{target}`")), "{PAGE} does not name the target {target}");
    }
}

/// The text of all sources.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_table_of_points_names_exists() {
    let page = read(PAGE);
    let (_, section) = page.split_once(POINTS).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    // The text between backquotes in the second column.
    let named: BTreeSet<&str> = rows
        .filter_map(|row| row.split('|').nth(2))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(named.len() > 30, "{named:?}");
    let mut text = String::new();
    sources(&repository(), &mut text);
    let absent: Vec<_> = named.iter().filter(|name| !text.contains(&format!("fn {name}("))).collect();
    assert!(absent.is_empty(), "no test has the name {absent:?}");
}
