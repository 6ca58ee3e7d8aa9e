//! Log lines on stderr, each naming the virtual machine it is about; no more of them than a disk can bear.

use std::fmt;
use std::sync::OnceLock;
use std::time::Instant;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use vireo_proto::launcher::Identity;
use vireo_vmm::pace::Pace;

/// One process, one machine: its name is a fact of the process, also on threads that know nothing of it.
static MACHINE: OnceLock<String> = OnceLock::new();

/// Starts logging.
pub fn start(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // Complaining about a line that cannot be written would panic, and end the guest because a disk is full.
        .log_internal_errors(false)
        .event_format(Named { lines: Format::default().with_ansi(false), pace: Pace::default() })
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
    pace: Pace,
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
        // Nothing written is no line.
        let Some(left_out) = self.pace.admit(event.metadata(), Instant::now()) else { return Ok(()) };
        if left_out > 0 {
            write!(writer, "left_out={left_out} ")?;
        }
        writer.write_str(MACHINE.get().map_or("", String::as_str))?;
        self.lines.format_event(context, writer, event)
    }
}
