//! Faults: errors as they are reported to the handler.

use std::error::Error;

use vireo_proto::launcher::Fault;
pub use vireo_proto::launcher::fault::Code;

/// A fault without a manifest field.
pub fn fault(code: Code, detail: impl Into<String>) -> Fault {
    Fault { code: code.into(), detail: detail.into(), field: String::new() }
}

/// A fault a manifest field is to blame for.
pub fn fault_at(code: Code, field: impl Into<String>, detail: impl Into<String>) -> Fault {
    Fault { code: code.into(), detail: detail.into(), field: field.into() }
}

/// An error and its causes, outermost first, in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        line = format!("{line}: {cause}");
        next = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn each_layer_speaks_once() {
        assert_eq!(chain(&Outer(std::io::Error::other("inner"))), "outer: inner");
    }
}
