//! The small parts of a snapshot: facts, costs, lengths of time.

use std::time::Duration;

use hansa_planner::{Cost, Fact, Source, WallMs};
use serde::{Deserialize, Serialize};

use crate::BadValue;

/// A hundred years: longer than anything that is planned, and far from overflow.
const SECONDS_MAX: f64 = 100.0 * 366.0 * 86_400.0;

/// JSON form of a fact: what is said, by whom, since when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FactJson<T> {
    /// What is said, in the unit that the key of the fact names.
    pub value: T,
    /// Who says it.
    pub source: SourceJson,
    /// When it was measured or written down, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// JSON form of a source: `"operator"`, or one key with what belongs to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum SourceJson {
    Probe { prober: String },
    Accounting { window_s: f64, jobs: u32 },
    RunRecords { rounds: u32 },
    JobLogs { jobs: u32 },
    Profile { key: String },
    Recipe { key: String },
    Operator,
}

/// JSON form of a cost, in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CostJson {
    /// From the run's own records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<FactJson<f64>>,
    /// From the site's profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stated: Option<FactJson<f64>>,
}

/// A length of time from seconds.
pub(super) fn duration(seconds: f64) -> Result<Duration, BadValue> {
    if !(0.0..=SECONDS_MAX).contains(&seconds) {
        return Err(BadValue::new(format!(
            "{seconds} is no number of seconds from 0 to a hundred years"
        )));
    }
    Duration::try_from_secs_f64(seconds).map_err(BadValue::new)
}

/// Seconds of a length of time, of at most a hundred years.
pub(super) fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64().min(SECONDS_MAX)
}

pub(super) fn fact<T, U>(
    json: FactJson<U>,
    value: impl FnOnce(U) -> Result<T, BadValue>,
) -> Result<Fact<T>, BadValue> {
    Ok(Fact {
        value: value(json.value).map_err(|error| error.at("value"))?,
        source: source(json.source).map_err(|error| error.at("source"))?,
        at: WallMs(json.at_ms),
    })
}

/// A fact that may be unknown, at the key `field`.
pub(super) fn maybe<T, U>(
    field: &str,
    json: Option<FactJson<U>>,
    value: impl FnOnce(U) -> Result<T, BadValue>,
) -> Result<Option<Fact<T>>, BadValue> {
    let fact = json.map(|json| fact(json, value));
    fact.transpose().map_err(|error| error.at(field))
}

pub(super) fn fact_json<T, U>(fact: &Fact<T>, value: impl FnOnce(&T) -> U) -> FactJson<U> {
    FactJson {
        value: value(&fact.value),
        source: source_json(&fact.source),
        at_ms: fact.at.0,
    }
}

pub(super) fn cost(field: &str, json: CostJson) -> Result<Cost, BadValue> {
    let part = |name, fact| maybe(name, fact, duration).map_err(|error| error.at(field));
    Ok(Cost {
        measured: part("measured", json.measured)?,
        stated: part("stated", json.stated)?,
    })
}

pub(super) fn cost_json(cost: &Cost) -> CostJson {
    let part = |fact: &Option<Fact<Duration>>| fact.as_ref().map(seconds_json);
    CostJson {
        measured: part(&cost.measured),
        stated: part(&cost.stated),
    }
}

pub(super) fn seconds_json(fact: &Fact<Duration>) -> FactJson<f64> {
    fact_json(fact, |value| seconds(*value))
}

fn source(json: SourceJson) -> Result<Source, BadValue> {
    Ok(match json {
        SourceJson::Probe { prober } => Source::Probe { prober },
        SourceJson::Accounting { window_s, jobs } => Source::Accounting {
            window: duration(window_s).map_err(|error| error.at("window_s"))?,
            jobs,
        },
        SourceJson::RunRecords { rounds } => Source::RunRecords { rounds },
        SourceJson::JobLogs { jobs } => Source::JobLogs { jobs },
        SourceJson::Profile { key } => Source::Profile { key },
        SourceJson::Recipe { key } => Source::Recipe { key },
        SourceJson::Operator => Source::Operator,
    })
}

fn source_json(source: &Source) -> SourceJson {
    match source.clone() {
        Source::Probe { prober } => SourceJson::Probe { prober },
        Source::Accounting { window, jobs } => SourceJson::Accounting {
            window_s: seconds(window),
            jobs,
        },
        Source::RunRecords { rounds } => SourceJson::RunRecords { rounds },
        Source::JobLogs { jobs } => SourceJson::JobLogs { jobs },
        Source::Profile { key } => SourceJson::Profile { key },
        Source::Recipe { key } => SourceJson::Recipe { key },
        Source::Operator => SourceJson::Operator,
    }
}
