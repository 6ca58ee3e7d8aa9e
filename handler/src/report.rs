//! `virt-handler status`: reports the content of the state directory, whether or not a handler runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use serde::Serialize;
use vireo_api::v1::{Condition, VirtualMachineInstance};

use crate::launcher::link::chain;
use crate::manifests::Rejection;
use crate::reconcile::status::{ConditionType, failure};
use crate::state::{StateDir, StateError, read_json};

/// The options of the command.
#[derive(Debug)]
pub struct Options {
    /// Only this VMI.
    pub name: Option<String>,
    /// Only of this namespace.
    pub namespace: Option<String>,
    /// The output format.
    pub format: Format,
    /// The handler's state directory.
    pub state_dir: PathBuf,
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One line each.
    Table,
    /// One longer line each.
    Wide,
    /// The objects.
    Yaml,
    /// The objects.
    Json,
}

/// The VMIs and rejected manifests to show.
#[derive(Debug, Default)]
struct Found {
    vmis: Vec<VirtualMachineInstance>,
    rejections: Vec<Rejection>,
}

/// Prints the status. Exit code 1: nothing of that name, or the state cannot be read.
pub fn command(options: &Options) -> ExitCode {
    let state = StateDir::at(&options.state_dir);
    let found = match find(&state, options) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("virt-handler: {}", chain(&error));
            return ExitCode::FAILURE;
        }
    };
    if !state.is_served() {
        eprintln!(
            "virt-handler: no handler runs on {}; this is what the last one knew",
            options.state_dir.display()
        );
    }
    if let Some(name) = options.name.as_ref().filter(|_| found.vmis.is_empty() && found.rejections.is_empty())
    {
        let namespace = options.namespace.as_deref().unwrap_or("default");
        eprintln!(
            "virt-handler: virtualmachineinstance.kubevirt.io \"{name}\" not found in namespace {namespace}"
        );
        return ExitCode::FAILURE;
    }
    match print(&found, options) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("virt-handler: {error}");
            ExitCode::FAILURE
        }
    }
}

fn find(state: &StateDir, options: &Options) -> Result<Found, StateError> {
    let namespace = match (&options.namespace, &options.name) {
        (Some(namespace), _) => Some(namespace.as_str()),
        (None, Some(_)) => Some("default"),
        (None, None) => None,
    };
    let meant = |its_namespace: &str, its_name: &str| {
        namespace.is_none_or(|namespace| namespace == its_namespace)
            && options.name.as_deref().is_none_or(|name| name == its_name)
    };
    let mut found = Found::default();
    for (_, dir) in state.vmi_dirs()? {
        match read_json::<VirtualMachineInstance>(&dir.vmi()) {
            Ok(Some(vmi)) if meant(&vmi.metadata.namespace, &vmi.metadata.name) => found.vmis.push(vmi),
            Ok(_) => {}
            // One damaged file does not hide the others.
            Err(error) => eprintln!("virt-handler: {}", chain(&error)),
        }
    }
    found.vmis.sort_by(|a, b| {
        (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name))
    });
    let rejections: Vec<Rejection> = read_json(&state.rejections())?.unwrap_or_default();
    // A file that cannot be read has no name and is shown for every query without a name.
    found.rejections = rejections
        .into_iter()
        .filter(|rejection| match rejection.name.as_str() {
            "" => options.name.is_none(),
            name => meant(&rejection.namespace, name),
        })
        .collect();
    Ok(found)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    api_version: &'static str,
    kind: &'static str,
    items: &'a [VirtualMachineInstance],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    refused: &'a [Rejection],
}

fn print(found: &Found, options: &Options) -> Result<String, Box<dyn std::error::Error>> {
    let list = List { api_version: "v1", kind: "List", items: &found.vmis, refused: &found.rejections };
    let alone = found.vmis.first().filter(|_| options.name.is_some() && found.rejections.is_empty());
    let json = |alone: Option<&VirtualMachineInstance>| match alone {
        Some(vmi) => serde_json::to_value(vmi),
        None => serde_json::to_value(&list),
    };
    Ok(match options.format {
        Format::Json => format!("{}\n", serde_json::to_string_pretty(&json(alone)?)?),
        Format::Yaml => serde_saphyr::to_string(&json(alone)?)?,
        Format::Table => table(found, options, false, Timestamp::now()),
        Format::Wide => table(found, options, true, Timestamp::now()),
    })
}

