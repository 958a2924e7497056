//! What happens: the coordinator's machine handles a command, and its journal, state and weights are
//! compared.

use crate::process::{Doing, Process};
use crate::seen::Notes;
use crate::world::{Action, Fate, STEP, Which, World, manifest};
use crate::{Bounds, Mutation};
use hansa_protocol::{
    Activity, Announce, Caller, Command, Event, Heartbeat, LeaseRequest, Machine, Merged, Norm,
    Ownership, Presence, Problem, Progress, Refusal, Register, Reply, RunSpec, Span,
    check_invariants,
};

/// What the transitions need beside the state.
pub struct Rules<'a> {
    pub spec: &'a RunSpec,
    pub bounds: &'a Bounds,
    pub seen: &'a Notes,
}

type Handled = Result<Reply, Refusal>;

impl Rules<'_> {
    /// Does it; `None` if it cannot happen.
    pub fn act(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Call(name, which, fate) => self.call(world, (name, which), fate),
            Action::UploadsBad(name, which) => self.upload_bad(world, (name, which)),
            Action::Heartbeat(name, which) => {
                world.pay(1).then_some(())?;
                let command = heartbeat(world, (name, which), true)?;
                keep(world, command);
                Some(())
            }
            Action::Pass => {
                self.pass(world, 1, |_, _| Some(true));
                Some(())
            }
            Action::Silent(name, which) => {
                world.pay(1).then_some(())?;
                self.pass(world, 2, |n, w| ((n, w) != (name, which)).then_some(true));
                Some(())
            }
            Action::Stuck(name, which) => {
                world.pay(1).then_some(())?;
                self.pass(world, 3, |n, w| Some((n, w) != (name, which)));
                Some(())
            }
            Action::Cut => {
                world.pay(1).then_some(())?;
                self.pass(world, 2, |_, _| None);
                Some(())
            }
            Action::Merge => self.merge(world),
            Action::Restart => {
                world.pay(1).then_some(())?;
                self.restart(world);
                Some(())
            }
            Action::Arrives(which) => {
                let command = world.late.remove(which);
                self.seen.note("late message");
                if matches!(command, Command::Heartbeat(_)) {
                    self.seen.note("late heartbeat");
                }
                let _ = self.handle(world, command);
                Some(())
            }
            action => self.local(world, action),
        }
    }

    /// What a process does without the coordinator.
    fn local(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Step(name, which) => world.process_mut(name, which)?.step(),
            Action::Save(name, which) => world.process_mut(name, which)?.save(),
            Action::Finish(name, which) => {
                let tokens = |windows| self.spec.tokens(windows);
                world.process_mut(name, which)?.finish(tokens);
            }
            Action::Stop(name, which) => {
                world.pay(1).then_some(())?;
                self.seen.note("signal");
                let process = world.process_mut(name, which)?;
                process.leaves = true;
                match process.doing {
                    Doing::Registering => world.end_process(name, which),
                    Doing::Asking if process.work.is_some() => process.doing = Doing::Training,
                    Doing::Asking => process.doing = Doing::Leaving,
                    _ => {}
                }
            }
            Action::Crash(name, which) => {
                world.pay(1).then_some(())?;
                self.seen.note("crash");
                world.end_process(name, which);
            }
            Action::Start(name, older) => {
                let mut disk = world.names[name].idle.take()?;
                if older {
                    world.pay(1).then_some(())?;
                    self.seen.note("start from the older checkpoint");
                    disk.newest = disk.older.take();
                }
                world.names[name].current = Some(Process::on(disk));
            }
            Action::TakeOver(name) => {
                world.pay(1).then_some(())?;
                self.seen.note("second process of a name");
                let old = world.names[name].current.take()?;
                world.names[name].current = Some(Process::on(old.disk.clone()));
                world.names[name].zombie = Some(old);
            }
            _ => return None,
        }
        Some(())
    }

    fn call(&self, world: &mut World, at: (usize, Which), fate: Fate) -> Option<()> {
        world.pay(fate.cost()).then_some(())?;
        let command = self.command(world, at)?;
        self.send(world, at, command, fate)
    }

    fn send(
        &self,
        world: &mut World,
        at: (usize, Which),
        command: Command,
        fate: Fate,
    ) -> Option<()> {
        match fate {
            Fate::Answered => {
                let answer = self.handle(world, command);
                world.answer(at, answer, self.bounds.mutation);
            }
            Fate::Unanswered => {
                self.handle(world, command).ok()?;
            }
            Fate::Late => keep(world, command),
            Fate::Twice => {
                // Chunks are stored by their hash: what comes a second time is only the completion.
                let answer = self.handle(world, command.clone());
                keep(world, command);
                world.answer(at, answer, self.bounds.mutation);
            }
            Fate::CoordinatorDies => {
                self.handle(world, command).ok()?;
                self.restart(world);
            }
        }
        Some(())
    }

    fn command(&self, world: &mut World, (name, which): (usize, Which)) -> Option<Command> {
        let fresh_token = world.fresh_hash();
        let fresh_nonce = world.fresh_hash();
        let id = world.names[name].id.clone();
        let digest = &self.spec.digest;
        let process = world.process_mut(name, which)?;
        let command = match process.doing {
            Doing::Registering => {
                let nonce = *process.disk.nonce.get_or_insert(fresh_nonce);
                Command::Register(Register {
                    replica: id,
                    digest: digest.clone(),
                    ranks: 1,
                    nonce,
                    resume: process.disk.token,
                    // There are no restores here.
                    held: None,
                    fresh_token,
                })
            }
            Doing::Asking => {
                let of_work = process.work.as_ref().map(|work| work.base);
                let base = of_work.or(process.base.map(|(base, _)| base));
                Command::Lease(LeaseRequest {
                    caller: process.caller.clone()?,
                    base: base.map_or_else(Default::default, |base| base.manifest),
                    times: None,
                })
            }
            Doing::Announcing => Command::Announce(Announce {
                caller: process.caller.clone()?,
                parts: process.parts()?.clone(),
            }),
            Doing::Uploading => {
                let parts = process.parts()?.clone();
                let saved = process.disk.newest.as_ref();
                let content = saved.map(|saved| saved.weights.clone()).unwrap_or_default();
                world.payloads.insert(parts.payload, content);
                let id = parts.id();
                let found = Ok(Norm::default());
                Command::UploadComplete { id, found }
            }
            Doing::Leaving => match process.caller.clone() {
                Some(caller) => Command::Goodbye(caller.into()),
                None => {
                    world.end_process(name, which);
                    return None;
                }
            },
            Doing::Training => return None,
        };
        Some(command)
    }

    fn upload_bad(&self, world: &mut World, at: (usize, Which)) -> Option<()> {
        world.pay(1).then_some(())?;
        let id = world.process(at.0, at.1)?.parts()?.id();
        let found = Err(Problem::NotFinite(String::new()));
        let command = Command::UploadComplete { id, found };
        self.send(world, at, command, Fate::Answered)
    }

    /// Time passes, in steps of half a TTL. In each, those of whom `hears` says so are heard of, with
    /// progress if it is true.
    fn pass(&self, world: &mut World, steps: u32, hears: impl Fn(usize, Which) -> Option<bool>) {
        for _ in 0..steps {
            world.now = world.now.after(STEP);
            for name in 0..world.names.len() {
                for which in [Which::Current, Which::Zombie] {
                    let Some(progress) = hears(name, which) else {
                        continue;
                    };
                    let Some(command) = heartbeat(world, (name, which), progress) else {
                        continue;
                    };
                    let answer = self.handle(world, command);
                    world.answer((name, which), answer, self.bounds.mutation);
                }
            }
            let _ = self.handle(world, Command::Tick);
        }
    }

    fn merge(&self, world: &mut World) -> Option<()> {
        let record = world.machine.merge_due()?.clone();
        let twice = self.bounds.mutation == Some(Mutation::MergesTwice);
        for (n, contribution) in record.contributions.iter().enumerate() {
            let Some(positions) = world.payloads.get(&contribution.payload).cloned() else {
                world.break_rule(
                    5,
                    format!("contribution {} has no payload", contribution.no),
                );
                return Some(());
            };
            let times = if n == 0 && twice { 2 } else { 1 };
            for position in positions {
                match world.weights.get_mut(position as usize) {
                    Some(count) => *count += times,
                    None => world.break_rule(12, format!("position {position} is beyond all")),
                }
            }
        }
        let generation = record.base.next();
        let merged = Merged {
            generation,
            manifest: manifest(generation.0),
            merge_ms: 0,
        };
        let _ = self.handle(world, Command::Merged(merged));
        // A payload is needed again only if the same bytes are announced again, and then they come.
        world.payloads.clear();
        Some(())
    }

    fn restart(&self, world: &mut World) {
        self.seen.note("coordinator died");
        world.machine = Machine::new(self.spec.clone(), world.twin.clone(), world.now);
    }

    /// One command, and everything that must hold after it.
    fn handle(&self, world: &mut World, mut command: Command) -> Handled {
        let fenced = caller_of(&command).is_some_and(|caller| {
            let known = world.twin.find(&caller.replica);
            known.is_some_and(|(_, r)| r.incarnation != caller.incarnation)
        });
        if self.bounds.mutation == Some(Mutation::FencesNobody) {
            forge(world, &mut command);
        }
        let merges = matches!(command, Command::Merged(_));
        let generation = world.twin.current.generation.0;
        let outcome = world.machine.handle(world.now, command);
        if let Err(Refusal::Broken(what)) = &outcome.reply {
            world.break_rule(0, what.clone());
        }
        if fenced {
            self.seen.note("fenced call");
        }
        if fenced && !outcome.events.is_empty() {
            world.break_rule(8, format!("a fenced caller: {:?}", outcome.events));
        }
        for event in &outcome.events {
            self.seen.event(event);
            let forgets = self.bounds.mutation == Some(Mutation::ForgetsFreed);
            if forgets && matches!(event, Event::Freed { .. }) {
                continue;
            }
            if let Err(error) = world.twin.apply(self.spec, event) {
                world.break_rule(10, format!("{event:?}: {error}"));
            }
        }
        if world.twin.current.generation.0 != generation + u64::from(merges) {
            let repeated = merges && outcome.events.is_empty();
            if !repeated {
                world.break_rule(9, "a generation without a merge".to_owned());
            }
        }
        if world.twin != *world.machine.state() {
            world.break_rule(10, "the journal lacks something".to_owned());
        }
        self.check(world);
        outcome.reply
    }

    fn check(&self, world: &mut World) {
        if let Err(violation) = check_invariants(self.spec, &world.twin) {
            world.break_rule(violation.number, violation.what);
        }
        let counts = world.twin.ledger.counts();
        if world.twin.ended && counts.committed + counts.quarantined != counts.total() {
            world.break_rule(11, format!("the epoch ends with {counts:?}"));
        }
        let mut should = vec![0; world.weights.len()];
        for (span, ownership) in world.twin.ledger.intervals() {
            if let Ownership::Committed(..) = ownership {
                (span.start.0..span.end.0).for_each(|p| should[p as usize] = 1);
            }
        }
        if should != world.weights {
            let what = format!("weights {:?}, committed {should:?}", world.weights);
            world.break_rule(12, what);
        }
        for name in 0..world.names.len() {
            for which in [Which::Current, Which::Zombie] {
                if let Some(what) = strays(world, name, which) {
                    world.break_rule(7, what);
                }
            }
        }
    }
}

