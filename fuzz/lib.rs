//! Targets that need nothing private.
#![cfg(feature = "api")]

use vireo_api::spec::{Bytes, ImageRef, Ipv4Net, Ipv6Net, MilliCpus, VmiUid};
use vireo_api::v1::Quantity;

/// A text: the first line as values of fields, and all of it as a manifest.
pub fn api(script: &[u8]) {
    let Ok(text) = std::str::from_utf8(script) else { return };
    let line = text.lines().next().unwrap_or_default();
    if let Ok(bytes) = line.parse::<Bytes>() {
        assert_eq!(bytes.to_string().parse(), Ok(bytes), "{line:?}: the text of a quantity is the quantity");
    }
    let _ = MilliCpus::try_from(&Quantity(line.to_owned())).map(MilliCpus::whole);
    let _ = (line.parse::<Ipv4Net>(), line.parse::<Ipv6Net>(), line.parse::<VmiUid>());
    if let Ok(image) = line.parse::<ImageRef>() {
        let _ = format!("{image:?}");
    }
    let Ok(objects) = vireo_api::decode::manifest(text) else { return };
    for object in objects {
        if let Err(report) = object.check() {
            assert!(!report.to_string().is_empty(), "a rejection without a reason");
        }
    }
}

/// Manifests of the examples, and a value of each kind.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let texts = [
        include_str!("../examples/demo.yaml"),
        include_str!("../examples/disk.yaml"),
        include_str!("../examples/efi.yaml"),
        "512Mi",
        "1e3",
        "100m",
        "10.0.2.0/24",
        "registry.example/name:tag@sha256:00",
    ];
    texts.into_iter().map(|text| ("api", text.into())).collect()
}
