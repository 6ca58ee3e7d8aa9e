//! CPU models of the QEMU of this host, in the form of `api/src/cpu/models.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Map, Value, json};

/// The features that node agents know.
const FEATURES: &str = include_str!("../../api/src/cpu/features.txt");
const QEMU: &str = "qemu-system-x86_64";
/// Models that depend on the node.
const OF_NODE: [&str; 3] = ["base", "host", "max"];
/// QEMU sets it for every guest.
const HYPERVISOR: &str = "hypervisor";
const HEAD: &str = "\
# CPU models of QEMU, with the features that guests see under emulation: written by `cargo run --bin cpu-models`.
# emulated: FEATURE...                    what QEMU can emulate
# MODEL VENDOR: FEATURE...
# MODEL VENDOR OTHER: +FEATURE -FEATURE   how it differs from another model
# ALIAS = MODEL
# QEMU does not emulate vme, so that no model has it here; all real CPUs have it.
";

/// A QEMU that emulates and runs nothing.
struct Qemu {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Qemu {
    fn start() -> io::Result<Self> {
        let options = "-M q35 -accel tcg -S -nodefaults -display none -m 16 -qmp stdio";
        let mut process = Command::new(QEMU)
            .args(options.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("QEMU has no pipes"));
        };
        let mut qemu = Self { process, stdin, stdout: BufReader::new(stdout) };
        qemu.request("qmp_capabilities", &json!({}))?;
        Ok(qemu)
    }

    fn request(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        writeln!(self.stdin, "{}", json!({"execute": command, "arguments": arguments}))?;
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut answer: Value = serde_json::from_str(&line)?;
            if let Some(error) = answer.get("error") {
                return Err(io::Error::other(format!("{command}: {error}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// The properties of a model.
    fn expand(&mut self, model: &str) -> io::Result<Map<String, Value>> {
        let arguments = json!({"type": "full", "model": {"name": model}});
        let expanded = self.request("query-cpu-model-expansion", &arguments)?;
        expanded["model"]["props"]
            .as_object()
            .cloned()
            .ok_or_else(|| io::Error::other(format!("{model} has no properties")))
    }
}

/// KubeVirt's name of each feature.
fn known_features() -> BTreeSet<&'static str> {
    let fields = |line: &'static str| {
        let before = match line.split(' ').next()? {
            "cpuid" => 5,
            "msr" => 3,
            _ => return None,
        };
        line.split(' ').nth(before)
    };
    FEATURES.lines().filter_map(fields).filter(|name| *name != HYPERVISOR).collect()
}

fn features(properties: &Map<String, Value>) -> BTreeSet<&'static str> {
    known_features().into_iter().filter(|name| properties.get(*name) == Some(&Value::Bool(true))).collect()
}

fn vendor(properties: &Map<String, Value>) -> &'static str {
    match properties.get("vendor").and_then(Value::as_str) {
        Some("GenuineIntel") => "Intel",
        Some("AuthenticAMD") => "AMD",
        Some("HygonGenuine") => "Hygon",
        _ => "-",
    }
}

/// A model's family and version.
fn version(model: &str) -> Option<(&str, u32)> {
    let (family, version) = model.rsplit_once("-v")?;
    Some((family, version.parse().ok()?))
}

/// The table of this host's QEMU.
///
/// # Errors
/// When QEMU cannot be started, or answers otherwise than QEMU 10 does.
pub fn table() -> io::Result<String> {
    let mut qemu = Qemu::start()?;
    let emulated = features(&qemu.expand("max")?);
    let listed = qemu.request("query-cpu-definitions", &json!({}))?;
    let mut aliases = BTreeMap::new();
    let mut versions = BTreeMap::new();
    for model in listed.as_array().into_iter().flatten() {
        let Some(name) = model["name"].as_str().filter(|name| !OF_NODE.contains(name)) else { continue };
        match (model["alias-of"].as_str(), version(name)) {
            (Some(of), _) => drop(aliases.insert(name.to_owned(), of.to_owned())),
            (None, Some((family, version))) => {
                let properties = qemu.expand(name)?;
                check_unavailable(name, &model["unavailable-features"], &features(&properties), &emulated)?;
                versions.insert((family.to_owned(), version), properties);
            }
            (None, None) => return Err(io::Error::other(format!("the model {name} has no version"))),
        }
    }
    let words =
        |words: &mut dyn Iterator<Item = String>| words.map(|word| format!(" {word}")).collect::<String>();
    let plain = |names: &BTreeSet<&str>| words(&mut names.iter().map(|name| (*name).to_owned()));
    let mut table = format!("{HEAD}emulated:{}\n", plain(&emulated));
    for ((family, version), properties) in &versions {
        let (has, vendor) = (features(properties), vendor(properties));
        let before =
            version.checked_sub(1).and_then(|before| versions.get_key_value(&(family.clone(), before)));
        table += &match before {
            None => format!("{family}-v{version} {vendor}:{}\n", plain(&has)),
            Some(((_, before), properties)) => {
                let had = features(properties);
                let more = has.difference(&had).map(|name| format!("+{name}"));
                let less = had.difference(&has).map(|name| format!("-{name}"));
                format!("{family}-v{version} {vendor} {family}-v{before}:{}\n", words(&mut more.chain(less)))
            }
        };
    }
    table.extend(aliases.iter().map(|(alias, of)| format!("{alias} = {of}\n")));
    Ok(table)
}

/// What QEMU cannot emulate of a model is what the tables say.
fn check_unavailable(
    model: &str,
    unavailable: &Value,
    features: &BTreeSet<&str>,
    emulated: &BTreeSet<&str>,
) -> io::Result<()> {
    // QEMU does not always name the features in registers of which it lacks all.
    let is_in_register = |name: &str| FEATURES.lines().any(|line| is_in(line, "msr") && is_in(line, name));
    let names = unavailable.as_array().into_iter().flatten().filter_map(Value::as_str);
    let by_qemu: BTreeSet<&str> = names.filter(|name| !is_in_register(name)).collect();
    let lacking = features.difference(emulated).copied();
    let by_table: BTreeSet<&str> = lacking.filter(|name| !is_in_register(name)).collect();
    // Its list has its own names of features.
    let is_same = by_qemu.len() == by_table.len()
        && by_qemu.iter().all(|name| by_table.iter().any(|known| is_alias(name, known)));
    match is_same {
        true => Ok(()),
        false => Err(io::Error::other(format!("{model}: {by_qemu:?} are unavailable, and not {by_table:?}"))),
    }
}

fn is_alias(name: &str, of: &str) -> bool {
    name == of || FEATURES.lines().any(|line| is_in(line, name) && is_in(line, of))
}

fn is_in(line: &str, name: &str) -> bool {
    line.split(' ').any(|word| word == name)
}
