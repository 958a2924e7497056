//! An abstract replica: whatever one that keeps its law may do.

use crate::Mutation;
use crate::world::{Which, World, hash};
use hansa_base::{Bytes, Hash, LeaseId, Steps, Windows};
use hansa_protocol::{
    Caller, ContributionParts, GenerationInfo, LeaseAnswer, LeaseView, Plan, Refusal, Registered,
    Reply, Span, Standing, Verdict,
};

/// What survives a process.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub token: Option<Hash>,
    pub nonce: Option<Hash>,
    pub newest: Option<Saved>,
    pub older: Option<Saved>,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    pub work: Work,
    pub weights: Vec<u64>,
}

/// What the replica says that its weights are: `base` and training on `[front, front + trained)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub base: GenerationInfo,
    pub lease: LeaseId,
    pub front: Windows,
    pub trained: Windows,
    pub contribution: Option<ContributionParts>,
}

/// The call that a process has to make next, or its training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    Registering,
    Asking,
    Training,
    Announcing,
    Uploading,
    Leaving,
}

#[derive(Clone, Debug)]
pub struct Process {
    pub disk: Disk,
    pub doing: Doing,
    pub caller: Option<Caller>,
    pub lease: Option<LeaseView>,
    pub plan: Option<Plan>,
    /// The generation that the weights come from, and whether they are exactly that.
    pub base: Option<(GenerationInfo, bool)>,
    pub work: Option<Work>,
    /// Positions that the weights have beyond their base: the truth.
    pub weights: Vec<u64>,
    /// It was asked to stop.
    pub leaves: bool,
}

impl Process {
    /// A process on a disk. What its checkpoint says is believed once it is registered.
    pub fn on(disk: Disk) -> Self {
        let work = disk.newest.as_ref().map(|saved| saved.work.clone());
        Self {
            disk,
            doing: Doing::Registering,
            caller: None,
            lease: None,
            plan: None,
            base: None,
            work,
            weights: Vec::new(),
            leaves: false,
        }
    }

    pub fn calls(&self) -> bool {
        self.doing != Doing::Training
    }

    pub fn uploads(&self) -> bool {
        self.doing == Doing::Uploading
    }

    fn trained(&self) -> Windows {
        self.work.as_ref().map_or(Windows(0), |work| work.trained)
    }

    /// How much of the lease may be trained in this phase.
    fn allowed(&self, mutation: Option<Mutation>) -> Windows {
        let (Some(lease), Some(plan)) = (&self.lease, self.plan) else {
            return Windows(0);
        };
        let more = u64::from(mutation == Some(Mutation::TrainsBeyondTheMark));
        Windows(plan.windows.min(lease.reserved()).0 + more)
    }

    pub fn may_step(&self, mutation: Option<Mutation>) -> bool {
        let more = self.trained() < self.allowed(mutation);
        self.doing == Doing::Training && more && !self.leaves
    }

    pub fn may_finish(&self, mutation: Option<Mutation>) -> bool {
        let (Some(lease), Some(plan)) = (&self.lease, self.plan) else {
            return self.doing == Doing::Training;
        };
        // At its mark it waits until more is reserved.
        let all = self.trained() >= plan.windows.min(lease.left());
        self.doing == Doing::Training && !self.may_step(mutation) && (all || self.leaves)
    }

    pub fn may_save(&self) -> bool {
        let new = self.disk.newest.as_ref().map(|saved| &saved.work) != self.work.as_ref();
        self.doing == Doing::Training && self.trained() > Windows(0) && new
    }

    pub fn save(&mut self) {
        let Some(work) = self.work.clone() else {
            return;
        };
        self.disk.older = self.disk.newest.take();
        let weights = self.weights.clone();
        self.disk.newest = Some(Saved { work, weights });
    }

    pub fn step(&mut self) {
        let (Some(work), Some(lease)) = (&mut self.work, &self.lease) else {
            return;
        };
        let (head, rest) = Span::split(&lease.spans, work.trained);
        let next = rest.first().map(|span| span.start.0);
        // One that trains too much takes what comes next.
        let beyond = || head.last().map_or(0, |span| span.end.0);
        work.trained += Windows(1);
        self.weights.push(next.unwrap_or_else(beyond));
    }

    /// Encodes, and writes the checkpoint that names the contribution, before it is announced.
    pub fn finish(&mut self, spec_tokens: impl Fn(Windows) -> hansa_base::Tokens) {
        let (Some(work), Some(lease)) = (&mut self.work, &self.lease) else {
            return self.ask();
        };
        if work.trained == Windows(0) {
            (self.work, self.base) = (None, self.base.map(|(base, _)| (base, true)));
            return self.ask();
        }
        work.contribution = Some(ContributionParts {
            generation: work.base.generation,
            base: work.base.manifest,
            spans: Span::split(&lease.spans, work.trained).0,
            tokens: spec_tokens(work.trained),
            steps: Steps(work.trained.0),
            payload: payload(&work.base.manifest, &self.weights),
            bytes: Bytes(1),
        });
        self.save();
        self.doing = Doing::Announcing;
    }

    pub fn parts(&self) -> Option<&ContributionParts> {
        self.work.as_ref()?.contribution.as_ref()
    }

    pub fn ask(&mut self) {
        self.doing = match self.leaves {
            true => Doing::Leaving,
            false => Doing::Asking,
        };
    }

    /// What was trained is of no use: the weights are no generation's.
    pub fn void(&mut self) {
        if let Some(work) = self.work.take() {
            self.base = Some((work.base, false));
        }
    }

    fn load(&mut self, generation: GenerationInfo) {
        (self.base, self.work) = (Some((generation, true)), None);
        self.weights.clear();
        self.ask();
    }

