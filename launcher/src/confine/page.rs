//! What [`super`] makes of a process, in the documentation.

use std::fmt::Write as _;

use vireo_privileges::root::{DEVICES, SYSTEM};

use super::*;
use crate::landlock::RULES;
use crate::page::assert_current;

const PAGE: &str = "docs/launcher-process.md";
const INTRODUCTION: &str = "# The process of a launcher

What a launcher on a single host is and has, and QEMU and swtpm as well, which it starts. A unit test makes this page of the
code (`launcher/src/confine.rs`, `launcher/src/landlock.rs`, `privileges/src/root.rs`) and fails where they differ:
`VIREO_WRITE_PAGES=1 cargo nextest run -p vireo-launcher page_of_the_process` writes it. [Security](security.md)
has the rest: users, capabilities (none), sockets and what it receives open; [System calls](system-calls.md) its filters.

| Namespace of its own | For |
| --- | --- |
| `CLONE_NEWPID`, made by the node agent | processes: it sees and signals itself, QEMU and swtpm |
| `CLONE_NEWNET`, made by the node agent | the VM's network |
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for (flag, reason) in NAMESPACES {
        let name = flag.iter_names().next().unwrap().0;
        writeln!(page, "| `CLONE_{name}` | {reason} |").unwrap();
    }
    page.push_str("\n| Resource (setrlimit) | At most | Why |\n| --- | --- | --- |\n");
    for Limit { resource, most, reason } in LIMITS {
        let name = format!("{resource:?}").to_uppercase();
        writeln!(page, "| `RLIMIT_{name}` | {most} | {reason} |").unwrap();
    }
    page.push_str("\n| Files that it sees | How |\n| --- | --- |\n");
    let list = |paths: &[&str]| paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
    writeln!(page, "| {}, where the node has them | read-only |", list(&SYSTEM)).unwrap();
    let variables = list(&FILE_VARIABLES);
    writeln!(page, "| its own program, `--qemu`, what {variables} name | read-only |").unwrap();
    writeln!(page, "| {} | devices |", list(&DEVICES)).unwrap();
    page.push_str(
        "| the VM's directory, which has its sockets | written |\n| `/proc` of its namespace | – |\n",
    );
    page.push_str("\n| Landlock: in and below | Right |\n| --- | --- |\n");
    for (path, rights) in RULES {
        writeln!(page, "| `{path}` | {rights:?} |").unwrap();
    }
    page.push_str("| the VM's directory; in a Pod, writable claims that it shares | All |\n");
    page.push_str("| the node's root, for files that it received open | Read |\n");
    writeln!(page, "\nOf the environment it keeps {}, and nothing else.", list(&KEPT_VARIABLES)).unwrap();
    page
}

#[test]
fn the_page_of_the_process_is_that_of_the_code() {
    assert_current(PAGE, &page());
}
