//! `hansa ledger show --replica X`, `--block N`: what became of some positions, or of what a replica
//! had, over all epochs, and which generation's weights hold it.
//!
//! A walk through the journal from its first record: the state before each event says whose lease or
//! contribution it is about. Reads only; a coordinator may be running beside it.

use std::path::Path;

use hansa_base::{ContributionNo, Epoch, Hash, LeaseId, ReplicaId, ReplicaKey, Windows};
use hansa_protocol::{BlockSpace, Event, RoundPhase, RunSpec, Span, State};
use hansa_store::Seq;
use serde::Serialize;

use crate::error::Error;
use crate::replay::Replayed;
use crate::verify::open;

/// What to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A name, through all its incarnations.
    Replica(ReplicaId),
    /// `K` consecutive windows on disk, wherever each epoch has them.
    Block(u64),
    /// One window of the corpus, wherever each epoch has it.
    Window(u64),
    /// A place in the order; another window in every epoch.
    Position(u64),
}

/// What became of a [`Subject`].
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    /// What is in the weights, in order.
    pub committed: Vec<Commit>,
    /// Everything that happened to it, in order.
    pub history: Vec<Happening>,
    /// How its positions stand in the running epoch; empty for a replica.
    pub now: Vec<Standing>,
}

/// Positions that a generation's weights contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Commit {
    /// The epoch of the positions, from 0.
    pub epoch: u32,
    /// First position, and the one after the last.
    pub spans: Vec<(u64, u64)>,
    /// Who trained them.
    pub replica: String,
    /// The first generation that contains them.
    pub generation: u64,
    /// The contribution that brought them.
    pub contribution: String,
}

/// One event about the subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Happening {
    /// The journal's record.
    pub record: u64,
    /// Wall-clock milliseconds since 1970, as the coordinator had them.
    pub wall_ms: u64,
    /// The running epoch, from 0.
    pub epoch: u32,
    /// What: `granted`, `committed`, …
    pub what: &'static str,
    /// Whose; absent where nobody had it.
    pub replica: Option<String>,
    /// The positions, of those that were asked for.
    pub spans: Vec<(u64, u64)>,
    /// The rest of it, in words.
    pub detail: String,
}

/// The present state of positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// First position, and the one after the last.
    pub span: (u64, u64),
    /// In words.
    pub state: String,
}

/// Follows a subject through a data directory's journal, or one given by its file.
///
/// # Errors
/// If the journal cannot be read, a record of it cannot be used, or the run has no such replica, block,
/// window or position.
pub fn trace(path: &Path, subject: &Subject) -> Result<Trace, Error> {
    let journal = open(path)?;
    let mut replayed = Replayed::first(&journal)?.ok_or(Error::Misplaced(Seq(0)))?;
    let mut follower = Follower::new(&replayed.spec, subject.clone())?;
    for record in journal.read_from(Seq(2))? {
        let record = record?;
        (follower.record, follower.wall_ms) = (record.seq.0, record.record.wall_ms);
        replayed.apply(&record, |state, event| follower.see(state, event))?;
    }
    if let Subject::Replica(id) = subject
        && replayed.state.find(id).is_none()
    {
        return Err(no_such_replica(&replayed.state, id));
    }
    let Follower { committed, .. } = &follower;
    Ok(Trace {
        committed: committed.clone(),
        now: follower.now(&replayed),
        history: follower.history,
    })
}

fn no_such_replica(state: &State, id: &ReplicaId) -> Error {
    let names = || state.replicas.iter().map(|replica| replica.id.to_string());
    let wanted = id.to_string();
    let near = names().max_by(|a, b| {
        let like = |name: &str| strsim::jaro_winkler(name, &wanted);
        like(a).total_cmp(&like(b))
    });
    let (count, near) = (names().count(), near.unwrap_or_default());
    let hint = match count {
        0 => "none has registered yet".to_owned(),
        _ => format!("did you mean {near}? `hansa ledger show` lists all {count}"),
    };
    Error::NoSuchReplica { name: wanted, hint }
}

/// What an event is about, whoever asks.
struct About {
    what: &'static str,
    replica: Option<String>,
    spans: Vec<Span>,
    detail: String,
}

struct Follower {
    spec: RunSpec,
    subject: Subject,
    /// Where the running epoch has the subject; `None` for a replica.
    target: Option<Span>,
    epoch: Epoch,
    record: u64,
    wall_ms: u64,
    committed: Vec<Commit>,
    history: Vec<Happening>,
}

