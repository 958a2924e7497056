//! What is looked up at every call, derived from the state: names, who is awaited, what a
//! contribution's id stands for, and sums over the members of the round.
//!
//! [`State::apply`] keeps it up to date for whom an event names, so that no call walks over all
//! replicas. Nothing is decided by it that the state does not say: it is rebuilt where a state is
//! loaded, is no part of any format, and [`crate::check_invariants`] compares it with one that is made
//! afresh.

use crate::phase::{Crowd, Member, Slowness};
use crate::state::{Presence, Replica, State};
use crate::{Contribution, Event, Stage};
use hansa_base::{ContributionNo, Generation, Hash, ReplicaId, ReplicaKey};
use std::collections::{BTreeMap, BTreeSet};

/// Derived from a [`State`], and no part of what it says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    names: BTreeMap<ReplicaId, ReplicaKey>,
    live: BTreeSet<ReplicaKey>,
    awaited: BTreeSet<ReplicaKey>,
    members: BTreeMap<ReplicaKey, Member>,
    /// The measured members, the slowest last.
    by_slowness: BTreeSet<(Slowness, ReplicaKey)>,
    /// The measured members, the longest exchange last.
    by_exchange: BTreeSet<(u64, ReplicaKey)>,
    sums: Crowd,
    decided: BTreeSet<(Hash, ReplicaKey)>,
    ids: BTreeSet<(Hash, ContributionNo)>,
    announced: BTreeSet<(ReplicaKey, ContributionNo)>,
    // As they were entered, to take them out again.
    verdicts: BTreeMap<ReplicaKey, Hash>,
    contributions: BTreeMap<ContributionNo, (ReplicaKey, Hash, Stage)>,
}

/// What an event may change that is indexed.
pub(crate) enum Touched {
    Nothing,
    Replica(ReplicaKey),
    Contribution(ContributionNo),
    Everything,
}

impl Index {
    fn of(state: &State) -> Self {
        let mut index = Self::default();
        index.enter_all(state);
        index
    }

    fn enter_all(&mut self, state: &State) {
        for (key, replica) in (0..).map(ReplicaKey).zip(&state.replicas) {
            self.enter_replica(state.round.base, key, replica);
        }
        let gone = self.contributions.keys().copied();
        let all: BTreeSet<_> = gone.chain(state.contributions.keys().copied()).collect();
        for no in all {
            self.enter_contribution(no, state.contributions.get(&no));
        }
    }

    fn enter_replica(&mut self, base: Generation, key: ReplicaKey, replica: &Replica) {
        if !self.names.contains_key(&replica.id) {
            self.names.insert(replica.id.clone(), key);
        }
        let live = replica.presence == Presence::Live;
        let planned = live && replica.plan.is_some_and(|plan| plan.generation == base);
        let contributed = live && replica.contributed == Some(base);
        set(&mut self.live, key, live);
        set(&mut self.awaited, key, planned && !contributed);
        let member = Member {
            key,
            ranks: replica.ranks,
            pace: replica.pace,
        };
        self.enter_member(key, (planned || contributed).then_some(member));
        let verdict = replica.decided.as_ref().map(|(id, _)| *id);
        if let Some(old) = self.verdicts.get(&key).filter(|old| Some(**old) != verdict) {
            self.decided.remove(&(*old, key));
            self.verdicts.remove(&key);
        }
        if let Some(id) = verdict {
            self.decided.insert((id, key));
            self.verdicts.insert(key, id);
        }
    }

    fn enter_member(&mut self, key: ReplicaKey, member: Option<Member>) {
        if self.members.get(&key) == member.as_ref() {
            return;
        }
        if let Some(old) = self.members.remove(&key) {
            self.sums.subtract(&old);
            if let Some(pace) = old.pace {
                self.by_slowness.remove(&(Slowness::of(&old, &pace), key));
                self.by_exchange.remove(&(pace.exchange_ms, key));
            }
        }
        if let Some(new) = member {
            self.sums.add(&new);
            if let Some(pace) = new.pace {
                self.by_slowness.insert((Slowness::of(&new, &pace), key));
                self.by_exchange.insert((pace.exchange_ms, key));
            }
            self.members.insert(key, new);
        }
        self.sums.slowest = self.by_slowness.last().map(|(slowness, _)| *slowness);
        self.sums.exchange_ms = self.by_exchange.last().map_or(0, |(ms, _)| *ms);
    }

    fn enter_contribution(&mut self, no: ContributionNo, contribution: Option<&Contribution>) {
        if let Some((key, id, _)) = self.contributions.remove(&no) {
            self.ids.remove(&(id, no));
            self.announced.remove(&(key, no));
        }
        let Some(contribution) = contribution else {
            return;
        };
        let (key, id, stage) = (contribution.key, contribution.id, contribution.stage);
        self.contributions.insert(no, (key, id, stage));
        self.ids.insert((id, no));
        set(&mut self.announced, (key, no), stage == Stage::Announced);
    }
}

