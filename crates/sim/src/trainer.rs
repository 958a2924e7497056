//! A trainer whose weights are the positions trained into them, and the disk beside it.

use crate::Mutation;
use crate::host::{Host, Life, Process};
use crate::network::PAYLOAD_BYTES;
use crate::weights::Weights;
use crate::world::{Happening, World};
use hansa_base::{Bytes, Hash, Tokens, Windows};
use hansa_protocol::GenerationInfo;
use hansa_protocol::replica::{Action, Input, LocalState, Moments, RegistrationRecord, TrainOrder};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A checkpoint.
#[derive(Clone, Debug)]
pub struct Saved {
    pub state: LocalState,
    weights: Weights,
    moments: Weights,
}

/// What survives a process.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub registration: Option<RegistrationRecord>,
    pub latest: Option<Saved>,
    pub accepted: Option<Saved>,
    pub payloads: BTreeMap<Hash, Weights>,
}

/// Something on its way to the disk.
#[derive(Clone, Debug)]
pub enum DiskWrite {
    Registration(RegistrationRecord),
    Checkpoint(Saved),
    Payload(Hash, Weights),
}

/// The trainer's memory.
#[derive(Clone, Debug, Default)]
pub struct Trainer {
    weights: Weights,
    /// Which positions they saw, which is all there is to know of them here.
    moments: Weights,
    job: Option<Job>,
    halt: bool,
}

#[derive(Clone, Debug)]
enum Job {
    Restore,
    Load(GenerationInfo, Moments),
    Train(u32, VecDeque<u64>, Windows),
    Evaluate(GenerationInfo),
}

impl World {
    fn trainer(&mut self, life: Life) -> Option<&mut Trainer> {
        Some(&mut self.processes.get_mut(&life)?.trainer)
    }

    pub fn promote(&mut self, life: Life) {
        let Some(disk) = self.disk(life) else { return };
        disk.accepted = disk.latest.clone();
        let contribution = disk
            .latest
            .as_ref()
            .and_then(|l| l.state.contribution.as_ref());
        let id = contribution.map(|parts| parts.id());
        if !id.is_some_and(|id| self.coordinator.staged.contains(&id)) {
            self.fail(format!("{life:?} promotes what was never accepted"));
        }
    }

    pub fn job(&mut self, life: Life, action: Action) {
        let (least, most) = self.setting.costs.job_ms;
        let slow = self.random.between(least, most);
        let job = match action {
            Action::Halt => {
                if let Some(trainer) = self.trainer(life) {
                    trainer.halt = true;
                }
                return;
            }
            Action::Train(order) => return self.start_training(life, order),
            Action::Encode { base } => return self.encode(life, base),
            Action::Checkpoint(state) => return self.checkpoint(life, state),
            Action::Restore => Job::Restore,
            Action::Load {
                generation,
                moments,
            } => Job::Load(generation, moments),
            Action::Evaluate(generation) => {
                let current = self
                    .processes
                    .get(&life)
                    .and_then(|p| p.machine.glance().base);
                match current.filter(|current| current.generation == generation) {
                    Some(current) => Job::Evaluate(current),
                    None => return self.fail(format!("{life:?} evaluates what it has not loaded")),
                }
            }
            _ => return,
        };
        if let Some(trainer) = self.trainer(life)
            && let Some(busy) = trainer.job.replace(job)
        {
            return self.fail(format!("{life:?} starts a job during {busy:?}"));
        }
        self.after(slow, Happening::JobEnds(life));
    }

    pub fn job_ends(&mut self, life: Life) {
        let Some(job) = self.trainer(life).and_then(|trainer| trainer.job.take()) else {
            return;
        };
        match job {
            Job::Restore => self.restore(life),
            Job::Load(generation, moments) => self.load(life, generation, moments),
            Job::Evaluate(generation) => {
                let model = self.coordinator.models.get(&generation.manifest).cloned();
                let same = self
                    .trainer(life)
                    .is_some_and(|t| Some(&t.weights) == model.as_ref());
                if !same {
                    self.fail(format!("{life:?} evaluated other weights"));
                }
                let (loss_sum_nats, tokens) = (1.0, Tokens(1));
                self.input(
                    life,
                    Input::Measured {
                        loss_sum_nats,
                        tokens,
                    },
                );
            }
            Job::Train(..) => {}
        }
    }

