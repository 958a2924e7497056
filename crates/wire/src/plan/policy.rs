//! How a person wants it planned, as part of a snapshot.

use hansa_planner::{Exchange, Policy, Quantile};
use serde::{Deserialize, Serialize};

use super::mirror::{duration, seconds};
use crate::BadValue;

/// JSON form of [`Policy`]; what is left out is the default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyJson {
    /// Strength of the discount, 0 to 1.
    pub strength: f64,
    /// Pairs from which on history replaces the discount.
    pub pairs_min: u32,
    /// Which quantile of a wait is counted on.
    pub quantile: QuantileJson,
    /// A probe older than this excludes its shape.
    pub probe_age_max_s: f64,
    /// Walltime that is asked for beyond what is needed.
    pub reserve_s: f64,
    /// The fewest units that are worth a job.
    pub units_min: u64,
    /// How exchanges lie in time.
    pub exchange: ExchangeJson,
}

/// JSON form of [`Quantile`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum QuantileJson {
    P50,
    P90,
}

/// JSON form of [`Exchange`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ExchangeJson {
    Series,
    Overlapped,
}

impl Default for PolicyJson {
    fn default() -> Self {
        policy_json(&Policy::default())
    }
}

pub(super) fn policy_json(policy: &Policy) -> PolicyJson {
    PolicyJson {
        strength: policy.strength,
        pairs_min: policy.pairs_min,
        quantile: match policy.quantile {
            Quantile::P50 => QuantileJson::P50,
            Quantile::P90 => QuantileJson::P90,
        },
        probe_age_max_s: seconds(policy.probe_age_max),
        reserve_s: seconds(policy.reserve),
        units_min: policy.units_min,
        exchange: match policy.exchange {
            Exchange::Series => ExchangeJson::Series,
            Exchange::Overlapped => ExchangeJson::Overlapped,
        },
    }
}

pub(super) fn policy(json: PolicyJson) -> Result<Policy, BadValue> {
    let seconds = |field, value| duration(value).map_err(|error| error.at(field));
    Ok(Policy {
        strength: json.strength,
        pairs_min: json.pairs_min,
        quantile: match json.quantile {
            QuantileJson::P50 => Quantile::P50,
            QuantileJson::P90 => Quantile::P90,
        },
        probe_age_max: seconds("probe_age_max_s", json.probe_age_max_s)?,
        reserve: seconds("reserve_s", json.reserve_s)?,
        units_min: json.units_min,
        exchange: match json.exchange {
            ExchangeJson::Series => Exchange::Series,
            ExchangeJson::Overlapped => Exchange::Overlapped,
        },
    })
}