impl State {
    /// What an event may change that is indexed; asked before it is applied.
    pub(crate) fn touched(&self, event: &Event) -> Touched {
        match event {
            Event::Registered { key, .. }
            | Event::Left { key, .. }
            | Event::Planned { key, .. }
            | Event::Excused { key, .. }
            | Event::Revived { key, .. }
            | Event::Timed { key, .. } => Touched::Replica(*key),
            Event::Freed { lease, .. } => {
                let lease = self.leases.get(lease);
                lease.map_or(Touched::Nothing, |lease| Touched::Replica(lease.key))
            }
            Event::Announced { no, .. } | Event::Refused { no, .. } | Event::Staged { no, .. } => {
                Touched::Contribution(*no)
            }
            // A resumed run forgets verdicts.
            Event::Published { .. } | Event::Resumed { .. } => Touched::Everything,
            // Neither presence nor plan, pace, verdict or contribution.
            Event::Granted { .. }
            | Event::Marked { .. }
            // A victim's plan gets shorter, and stays one.
            | Event::Stolen(_)
            | Event::Absolved { .. }
            | Event::Quarantined { .. }
            | Event::LetOut { .. }
            | Event::Closed(_)
            | Event::EvaluationAsked { .. }
            | Event::EvaluationLost { .. }
            | Event::Evaluated { .. }
            | Event::EpochStarted { .. }
            | Event::Restored { .. }
            | Event::Paused(_)
            | Event::RefusedAgain { .. }
            | Event::Drained { .. }
            | Event::DrainEnds { .. }
            | Event::Undrained { .. }
            | Event::Evicted { .. }
            | Event::Readmitted { .. }
            | Event::Stopping { .. }
            | Event::Ending(_)
            | Event::Ended => Touched::Nothing,
        }
    }

    /// Brings the index up to date.
    pub(crate) fn note(&mut self, touched: &Touched) {
        let mut index = std::mem::take(&mut self.index);
        match touched {
            Touched::Nothing => {}
            Touched::Replica(key) => self.note_replica(&mut index, *key),
            Touched::Contribution(no) => {
                let before = index.contributions.get(no).map(|known| known.0);
                let now = self.contributions.get(no);
                index.enter_contribution(*no, now);
                if let Some(key) = before.or_else(|| now.map(|contribution| contribution.key)) {
                    self.note_replica(&mut index, key);
                }
            }
            Touched::Everything => index.enter_all(self),
        }
        self.index = index;
    }

    fn note_replica(&self, index: &mut Index, key: ReplicaKey) {
        if let Some(replica) = self.replica(key) {
            index.enter_replica(self.round.base, key, replica);
        }
    }

    /// Makes the index afresh: for a state that was put together from its parts.
    pub fn reindex(&mut self) {
        self.index = Index::of(self);
    }

    /// True if the index says what the state says.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.index == Index::of(self)
    }

    /// A replica by name.
    #[must_use]
    pub fn find(&self, id: &ReplicaId) -> Option<(ReplicaKey, &Replica)> {
        let key = *self.index.names.get(id)?;
        Some((key, self.replica(key)?))
    }

    /// Live replicas.
    pub fn live(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.keyed(&self.index.live)
    }

    /// Members of the open round that have not contributed yet.
    pub fn awaited(&self) -> impl Iterator<Item = (ReplicaKey, &Replica)> {
        self.keyed(&self.index.awaited)
    }

    /// How many [`Self::awaited`] gives.
    #[must_use]
    pub fn awaited_count(&self) -> usize {
        self.index.awaited.len()
    }

    fn keyed<'a>(
        &'a self,
        keys: &'a BTreeSet<ReplicaKey>,
    ) -> impl Iterator<Item = (ReplicaKey, &'a Replica)> {
        keys.iter()
            .filter_map(|key| Some((*key, self.replica(*key)?)))
    }

    /// The contribution of a replica to the open round that is not staged yet.
    #[must_use]
    pub fn announced_by(&self, key: ReplicaKey) -> Option<(ContributionNo, &Contribution)> {
        let own = (key, ContributionNo(0))..=(key, ContributionNo(u64::MAX));
        let (_, no) = *self.index.announced.range(own).next()?;
        Some((no, self.contributions.get(&no)?))
    }

    /// True if a contribution to the open round is announced and not staged yet.
    #[must_use]
    pub fn is_uploading(&self) -> bool {
        !self.index.announced.is_empty()
    }

    /// A contribution of the open round by its id.
    #[must_use]
    pub fn contribution(&self, id: Hash) -> Option<(ContributionNo, &Contribution)> {
        let like = (id, ContributionNo(0))..=(id, ContributionNo(u64::MAX));
        let (_, no) = *self.index.ids.range(like).next()?;
        Some((no, self.contributions.get(&no)?))
    }

    /// Whose last decided contribution has this id.
    pub(crate) fn decided(&self, id: Hash) -> Option<&Replica> {
        let like = (id, ReplicaKey(0))..=(id, ReplicaKey(u32::MAX));
        let (_, key) = *self.index.decided.range(like).next()?;
        self.replica(key)
    }

    /// Live members of the open round, with those that have contributed.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> + Clone {
        self.index.members.values()
    }

    pub(crate) fn is_member(&self, key: ReplicaKey) -> bool {
        self.index.members.contains_key(&key)
    }

    /// All [`Self::members`] together.
    pub(crate) const fn crowd(&self) -> Crowd {
        self.index.sums
    }
}

fn set<T: Ord>(keys: &mut BTreeSet<T>, key: T, is_in: bool) {
    if is_in {
        keys.insert(key);
    } else {
        keys.remove(&key);
    }
}
