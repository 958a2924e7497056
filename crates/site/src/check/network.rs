//! The way to the coordinator from here.

use std::path::Path;
use std::time::Duration;

use hansa_protocol::DigestFields;
use hansa_transfer::{Client, Proxy, Route, TransferError};
use hansa_wire::http::{RecipeAnswer, path};
use hansa_wire::status::Status;
use hansa_wire::{Recipe, Wire as _};

use super::{CheckOptions, Findings};
use crate::link::caller;

const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// What the coordinator says of its run.
pub(super) struct Run {
    /// The recipe, and the data that it was begun with.
    pub answer: Option<(Recipe, DigestFields)>,
}

pub(super) async fn coordinator(findings: &mut Findings, options: &CheckOptions) -> Option<Run> {
    let what = "coordinator";
    let endpoint = match &options.endpoint {
        Ok(endpoint) => endpoint,
        Err(why) => {
            findings.bad(
                what,
                why,
                "`hansa token add SITE` on the coordinator's machine writes the file",
            );
            return None;
        }
    };
    let proxy = match &options.profile.coordinator.proxy {
        Some(url) => Proxy::Url(url.clone()),
        None => Proxy::FromEnvironment,
    };
    let route = Route {
        proxy,
        ..Route::default()
    };
    let client = match Client::over(&route, endpoint, &caller()) {
        Ok(client) => client,
        Err(error) => {
            findings.bad(what, error, "correct [coordinator] in the profile");
            return None;
        }
    };
    let status: Result<Status, _> = client.get_json(path::STATUS, ANSWER_WITHIN).await;
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let advice = advice(&error);
            findings.bad(what, error, advice);
            return None;
        }
    };
    let generation = status.generation.number;
    let found = format!(
        "run {:?} at generation {generation}, {}",
        status.run, status.hansa
    );
    match status.ended {
        true => findings.warn(what, format!("{found}, ended"), "there is nothing to train"),
        false => findings.good(what, found),
    }
    let json = client.get_json(path::RECIPE, ANSWER_WITHIN).await.ok();
    let answer = json.and_then(|json| RecipeAnswer::from_json(json).ok());
    let answer = answer.and_then(|answer| {
        let recipe = Recipe::parse(&answer.recipe, Path::new("the run's recipe")).ok()?;
        Some((recipe, answer.digest))
    });
    Some(Run { answer })
}

fn advice(error: &TransferError) -> &'static str {
    match error {
        TransferError::Unauthorized { .. } => "issue a new token: `hansa token add SITE`",
        TransferError::Proxy { .. } => {
            "the proxy must allow CONNECT to the coordinator's host and port"
        }
        TransferError::WrongFingerprint { .. } => "copy the fingerprint that `hansa serve` prints",
        TransferError::Refused { .. } => "the token must be this site's",
        _ => {
            "is it up (`hansa serve`), is its port open to this site, is a proxy needed (coordinator.proxy)? \
             Where even the login node has no way out: ssh -R from the coordinator's machine"
        }
    }
}
