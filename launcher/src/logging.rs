//! Log lines on stderr, each naming the VM it is about; no more of them than a disk can bear.

use std::fmt;
use std::sync::OnceLock;
use std::time::Instant;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use vireo_proto::launcher::Identity;
use vireo_vmm::log_rate_limit::LogRateLimit;

/// One process, one VM: its name is a fact of the process, also on threads that know nothing of it.
static VMI: OnceLock<String> = OnceLock::new();

/// Starts logging.
pub fn start(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // The subscriber's own error report would panic, and end the guest because a disk is full.
        .log_internal_errors(false)
        .event_format(VmiFormat {
            lines: Format::default().with_ansi(false),
            log_rate_limit: LogRateLimit::default(),
        })
        .init();
}

/// From now on every line names this VM.
pub fn name(vmi: &Identity) {
    let line = format!("namespace={} name={} uid={} ", vmi.namespace, vmi.name, vmi.uid);
    // A launcher launches at most once, so nothing is ever replaced.
    let _ = VMI.set(line);
}

struct VmiFormat {
    lines: Format<Full>,
    log_rate_limit: LogRateLimit,
}

impl<S, N> FormatEvent<S, N> for VmiFormat
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
        // Writing nothing suppresses the line.
        let Some(left_out) = self.log_rate_limit.admit(event.metadata(), Instant::now()) else {
            return Ok(());
        };
        if left_out > 0 {
            write!(writer, "left_out={left_out} ")?;
        }
        writer.write_str(VMI.get().map_or("", String::as_str))?;
        self.lines.format_event(context, writer, event)
    }
}
