//! Log lines on stderr, each naming the virtual machine it is about.

use std::fmt;
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use vireo_proto::launcher::Identity;

/// One process, one machine: its name is a fact of the process, also on threads that know nothing of it.
static MACHINE: OnceLock<String> = OnceLock::new();

/// Starts logging.
pub fn start(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .event_format(Named { lines: Format::default().with_ansi(false) })
        .init();
}

/// From now on every line names this machine.
pub fn name(vmi: &Identity) {
    let line = format!("namespace={} name={} uid={} ", vmi.namespace, vmi.name, vmi.uid);
    // A launcher launches at most once, so nothing is ever replaced.
    let _ = MACHINE.set(line);
}

struct Named {
    lines: Format<Full>,
}

impl<S, N> FormatEvent<S, N> for Named
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(MACHINE.get().map_or("", String::as_str))?;
        self.lines.format_event(context, writer, event)
    }
}
