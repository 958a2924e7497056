//! Where a replica keeps what it must find again after a crash.
//!
//! ```text
//! DIR/lock                    one process at a time
//!     identity.json           run, name, nonce, resume token: whose directory this is
//!     latest.ckpt             weights and optimiser in mid-phase, and what they were trained on
//!     accepted.ckpt           the same at the end of the last accepted phase
//!     contribution-HASH.safetensors   what `latest.ckpt` says was announced, and perhaps the next
//!     models/HASH.safetensors    downloaded generations
//!     models/.spare           one that is of no use any more, for the next to be written over
//!     complete.json           only there once the coordinator has said that the run is over
//!     corpus.checked          the corpus that was hashed, so that a restart need not
//!     replica.log             what happened, as JSON lines
//! ```
//!
//! Never here: when any of it is written; that is the replica machine's decision.

use std::path::{Path, PathBuf};

use hansa_base::{Hash, ReplicaId};
use hansa_protocol::EndReason;
use hansa_protocol::replica::RegistrationRecord;
use hansa_store::{DataDir, StoreError};
use hansa_wire::Wire;
use serde::{Deserialize, Serialize};

use crate::contribution;
use crate::files;

const VERSION: u32 = 1;
const IDENTITY: &str = "identity.json";
const MODELS: &str = "models";
const COMPLETE: &str = "complete.json";
const CONTRIBUTION: &str = "contribution-";
/// What may lie in a directory that has no identity yet.
const HARMLESS: [&str; 8] = [
    "lock",
    "replica.log",
    ".identity.json.tmp",
    // The corpus is looked at before anybody registers.
    "corpus.checked",
    ".corpus.checked.tmp",
    // What an agent leaves for its trainer before it registers.
    "run.json",
    ".run.json.tmp",
    "agent.sock",
];

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another process uses it.
    #[error(
        "{} is in use: another process trains as this replica on this machine{holder}; stop that one \
         first, or give this one another name and another --state", path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// " (process N)", or nothing if unknown.
        holder: String,
    },
    /// The lock cannot be taken for another reason.
    #[error(transparent)]
    Lock(StoreError),
    /// It belongs to something else.
    #[error(
        "{path} is not empty and holds no replica's state (there is {found:?}); choose an empty or \
         new directory for --state"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// A file in it.
        found: String,
    },
    /// It belongs to another run.
    #[error(
        "{path} holds the state of run {theirs}, but the coordinator serves run {ours}; choose \
         another directory for --state, or delete this one if that run is over"
    )]
    OtherRun {
        /// The directory.
        path: PathBuf,
        /// The coordinator's run, short.
        ours: String,
        /// The directory's run, short.
        theirs: String,
    },
    /// It belongs to another replica.
    #[error(
        "{path} holds the state of {theirs}, this is {ours}; choose another directory for --state, \
         or the name {theirs}"
    )]
    OtherReplica {
        /// The directory.
        path: PathBuf,
        /// This replica.
        ours: ReplicaId,
        /// The directory's replica.
        theirs: ReplicaId,
    },
    /// A file in it cannot be read as what it should be.
    #[error(
        "{path} is damaged ({why}); move the directory away and start again: at most the phase in \
         progress is lost"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A file operation failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// A bare verb phrase.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl StateDirError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    version: u32,
    registration: <RegistrationRecord as Wire>::Json,
}

/// A locked state directory; the lock goes with the value, or with the process however it dies.
#[derive(Debug)]
pub struct StateDir {
    lock: DataDir,
}

