//! Small calls: one JSON in, one JSON out.

use std::time::Instant;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use hansa_protocol::{
    Caller, Command, Evaluated, Goodbye, Heartbeat, LeaseRequest, Refusal, Reply, Verdict,
};
use hansa_store::{CHUNK_BYTES_DEFAULT, Manifest, ManifestJson, UploadId};
use hansa_transfer::serve::off_the_network;
use hansa_wire::http::{
    AnnounceRequest, Code, Done, Hello, Operate, RecipeAnswer, RegisterRequest,
};
use hansa_wire::{WIRE_VERSION, Wire, decode};

use super::{App, Refused, SharedApp, json, may_act_for, may_operate};
use crate::auth::Scope;
use crate::gate;
use crate::news::is_held;
use crate::report;
use crate::setup::fresh_token;

pub(super) type Body = Result<Bytes, BytesRejection>;
pub(super) type Answer = Result<Response, Refused>;

pub(super) fn read<T: Wire>(body: Body) -> Result<T, Refused> {
    let bytes = body.map_err(|rejection| {
        let code = match rejection.status().as_u16() {
            413 => Code::TooLarge,
            _ => Code::BadRequest,
        };
        Refused::new(code, rejection.body_text())
    })?;
    Ok(decode(&bytes)?)
}

/// A call of a registered replica: read, and its site checked.
fn read_call<T: Wire>(
    scope: &Scope,
    body: Body,
    caller: impl Fn(&T) -> &Caller,
) -> Result<T, Refused> {
    let call: T = read(body)?;
    may_act_for(scope, &caller(&call).replica.site)?;
    Ok(call)
}

pub(super) async fn hello(State(app): State<SharedApp>) -> Response {
    let hello = Hello {
        service: "hansa".to_owned(),
        wire: WIRE_VERSION,
        hansa: env!("CARGO_PKG_VERSION").to_owned(),
        run: app.shell.recipe.name.clone(),
        run_id: app.shell.spec.run.to_string(),
    };
    axum::Json(hello).into_response()
}

pub(super) async fn recipe(State(app): State<SharedApp>) -> Response {
    json(&RecipeAnswer {
        run: app.shell.spec.run,
        recipe: app.shell.recipe.to_toml(),
        digest: app.shell.spec.digest.clone(),
    })
}

pub(super) async fn register(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    let request: RegisterRequest = read(body)?;
    may_act_for(&scope, &request.replica.site)?;
    let token = fresh_token().map_err(|error| {
        tracing::error!(%error, "a registration failed");
        Refused::new(Code::Internal, "the coordinator failed; its log says how")
    })?;
    match app
        .command(Command::Register(request.into_register(token)))
        .await?
    {
        Reply::Registered(registered) => Ok(json(&registered)),
        _ => Err(Refused::wrong_reply()),
    }
}

