//! The `/v1` API over the deciding thread: who may ask, in which version, how much and how long.
//!
//! Handlers read, check and convert; they decide nothing. Never here: state.

mod bulk;
mod control;
mod plan;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use hansa_base::SiteName;
use hansa_protocol::{Command, Refusal, Reply};
use hansa_store::StoreError;
use hansa_wire::http::{
    CLIENT_HEADER, Code, ErrorBody, ErrorDetail, REQUEST_BYTES_MAX, VERSION_HEADER, WIRE_HEADER,
    path,
};
use hansa_wire::{BadValue, WIRE_VERSION, Wire};

use crate::actor::{Mailbox, NotTaken};
use crate::auth::Scope;
use crate::planning::Planner;
use crate::queue::QueueMailbox;
use crate::shell::SharedShell;

/// A request that takes longer is given up; uploads and downloads have their own limits.
const CONTROL_MAX: Duration = Duration::from_secs(30);
/// When to try again after "too much to do".
const OVERLOADED_RETRY: Duration = Duration::from_secs(1);

/// What handlers share.
pub(crate) struct App {
    pub shell: SharedShell,
    pub mailbox: Mailbox,
    pub queue: QueueMailbox,
    pub planner: Planner,
}

type SharedApp = Arc<App>;

/// All routes.
pub(crate) fn router(app: SharedApp) -> Router {
    let control = Router::new()
        .route(path::HELLO, get(control::hello))
        .route(path::RECIPE, get(control::recipe))
        .route(path::REGISTER, post(control::register))
        .route(path::LEASE, post(control::lease))
        .route(path::HEARTBEAT, post(control::heartbeat))
        .route(path::ANNOUNCE, post(control::announce))
        .route(path::EVALUATED, post(control::evaluated))
        .route(path::GOODBYE, post(control::goodbye))
        .route(path::OPERATE, post(control::operate))
        .route(path::STATUS, get(control::status))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .merge(queue::routes())
        .merge(plan::routes())
        .layer(from_fn_with_state(app.clone(), limit_time));
    let bulk = Router::new()
        .route("/v1/blobs/{hash}/manifest", get(bulk::manifest))
        .route("/v1/blobs/{hash}/data", get(bulk::data))
        .route("/v1/uploads/{id}", get(bulk::missing))
        .route(
            "/v1/uploads/{id}/chunks/{index}",
            put(bulk::chunk).get(bulk::held),
        )
        .route("/v1/uploads/{id}/complete", post(bulk::complete))
        .layer(from_fn_with_state(app.clone(), bulk::limit_number));
    let nowhere = || async { Refused::new(Code::NotFound, "there is nothing at this path") };
    control
        .merge(bulk)
        .fallback(nowhere)
        .layer(from_fn_with_state(app.clone(), admit))
        .with_state(app)
}