    fn restore(&mut self, life: Life) {
        self.seen.restores += 1;
        let saved = self.disk(life).and_then(|disk| disk.latest.clone());
        let (Some(saved), Some(trainer)) = (saved, self.trainer(life)) else {
            return self.fail(format!("{life:?} restores what is not there"));
        };
        (trainer.weights, trainer.moments) = (saved.weights, saved.moments);
        self.input(life, Input::Loaded);
    }

    fn load(&mut self, life: Life, generation: GenerationInfo, moments: Moments) {
        let host = self.processes.get(&life).map_or(0, |p| p.host);
        let cut = self.now < self.hosts[host].cut_off_until;
        if cut || !self.coordinator.runs() {
            // The download goes on when it can.
            if let Some(trainer) = self.trainer(life) {
                trainer.job = Some(Job::Load(generation, moments));
            }
            return self.after(300, Happening::JobEnds(life));
        }
        let current = self.coordinator.twin.current.generation;
        if generation.generation.0 + 1 < current.0 {
            return self.input(life, Input::Superseded);
        }
        let model = self.coordinator.models.get(&generation.manifest).cloned();
        let accepted = self.disk(life).and_then(|disk| disk.accepted.clone());
        let accepted = accepted.map(|saved| saved.moments);
        let keeps_weights = self.options.mutation == Some(Mutation::KeepsStaleWeights);
        let keeps_moments = self.options.mutation == Some(Mutation::KeepsBadMoments);
        let stale = keeps_weights && self.random.one_in(4);
        let (Some(model), Some(trainer)) = (model, self.trainer(life)) else {
            return self.fail(format!("{life:?} loads a generation that never was"));
        };
        if !stale {
            trainer.weights = model;
        }
        match (moments, &accepted) {
            (Moments::Keep, _) => {}
            (Moments::Accepted, Some(accepted)) if !keeps_moments => {
                trainer.moments = accepted.clone();
            }
            (Moments::Fresh, _) if !keeps_moments => trainer.moments = Weights::default(),
            _ => {}
        }
        if trainer.moments != accepted.unwrap_or_default() {
            self.fail(format!(
                "{life:?} has moments of a phase that was not accepted"
            ));
        }
        self.input(life, Input::Loaded);
    }

    fn start_training(&mut self, life: Life, order: TrainOrder) {
        let mut positions: VecDeque<u64> = order
            .spans
            .iter()
            .flat_map(|span| span.start.0..span.end.0)
            .collect();
        if self.options.mutation == Some(Mutation::TrainsBeyondTheLease) {
            positions.extend(positions.back().map(|last| last + 1));
        }
        let Some(trainer) = self.trainer(life) else {
            return;
        };
        trainer.halt = false;
        let job = Job::Train(order.epoch.0, positions, order.step_windows);
        if let Some(busy) = trainer.job.replace(job) {
            return self.fail(format!("{life:?} starts a job during {busy:?}"));
        }
        self.next_step(life);
    }

    fn next_step(&mut self, life: Life) {
        let Some(Process { host, trainer, .. }) = self.processes.get(&life) else {
            return;
        };
        let Some(Job::Train(_, positions, size)) = &trainer.job else {
            return;
        };
        let windows = size.0.min(positions.len() as u64);
        let Host { step_ms, ranks, .. } = self.hosts[*host];
        let base = self.setting.spec.step_windows(ranks).0;
        let (least, most) = self.setting.jitter;
        let hangs = self.faulty() && self.random.one_in(150);
        self.seen.hangs += u64::from(hangs);
        let takes = if hangs {
            self.random.between(5000, 40_000)
        } else {
            step_ms * windows * self.random.between(least, most) / 100 / base
        };
        self.after(takes.max(1), Happening::Steps(life, takes));
    }

    fn step_size(&self, life: Life) -> u64 {
        match self.processes.get(&life).map(|p| &p.trainer.job) {
            Some(Some(Job::Train(_, positions, size))) => size.0.min(positions.len() as u64),
            _ => 0,
        }
    }