impl Follower {
    fn new(spec: &RunSpec, subject: Subject) -> Result<Self, Error> {
        let (windows, block) = (spec.digest.windows.0, spec.digest.block.0);
        let (what, at, count) = match subject {
            Subject::Replica(_) => ("replica", 0, 1),
            Subject::Block(at) => ("block", at, windows.div_ceil(block)),
            Subject::Window(at) => ("window", at, windows),
            Subject::Position(at) => ("position", at, windows),
        };
        if at >= count {
            let last = count.saturating_sub(1);
            return Err(Error::OutOfRange { what, at, last });
        }
        let mut follower = Self {
            spec: spec.clone(),
            subject,
            target: None,
            epoch: Epoch(0),
            record: 0,
            wall_ms: 0,
            committed: Vec::new(),
            history: Vec::new(),
        };
        follower.enter(Epoch(0));
        Ok(follower)
    }

    fn enter(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.target = target(&self.spec, &self.subject, &self.spec.space(epoch));
    }

    fn see(&mut self, state: &State, event: &Event) {
        if let Event::EpochStarted { epoch } = event {
            self.enter(*epoch);
            return;
        }
        if let (Event::Published { generation, .. }, RoundPhase::Closed(record)) =
            (event, &state.round.phase)
        {
            for closed in &record.contributions {
                self.commit(state, closed.no, generation.0);
            }
            return;
        }
        if let Some(about) = about(state, event, &self.spec) {
            self.note(about);
        }
    }

    fn commit(&mut self, state: &State, no: ContributionNo, generation: u64) {
        let Some(contribution) = state.contributions.get(&no) else {
            return;
        };
        let (key, id) = (contribution.key, contribution.id);
        let about = About {
            what: "committed",
            replica: Some(name(state, key)),
            spans: contribution.parts.spans.clone(),
            detail: format!("in generation {generation}, by contribution {}", short(id)),
        };
        let Some(spans) = self.note(about) else {
            return;
        };
        self.committed.push(Commit {
            epoch: self.epoch.0,
            spans,
            replica: name(state, key),
            generation,
            contribution: id.to_string(),
        });
    }

    /// Writes an event down if it is about the subject; returns its positions.
    fn note(&mut self, about: About) -> Option<Vec<(u64, u64)>> {
        let spans: Vec<Span> = match (&self.subject, self.target) {
            (Subject::Replica(id), _) => {
                let own = about.replica.as_ref() == Some(&id.to_string());
                own.then_some(about.spans)?
            }
            (_, Some(target)) => {
                let cut = about.spans.iter().filter_map(|span| common(*span, target));
                let cut: Vec<Span> = cut.collect();
                (!cut.is_empty()).then_some(cut)?
            }
            (_, None) => return None,
        };
        let spans = pairs(&spans);
        self.history.push(Happening {
            record: self.record,
            wall_ms: self.wall_ms,
            epoch: self.epoch.0,
            what: about.what,
            replica: about.replica,
            spans: spans.clone(),
            detail: about.detail,
        });
        Some(spans)
    }

    fn now(&self, replayed: &Replayed) -> Vec<Standing> {
        let Some(target) = self.target else {
            return Vec::new();
        };
        let intervals = replayed.state.ledger.intervals();
        let inside = intervals.filter_map(|(span, owner)| Some((common(span, target)?, owner)));
        let standing = |(span, owner): (Span, _)| Standing {
            span: (span.start.0, span.end.0),
            state: replayed.owner(owner),
        };
        inside.map(standing).collect()
    }
}

/// Where an epoch has a subject.
fn target(spec: &RunSpec, subject: &Subject, space: &BlockSpace) -> Option<Span> {
    let (first, count) = match subject {
        Subject::Replica(_) => return None,
        Subject::Position(at) => return Some(Span::new(*at, at + 1)),
        Subject::Window(window) => (*window, 1),
        Subject::Block(block) => {
            let first = block * spec.digest.block.0;
            (
                first,
                spec.digest.block.0.min(spec.digest.windows.0 - first),
            )
        }
    };
    // A block's windows are neighbours in every order.
    let start = space.position_of(first)?.0;
    Some(Span::new(start, start + count))
}

fn about(state: &State, event: &Event, spec: &RunSpec) -> Option<About> {
    about_lease(state, event)
        .or_else(|| changed_hands(state, event))
        .or_else(|| about_contribution(state, event))
        .or_else(|| about_quarantine(state, event, spec))
}