/// Version first, so that another version is named even where its token would not be understood;
/// then the token.
async fn admit(State(app): State<SharedApp>, mut request: Request, next: Next) -> Response {
    if request.uri().path() == path::HELLO {
        return next.run(request).await;
    }
    if let Err(refused) = check_version(request.headers()) {
        return refused.into_response();
    }
    match scope_of(&app, request.headers()) {
        Ok(scope) => {
            request.extensions_mut().insert(scope);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

async fn limit_time(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let held = match request.uri().path() {
        path::LEASE => app.shell.options.lease_hold.longest,
        _ => Duration::ZERO,
    };
    match tokio::time::timeout(held + CONTROL_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refused::overloaded().into_response(),
    }
}

fn check_version(headers: &HeaderMap) -> Result<(), Refused> {
    let text = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.map(|value| value.chars().take(110).collect::<String>())
    };
    let wire = text(WIRE_HEADER);
    if wire.as_deref() == Some(WIRE_VERSION.to_string().as_str()) {
        return Ok(());
    }
    let who = text(CLIENT_HEADER).unwrap_or_else(|| "the client".to_owned());
    let theirs =
        text(VERSION_HEADER).map_or(String::new(), |version| format!(" (hansa {version})"));
    let speaks = match wire {
        Some(version) => format!("speaks wire version {version}{theirs}"),
        None => format!("does not say which wire version it speaks{theirs}"),
    };
    let ours = env!("CARGO_PKG_VERSION");
    Err(Refused::new(
        Code::OtherVersion,
        format!(
            "{who} {speaks}, this coordinator speaks version {WIRE_VERSION} (hansa {ours}): use the \
             same hansa on both sides"
        ),
    ))
}

fn scope_of(app: &App, headers: &HeaderMap) -> Result<Scope, Refused> {
    let value = headers.get(header::AUTHORIZATION);
    let token = value
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let token = token.ok_or_else(|| {
        Refused::new(
            Code::Unauthorized,
            "a bearer token is needed; ask the operator for one",
        )
    })?;
    app.shell.tokens.scope(token).ok_or_else(|| {
        let message =
            "this token is not, or no longer, in the coordinator's auth.toml; ask the operator";
        Refused::new(Code::Unauthorized, message)
    })
}

/// A site's token acts for that site's replicas, and no other token does.
fn may_act_for(scope: &Scope, site: &SiteName) -> Result<(), Refused> {
    match scope {
        Scope::Site(own) if own == site => Ok(()),
        Scope::Site(own) => Err(Refused::new(
            Code::Forbidden,
            format!("this token is for site {own}; a replica of {site} needs that site's token"),
        )),
        Scope::Operator | Scope::Read => Err(Refused::new(
            Code::Forbidden,
            format!("this token is not a site's; a replica of {site} needs that site's token"),
        )),
    }
}

/// A site process calls with its site's token.
fn site_only(scope: &Scope, site: &SiteName) -> Result<(), Refused> {
    let message = match scope {
        Scope::Site(own) if own == site => return Ok(()),
        Scope::Site(own) => {
            format!("this token is for site {own}; the site process of {site} needs that site's")
        }
        Scope::Operator | Scope::Read => {
            format!("this token is not a site's; the site process of {site} needs that site's")
        }
    };
    Err(Refused::new(Code::Forbidden, message))
}

/// Only an operator's token gives orders.
fn may_operate(scope: &Scope) -> Result<(), Refused> {
    if *scope == Scope::Operator {
        return Ok(());
    }
    let message = "this token gives no orders: use the operator's, which is in operator.toml of the \
                   coordinator's data directory";
    Err(Refused::new(Code::Forbidden, message))
}

impl App {
    async fn command(&self, command: Command) -> Result<Reply, Refused> {
        let answer = self.mailbox.command(command).await?;
        answer.map_err(|refusal| Refused::from(&refusal))
    }
}

/// A request that is not done, with status and reason.
#[derive(Debug)]
struct Refused {
    status: u16,
    body: Box<ErrorBody>,
}

impl Refused {
    fn new(code: Code, message: impl ToString) -> Self {
        Self {
            status: code.status(),
            body: Box::new(ErrorBody::new(code, message)),
        }
    }

    fn overloaded() -> Self {
        let message = "the coordinator has too much to do; try again";
        Self {
            status: Code::Overloaded.status(),
            body: Box::new(ErrorBody::new(Code::Overloaded, message).retry_after(OVERLOADED_RETRY)),
        }
    }

    /// An answer of another kind than its question's.
    fn wrong_reply() -> Self {
        tracing::error!("the machine gave an answer of another kind than asked for");
        Self::new(Code::Internal, "the coordinator failed; its log says how")
    }

    /// A refusal with a code of `transfer`'s, which is not in [`Code`].
    fn plain(status: u16, code: &str, message: impl ToString) -> Self {
        let (code, message) = (code.to_owned(), message.to_string());
        let error = ErrorDetail {
            code,
            message,
            retry_after_ms: None,
            refusal: None,
        };
        let body = Box::new(ErrorBody { error });
        Self { status, body }
    }
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Self {
        Self {
            status: Code::of(refusal).status(),
            body: Box::new(ErrorBody::from(refusal)),
        }
    }
}

impl From<NotTaken> for Refused {
    fn from(reason: NotTaken) -> Self {
        match reason {
            NotTaken::Full => Self::overloaded(),
            NotTaken::Gone => Self::new(Code::Stopping, "the coordinator is stopping; try again"),
        }
    }
}

impl From<BadValue> for Refused {
    fn from(error: BadValue) -> Self {
        Self::new(
            Code::BadRequest,
            format!("the request cannot be read: {error}"),
        )
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        let (status, code) = hansa_transfer::serve::status_and_code(&error);
        if status < 500 {
            return Self::plain(status, code, error);
        }
        if error.is_disk_full() {
            tracing::error!(%error, "the disk is full");
            let message =
                "the coordinator's disk is full; its operator must make room, then it goes on";
            return Self::plain(status, code, message);
        }
        // Paths of this machine are nobody else's business.
        tracing::error!(%error, "a request failed at the store");
        Self::plain(
            status,
            code,
            "the coordinator's disk failed; its log says how",
        )
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, axum::Json(*self.body)).into_response()
    }
}

fn json<T: Wire>(value: &T) -> Response {
    axum::Json(value.to_json()).into_response()
}
