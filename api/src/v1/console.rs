/// Of the text frame that a console begins with for a client that asked for history: how many of the bytes that follow are
/// history, and not live.
pub const HISTORY_BYTES: &str = "historyBytes";
