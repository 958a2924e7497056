//! Large things: models out, contributions in. Bodies are streamed, so memory grows with the number of
//! requests and not with the model.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use hansa_base::{Bytes, Hash, ReplicaId};
use hansa_protocol::{Command, Machine, Norm, Problem, Reply, Stage, Verdict};
use hansa_store::{Blob, Manifest, StoreError, Upload, UploadId};
use hansa_transfer::serve::{
    ByteRange, RangeError, ReceiveError, Receiving, off_the_network, parse_content_range,
    parse_range, receive_chunk, stream_blob,
};
use hansa_transfer::{HeldBytes, MissingChunks};
use hansa_wire::http::{CLIENT_HEADER, Code, Done};

use super::control::unknown;
use super::{Refused, SharedApp, json, may_act_for};
use crate::auth::Scope;
use crate::gate;

/// A body in which nothing comes for so long is given up.
const STALL_MAX: Duration = Duration::from_secs(30);
/// How often a contribution that is being checked shows that it is.
const CHECK_REPORT_EVERY: Duration = Duration::from_secs(1);

type Answer = Result<Response, Refused>;

fn hash(text: &str) -> Result<Hash, Refused> {
    text.parse()
        .map_err(|error| Refused::new(Code::BadRequest, error))
}

fn model(app: &SharedApp, scope: &Scope, text: &str) -> Result<Blob, Refused> {
    if *scope == Scope::Read {
        let message = "this token is for looking at the run's status only";
        return Err(Refused::new(Code::Forbidden, message));
    }
    let hash = hash(text)?;
    let blob = app.shell.served.model(hash);
    blob.ok_or_else(|| {
        let message = format!("model {} is not, or no longer, served", hash.short());
        Refused::plain(404, "no_blob", message)
    })
}

pub(super) async fn manifest(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    Path(text): Path<String>,
) -> Answer {
    let blob = model(&app, &scope, &text)?;
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((headers, blob.manifest().to_json()).into_response())
}

pub(super) async fn data(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    Path(text): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let blob = model(&app, &scope, &text)?;
    let total_bytes = blob.manifest().total_bytes();
    let asked = headers.get(header::RANGE).map(|value| {
        let text = value.to_str().map_err(|_| RangeError::Malformed);
        text.and_then(|text| parse_range(text, total_bytes))
    });
    let (status, range) = match asked {
        None => {
            let (start, length) = (0, total_bytes);
            (StatusCode::OK, ByteRange { start, length })
        }
        Some(Ok(range)) => (StatusCode::PARTIAL_CONTENT, range),
        Some(Err(error @ RangeError::Malformed)) => {
            return Err(Refused::new(Code::BadRequest, error));
        }
        Some(Err(error @ RangeError::Outside { .. })) => {
            return Err(Refused::plain(416, "outside", error));
        }
    };
    let caps = app.shell.bulk.caps_for(replica_of(&headers));
    let answer = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .header(header::CONTENT_LENGTH, range.length)
        .header(header::CONTENT_RANGE, range.content_range(total_bytes))
        .body(Body::from_stream(stream_blob(blob, range, caps)));
    answer.map_err(|error| Refused::new(Code::Internal, error))
}

/// What is known of a contribution by its id.
enum Known {
    /// It was accepted for upload and is not complete.
    Announced { payload: Hash },
    /// It is complete, or was decided before.
    Decided(Verdict),
}

/// Looks a contribution up, and whether the token may act for its author.
async fn look_up(app: &SharedApp, scope: &Scope, id: Hash) -> Result<Known, Refused> {
    let look = move |machine: &Machine, _| -> Option<(ReplicaId, Known)> {
        let state = machine.state();
        if let Some((_, contribution)) = state.contribution(id) {
            let author = state.replica(contribution.key)?.id.clone();
            let payload = contribution.parts.payload;
            return Some(match contribution.stage {
                Stage::Announced => (author, Known::Announced { payload }),
                Stage::Staged => (author, Known::Decided(Verdict::Staged)),
            });
        }
        state.replicas.iter().find_map(|replica| {
            let (known, verdict) = replica.decided.as_ref()?;
            (*known == id).then(|| (replica.id.clone(), Known::Decided(verdict.clone())))
        })
    };
    let (author, known) = app.mailbox.query(look).await?.ok_or_else(|| unknown(id))?;
    may_act_for(scope, &author.site)?;
    Ok(known)
}

