//! Which states are the same: those from which the same can happen.
//!
//! Numbers and tokens that are only ever compared with one another are counted in the order in which
//! they appear; times are distances from now; tallies and the history of rounds, which decide nothing,
//! are left out (the invariants over them are checked before a state is forgotten).

use crate::process::{Disk, Doing, Process, Saved, Work};
use crate::world::World;
use hansa_base::{Hash, LeaseId};
use hansa_protocol::{
    Caller, Command, ContributionParts, LeaseView, Ownership, Presence, RefusedBecause, Replica,
    Span, Verdict,
};
use std::hash::{Hash as Hashes, Hasher};

/// Numbers in order of appearance.
struct Names<'a, H> {
    world: &'a World,
    hasher: &'a mut H,
    seen: Vec<Hash>,
    /// Contributions that somebody may yet ask about.
    asked: Vec<Hash>,
}

impl Hashes for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let mut names = Names {
            world: self,
            hasher,
            seen: Vec::new(),
            asked: asked(self),
        };
        names.state();
        names.volatile();
        names.processes();
        names.late();
    }
}

impl<H: Hasher> Names<'_, H> {
    fn put(&mut self, value: impl Hashes) {
        value.hash(self.hasher);
    }

    fn token(&mut self, token: Hash) {
        let known = self.seen.iter().position(|seen| *seen == token);
        let number = known.unwrap_or_else(|| {
            self.seen.push(token);
            self.seen.len() - 1
        });
        self.put(number as u8);
    }

    fn maybe(&mut self, token: Option<Hash>) {
        self.put(token.is_some());
        if let Some(token) = token {
            self.token(token);
        }
    }

    /// Leases that are over are all alike: no other will have their number.
    fn lease(&mut self, id: LeaseId) {
        let live = self.world.twin.leases.keys().position(|live| *live == id);
        self.put(live.map_or(u8::MAX, |n| n as u8));
    }

    fn spans(&mut self, spans: &[Span]) {
        self.put(spans.len() as u8);
        for span in spans {
            self.put((span.start.0 as u8, span.end.0 as u8));
        }
    }

    fn state(&mut self) {
        let world = self.world;
        let twin = &world.twin;
        self.put((world.faults, &world.broken, &world.weights));
        self.put((twin.current.generation.0, twin.ended, twin.ending.is_some()));
        for (span, ownership) in twin.ledger.intervals() {
            self.put(span.end.0 as u8);
            match ownership {
                Ownership::Free => self.put(0u8),
                Ownership::Leased(id) => {
                    self.put(1u8);
                    self.lease(id);
                }
                Ownership::Staged(no) => {
                    let number = twin.contributions.keys().position(|known| *known == no);
                    self.put((2u8, number));
                }
                Ownership::Committed(..) => self.put(3u8),
                Ownership::Quarantined => self.put(4u8),
            }
        }
        for (start, attempt) in &twin.attempts {
            let lost_with: Vec<u32> = attempt.lost_with.iter().map(|key| key.0).collect();
            self.put((start.0, attempt.end.0, lost_with, attempt.together.0));
        }
        for lease in twin.leases.values() {
            self.put((lease.key.0, lease.front.0, lease.mark.0));
            self.spans(&lease.spans);
        }
        for contribution in twin.contributions.values() {
            self.put((
                contribution.key.0,
                contribution.id.0,
                contribution.stage as u8,
            ));
        }
        self.put(twin.round.staged.len());
        self.put(world.machine.merge_due().is_some());
        twin.replicas
            .iter()
            .for_each(|replica| self.replica(replica));
        for contribution in twin.contributions.values() {
            self.put(world.payloads.get(&contribution.parts.payload));
        }
    }

    fn replica(&mut self, replica: &Replica) {
        let base = self.world.twin.round.base;
        self.token(replica.nonce);
        self.maybe(replica.presented);
        self.token(replica.token);
        self.put(replica.presence == Presence::Live);
        self.put(replica.contributed == Some(base));
        let plan = replica.plan.filter(|plan| plan.generation == base);
        self.put(plan.map(|plan| plan.windows.0));
        // Only an incarnation that is heard of after all gets back what it lost.
        self.put(replica.lost.is_some());
        if let Some(lost) = &replica.lost {
            self.put((lost.lease.front.0, lost.lease.mark.0, lost.at_risk.0));
            self.put(
                lost.plan
                    .map(|plan| (plan.generation == base, plan.windows.0)),
            );
            self.spans(&lost.lease.spans);
        }
        // A verdict that nobody can ask for any more is as good as forgotten.
        let asked = |(id, _): &&(Hash, Verdict)| self.asked.contains(id);
        let decided = replica.decided.as_ref().filter(asked);
        self.put(decided.map(|(id, verdict)| (id.0, verdict_code(verdict))));
    }

    fn volatile(&mut self) {
        let volatile = self.world.machine.volatile(self.world.now);
        self.put((&volatile.work, &volatile.uploads.len()));
        volatile.uploads.iter().for_each(|(_, left)| self.put(left));
        self.put((&volatile.sessions, &volatile.grace, &volatile.started));
        for id in &volatile.reported {
            self.lease(*id);
        }
        // Only a counter that stands still can be met again.
        let still = |(_, _, counter): &&(_, _, u64)| *counter == 0;
        for (key, activity, _) in volatile.reports.iter().filter(still) {
            self.put((key.0, activity));
        }
    }

    fn processes(&mut self) {
        for name in &self.world.names {
            self.put(name.idle.is_some());
            if let Some(disk) = &name.idle {
                self.disk(disk);
            }
            for process in [&name.current, &name.zombie] {
                self.put(process.is_some());
                if let Some(process) = process {
                    self.process(process);
                }
            }
        }
    }

    fn disk(&mut self, disk: &Disk) {
        self.maybe(disk.token);
        self.maybe(disk.nonce);
        // To start from the older one is a fault.
        let older = disk.older.as_ref().filter(|_| self.world.faults > 0);
        for saved in [disk.newest.as_ref(), older] {
            let saved = saved.filter(|saved| self.is_of_use(&saved.work));
            self.put(saved.is_some());
            if let Some(Saved { work, weights }) = saved {
                self.work(work);
                self.put(weights);
            }
        }
    }

    /// Only a contribution, or the start of a phase that goes on, is.
    fn is_of_use(&self, work: &Work) -> bool {
        let twin = &self.world.twin;
        let goes_on = work.base.generation == twin.current.generation
            && twin
                .leases
                .get(&work.lease)
                .is_some_and(|lease| lease.front == work.front);
        work.contribution.is_some() || goes_on
    }

    fn work(&mut self, work: &Work) {
        self.put((work.base.generation.0, work.front.0, work.trained.0));
        self.lease(work.lease);
        self.put(work.contribution.as_ref().map(|parts| parts.id().0));
    }

    fn process(&mut self, process: &Process) {
        self.maybe(process.disk.token);
        self.maybe(process.disk.nonce);
        // Without another fault only a process that has just started reads checkpoints.
        if self.world.faults > 0 || process.doing == Doing::Registering {
            self.disk(&process.disk);
        }
        self.put((process.doing, process.leaves, process.caller.is_some()));
        if let Some(caller) = &process.caller {
            self.caller(caller);
        }
        let now = self.world.twin.current.generation;
        if let (Some(lease), Doing::Training) = (&process.lease, process.doing) {
            self.view(lease);
            let plan = process.plan.filter(|plan| plan.generation == now);
            self.put(plan.map(|plan| plan.windows.0));
        }
        match &process.work {
            Some(work) => {
                self.put((true, &process.weights));
                self.work(work);
            }
            None => {
                let current = process.base.filter(|(base, _)| base.generation == now);
                self.put((false, current.map(|(_, clean)| clean)));
            }
        }
    }

    /// One that is fenced stays so.
    fn caller(&mut self, caller: &Caller) {
        let known = self.world.twin.find(&caller.replica);
        let (key, latest) = known.map_or((u32::MAX, false), |(key, replica)| {
            (key.0, replica.incarnation == caller.incarnation)
        });
        self.put((key, latest));
    }

    fn view(&mut self, lease: &LeaseView) {
        self.lease(lease.id);
        self.put((lease.front.0, lease.mark.0));
        self.spans(&lease.spans);
        let live = self.world.twin.leases.get(&lease.id);
        self.put(live.map(|live| live.seq - lease.seq));
    }

    fn late(&mut self) {
        let world = self.world;
        self.put(world.late.len());
        for command in &world.late {
            match command {
                Command::Register(register) => {
                    self.put((0u8, register.replica.to_string()));
                    self.token(register.nonce);
                    self.maybe(register.resume);
                }
                Command::Lease(request) => {
                    self.put((1u8, request.base.0));
                    self.caller(&request.caller);
                }
                Command::Heartbeat(heartbeat) => {
                    let progress = heartbeat.progress;
                    self.put((2u8, progress.activity));
                    self.put(heartbeat.at.map(|(_, cursor)| cursor.0));
                    heartbeat.at.iter().for_each(|(id, _)| self.lease(*id));
                    self.caller(&heartbeat.caller);
                }
                Command::Announce(announce) => {
                    self.put((3u8, announce.parts.id().0));
                    self.caller(&announce.caller);
                }
                Command::UploadComplete { id, found } => self.put((4u8, id.0, found.is_err())),
                Command::Goodbye(goodbye) => {
                    self.put((5u8, goodbye.not_finite));
                    self.caller(&goodbye.caller);
                }
                other => self.put((6u8, format!("{other:?}"))),
            }
        }
    }
}

