//! Several processes for one site, in one home: the lease says whose turn it is, whoever loses it lets go of
//! all, and jobs are led to the relay of the one that has it.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use hansa_base::MonoMs;
use hansa_queue::{
    Machine, Now, QueueRefusal, RunView, State, SyncReply, SyncRequest, Timing, UnixS,
};
use hansa_site::{Note, Notes, Profile, SiteError, run};
use hansa_transfer::{ErrorBody, ProxyFile};
use hansa_wire::Wire;
use hansa_wire::queue::SYNC;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The coordinator's side of leases, as it is.
struct Desk {
    machine: Machine,
    started: Instant,
}

type SharedDesk = Arc<Mutex<Desk>>;
type RequestJson = <SyncRequest as Wire>::Json;

async fn sync(Shared(desk): Shared<SharedDesk>, Json(json): Json<RequestJson>) -> Response {
    let request = SyncRequest::from_json(json).unwrap();
    let mut desk = desk.lock().unwrap();
    let now = Now {
        wall: UnixS(1_800_000_000),
        mono: MonoMs(0).after(desk.started.elapsed()),
    };
    let run = RunView {
        run_id: "1a2b".repeat(16),
        ..RunView::default()
    };
    match desk.machine.sync(request, &run, now).reply {
        Ok(reply) => Json(SyncReply::to_json(&reply)).into_response(),
        Err(refusal) => {
            let code = match refusal {
                QueueRefusal::Busy { .. } => "busy",
                QueueRefusal::Fenced { .. } => "fenced",
                _ => panic!("{refusal}"),
            };
            let body = ErrorBody::new(code, refusal);
            (StatusCode::CONFLICT, Json(body)).into_response()
        }
    }
}

struct Scene {
    folder: tempfile::TempDir,
    url: String,
}

struct Process {
    notes: Arc<Mutex<Vec<Note>>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), SiteError>>,
}

impl Scene {
    async fn set() -> Self {
        // Calls are frequent, so that a turn's end is heard of soon; and no lease lapses on a busy machine.
        let timing = Timing {
            lease_ttl: Duration::from_secs(600),
            sync_every: Duration::from_millis(200),
        };
        let desk = Arc::new(Mutex::new(Desk {
            machine: Machine::new(State::new(), timing, MonoMs(0)),
            started: Instant::now(),
        }));
        let app = Router::new().route(SYNC, post(sync)).with_state(desk);
        let url = common::serve(app).await;
        let folder = tempfile::tempdir().unwrap();
        Self { folder, url }
    }

    fn profile(&self) -> Profile {
        let text = format!(
            r#"name = "birch"
[coordinator]
url = "{}"
token_file = "token"
[slurm]
[relay]
listen = "127.0.0.1:0"
file = "relay.json"
[jobs]
wanted = 1
shape = "tiny"
[[shape]]
name = "tiny"
partition = "gpu"
nodes = 1
gpus_per_node = 0
walltime = "00:02:00"
[script]
corpus = "corpus"
state = "state"
logs = "logs"
signal_before_s = 10
"#,
            self.url
        );
        let mut profile = Profile::parse(&text, &self.folder.path().join("birch.toml")).unwrap();
        // Nobody answers there, which is soon clear: this is not about jobs.
        profile.slurm.ssh = Some("nobody@127.0.0.1".to_owned());
        profile
    }

    fn start(&self, take_over: bool) -> Process {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let heard = notes.clone();
        let hear: Notes = Arc::new(move |note: &Note| heard.lock().unwrap().push(note.clone()));
        let (profile, folder) = (self.profile(), self.folder.path());
        let options = common::options(profile, folder, &self.url, take_over, hear);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(run(options, stopped));
        Process { notes, stop, task }
    }

    fn relay_file(&self) -> PathBuf {
        self.folder.path().join("relay.json")
    }
}

impl Process {
    async fn until(&self, wanted: impl Fn(&Note) -> bool) {
        while !self.notes.lock().unwrap().iter().any(&wanted) {
            let notes = self.notes.lock().unwrap().clone();
            assert!(!self.task.is_finished(), "it has ended; {notes:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn stop(self) {
        self.stop.send(true).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

fn address_in(file: &Path) -> String {
    ProxyFile::read(file).unwrap().url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_led_to_whoever_has_the_site_and_a_home_goes_with_the_turn() {
    let scene = Scene::set().await;
    let file = scene.relay_file();
    let first = scene.start(false);
    first.until(|note| matches!(note, Note::Relay { .. })).await;
    while !file.exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let address = address_in(&file);

    // Started once more by mistake: it ends, says whose the site is, and leads no job astray.
    let error = scene.start(false).task.await.unwrap().unwrap_err();
    let here = format!("pid {}", std::process::id());
    let text = error.to_string();
    assert!(matches!(error, SiteError::Busy { .. }), "{text}");
    assert!(
        text.contains(&here) && text.contains("--take-over"),
        "{text}"
    );
    assert_eq!(address_in(&file), address);

    // Another takes over, in the same home: the first one lets go of it.
    let second = scene.start(true);
    second
        .until(|note| matches!(note, Note::Relay { .. }))
        .await;
    first.until(|note| matches!(note, Note::Busy(_))).await;
    while address_in(&file) == address {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    second.stop().await;
    first.stop().await;
}