/// A process that may yet contribute has trained from its lease's front on, and nothing else.
fn strays(world: &World, name: usize, which: Which) -> Option<String> {
    let process = world.process(name, which)?;
    if process.weights.len() > world.weights.len() {
        return Some(format!("{name} trained {:?}", process.weights));
    }
    let (work, caller) = (process.work.as_ref()?, process.caller.as_ref()?);
    let (_, replica) = world.twin.find(&caller.replica)?;
    let lease = world.twin.leases.get(&work.lease)?;
    let may = replica.incarnation == caller.incarnation
        && replica.presence == Presence::Live
        && lease.incarnation == caller.incarnation
        && lease.front == work.front
        && work.base.manifest == world.twin.current.manifest
        && process.doing == Doing::Training;
    let head = Span::split(&lease.spans, work.trained).0;
    let positions: Vec<u64> = head.iter().flat_map(|s| s.start.0..s.end.0).collect();
    let reserved = work.trained <= lease.reserved();
    (may && !(reserved && positions == process.weights))
        .then(|| format!("{name} trained {:?}, not {positions:?}", process.weights))
}

/// A request that may yet arrive; two copies are as good as one.
fn keep(world: &mut World, command: Command) {
    if !world.late.contains(&command) {
        world.late.push(command);
    }
}