/// Where an announced contribution's bytes go.
enum Place {
    Upload(Arc<Upload>),
    /// The same bytes are in the store already.
    Stored(Blob),
}

async fn place_of(app: &SharedApp, id: Hash, payload: Hash) -> Result<Place, Refused> {
    let upload_id = UploadId::from(id);
    if let Some(upload) = app.shell.store.upload(&upload_id) {
        return Ok(Place::Upload(upload));
    }
    let shell = app.shell.clone();
    let find = move || -> Result<Option<Place>, StoreError> {
        // After a restart: hashes what is there, to know what is missing, and shows it to the gate.
        let watch = |manifest: &Manifest| gate::watch(&shell, manifest);
        if let Some(upload) = shell.store.resume_upload(&upload_id, watch)? {
            return Ok(Some(Place::Upload(upload)));
        }
        match shell.store.open_blob(payload) {
            Ok(blob) => Ok(Some(Place::Stored(blob))),
            Err(StoreError::NoBlob(_)) => Ok(None),
            Err(error) => Err(error),
        }
    };
    off_the_network(find).await?.ok_or_else(|| unknown(id))
}

pub(super) async fn missing(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    Path(text): Path<String>,
) -> Answer {
    let id = hash(&text)?;
    let missing = match look_up(&app, &scope, id).await? {
        Known::Decided(_) => Vec::new(),
        Known::Announced { payload } => match place_of(&app, id, payload).await? {
            Place::Upload(upload) => upload.missing(),
            Place::Stored(_) => Vec::new(),
        },
    };
    Ok(axum::Json(MissingChunks { missing }).into_response())
}

/// How much of a chunk has arrived, for who was cut in it.
pub(super) async fn held(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    Path((text, index)): Path<(String, u32)>,
) -> Answer {
    let id = hash(&text)?;
    let held_bytes = match look_up(&app, &scope, id).await? {
        Known::Announced { payload } => match place_of(&app, id, payload).await? {
            // It waits for who is writing the chunk.
            Place::Upload(upload) => off_the_network(move || upload.held_bytes(index)).await?,
            Place::Stored(blob) => length_of(blob.manifest(), index)?,
        },
        // Nothing more is needed; the request that completes it says what became of it.
        Known::Decided(_) => u64::MAX,
    };
    Ok(axum::Json(HeldBytes { held_bytes }).into_response())
}

fn length_of(manifest: &Manifest, index: u32) -> Result<u64, StoreError> {
    let chunks = manifest.chunk_count();
    let range = manifest.chunk_range(index);
    let (_, length) = range.ok_or(StoreError::NoChunk { index, chunks })?;
    Ok(length)
}

pub(super) async fn chunk(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    Path((text, index)): Path<(String, u32)>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let id = hash(&text)?;
    // A chunk of what is decided already is of no use, but no harm either.
    if let Known::Announced { payload } = look_up(&app, &scope, id).await?
        && let Place::Upload(upload) = place_of(&app, id, payload).await?
    {
        let part = part_of(&headers, length_of(upload.manifest(), index)?)?;
        let receiving = Receiving {
            stall_max: STALL_MAX,
            bandwidth: app.shell.bulk.caps_for(replica_of(&headers)),
        };
        let body = body.into_data_stream();
        let place = upload.clone();
        let taken = receive_chunk(upload, index, part, body, &receiving).await;
        let received = Bytes(place.received_bytes());
        taken.map_err(refuse_chunk)?;
        report_progress(&app, id, received).await?;
    }
    Ok(json(&Done {}))
}

fn refuse_chunk(error: ReceiveError) -> Refused {
    match error {
        ReceiveError::Store(error) => Refused::from(error),
        error => {
            let (status, code) = error.status_and_code();
            Refused::plain(status, code, error)
        }
    }
}