fn table(found: &Found, options: &Options, wide: bool, now: Timestamp) -> String {
    let mut header = vec!["NAMESPACE", "NAME", "PHASE", "HYPERVISOR", "IP", "AGE", "REASON"];
    if wide {
        header.extend(["NODE", "UID", "WHY"]);
    }
    let mut rows = vec![header.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()];
    rows.extend(found.vmis.iter().map(|vmi| row(vmi, wide, now)));
    let known: BTreeMap<_, _> =
        found.vmis.iter().map(|vmi| ((&vmi.metadata.namespace, &vmi.metadata.name), vmi)).collect();
    for rejection in &found.rejections {
        if !rejection.name.is_empty() && !known.contains_key(&(&rejection.namespace, &rejection.name)) {
            let reason = match rejection.problems.as_slice() {
                [only] => format!("{}: {only}", rejection.file),
                problems => format!("{}: {} problems", rejection.file, problems.len()),
            };
            let mut row = vec![rejection.namespace.clone(), rejection.name.clone(), "Refused".to_owned()];
            row.extend(["-".to_owned(), "-".to_owned(), "-".to_owned(), reason]);
            row.resize(header.len(), "-".to_owned());
            rows.push(row);
        }
    }
    let mut text = if rows.len() > 1 { align(&rows) } else { "No VMIs.\n".to_owned() };
    if options.name.is_some() {
        found.vmis.iter().for_each(|vmi| text.push_str(&details(vmi)));
    }
    text.push_str(&rejected_manifests(&found.rejections));
    text
}

fn row(vmi: &VirtualMachineInstance, wide: bool, now: Timestamp) -> Vec<String> {
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let hypervisor = ConditionType::Hypervisor.find(&vmi.status);
    let phase = match &vmi.metadata.deletion_timestamp {
        Some(_) => format!("{} (stopping)", vmi.status.phase),
        None => vmi.status.phase.clone(),
    };
    let mut row = vec![
        vmi.metadata.namespace.clone(),
        vmi.metadata.name.clone(),
        phase,
        hypervisor.map_or("-".to_owned(), |condition| condition.reason.clone()),
        vmi.status.interfaces.first().map_or("-".to_owned(), |interface| dash(&interface.ip_address)),
        vmi.metadata.creation_timestamp.as_deref().map_or("-".to_owned(), |then| age(then, now)),
        dash(&reason(vmi)),
    ];
    if wide {
        row.extend([
            dash(&vmi.status.node_name),
            vmi.metadata.uid.clone(),
            hypervisor.map_or("-".to_owned(), |condition| dash(&condition.message)),
        ]);
    }
    row
}

/// The most important problem of a VMI.
fn reason(vmi: &VirtualMachineInstance) -> String {
    let failed = failure(&vmi.status);
    if let (None, Some(stuck)) = (failed, ConditionType::NoBootableDevice.find(&vmi.status)) {
        return stuck.reason.clone();
    }
    match (failed, ConditionType::ManifestChanged.find(&vmi.status)) {
        (Some(failed), _) if failed.message.is_empty() => failed.reason.clone(),
        (Some(failed), _) => format!("{}: {}", failed.reason, failed.message),
        (None, Some(_)) if vmi.status.reason.is_empty() => "manifest changed while running".to_owned(),
        (None, _) => vmi.status.reason.clone(),
    }
}

fn details(vmi: &VirtualMachineInstance) -> String {
    let mut text = String::new();
    for Condition { r#type, status, reason, message, .. } in &vmi.status.conditions {
        let because = match (reason.is_empty(), message.is_empty()) {
            (true, true) => String::new(),
            (false, true) => format!(": {reason}"),
            (true, false) => format!(": {message}"),
            (false, false) => format!(": {reason}: {message}"),
        };
        text.push_str(&format!("  {} {status}{because}\n", r#type));
    }
    text
}

/// Every problem of every rejected manifest.
fn rejected_manifests(rejections: &[Rejection]) -> String {
    let mut text = String::new();
    for Rejection { file, document, problems, .. } in rejections {
        let document = document.map(|document| format!(" (document {document})")).unwrap_or_default();
        text.push_str(&format!("refused: {file}{document}\n"));
        problems.iter().for_each(|problem| text.push_str(&format!("  {problem}\n")));
    }
    text
}

/// The age in kubectl's format.
fn age(then: &str, now: Timestamp) -> String {
    let Ok(then) = then.parse::<Timestamp>() else { return "-".to_owned() };
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("   ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