fn about_lease(state: &State, event: &Event) -> Option<About> {
    let spans_of = |id: LeaseId| {
        let lease = state.leases.get(&id);
        lease.map(|lease| lease.spans.clone()).unwrap_or_default()
    };
    let (what, replica, spans, detail) = match event {
        Event::Registered {
            id,
            incarnation,
            inherited,
            ..
        } => {
            let spans = inherited.map(spans_of).unwrap_or_default();
            let inherits = inherited.map(|lease| format!(", which inherits lease {lease}"));
            let inherits = inherits.unwrap_or_default();
            let detail = format!("as incarnation {incarnation}{inherits}");
            // Who joins for the first time has no key yet.
            ("registered", Some(id.to_string()), spans, detail)
        }
        Event::Left { key, reason, .. } => {
            let spans = Vec::new();
            ("left", Some(name(state, *key)), spans, reason.to_string())
        }
        Event::Granted {
            lease, key, spans, ..
        } => {
            let detail = format!("in lease {lease}");
            ("granted", Some(name(state, *key)), spans.clone(), detail)
        }
        Event::Freed {
            lease,
            cause,
            at_risk,
        } => {
            let holder = state.leases.get(lease).map(|lease| name(state, lease.key));
            let what = if cause.is_loss() {
                "lost"
            } else {
                "given back"
            };
            let counts = match *at_risk {
                Windows(0) => String::new(),
                windows => format!("; the first {windows} windows count as a failed attempt"),
            };
            let detail = format!("with lease {lease}: {cause}{counts}");
            (what, holder, spans_of(*lease), detail)
        }
        _ => return None,
    };
    Some(About {
        what,
        replica,
        spans,
        detail,
    })
}

fn about_contribution(state: &State, event: &Event) -> Option<About> {
    if let Event::Announced { key, parts, .. } = event {
        let (id, base) = (short(parts.id()), parts.generation);
        return Some(About {
            what: "announced",
            replica: Some(name(state, *key)),
            spans: parts.spans.clone(),
            detail: format!("as contribution {id}, on generation {base}"),
        });
    }
    let (what, no, because) = match event {
        Event::Refused { no, because } => ("refused", no, format!(": {because}")),
        Event::Staged { no, .. } => ("staged", no, String::new()),
        _ => return None,
    };
    let contribution = state.contributions.get(no)?;
    Some(About {
        what,
        replica: Some(name(state, contribution.key)),
        spans: contribution.parts.spans.clone(),
        detail: format!("contribution {}{because}", short(contribution.id)),
    })
}

/// Positions that went from one to another, or back to who had them.
fn changed_hands(state: &State, event: &Event) -> Option<About> {
    let (what, key, spans, detail) = match event {
        Event::Stolen(steal) => {
            let victim = state.leases.get(&steal.from)?;
            let keeps = Windows(victim.left().0.saturating_sub(steal.windows.0));
            let (_, tail) = Span::split(&victim.spans, keeps);
            let (from, whose) = (steal.from, name(state, victim.key));
            let detail = format!("in lease {}, from {whose}'s lease {from}", steal.lease);
            ("stolen", steal.key, tail, detail)
        }
        Event::Revived { key, windows, .. } => {
            let lost = state.replica(*key)?.lost.as_ref()?;
            let (head, _) = Span::split(&lost.lease.spans, *windows);
            let detail = format!("in lease {}: its holder was heard of", lost.lease.id);
            ("revived", *key, head, detail)
        }
        _ => return None,
    };
    Some(About {
        what,
        replica: Some(name(state, key)),
        spans,
        detail,
    })
}

fn about_quarantine(state: &State, event: &Event, spec: &RunSpec) -> Option<About> {
    let (what, spans, detail) = match event {
        Event::Quarantined { spans } => {
            let detail = "lost too often with who trained them";
            ("quarantined", spans.clone(), detail)
        }
        Event::LetOut { windows } => {
            let space = spec.space(state.epoch);
            let positions = windows.iter().filter_map(|w| space.position_of(*w));
            let spans = positions.map(|at| Span::new(at.0, at.0 + 1)).collect();
            ("let out", spans, "of quarantine")
        }
        _ => return None,
    };
    Some(About {
        what,
        replica: None,
        spans,
        detail: detail.to_owned(),
    })
}

fn common(a: Span, b: Span) -> Option<Span> {
    let both = Span {
        start: a.start.max(b.start),
        end: a.end.min(b.end),
    };
    (!both.is_empty()).then_some(both)
}

fn pairs(spans: &[Span]) -> Vec<(u64, u64)> {
    spans
        .iter()
        .map(|span| (span.start.0, span.end.0))
        .collect()
}

fn name(state: &State, key: ReplicaKey) -> String {
    let replica = state.replica(key);
    replica.map_or_else(String::new, |replica| replica.id.to_string())
}

/// Enough of a hash to recognise it.
fn short(id: Hash) -> String {
    id.to_string().chars().take(12).collect()
}