impl StateDir {
    /// Makes the directory if needed and takes its lock.
    ///
    /// # Errors
    /// If another process has it, it belongs to something else, or the filesystem refuses.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let fresh = !Self::has_identity(path);
        if let Some(found) = fresh.then(|| foreign_entry(path)).flatten() {
            let path = path.to_owned();
            return Err(StateDirError::Foreign { path, found });
        }
        let lock = DataDir::lock(path).map_err(|error| match error {
            StoreError::AlreadyOpen { path, holder } => StateDirError::Locked { path, holder },
            other => StateDirError::Lock(other),
        })?;
        Ok(Self { lock })
    }

    /// Whether a replica has been at work in this directory.
    #[must_use]
    pub fn has_identity(path: &Path) -> bool {
        path.join(IDENTITY).exists()
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.lock.path()
    }

    /// Reads the registration record; a fresh directory has none.
    ///
    /// # Errors
    /// If it is of another run or replica, or cannot be read.
    pub fn registration(
        &self,
        run: Hash,
        replica: &ReplicaId,
    ) -> Result<Option<RegistrationRecord>, StateDirError> {
        let path = self.path().join(IDENTITY);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateDirError::io("read", &path)(error)),
        };
        let record = parse_identity(&text).map_err(|why| StateDirError::Damaged {
            path: path.clone(),
            why,
        })?;
        if record.run != run {
            return Err(StateDirError::OtherRun {
                path: self.path().to_owned(),
                ours: run.short(),
                theirs: record.run.short(),
            });
        }
        if record.replica != *replica {
            return Err(StateDirError::OtherReplica {
                path: self.path().to_owned(),
                ours: replica.clone(),
                theirs: record.replica,
            });
        }
        Ok(Some(record))
    }

    /// Makes a registration record durable.
    ///
    /// # Errors
    /// If a file operation fails.
    pub fn save_registration(&self, record: &RegistrationRecord) -> Result<(), StateDirError> {
        let file = IdentityFile {
            version: VERSION,
            registration: record.to_json(),
        };
        let path = self.path().join(IDENTITY);
        // A structure of numbers and strings cannot fail to serialise.
        let text = serde_json::to_vec_pretty(&file).unwrap_or_default();
        files::write_durably(&path, &text).map_err(StateDirError::io("write", &path))
    }

    /// Remembers that the run is over: its coordinator need not be there for ever to say so.
    ///
    /// # Errors
    /// If a file operation fails.
    pub fn save_complete(&self, reason: EndReason) -> Result<(), StateDirError> {
        self.give_back_spare();
        let path = self.path().join(COMPLETE);
        let text = serde_json::to_vec(&reason.to_json()).unwrap_or_default();
        files::write_durably(&path, &text).map_err(StateDirError::io("write", &path))
    }

    /// Why the run of this directory is over, as far as it was told. One that cannot be read says nothing.
    #[must_use]
    pub fn complete(path: &Path) -> Option<EndReason> {
        let text = std::fs::read(path.join(COMPLETE)).ok()?;
        EndReason::from_json(serde_json::from_slice(&text).ok()?).ok()
    }

    /// The coordinator answers: what it says counts, and a restored run may go on.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn clear_complete(&self) -> Result<(), StateDirError> {
        let path = self.path().join(COMPLETE);
        files::remove_if_there(&path).map_err(StateDirError::io("remove", &path))
    }

    /// The checkpoint in mid-phase.
    #[must_use]
    pub fn latest(&self) -> PathBuf {
        self.path().join("latest.ckpt")
    }

    /// The checkpoint at the end of the last accepted phase.
    #[must_use]
    pub fn accepted(&self) -> PathBuf {
        self.path().join("accepted.ckpt")
    }

    /// Where a contribution is encoded, before its name is known.
    #[must_use]
    pub fn contribution_draft(&self) -> PathBuf {
        self.path().join(".contribution.draft")
    }

    /// The encoded contribution with this manifest hash.
    #[must_use]
    pub fn contribution(&self, payload: Hash) -> PathBuf {
        self.path()
            .join(format!("{CONTRIBUTION}{payload}.safetensors"))
    }

    /// Gives the draft its name, durably, beside the contribution before it: the latest checkpoint
    /// may still name that one.
    ///
    /// # Errors
    /// If a file operation fails.
    pub fn name_contribution(&self, payload: Hash) -> Result<(), StateDirError> {
        let (draft, path) = (self.contribution_draft(), self.contribution(payload));
        files::rename_synced(&draft, &path).map_err(StateDirError::io("rename to", &path))
    }

    /// Removes every contribution but this one, which a durable checkpoint names. The file of one of them
    /// stays without a name of its own, for the next contribution to be written over it.
    ///
    /// # Errors
    /// If a file operation fails.
    pub fn keep_only_contribution(&self, payload: Option<Hash>) -> Result<(), StateDirError> {
        let kept = payload.map(|payload| self.contribution(payload));
        let is_one = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(CONTRIBUTION)
        };
        let next = contribution::draft_of(&self.contribution_draft());
        let go = |path: &Path| std::fs::rename(path, &next);
        with_others(self.path(), kept.as_deref(), is_one, go)
    }

    /// Proof that the corpus was hashed.
    #[must_use]
    pub fn corpus_marker(&self) -> PathBuf {
        self.path().join("corpus.checked")
    }

    /// The session's diary.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.path().join("replica.log")
    }

    /// Where the model with this manifest hash lies, or will.
    ///
    /// # Errors
    /// If the folder of models cannot be made.
    pub fn model(&self, manifest: Hash) -> Result<PathBuf, StateDirError> {
        let folder = self.path().join(MODELS);
        std::fs::create_dir_all(&folder).map_err(StateDirError::io("create", &folder))?;
        Ok(folder.join(format!("{manifest}.safetensors")))
    }

    /// Removes every model, whole or partial, but the one with this manifest hash. The file of one of them
    /// stays without a name of its own, for the next download to be written over it.
    ///
    /// # Errors
    /// If a file operation fails.
    pub fn keep_only_model(&self, manifest: Hash) -> Result<(), StateDirError> {
        let kept = self.model(manifest)?;
        let models = self.path().join(MODELS);
        with_others(&models, Some(&kept), |_| true, hansa_transfer::leave_spare)
    }

    /// Deletes what is only kept to be written over; whether that made room.
    pub fn give_back_spare(&self) -> bool {
        hansa_transfer::give_back_spare(&self.path().join(MODELS))
    }

    /// Removes checkpoints and contributions: they belong to a history that the run was taken out of by
    /// a restore. Models stay, as they are named by their content.
    ///
    /// # Errors
    /// If a file operation fails.
    pub fn forget(&self) -> Result<(), StateDirError> {
        for path in [self.latest(), self.accepted()] {
            files::remove_if_there(&path).map_err(StateDirError::io("remove", &path))?;
        }
        self.keep_only_contribution(None)?;
        sync(self.path()).map_err(StateDirError::io("sync", self.path()))
    }

    /// The latest checkpoint becomes that of the last accepted phase: a second name for the same
    /// bytes, as files here are replaced and never changed.
    ///
    /// # Errors
    /// If a file operation fails.
    pub fn accept_latest(&self) -> Result<(), StateDirError> {
        let (latest, accepted) = (self.latest(), self.accepted());
        let temporary = files::temporary_beside(&accepted);
        files::remove_if_there(&temporary).map_err(StateDirError::io("remove", &temporary))?;
        std::fs::hard_link(&latest, &temporary)
            .or_else(|_| std::fs::copy(&latest, &temporary).and_then(|_| sync(&temporary)))
            .map_err(StateDirError::io("keep", &latest))?;
        files::rename_synced(&temporary, &accepted)
            .map_err(StateDirError::io("rename to", &accepted))
    }
}

