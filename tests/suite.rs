//! Scenarios through the real parts.