/// Which part of a chunk a body is; `None` without a header: the whole.
fn part_of(headers: &HeaderMap, chunk_bytes: u64) -> Result<Option<ByteRange>, Refused> {
    let Some(value) = headers.get(header::CONTENT_RANGE) else {
        return Ok(None);
    };
    let text = value.to_str().map_err(|_| RangeError::Malformed);
    let part = text.and_then(|text| parse_content_range(text, chunk_bytes));
    part.map(Some).map_err(|_| {
        let message = format!("a part of this chunk is \"bytes FIRST-LAST/{chunk_bytes}\"");
        Refused::new(Code::BadRequest, message)
    })
}

/// Who asks, by its own account: good enough to share bandwidth by.
fn replica_of(headers: &HeaderMap) -> &str {
    let value = headers.get(CLIENT_HEADER);
    value.and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// Bulk requests have a bounded number of places, so that there is always room, in connections and in
/// file work, for control calls.
pub(super) async fn limit_number(
    State(app): State<SharedApp>,
    request: Request,
    next: Next,
) -> Response {
    let Some(place) = app.shell.bulk.place() else {
        let mut refused = Refused::overloaded().into_response();
        // Its body is not read, so this connection is of no use any more.
        let close = HeaderValue::from_static("close");
        refused.headers_mut().insert(header::CONNECTION, close);
        return refused;
    };
    let (parts, body) = next.run(request).await.into_parts();
    // The place is free once the answer's body has left, not when it begins.
    let body = body.into_data_stream().map(move |piece| {
        let _held = &place;
        piece
    });
    Response::from_parts(parts, Body::from_stream(body))
}

async fn report_progress(app: &SharedApp, id: Hash, bytes: Bytes) -> Result<(), Refused> {
    if app.shell.pace.is_due(id) {
        // Its refusal means that the contribution is decided; the next request will say so.
        let progress = Command::UploadProgress { id, bytes };
        let _ = app.mailbox.command(progress).await?;
    }
    Ok(())
}

pub(super) async fn complete(
    State(app): State<SharedApp>,
    Extension(scope): Extension<Scope>,
    Path(text): Path<String>,
) -> Answer {
    let id = hash(&text)?;
    let found = match look_up(&app, &scope, id).await? {
        // Only bytes that were checked here may be called complete: the same contribution may be
        // announced again at this moment, and its bytes be gone.
        Known::Decided(verdict) => return Ok(json(&verdict)),
        Known::Announced { payload } => check(&app, id, payload).await?,
    };
    match app.command(Command::UploadComplete { id, found }).await? {
        Reply::Verdict(verdict) => Ok(json(&verdict)),
        _ => Err(Refused::wrong_reply()),
    }
}

/// Makes the bytes durable and passes them through the gate; says meanwhile that this is going on.
async fn check(app: &SharedApp, id: Hash, payload: Hash) -> Result<Result<Norm, Problem>, Refused> {
    let place = place_of(app, id, payload).await?;
    let received = Bytes(match &place {
        Place::Upload(upload) => upload.received_bytes(),
        Place::Stored(blob) => blob.manifest().total_bytes(),
    });
    let shell = app.shell.clone();
    let work = move || {
        let (blob, seen) = match place {
            Place::Upload(upload) => {
                let blob = shell.store.complete_upload(&upload)?;
                (blob, upload.watch())
            }
            Place::Stored(blob) => (blob, None),
        };
        let (layout, codec) = (&shell.layout, shell.recipe.exchange.contribution);
        let judged = gate::judge(&blob, layout, codec, seen.as_deref())?;
        tracing::debug!(%id, chunks_read = judged.chunks_read, "looked at a contribution");
        Ok(judged.found)
    };
    let work = off_the_network(work);
    tokio::pin!(work);
    loop {
        report_progress(app, id, received).await?;
        if let Ok(result) = tokio::time::timeout(CHECK_REPORT_EVERY, &mut work).await {
            return Ok(result?);
        }
    }
}
