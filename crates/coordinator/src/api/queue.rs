//! The calls of site processes, and what people ask of the queues.

use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use hansa_queue::{QueueOrder, QueueRefusal, SYNC_BYTES_MAX, SyncRequest};
use hansa_wire::http::{Code, Done, ErrorBody};
use hansa_wire::queue::{LOGS, OPERATE, QUEUE, SYNC};

use super::control::{Answer, Body, read};
use super::{Refused, SharedApp, json, may_operate, site_only};
use crate::auth::Scope;
use crate::queue::run_view;

/// Routes of the queue.
pub(super) fn routes() -> Router<SharedApp> {
    let sync = post(sync).layer(DefaultBodyLimit::max(SYNC_BYTES_MAX));
    Router::new()
        .route(SYNC, sync)
        .route(OPERATE, post(operate))
        .route(QUEUE, get(view))
        .route(LOGS, get(logs))
}

/// Tells the queue how the run stands now. The run's thread may have ended: then its last word holds.
async fn inform(app: &SharedApp) {
    let planning = app.shell.planning();
    let look = move |machine: &_, _| run_view(machine, planning);
    if let Ok(run) = app.mailbox.query(look).await {
        app.queue.run(run);
    }
}

/// A site's token speaks for its own site.
async fn sync(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    let request: SyncRequest = read(body)?;
    site_only(&scope, &request.site)?;
    inform(&app).await;
    let reply = app.queue.sync(request).await?;
    Ok(json(&reply.map_err(|refusal| Refused::from(&refusal))?))
}

async fn operate(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    may_operate(&scope)?;
    let order: QueueOrder = read(body)?;
    inform(&app).await;
    let done = app.queue.operate(order).await?;
    done.map_err(|refusal| Refused::from(&refusal))?;
    Ok(json(&Done {}))
}

async fn view(State(app): State<SharedApp>) -> Answer {
    inform(&app).await;
    Ok(axum::Json(app.queue.view().await?).into_response())
}

async fn logs(State(app): State<SharedApp>) -> Answer {
    Ok(axum::Json(app.queue.logs().await?).into_response())
}

impl From<&QueueRefusal> for Refused {
    fn from(refusal: &QueueRefusal) -> Self {
        let code = match refusal {
            QueueRefusal::Busy { .. } => Code::Busy,
            QueueRefusal::Fenced { .. } => Code::Fenced,
            QueueRefusal::UnknownSite(_) => Code::UnknownSite,
            QueueRefusal::UnknownShape { .. } => Code::NotFound,
            QueueRefusal::NotLive(_)
            | QueueRefusal::Held { .. }
            | QueueRefusal::OtherPlan { .. } => Code::Pointless,
            QueueRefusal::Broken(_) => Code::Broken,
        };
        let mut body = ErrorBody::new(code, refusal);
        if let QueueRefusal::Busy { left_s, .. } = refusal {
            body = body.retry_after(Duration::from_secs(*left_s));
        }
        Self {
            status: code.status(),
            body: Box::new(body),
        }
    }
}
