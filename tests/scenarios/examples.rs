//! The manifests that users are shown: each is applied, its guests come up to their login prompts, and it is deleted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use vireo_tests::eventually::eventually;
use vireo_tests::{HostError, installed, programs};

use crate::scenarios::node::host_with_programs;
use crate::scenarios::standalone::Standalone;

/// Two guests start at a time, under emulation.
const BOOT: Duration = Duration::from_secs(240);
/// All examples, one after the other, on a busy host.
const ALL: Duration = Duration::from_secs(580);
/// What the examples call the directory of `hack/images`, and where one keeps its data.
const IMAGES: &str = "/var/lib/images";
const DATA: &str = "/var/lib/vireo-data";

/// The manifests in a directory.
fn manifests(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("the examples are there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    paths.sort();
    paths
}

#[test]
fn every_example_runs_and_goes() -> Result<(), HostError> {
    let made = |target| installed::images(target).map_err(HostError::Start);
    let images = made("disk")?;
    made("kernel")?;
    made("debian-disk")?;
    let vireo = programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    let host = host_with_programs().file(vireo).deadline(ALL).here()?;
    let standalone = Standalone::start(&host)?;
    // The link that README.md instructs users to create.
    host.shell(&format!("ln -s {} {}", images.display(), host.work("images"))).run()?.ok();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let all = [manifests(&examples), manifests(&examples.join("standalone"))].concat();
    assert!(all.len() >= 10, "{all:?}");
    for path in all {
        eprintln!("example: {}", path.display());
        let text = std::fs::read_to_string(&path).expect("an example is read");
        if let Some(missing) = needed_files(&text).find(|file| !Path::new(file).exists()) {
            eprintln!("not run: this host has no {missing}");
            continue;
        }
        let text = text.replace(IMAGES, &host.work("images")).replace(DATA, &host.work("data"));
        runs_and_goes(&standalone, &text)?;
    }
    Ok(())
}

/// The files of the host that an example needs, by its comments: `# Needs /dev/vhost-vsock.`
fn needed_files(manifest: &str) -> impl Iterator<Item = &str> {
    manifest.lines().filter_map(|line| line.strip_prefix("# Needs ")?.strip_suffix('.'))
}

fn runs_and_goes(standalone: &Standalone<'_>, manifest: &str) -> Result<(), HostError> {
    standalone.kubectl("apply -f -", Some(manifest))?.ok();
    for vm in standalone.items("vm")? {
        if vm["spec"]["runStrategy"] == "Halted" {
            let name = vm["metadata"]["name"].as_str().unwrap_or_default();
            standalone.virtctl(&format!("start {name}"))?.ok();
        }
    }
    let wanted = wanted(standalone)?;
    assert_eq!(wanted > 0, manifest.contains("kind: VirtualMachine"), "{wanted} guests of\n{manifest}");
    let mut names = Vec::new();
    eventually("its guests run", BOOT, || {
        let items = standalone.items("vmi")?;
        let ready = |vmi: &Value| {
            let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
        };
        let names_of = items.iter().filter_map(|vmi| vmi["metadata"]["name"].as_str().map(str::to_owned));
        names = names_of.collect();
        Ok(items.len() == wanted && items.iter().all(ready))
    })?;
    // What a Debian does until its prompt is `debian.rs`'s, and takes minutes.
    for name in names.iter().filter(|name| *name != "debian") {
        standalone.console_process(name)?.wait_for("login: ", BOOT)?;
    }
    // Debian does not hear the power button yet and gets all of its 60 seconds.
    standalone.kubectl("delete --timeout=180s -f -", Some(manifest))?.ok();
    eventually("nothing is left of it", BOOT, || {
        let left = standalone.kubectl("get vm,vmi,vmirs,vmpool,pvc -A", None)?;
        Ok(left.stderr.contains("No resources found"))
    })?;
    eventually("no launcher is left", BOOT, || Ok(standalone.launchers()? == "0"))
}

/// How many guests there should be.
fn wanted(standalone: &Standalone<'_>) -> Result<usize, HostError> {
    let mut count = 0;
    let mut sets = Vec::new();
    for kind in ["vmirs", "vmpool"] {
        sets.extend(standalone.items(kind)?);
    }
    for set in &sets {
        count += usize::try_from(set["spec"]["replicas"].as_u64().unwrap_or(1)).unwrap_or(usize::MAX);
    }
    let alone = |object: &Value| object["metadata"].get("ownerReferences").is_none();
    for kind in ["vm", "vmi"] {
        count += standalone.items(kind)?.iter().filter(|object| alone(object)).count();
    }
    Ok(count)
}
