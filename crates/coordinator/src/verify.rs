//! `hansa ledger verify`: what a journal claims, proved from its first record on.
//!
//! Two independent accounts: the protocol's own state, whose invariants are checked after every
//! record, and a second book that only looks at announcements, close records and publications, and
//! counts what was committed twice or never. Reads only; a coordinator may be running beside it.

use std::collections::BTreeMap;
use std::path::Path;

use hansa_base::{ContributionNo, Hash, Windows};
use hansa_protocol::{Event, Ownership, RoundPhase, RunSpec, Span, State, check_invariants};
use hansa_store::{Journal, Seq, Snapshot};
use hansa_wire::journal::decode_snapshot;
use serde::Serialize;

use crate::error::Error;
use crate::replay::{Replayed, is_other_version, shown};

/// What `ledger verify` found.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// The run's name.
    pub run: String,
    /// The run's identity.
    pub run_id: String,
    /// Records read.
    pub records: u64,
    /// The hash that stands for all of them.
    pub chain: String,
    /// The current generation.
    pub generation: u64,
    /// The running pass over the corpus, from 0.
    pub epoch: u32,
    /// Windows of one epoch.
    pub windows: u64,
    /// Windows committed, over all epochs.
    pub committed: u64,
    /// Windows that belong to the weights and are not in them: positions of a finished epoch neither
    /// committed nor quarantined, and positions in no state at all.
    pub lost: u64,
    /// Windows that are in the weights twice.
    pub doubled: u64,
    /// True once the run is over.
    pub ended: bool,
    /// Who had how much, by site in order of names.
    pub sites: Vec<SiteShare>,
    /// Everything that is wrong, in order; empty for a good journal.
    pub violations: Vec<String>,
}

/// What the replicas of one site had, in windows, over all epochs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SiteShare {
    /// The site.
    pub site: String,
    /// Names that registered from it.
    pub replicas: u64,
    /// Leased to them.
    pub granted: u64,
    /// Of them in the published weights.
    pub committed: u64,
    /// Lost with them.
    pub reclaimed: u64,
    /// Of what was lost, theirs again as nobody else had begun with it.
    pub revived: u64,
    /// Taken over by others while it was leased to them.
    pub stolen: u64,
    /// Given back by them.
    pub released: u64,
    /// Contributions of theirs that were refused after they were announced.
    pub refused: u64,
}

fn sites(state: &State) -> Vec<SiteShare> {
    let mut sites: BTreeMap<String, SiteShare> = BTreeMap::new();
    for replica in &state.replicas {
        let name = replica.id.site.to_string();
        let site = sites.entry(name.clone()).or_default();
        site.site = name;
        site.replicas += 1;
        site.granted += replica.tally.granted.0;
        site.committed += replica.tally.committed.0;
        site.reclaimed += replica.tally.reclaimed.0;
        site.revived += replica.tally.revived.0;
        site.stolen += replica.tally.stolen.0;
        site.released += replica.tally.released.0;
        site.refused += u64::from(replica.tally.refused);
    }
    sites.into_values().collect()
}

impl VerifyReport {
    /// Nothing lost, nothing doubled, nothing wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.violations.is_empty()
    }
}

/// Replays a data directory's journal, or one given by its file, and checks everything.
///
/// # Errors
/// If there is no journal, it is of another version, or its first record cannot be used. What is wrong
/// further on is in the report.
pub fn verify_journal(path: &Path) -> Result<VerifyReport, Error> {
    let journal = open(path)?;
    let Some(mut replayed) = Replayed::first(&journal)? else {
        return Err(Error::Misplaced(Seq(0)));
    };
    let mut book = Book::default();
    let mut violations = Vec::new();
    let checked = check_records(&journal, &mut replayed, &mut book);
    if let Err(error) = checked {
        if is_other_version(&error) {
            return Err(error);
        }
        violations.push(error.to_string());
    }
    book.check_end(&replayed.spec, &replayed.state);
    book.compare(&replayed.state, &mut violations);
    let state = &replayed.state;
    Ok(VerifyReport {
        run: replayed.recipe.name.clone(),
        run_id: replayed.spec.run.to_string(),
        records: replayed.seq.0,
        chain: journal.chain().to_string(),
        generation: state.current.generation.0,
        epoch: state.epoch.0,
        windows: replayed.spec.digest.windows.0,
        committed: book.committed,
        lost: book.lost,
        doubled: book.doubled,
        ended: state.ended,
        sites: sites(state),
        violations,
    })
}

/// The state that a data directory's journal stands for, for `hansa ledger show`.
///
/// # Errors
/// If there is no journal, or a record of it cannot be used.
pub fn replay_journal(path: &Path) -> Result<Replayed, Error> {
    Replayed::load(&open(path)?)?.ok_or(Error::Misplaced(Seq(0)))
}

pub(crate) fn open(path: &Path) -> Result<Journal, Error> {
    let file = if path.is_dir() {
        hansa_store::DataDir::journal_path(path)
    } else {
        path.to_owned()
    };
    Ok(Journal::open_read_only(&file)?)
}

