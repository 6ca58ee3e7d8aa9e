//! How a guest's end shows in the monitor's exit code.
