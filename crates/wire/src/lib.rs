//! Versioned HTTP, journal and recipe types, and their conversions to and from the pure types.