/// Ids of contributions of which a process, a checkpoint or a late message knows.
fn asked(world: &World) -> Vec<Hash> {
    let mut asked = Vec::new();
    let mut of_work = |work: Option<&Work>| {
        let parts = work.and_then(|work| work.contribution.as_ref());
        asked.extend(parts.map(ContributionParts::id));
    };
    for name in &world.names {
        let processes = [&name.current, &name.zombie].into_iter().flatten();
        let disks = processes.clone().map(|process| &process.disk);
        for disk in disks.chain(&name.idle) {
            of_work(disk.newest.as_ref().map(|saved| &saved.work));
            of_work(disk.older.as_ref().map(|saved| &saved.work));
        }
        processes.for_each(|process| of_work(process.work.as_ref()));
    }
    for command in &world.late {
        match command {
            Command::Announce(announce) => asked.push(announce.parts.id()),
            Command::UploadComplete { id, .. } => asked.push(*id),
            _ => {}
        }
    }
    asked
}

fn verdict_code(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Upload => 0,
        Verdict::Staged => 1,
        Verdict::Merged(_) => 2,
        Verdict::Refused(RefusedBecause::Gate) => 3,
        Verdict::Refused(_) => 4,
    }
}

impl PartialEq for World {
    /// The same can happen from both.
    fn eq(&self, other: &Self) -> bool {
        let print = |world: &Self| {
            let mut hasher = std::hash::DefaultHasher::new();
            world.hash(&mut hasher);
            hasher.finish()
        };
        print(self) == print(other)
    }
}
