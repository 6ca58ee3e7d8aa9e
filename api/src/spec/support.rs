//! What becomes of each field of a VMI's spec. A test compares it with what is done.

mod table;

use std::fmt::Write as _;

pub use table::SUPPORT_TABLE;

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Support {
    /// It has its effect on both hypervisors.
    Both,
    /// It has its effect on QEMU, which is selected automatically.
    Qemu,
    /// A VMI with it is accepted, with a warning that it has no effect.
    NoEffect,
    /// A VMI with it is refused.
    Refused,
}

impl Support {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Both, Self::Qemu, Self::NoEffect, Self::Refused];

    fn as_str(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Qemu => "`qemu`",
            Self::NoEffect => "no effect",
            Self::Refused => "refused",
        }
    }
}

/// A field and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSupport {
    /// Its path below `spec`: `domain.devices.disks[].bootOrder`. Maps end with `{}`.
    pub path: &'static str,
    /// What becomes of it in its main use.
    pub support: Support,
    /// What differs from KubeVirt; the reason where it has no effect or is refused. It may be empty.
    pub note: &'static str,
}

/// Fields that belong together.
#[derive(Clone, Copy, Debug)]
pub struct SupportSection {
    /// Its title.
    pub title: &'static str,
    /// Its fields.
    pub fields: &'static [FieldSupport],
}

/// The table as Markdown, for docs/api.md.
pub fn support_markdown() -> String {
    let mut text = String::new();
    let all = || SUPPORT_TABLE.iter().flat_map(|section| section.fields);
    let counts = Support::ALL.map(|support| {
        format!("{} {}", all().filter(|field| field.support == support).count(), support.as_str())
    });
    let mut write = |line: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    write(format_args!("{} fields: {}.", all().count(), counts.join(", ")));
    for section in SUPPORT_TABLE {
        write(format_args!("\n**{}**\n\n| Field | Hypervisor | Note |\n| --- | --- | --- |", section.title));
        for FieldSupport { path, support, note } in section.fields {
            write(format_args!("| `{path}` | {} | {note} |", support.as_str()));
        }
    }
    text
}