    /// Whether a trainer's next step has the window that makes its loss NaN, and shows it.
    fn finds_poison(&mut self, life: Life) -> bool {
        let shows = self.setting.poison.is_some_and(|window| window % 2 == 0);
        let job = self.processes.get(&life).map(|p| &p.trainer.job);
        let Some(Some(Job::Train(epoch, positions, size))) = job.filter(|_| shows) else {
            return false;
        };
        let mut next = positions.iter().take(size.0 as usize);
        let poison = self.poison_at(hansa_base::Epoch(*epoch));
        let finds = poison.is_some_and(|poison| next.any(|at| *at == poison.0));
        if finds && let Some(trainer) = self.trainer(life) {
            trainer.job = None;
            self.seen.not_finite += 1;
        }
        finds
    }

    pub fn steps(&mut self, life: Life, took_ms: u64) {
        self.spent.windows_trained += self.step_size(life);
        if self.finds_poison(life) {
            let why = "the loss is NaN".to_owned();
            return self.input(life, Input::NotFinite(why));
        }
        let loses = self.options.mutation == Some(Mutation::LosesAStep) && self.random.one_in(10);
        let Some(trainer) = self.trainer(life) else {
            return;
        };
        let Some(Job::Train(epoch, positions, size)) = &mut trainer.job else {
            return;
        };
        let size = (size.0 as usize).min(positions.len());
        for position in positions.drain(..size) {
            if !loses {
                trainer.weights.add(*epoch, position, 1);
            }
            trainer.moments.add(*epoch, position, 1);
        }
        let ends = positions.is_empty() || trainer.halt;
        if ends {
            trainer.job = None;
        }
        // One that trains too much does not say so.
        let beyond = ends && self.options.mutation == Some(Mutation::TrainsBeyondTheLease);
        let told = size as u64 - u64::from(beyond);
        let (windows, duration) = (Windows(told), Duration::from_millis(took_ms));
        self.input(
            life,
            Input::Stepped {
                windows,
                duration,
                loss: 1.0,
            },
        );
        if ends {
            self.input(life, Input::TrainingEnded);
        } else {
            self.next_step(life);
        }
    }

    fn encode(&mut self, life: Life, base: GenerationInfo) {
        let salt = if self.setting.deterministic {
            base.manifest
        } else {
            self.random.hash()
        };
        let model = self.coordinator.models.get(&base.manifest).cloned();
        let Some(trainer) = self.trainer(life) else {
            return;
        };
        let mut delta = trainer.weights.clone();
        delta.add_all(&model.unwrap_or_default(), -1);
        let payload = delta.hash("payload", salt);
        let bytes = Bytes(PAYLOAD_BYTES);
        self.write_later(
            life,
            DiskWrite::Payload(payload, delta),
            Input::Encoded { payload, bytes },
        );
    }

    fn checkpoint(&mut self, life: Life, state: LocalState) {
        let Some(trainer) = self.trainer(life) else {
            return;
        };
        let (weights, moments) = (trainer.weights.clone(), trainer.moments.clone());
        let saved = Saved {
            state,
            weights,
            moments,
        };
        self.write_later(life, DiskWrite::Checkpoint(saved), Input::CheckpointDurable);
    }

    pub fn write(&mut self, life: Life, write: DiskWrite) {
        let host = self.processes.get(&life).map(|process| process.host);
        if host.is_some_and(|host| self.now < self.hosts[host].full_until) {
            self.seen.disks_full += 1;
            let why = "no space left".to_owned();
            return self.input(life, Input::Failed(why));
        }
        let Some(disk) = self.disk(life) else { return };
        match write {
            DiskWrite::Registration(record) => disk.registration = Some(record),
            DiskWrite::Checkpoint(saved) => {
                let named = saved.state.contribution.as_ref().map(|c| c.payload);
                disk.payloads.retain(|hash, _| named == Some(*hash));
                disk.latest = Some(saved);
            }
            DiskWrite::Payload(hash, delta) => {
                disk.payloads.insert(hash, delta);
            }
        }
    }
}
