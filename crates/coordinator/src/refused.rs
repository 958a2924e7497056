//! What the gate refused is kept for inspection: `refused/NUMBER.json` in the data directory says of
//! whom it is, why it was refused and where its bytes lie, which are not pruned meanwhile. The newest
//! few are kept. Never here: anything that a merge or the journal reads.

use std::path::{Path, PathBuf};

use hansa_base::{ContributionNo, Hash};
use hansa_protocol::{Command, Event, Machine, Problem, RefusedBecause};
use serde_json::{Value, json};

use crate::shell::Shell;

/// Refused contributions that are kept.
const KEPT: usize = 4;

/// What was refused, oldest first.
pub(crate) struct Refused {
    dir: PathBuf,
    kept: Vec<(PathBuf, Hash)>,
}

/// A contribution that the gate has looked at and the machine has yet to decide on.
pub(crate) struct LookedAt {
    no: ContributionNo,
    payload: Hash,
    replica: String,
    generation: u64,
    id: Hash,
    problem: Option<Problem>,
}

impl LookedAt {
    /// Of a command that completes an upload.
    pub fn new(machine: &Machine, command: &Command) -> Option<Self> {
        let Command::UploadComplete { id, found } = command else {
            return None;
        };
        let state = machine.state();
        let (no, contribution) = state.contribution(*id)?;
        let replica = state.replica(contribution.key)?.id.to_string();
        Some(Self {
            no,
            payload: contribution.parts.payload,
            replica,
            generation: contribution.parts.generation.0,
            id: *id,
            problem: found.as_ref().err().cloned(),
        })
    }

    fn record(&self, because: RefusedBecause, bytes: &Path) -> Value {
        let mut record = json!({
            "replica": self.replica,
            "round": self.generation,
            "contribution": self.id.to_string(),
            "reason": because.to_string(),
            "payload": self.payload.to_string(),
            "bytes": bytes.display().to_string(),
        });
        if let Some(problem) = &self.problem {
            record["problem"] = problem.to_string().into();
        }
        if let RefusedBecause::Norm { norm, bound } = because {
            record["norm"] = norm.get().into();
            record["bound"] = bound.get().into();
        }
        record
    }
}

impl Refused {
    /// What a data directory has; nothing if it cannot be read.
    pub fn load(data_dir: &Path) -> Self {
        let dir = data_dir.join("refused");
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let payload = |path: PathBuf| {
            let text = std::fs::read(&path).ok()?;
            let record: Value = serde_json::from_slice(&text).ok()?;
            let payload = record["payload"].as_str()?.parse().ok()?;
            Some((path, payload))
        };
        let mut kept: Vec<(PathBuf, Hash)> =
            entries.filter_map(|entry| payload(entry.path())).collect();
        kept.sort();
        Self { dir, kept }
    }

    /// Bytes that must not be pruned.
    pub fn payloads(&self) -> impl Iterator<Item = Hash> {
        self.kept.iter().map(|(_, payload)| *payload)
    }

    /// Keeps a contribution if these events refuse it. That it cannot be kept is no reason to stop.
    pub fn keep(&mut self, shell: &Shell, looked_at: &LookedAt, events: &[Event]) {
        let because = events.iter().find_map(|event| match event {
            Event::Refused { no, because } if *no == looked_at.no => Some(*because),
            _ => None,
        });
        let Some(because) = because else { return };
        let bytes = shell.store.path(looked_at.payload);
        let who = &looked_at.replica;
        let path = self.dir.join(format!("{:08}.json", looked_at.no.0));
        tracing::warn!(
            %who,
            id = %looked_at.id,
            %because,
            problem = looked_at.problem.as_ref().map(tracing::field::display),
            kept = %path.display(),
            "a contribution is refused"
        );
        let text = format!("{:#}\n", looked_at.record(because, &bytes));
        let written = std::fs::create_dir_all(&self.dir).and_then(|()| std::fs::write(&path, text));
        if let Err(error) = written {
            tracing::warn!(%error, path = %path.display(), "cannot note what was refused");
        }
        self.kept.push((path, looked_at.payload));
        while self.kept.len() > KEPT {
            let (oldest, _) = self.kept.remove(0);
            let _ = std::fs::remove_file(oldest);
        }
    }
}