fn check_records(journal: &Journal, replayed: &mut Replayed, book: &mut Book) -> Result<(), Error> {
    let expected: Hash = replayed.spec.run;
    if journal.identity() != expected.0 {
        return Err(Error::Misplaced(Seq(1)));
    }
    let windows = replayed.spec.digest.windows;
    let snapshot = journal.latest_snapshot()?;
    for record in journal.read_from(Seq(2))? {
        let record = record?;
        let seq = record.seq;
        replayed.apply(&record, |state, event| book.enter(windows, state, event))?;
        check_invariants(&replayed.spec, &replayed.state).map_err(|source| Error::Invariant {
            seq,
            record: shown(&record.record.payload),
            source,
        })?;
        let generation = replayed.state.current.generation;
        let files = replayed.files.get(&generation);
        let named = files.is_some_and(|files| files.model == replayed.state.current.manifest);
        if !named {
            return Err(Error::NoFiles(generation));
        }
        if let Some(snapshot) = snapshot.as_ref().filter(|snapshot| snapshot.seq == seq) {
            check_snapshot(snapshot, replayed)?;
        }
    }
    Ok(())
}

/// A snapshot must be the state that the records before it give.
fn check_snapshot(snapshot: &Snapshot, replayed: &Replayed) -> Result<(), Error> {
    let seq = snapshot.seq;
    let kept = decode_snapshot(snapshot.version, &snapshot.bytes)
        .map_err(|source| Error::Record { seq, source })?;
    if kept.state == replayed.state && kept.files == replayed.files {
        return Ok(());
    }
    Err(Error::OtherSnapshot(seq))
}

/// The second account: which positions are in the weights, by announcements and publications alone.
#[derive(Default)]
struct Book {
    announced: BTreeMap<ContributionNo, Vec<Span>>,
    /// Start → end of what this epoch committed.
    in_weights: BTreeMap<u64, u64>,
    committed: u64,
    lost: u64,
    doubled: u64,
}

impl Book {
    fn enter(&mut self, windows: Windows, state: &State, event: &Event) {
        match event {
            Event::Announced { no, parts, .. } => {
                self.announced.insert(*no, parts.spans.clone());
            }
            Event::Published { .. } => {
                let RoundPhase::Closed(record) = &state.round.phase else {
                    return;
                };
                for closed in &record.contributions {
                    let spans = self.announced.remove(&closed.no).unwrap_or_default();
                    spans.into_iter().for_each(|span| self.commit(span));
                }
            }
            Event::EpochStarted { .. } => self.finish_epoch(windows, state),
            _ => {}
        }
    }

    fn commit(&mut self, span: Span) {
        let (mut start, mut end) = (span.start.0, span.end.0);
        self.committed += span.len();
        let touching: Vec<(u64, u64)> = self
            .in_weights
            .range(..=end)
            .rev()
            .map(|(&start, &end)| (start, end))
            .take_while(|&(_, known_end)| known_end >= start)
            .collect();
        for (known_start, known_end) in touching {
            let overlap = known_end
                .min(span.end.0)
                .saturating_sub(known_start.max(span.start.0));
            self.doubled += overlap;
            (start, end) = (start.min(known_start), end.max(known_end));
            self.in_weights.remove(&known_start);
        }
        self.in_weights.insert(start, end);
    }

    fn finish_epoch(&mut self, windows: Windows, state: &State) {
        let there: u64 = self.in_weights.iter().map(|(start, end)| end - start).sum();
        let quarantined = state.ledger.counts().quarantined.0;
        self.lost += windows.0.saturating_sub(there + quarantined);
        self.in_weights.clear();
    }

    /// A run that ended by epochs has finished its last one, too; in any other, positions may be
    /// open, but none may be nowhere.
    fn check_end(&mut self, spec: &RunSpec, state: &State) {
        let total = spec.digest.windows;
        if state.ended && matches!(spec.end, hansa_protocol::End::Epochs(_)) {
            self.finish_epoch(total, state);
        }
        self.lost += total.0.saturating_sub(state.ledger.counts().total().0);
    }

    /// Both accounts must agree on what is committed.
    fn compare(&self, state: &State, violations: &mut Vec<String>) {
        let (ours, theirs) = (self.committed, state.committed().0);
        if ours != theirs {
            violations.push(format!(
                "the contributions hold {ours} windows, the ledger has {theirs} committed"
            ));
        }
        let committed = state
            .ledger
            .intervals()
            .filter(|(_, ownership)| matches!(ownership, Ownership::Committed(..)));
        let mut ledger: Vec<Span> = Vec::new();
        committed.for_each(|(span, _)| Span::push_joined(&mut ledger, span));
        let book: Vec<Span> = self
            .in_weights
            .iter()
            .map(|(&start, &end)| Span::new(start, end))
            .collect();
        let finished = self.in_weights.is_empty();
        if book != ledger && !finished {
            violations
                .push("contributions and ledger name other positions as committed".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(spans: &[(u64, u64)]) -> Book {
        let mut book = Book::default();
        for &(start, end) in spans {
            book.commit(Span::new(start, end));
        }
        book
    }

    #[test]
    fn what_is_committed_twice_is_counted_once_for_each_window() {
        assert_eq!(book(&[(0, 4), (8, 12), (4, 8)]).doubled, 0);
        assert_eq!(
            book(&[(0, 4), (8, 12), (4, 8)]).in_weights,
            BTreeMap::from([(0, 12)])
        );
        assert_eq!(book(&[(0, 4), (0, 4)]).doubled, 4);
        assert_eq!(book(&[(0, 4), (8, 12), (2, 10)]).doubled, 4);
        assert_eq!(book(&[(4, 6), (0, 10)]).doubled, 2);
        assert_eq!(book(&[(0, 10), (4, 6)]).doubled, 2);
    }
}
