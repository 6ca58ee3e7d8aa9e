//! Log lines on standard error: a subscriber small enough to sit beside a thousand guests.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use vireo_vmm::log_rate_limit::LogRateLimit;

struct Stderr {
    level: LevelFilter,
    log_rate_limit: LogRateLimit,
}

/// Logs at the level of `VMM_LOG`, warnings and errors by default.
pub(crate) fn install() {
    let level = std::env::var("VMM_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::WARN);
    if let Err(error) =
        tracing::subscriber::set_global_default(Stderr { level, log_rate_limit: LogRateLimit::default() })
    {
        eprintln!("vmm: cannot log: {error}");
    }
}

impl Subscriber for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    /// Spans are not shown, so one id does for all.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let Some(left_out) = self.log_rate_limit.admit(metadata, Instant::now()) else { return };
        let mut line = Line(format!("{} {}:", metadata.level(), metadata.target()));
        event.record(&mut line);
        if left_out > 0 {
            line.field("left_out", &left_out);
        }
        // The terminal may be in raw mode. A line that cannot be written must not end the guest.
        let _written = std::io::stderr().write_all(format!("{}\r\n", line.0).as_bytes());
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Line(String);

impl Line {
    fn field(&mut self, name: &str, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _written = match name {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field.name(), value);
    }
}