/// Removes these files, in the way that is given, but the one that is kept.
fn with_others(
    folder: &Path,
    kept: Option<&Path>,
    one_of_these: impl Fn(&Path) -> bool,
    remove: impl Fn(&Path) -> std::io::Result<()>,
) -> Result<(), StateDirError> {
    let entries = std::fs::read_dir(folder).map_err(StateDirError::io("list", folder))?;
    for entry in entries {
        let path = entry.map_err(StateDirError::io("list", folder))?.path();
        if Some(path.as_path()) != kept && one_of_these(&path) {
            remove(&path).map_err(StateDirError::io("remove", &path))?;
        }
    }
    Ok(())
}

fn parse_identity(text: &[u8]) -> Result<RegistrationRecord, String> {
    let file: IdentityFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        let found = file.version;
        return Err(format!(
            "its version is {found}, this hansa writes {VERSION}"
        ));
    }
    RegistrationRecord::from_json(file.registration).map_err(|error| error.to_string())
}

/// For filesystems without hard links.
fn sync(path: &Path) -> std::io::Result<()> {
    std::fs::File::open(path)?.sync_all()
}

/// The first entry of a directory that no replica put there.
fn foreign_entry(path: &Path) -> Option<String> {
    let entries = std::fs::read_dir(path).ok()?;
    let names = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| !HARMLESS.contains(&name.as_str()))
        .min()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn replica(name: &str) -> ReplicaId {
        name.parse().unwrap()
    }

    fn record() -> RegistrationRecord {
        RegistrationRecord {
            run: RUN,
            replica: replica("lumi/r0"),
            held: None,
            token: Some(Hash([2; 32])),
            nonce: None,
        }
    }

    const RUN: Hash = Hash([9; 32]);

    #[test]
    fn an_identity_is_found_again_by_its_owner_and_by_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("new/r0")).unwrap();
        let r0 = replica("lumi/r0");
        assert_eq!(state.registration(RUN, &r0).unwrap(), None);
        state.save_registration(&record()).unwrap();
        assert_eq!(state.registration(RUN, &r0).unwrap(), Some(record()));
        let other_run = state.registration(Hash([8; 32]), &r0).unwrap_err();
        assert!(matches!(other_run, StateDirError::OtherRun { .. }));
        let other_name = state.registration(RUN, &replica("lumi/r1")).unwrap_err();
        assert!(matches!(other_name, StateDirError::OtherReplica { .. }));
    }

    #[test]
    fn a_second_process_is_refused_and_a_torn_write_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let r0 = replica("lumi/r0");
        state.save_registration(&record()).unwrap();
        assert!(matches!(
            StateDir::open(dir.path()).unwrap_err(),
            StateDirError::Locked { .. }
        ));
        drop(state);
        // A kill in the middle of the next write leaves the temporary file only.
        std::fs::write(dir.path().join(".identity.json.tmp"), b"{\"vers").unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(state.registration(RUN, &r0).unwrap(), Some(record()));
        // Real damage is told, with what to do.
        std::fs::write(dir.path().join(IDENTITY), b"{\"vers").unwrap();
        let error = state.registration(RUN, &r0).unwrap_err();
        assert!(
            error.to_string().contains("move the directory away"),
            "{error}"
        );
    }

    #[test]
    fn a_directory_remembers_that_its_run_is_over_until_a_coordinator_answers() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        assert_eq!(StateDir::complete(dir.path()), None);
        for reason in [EndReason::Rounds, EndReason::Epochs] {
            state.save_complete(reason).unwrap();
            assert_eq!(StateDir::complete(dir.path()), Some(reason));
        }
        state.clear_complete().unwrap();
        assert_eq!(StateDir::complete(dir.path()), None);
        std::fs::write(dir.path().join(COMPLETE), b"\"ro").unwrap();
        assert_eq!(StateDir::complete(dir.path()), None);
    }

    #[test]
    fn what_a_history_that_is_no_more_left_is_removed_and_models_stay() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        state.save_registration(&record()).unwrap();
        for path in [
            state.latest(),
            state.accepted(),
            state.contribution(Hash([1; 32])),
            state.model(Hash([2; 32])).unwrap(),
        ] {
            std::fs::write(path, b"x").unwrap();
        }
        // Twice: a process may be killed right after it.
        state.forget().unwrap();
        state.forget().unwrap();
        assert!(!state.latest().exists() && !state.accepted().exists());
        assert!(!state.contribution(Hash([1; 32])).exists());
        assert!(state.model(Hash([2; 32])).unwrap().exists());
    }

    #[test]
    fn a_foreign_directory_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), b"x").unwrap();
        let error = StateDir::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("thesis.tex"), "{error}");
        assert!(!dir.path().join("lock").exists());
    }

    #[test]
    fn a_contribution_stays_until_no_checkpoint_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let (first, second) = (Hash([5; 32]), Hash([6; 32]));
        for payload in [first, second] {
            std::fs::write(state.contribution_draft(), payload.0).unwrap();
            state.name_contribution(payload).unwrap();
        }
        std::fs::write(state.latest(), b"a checkpoint").unwrap();
        assert_eq!(std::fs::read(state.contribution(first)).unwrap(), first.0);
        state.keep_only_contribution(Some(second)).unwrap();
        assert!(!state.contribution(first).exists() && state.contribution(second).exists());
        state.keep_only_contribution(None).unwrap();
        assert!(!state.contribution(second).exists() && state.latest().exists());
        let next = contribution::draft_of(&state.contribution_draft());
        assert_eq!(
            std::fs::read(next).unwrap(),
            second.0,
            "one is written over"
        );
    }

    #[test]
    fn old_models_go_and_an_accepted_checkpoint_outlives_the_next_latest() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let (old, new) = (Hash([3; 32]), Hash([4; 32]));
        std::fs::write(state.model(old).unwrap(), b"old").unwrap();
        std::fs::write(state.model(old).unwrap().with_extension("partial"), b"o").unwrap();
        std::fs::write(state.model(new).unwrap(), b"new").unwrap();
        state.keep_only_model(new).unwrap();
        let names = std::fs::read_dir(dir.path().join(MODELS)).unwrap();
        assert_eq!(names.count(), 2, "it, and one that is written over");
        assert!(state.give_back_spare() && !state.give_back_spare());
        assert!(!state.model(old).unwrap().exists());
        assert_eq!(std::fs::read(state.model(new).unwrap()).unwrap(), b"new");

        files::write_durably(&state.latest(), b"phase 1").unwrap();
        state.accept_latest().unwrap();
        files::write_durably(&state.latest(), b"phase 2").unwrap();
        assert_eq!(std::fs::read(state.accepted()).unwrap(), b"phase 1");
        state.accept_latest().unwrap();
        assert_eq!(std::fs::read(state.accepted()).unwrap(), b"phase 2");
    }
}
