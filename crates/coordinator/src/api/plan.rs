//! What people ask of the plan.

use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use hansa_wire::http::Code;
use hansa_wire::plan::live::{APPLY, PLAN};

use super::control::Answer;
use super::{Refused, SharedApp, json, may_operate};
use crate::auth::Scope;

/// Routes of the plan.
pub(super) fn routes() -> Router<SharedApp> {
    Router::new()
        .route(PLAN, get(view))
        .route(APPLY, post(apply))
}

async fn view(State(app): State<SharedApp>) -> Answer {
    let adopted = app.queue.query(|machine, _| machine.state().plan.clone());
    let adopted = adopted.await?;
    Ok(axum::Json(app.planner.view(adopted.as_ref())).into_response())
}

async fn apply(State(app): State<SharedApp>, Extension(scope): Extension<Scope>) -> Answer {
    may_operate(&scope)?;
    let applied = app.planner.apply().await;
    Ok(json(
        &applied.map_err(|why| Refused::new(Code::Pointless, why))?,
    ))
}