/// A replica that is to wait is answered when there is something to do, or after a while: it need not
/// ask again and again, and no accelerator idles for an interval of asking. It counts as heard of
/// whenever the machine is asked for it.
pub(super) async fn lease(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    let request = read_call(&scope, body, |request: &LeaseRequest| &request.caller)?;
    let hold = app.shell.options.lease_hold;
    let until = Instant::now() + hold.longest;
    let mut ear = app.mailbox.ear();
    loop {
        // What rings after the machine was asked is heard, even if that is before the answer is here.
        ear.mark_unchanged();
        let Reply::Lease(answer) = app.command(Command::Lease(request.clone())).await? else {
            return Err(Refused::wrong_reply());
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || !is_held(&answer) {
            return Ok(json(&answer));
        }
        // The bell may be gone with the deciding thread: asking it again tells.
        let _ = tokio::time::timeout(hold.look_again.min(left), ear.changed()).await;
    }
}

pub(super) async fn heartbeat(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    let heartbeat = read_call(&scope, body, |heartbeat: &Heartbeat| &heartbeat.caller)?;
    match app.command(Command::Heartbeat(heartbeat)).await? {
        Reply::Standing(standing) => Ok(json(&standing)),
        _ => Err(Refused::wrong_reply()),
    }
}

pub(super) async fn evaluated(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    let evaluated = read_call(&scope, body, |evaluated: &Evaluated| &evaluated.caller)?;
    app.command(Command::Evaluated(evaluated)).await?;
    Ok(json(&Done {}))
}

pub(super) async fn goodbye(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    let goodbye = read_call(&scope, body, |goodbye: &Goodbye| &goodbye.caller)?;
    app.command(Command::Goodbye(goodbye)).await?;
    Ok(json(&Done {}))
}

pub(super) async fn operate(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    may_operate(&scope)?;
    let Operate { order } = read(body)?;
    app.command(Command::Operate(order)).await?;
    Ok(json(&Done {}))
}

pub(super) async fn status(State(app): State<SharedApp>) -> Answer {
    let shell = app.shell.clone();
    let look = move |machine: &_, now| report::status(&shell, machine, now);
    Ok(axum::Json(app.mailbox.query(look).await?).into_response())
}

/// The upload's place is made before the announcement is journaled, so that a contribution that is
/// announced always has one, and once more after it, in case the bytes were at hand before and have
/// been pruned in between.
pub(super) async fn announce(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    body: Body,
) -> Answer {
    let request: AnnounceRequest = read(body)?;
    may_act_for(&scope, &request.announce.caller.replica.site)?;
    let manifest = payload_manifest(&app, &request)?;
    let id = request.announce.parts.id();
    begin_upload(&app, id, manifest.clone()).await?;
    let answer = app.command(Command::Announce(request.announce)).await;
    match &answer {
        Ok(Reply::Verdict(Verdict::Upload)) => begin_upload(&app, id, manifest).await?,
        _ => drop_unless_announced(&app, id).await?,
    }
    match answer? {
        Reply::Verdict(verdict) => Ok(json(&verdict)),
        _ => Err(Refused::wrong_reply()),
    }
}

/// The payload's manifest, checked against the announcement and against what the run can use.
fn payload_manifest(app: &App, request: &AnnounceRequest) -> Result<Manifest, Refused> {
    let bad = |message: String| Refused::new(Code::BadRequest, message);
    let payload = request.payload.clone();
    let json = ManifestJson {
        format_version: payload.format_version,
        total_bytes: payload.total_bytes,
        chunk_bytes: payload.chunk_bytes,
        chunks: payload.chunks,
    };
    let manifest = Manifest::try_from(json).map_err(|e| bad(format!("payload: {e}")))?;
    if manifest.hash() != request.announce.parts.payload {
        return Err(bad(
            "the payload's manifest is not the one announced".to_owned()
        ));
    }
    let exchange = &app.shell.recipe.exchange;
    let chunk_bytes_max = exchange.chunk_bytes().max(CHUNK_BYTES_DEFAULT);
    if manifest.chunk_bytes() > chunk_bytes_max {
        return Err(bad(format!(
            "chunks of {} bytes; this run takes at most {chunk_bytes_max}",
            manifest.chunk_bytes()
        )));
    }
    let (codec, found) = (exchange.contribution, manifest.total_bytes());
    if !gate::size_fits(&app.shell.layout, codec, found) {
        let (elements, bytes) = (
            app.shell.layout.elements(),
            codec.bytes(app.shell.layout.elements()),
        );
        return Err(bad(format!(
            "a contribution of {found} bytes; the model's {elements} elements take {bytes} and a header in \
             {codec}, which the run's recipe names"
        )));
    }
    Ok(manifest)
}

async fn begin_upload(
    app: &SharedApp,
    id: hansa_base::Hash,
    manifest: Manifest,
) -> Result<(), Refused> {
    let shell = app.shell.clone();
    let begin = move || {
        let watch = gate::watch(&shell, &manifest);
        let begun = shell
            .store
            .begin_watched_upload(UploadId::from(id), manifest, watch);
        begun.map(drop)
    };
    Ok(off_the_network(begin).await?)
}

/// Another process of the same replica may have announced the same contribution: its upload stays.
async fn drop_unless_announced(app: &SharedApp, id: hansa_base::Hash) -> Result<(), Refused> {
    let look =
        move |machine: &hansa_protocol::Machine, _| machine.state().contribution(id).is_some();
    if app.mailbox.query(look).await? {
        return Ok(());
    }
    let shell = app.shell.clone();
    let abort = move || shell.store.abort_upload(&UploadId::from(id)).map(drop);
    Ok(off_the_network(abort).await?)
}

/// Nothing is known of this contribution.
pub(super) fn unknown(id: hansa_base::Hash) -> Refused {
    Refused::from(&Refusal::UnknownContribution(id))
}