fn heartbeat(world: &mut World, at: (usize, Which), progress: bool) -> Option<Command> {
    world.fresh += 1;
    let fresh = world.fresh;
    let process = world.process(at.0, at.1)?;
    let caller = process.caller.clone()?;
    let activity = match process.doing {
        Doing::Uploading => Activity::Uploading,
        _ => Activity::Training,
    };
    let progress = Progress {
        activity,
        counter: if progress { fresh } else { 0 },
        step: Some(STEP / 2),
        rtt: None,
        loss: None,
        tokens_per_s: None,
    };
    let work = process.work.as_ref();
    let at = work.map(|work| (work.lease, work.front + work.trained));
    Some(Command::Heartbeat(Heartbeat {
        caller,
        progress,
        at,
    }))
}

fn caller_of(command: &Command) -> Option<&Caller> {
    match command {
        Command::Lease(request) => Some(&request.caller),
        Command::Heartbeat(heartbeat) => Some(&heartbeat.caller),
        Command::Announce(announce) => Some(&announce.caller),
        Command::Goodbye(goodbye) => Some(&goodbye.caller),
        _ => None,
    }
}

/// Takes the caller for the latest of its name.
fn forge(world: &World, command: &mut Command) {
    let caller = match command {
        Command::Lease(request) => &mut request.caller,
        Command::Heartbeat(heartbeat) => &mut heartbeat.caller,
        Command::Announce(announce) => &mut announce.caller,
        Command::Goodbye(goodbye) => &mut goodbye.caller,
        _ => return,
    };
    if let Some((_, replica)) = world.twin.find(&caller.replica) {
        let (run, id) = (caller.run, caller.replica.clone());
        *caller = world.twin.lineage.caller(run, id, replica.incarnation);
    }
}
