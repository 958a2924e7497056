//! The planner's input and output as documents.
//!
//! ```text
//!   file ──[parse_snapshot]──► planner::Snapshot ──► planner::plan ──[PlanReport]──► JSON, tables
//! ```
//!
//! A snapshot is a file that people read, keep and edit, so lengths of time are seconds and say so in
//! their names, what is unknown may be left out, and a misspelt key is an error that suggests the near
//! one. Never here: a default for a number about a site.

mod keys;
pub mod live;
mod mirror;
mod policy;
mod report;
mod snapshot;

pub use keys::{SnapshotError, parse_snapshot};
pub use mirror::{CostJson, FactJson, SourceJson};
pub use report::{
    AlternativeReport, ExcludedReport, FlipReport, InputReport, PickReport, PlanReport, SiteReport,
    StretchReport, WaitReport, WaterfillReport,
};
pub use snapshot::{SNAPSHOT_VERSION, SnapshotJson, snapshot_from_json, snapshot_to_json};

#[cfg(test)]
mod tests;
