//! Images of a registry that lies, and that sends clients elsewhere: each VMI says what is wrong with its image, and another one
//! runs meanwhile.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use vireo_tests::eventually::eventually;
use vireo_tests::{Host, HostError, Process, oci};

use crate::SOON;
use crate::scenarios::node::host_with_programs;
use crate::scenarios::registry::{instance_of, says};
use crate::scenarios::standalone::Standalone;

const PORT: u16 = 5001;
/// Of the server to which it sends clients.
const OTHER: u16 = 5002;
const PASSWORD: &str = "secret-of-ada";

/// Images, and what is said of each.
const FAULTS: [(&str, &str); 7] = [
    ("digest", "a layer does not have its digest"),
    ("length", "a layer is longer than the manifest says"),
    ("cut", "the download broke off"),
    ("slow", "it does not answer within 20 s"),
    ("file", "it redirects to what is not HTTP"),
    ("loop", "too many redirects"),
    ("inside", "status 403"),
];

/// The registry, and where its image is.
fn serve<'h>(host: &'h Host, directory: &Path) -> Result<Process<'h>, HostError> {
    let (disk, layout) = (directory.join("disk"), directory.join("layout"));
    let write = || {
        fs::write(&disk, [7; 4096])?;
        oci::write_layout(&layout, &[("disk/disk.img", &disk)])?;
        let endpoint = format!("http://localhost:{PORT}");
        let mirrors = json!({"mirrors": {format!("localhost:{PORT}"): {"endpoint": [endpoint]}}});
        fs::write(directory.join("registries.yaml"), mirrors.to_string())
    };
    write().map_err(HostError::Start)?;
    let program = host.command(&host.input("hostile-registry"));
    let words = [PORT.to_string(), OTHER.to_string(), layout.to_string_lossy().into_owned()];
    let mut process = program.args(words).spawn()?;
    process.wait_for("listening", SOON)?;
    Ok(process)
}

#[test]
fn a_hostile_registry_concerns_its_own_images_alone_here() -> Result<(), HostError> {
    let vireo = vireo_tests::programs::directory(env!("CARGO_BIN_EXE_nested")).join("vireo");
    let host = host_with_programs().file(vireo).file(env!("CARGO_BIN_EXE_hostile-registry")).here()?;
    let registry = serve(&host, Path::new(&host.work("")))?;
    let options = vec!["--registries".to_owned(), host.work("registries.yaml")];
    let standalone = Standalone::start_with(&host, "qemu", options)?;
    let server =
        format!("--docker-server=localhost:{PORT} --docker-username=ada --docker-password={PASSWORD}");
    standalone.kubectl(&format!("create secret docker-registry puller {server}"), None)?.ok();
    let create = |image: &str| -> Result<(), HostError> {
        let options = json!({"imagePullSecret": "puller"});
        let vmi = instance_of(image, &format!("localhost:{PORT}/{image}"), &options);
        standalone.kubectl("apply -f -", Some(&vmi))?.ok();
        Ok(())
    };
    create("late")?;
    for (image, _) in FAULTS {
        create(image)?;
    }
    let mut shown = Value::Null;
    eventually("a volume whose image takes long says so", SOON, || {
        shown = standalone.json("get vmi late")?["status"]["volumeStatus"].clone();
        Ok(shown[0]["reason"] == "Pulling")
    })
    .inspect_err(|_| eprintln!("as last seen: {shown:#}"))?;
    let message = format!("localhost:{PORT}/late is being pulled: 0 of 0 MiB are here");
    assert_eq!((&shown[0]["phase"], &shown[0]["message"]), (&"Pending".into(), &message.into()));
    // The blob of this one is elsewhere, which is right.
    create("elsewhere")?;
    standalone.becomes_ready("vmi/elsewhere")?;
    for (image, words) in FAULTS {
        says(&standalone, image, &["ErrImagePull", "ImagePullBackOff"], &format!("localhost:{PORT}: "))?;
        says(&standalone, image, &["ErrImagePull", "ImagePullBackOff"], words)?;
    }
    let inside = standalone.json("get vmi inside")?.to_string();
    assert!(!inside.contains("for this host"), "{inside}");
    assert_eq!(registry.ended()?, None);
    let shown = registry.stdout();
    assert!(shown.contains("credentials: none") && !shown.contains("credentials: Basic"), "{shown}");
    assert!(!standalone.log().contains(PASSWORD), "the log has a password");

    assert_eq!(standalone.launchers()?, "1");
    standalone.kubectl("delete vmi --all --timeout=60s", None)?.ok();
    Ok(())
}
