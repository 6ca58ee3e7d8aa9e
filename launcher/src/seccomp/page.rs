//! The tables of [`super`] in the documentation.

use std::fmt::Write as _;

use vireo_privileges::seccomp::table::Condition;

use super::*;
use crate::page::assert_current;

const PAGE: &str = "docs/system-calls.md";
const INTRODUCTION: &str = "# System calls of launchers

What the [filters](security.md#system-calls) of a launcher let its threads call. A unit test makes this page of the code
(`launcher/src/seccomp/table.rs`, `privileges/src/seccomp/table.rs`) and fails where they differ: `VIREO_WRITE_PAGES=1
cargo nextest run -p vireo-launcher page_of_system_calls` writes it.

`P` is every thread of a launcher with the native monitor, `V` those of vCPUs, `D` those of devices and drives, and `Q` every
thread of a launcher with QEMU. Conditions are about arguments, counted from 0, of which a mask selects bits.

| Call | Only if | Threads | For |
| --- | --- | --- | --- |
";
const FAILING_INTRODUCTION: &str = "
These fail, and their callers go on without:

| Call | Only if | Threads | Error | Why |
| --- | --- | --- | --- | --- |
";

fn conditions(when: &[Condition]) -> String {
    let condition = |Condition { argument, mask, value }: &Condition| match *mask {
        u32::MAX => format!("{argument} = {value:#x}"),
        mask => format!("{argument} & {mask:#x} = {value:#x}"),
    };
    when.iter().map(condition).collect::<Vec<_>>().join(", ")
}

fn threads(threads: table::Threads) -> String {
    let kinds = [("P", Thread::Other), ("V", Thread::Vcpu), ("D", Thread::Device), ("Q", Thread::Driver)];
    let names = kinds.into_iter().filter(|(_, kind)| kind.is_among(threads)).map(|(name, _)| name);
    names.collect::<Vec<_>>().join(" ")
}

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let of_all = shared::PROCESS.iter().map(|allowed| (allowed, table::Threads::Every));
    let mut lines: Vec<_> = ALLOWED.iter().map(|line| (&line.allowed, line.threads)).chain(of_all).collect();
    // The lines of one call stay in their order.
    lines.sort_by_key(|(allowed, _)| allowed.call.name());
    for (allowed, of) in lines {
        let (name, when) = (allowed.call.name(), conditions(allowed.when));
        writeln!(page, "| `{name}` | {when} | {} | {} |", threads(of), allowed.reason).unwrap();
    }
    page.push_str(FAILING_INTRODUCTION);
    let of_all = shared::FAILING.iter().map(|failing| (failing, table::Threads::Every));
    for (failing, of) in FAILING.iter().map(|line| (&line.failing, line.threads)).chain(of_all) {
        let error = rustix::io::Errno::from_raw_os_error(failing.errno);
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            failing.call.name(),
            conditions(failing.when),
            threads(of),
            std::io::Error::from(error),
            failing.reason
        )
        .unwrap();
    }
    page
}

#[test]
fn the_page_of_system_calls_is_that_of_the_tables() {
    assert_current(PAGE, &page());
}