    /// The law: the weights are of the current generation and of the front of the own live lease.
    fn keeps_law(work: &Work, lease: Option<&LeaseView>, current: &GenerationInfo) -> bool {
        let same = lease.is_some_and(|l| (l.id, l.front) == (work.lease, work.front));
        same && work.base.manifest == current.manifest
    }

    pub fn registered(&mut self, run: Hash, name: &hansa_base::ReplicaId, answer: Registered) {
        self.disk.token = Some(answer.token);
        self.disk.nonce = None;
        let again = !self.weights.is_empty();
        self.caller = Some(answer.caller(run, name.clone()));
        self.lease = answer.lease;
        let Some(work) = &self.work else {
            return self.ask();
        };
        if work.contribution.is_some() {
            self.doing = Doing::Announcing;
            return;
        }
        // One that registers again has lost its lease.
        if again || !Self::keeps_law(work, self.lease.as_ref(), &answer.current) {
            self.void();
            return self.ask();
        }
        let saved = self.disk.newest.clone();
        self.weights = saved.map(|saved| saved.weights).unwrap_or_default();
        self.ask();
        if self.leaves {
            self.doing = Doing::Training;
        }
    }

    /// An answer to a lease request; false if the process ends.
    pub fn told(&mut self, answer: LeaseAnswer, mutation: Option<Mutation>) -> bool {
        match answer {
            LeaseAnswer::Train(grant) => {
                let broken = |work: &Work| !Self::keeps_law(work, Some(&grant.lease), &grant.base);
                if self.work.as_ref().is_some_and(broken) {
                    self.void();
                }
                self.lease = Some(grant.lease);
                self.plan = Some(grant.plan);
                let keeps = mutation == Some(Mutation::KeepsStaleWeights);
                match (&self.work, self.base) {
                    (Some(_), _) => self.doing = Doing::Training,
                    (None, Some((base, clean))) if base == grant.base && (clean || keeps) => {
                        self.start_work(base);
                    }
                    _ => self.load(grant.base),
                }
            }
            LeaseAnswer::Adopt(generation) => {
                self.void();
                self.load(generation);
            }
            LeaseAnswer::Finish(_) => self.doing = Doing::Leaving,
            LeaseAnswer::Evaluate(_) | LeaseAnswer::Leave(_) => return false,
            LeaseAnswer::Wait(_) => {}
        }
        true
    }

    fn start_work(&mut self, base: GenerationInfo) {
        let Some(lease) = &self.lease else { return };
        self.work = Some(Work {
            base,
            lease: lease.id,
            front: lease.front,
            trained: Windows(0),
            contribution: None,
        });
        self.doing = Doing::Training;
    }

    pub fn stand(&mut self, standing: Standing) {
        let (Doing::Training, Some(work)) = (self.doing, &self.work) else {
            return;
        };
        let over = standing.merging || standing.ending.is_some();
        if over || !Self::keeps_law(work, standing.lease.as_ref(), &standing.current) {
            self.void();
            return self.ask();
        }
        let newer = |held: &LeaseView, new: &LeaseView| new.seq > held.seq;
        if let (Some(held), Some(new)) = (&self.lease, standing.lease)
            && newer(held, &new)
        {
            self.lease = Some(new);
        }
    }

    pub fn verdict(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Upload => self.doing = Doing::Uploading,
            Verdict::Staged | Verdict::Merged(_) | Verdict::Refused(_) => {
                self.void();
                self.ask();
            }
        }
    }
}

/// Training the same positions from the same base gives the same bytes.
fn payload(base: &Hash, weights: &[u64]) -> Hash {
    let mut sorted = weights.to_vec();
    sorted.sort_unstable();
    let first = u64::from_le_bytes(base.0[..8].try_into().unwrap_or_default());
    let mix = |sum: u64, position: &u64| sum.wrapping_mul(31).wrapping_add(position + 1);
    hash("payload", sorted.iter().fold(first, mix))
}

impl World {
    /// What a process does with an answer.
    pub fn answer(
        &mut self,
        at: (usize, Which),
        answer: Result<Reply, Refusal>,
        m: Option<Mutation>,
    ) {
        let (name, which) = at;
        let id = self.names[name].id.clone();
        let Some(process) = self.process_mut(name, which) else {
            return;
        };
        let stays = match answer {
            Ok(Reply::Registered(registered)) => {
                process.registered(hash("run", 0), &id, registered);
                true
            }
            Ok(Reply::Lease(answer)) => process.told(answer, m),
            Ok(Reply::Standing(standing)) => {
                process.stand(standing);
                true
            }
            Ok(Reply::Verdict(verdict)) => {
                process.verdict(verdict);
                true
            }
            Ok(Reply::Done) => false,
            Err(refusal) => process.refused(&refusal),
        };
        if !stays {
            self.end_process(name, which);
        }
    }
}

impl Process {
    /// False if the process ends.
    fn refused(&mut self, refusal: &Refusal) -> bool {
        match (refusal, self.doing) {
            (Refusal::Busy { .. }, _) => true,
            (_, Doing::Leaving) | (Refusal::Fenced { .. } | Refusal::RunOver(_), _) => false,
            (Refusal::Gone { .. }, _) => {
                // Its work is void unless it is a contribution, of which only the coordinator knows.
                (self.caller, self.lease, self.disk.nonce) = (None, None, None);
                self.doing = Doing::Registering;
                !self.leaves
            }
            (Refusal::UnknownContribution(_), Doing::Uploading) => {
                self.doing = Doing::Announcing;
                true
            }
            (_, Doing::Announcing | Doing::Uploading) => {
                self.void();
                self.ask();
                true
            }
            _ => false,
        }
    }
}
