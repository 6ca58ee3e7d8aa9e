//! Pages of the documentation that are made of the code.

use std::path::Path;

/// Makes the tests write their pages.
const WRITE: &str = "VIREO_WRITE_PAGES";

/// Fails where a page, such as `docs/system-calls.md`, is not what the code makes of it.
pub(crate) fn assert_current(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "{name} is not that of the code: {WRITE}=1 makes this test write it");
}
