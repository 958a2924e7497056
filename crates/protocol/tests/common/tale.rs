//! Both machines in one story: replicas with a trainer and a disk, whose weights are the positions
//! trained into them, and a coordinator that merges them. One thing happens after the other; after each
//! merge the weights are compared with the ledger.

use super::*;
use hansa_base::RetryPolicy;
use hansa_protocol::replica::*;
use std::collections::VecDeque;

/// How often each position was trained into them.
pub type Weights = BTreeMap<u64, i64>;

/// What survives a process.
#[derive(Clone, Default)]
pub struct Disk {
    registration: Option<RegistrationRecord>,
    latest: Option<(LocalState, Weights)>,
    accepted: bool,
    payloads: BTreeMap<Hash, Weights>,
}

/// One process of a replica, and its disk.
pub struct Site {
    pub machine: ReplicaMachine,
    pub disk: Disk,
    pub online: bool,
    /// Uploads do not complete by themselves.
    pub slow: bool,
    /// The coordinator's answers to uploads are lost.
    pub loses_answers: bool,
    pub told: Vec<Notice>,
    pub exit: Option<ExitReason>,
    pub trained: u64,
    upload: Option<(CallNo, Hash)>,
    weights: Weights,
    training: Option<(VecDeque<u64>, usize)>,
    halt: bool,
    ranks: u32,
}

pub struct Tale {
    pub story: Story,
    pub sites: BTreeMap<&'static str, Site>,
    /// Merges are not done by themselves.
    pub holds_merges: bool,
    models: BTreeMap<Hash, Weights>,
    payloads: BTreeMap<Hash, Weights>,
    lives: u8,
}

impl Drop for Tale {
    /// A story that fails is told.
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("at {:?}", self.story.now);
            let events = self.story.journal.iter();
            events.for_each(|event| println!("  {event:?}"));
            for (name, site) in &self.sites {
                println!("{name}: {:?} {:?}", site.machine.glance(), site.told);
            }
        }
    }
}

impl Tale {
    pub fn new(change: impl FnOnce(&mut RunSpec)) -> Self {
        Self {
            story: Story::with(change),
            sites: BTreeMap::new(),
            holds_merges: false,
            models: BTreeMap::from([(manifest(Generation(0)), Weights::new())]),
            payloads: BTreeMap::new(),
            lives: 0,
        }
    }

    /// A process starts as `name`, on what its predecessor left.
    pub fn start(&mut self, name: &'static str) {
        let ranks = self.sites.get(name).map_or(1, |site| site.ranks);
        self.start_with(name, ranks);
    }

    pub fn start_with(&mut self, name: &'static str, ranks: u32) {
        let disk = self.sites.remove(name).map(|site| site.disk);
        self.start_on(name, ranks, disk.unwrap_or_default());
    }

    pub fn start_on(&mut self, name: &'static str, ranks: u32, disk: Disk) {
        self.lives += 1;
        let found = Found {
            registration: disk.registration.clone(),
            latest: disk.latest.as_ref().map(|(state, _)| state.clone()),
            accepted: disk.accepted,
        };
        let options = Options {
            entropy: hash(self.lives),
            checkpoint_every: s(1000),
            retry: RetryPolicy {
                first: s(1),
                longest: s(1),
                retries_max: None,
            },
            when_busy: WhenBusy::Wait,
            leave_within: s(1000),
        };
        let (spec, now) = (self.story.spec.clone(), self.story.now);
        // The replica that the machine is told of; a copy of a disk may run under another handle.
        let who = id(name.split('\'').next().unwrap());
        let (machine, actions) = ReplicaMachine::start(spec, who, ranks, options, found, now);
        let site = Site {
            machine,
            disk,
            online: true,
            slow: false,
            loses_answers: false,
            told: Vec::new(),
            exit: None,
            trained: 0,
            upload: None,
            weights: Weights::new(),
            training: None,
            halt: false,
            ranks,
        };
        self.sites.insert(name, site);
        self.act(name, actions);
    }

    /// The process dies; its disk stays.
    pub fn crash(&mut self, name: &'static str) {
        let site = self.site(name);
        site.exit = Some(ExitReason::Failed("it crashed".to_owned()));
    }

    pub fn site(&mut self, name: &'static str) -> &mut Site {
        self.sites.get_mut(name).unwrap()
    }

    /// Time passes, second by second; those named take a step in each, if they train.
    pub fn pass(&mut self, seconds: u64, training: &[&'static str]) {
        let names: Vec<&'static str> = self.sites.keys().copied().collect();
        for _ in 0..seconds {
            self.story.now = self.story.now.after(s(1));
            training.iter().for_each(|name| self.step(name));
            names.iter().for_each(|name| self.wake(name));
            assert_eq!(self.story.send(Command::Tick), Ok(Reply::Done));
            self.merge_if_due();
        }
    }

    pub fn wake(&mut self, name: &'static str) {
        let now = self.story.now;
        while self
            .site(name)
            .machine
            .wake_at()
            .is_some_and(|at| at <= now)
            && self.site(name).exit.is_none()
        {
            let before = self.site(name).machine.wake_at();
            self.tell(name, Input::Wake);
            if self.site(name).machine.wake_at() == before {
                break;
            }
        }
    }

    pub fn tell(&mut self, name: &'static str, input: Input) {
        let now = self.story.now;
        let site = self.site(name);
        if site.exit.is_none() {
            let actions = site.machine.handle(now, input);
            self.act(name, actions);
        }
    }

    /// One step of a second, if it trains.
    pub fn step(&mut self, name: &'static str) {
        let site = self.site(name);
        let Some((positions, size)) = &mut site.training else {
            return;
        };
        if site.exit.is_some() {
            return;
        }
        let now: Vec<u64> = positions.drain(..(*size).min(positions.len())).collect();
        let ends = positions.is_empty() || site.halt;
        now.iter()
            .for_each(|position| *site.weights.entry(*position).or_default() += 1);
        site.trained += now.len() as u64;
        if ends {
            site.training = None;
        }
        let (windows, duration) = (Windows(now.len() as u64), s(1));
        let loss = 1.0;
        self.tell(
            name,
            Input::Stepped {
                windows,
                duration,
                loss,
            },
        );
        if ends {
            self.tell(name, Input::TrainingEnded);
        }
    }

    /// So many bytes of a slow upload are there.
    pub fn arrive(&mut self, name: &'static str, bytes: u64) -> Result<Reply, Refusal> {
        let (_, id) = self.site(name).upload.unwrap();
        self.tell(name, Input::Advanced(bytes));
        let bytes = Bytes(bytes);
        self.story.send(Command::UploadProgress { id, bytes })
    }

    /// A slow upload is complete.
    pub fn complete(&mut self, name: &'static str) {
        let (no, id) = self.site(name).upload.take().unwrap();
        let disk = self.site(name).disk.payloads.clone();
        self.payloads.extend(disk);
        let answer = self.story.send(Command::UploadComplete {
            id,
            found: Ok(Norm::default()),
        });
        let answer = match self.site(name).loses_answers {
            true => Err(CallFailed::Unreachable("lost".to_owned())),
            false => answer.map_err(CallFailed::Refused),
        };
        self.tell(name, Input::Answered { no, answer });
        self.merge_if_due();
    }

    fn act(&mut self, name: &'static str, actions: Vec<Action>) {
        for action in actions {
            self.execute(name, action);
        }
    }

    fn execute(&mut self, name: &'static str, action: Action) {
        let site = self.site(name);
        match action {
            Action::Save(record) => {
                site.disk.registration = Some(record);
                self.tell(name, Input::Saved);
            }
            Action::Call { no, call } => self.call(name, no, call),
            Action::Load { generation, .. } => {
                let model = self.models[&generation.manifest].clone();
                self.site(name).weights = model;
                self.tell(name, Input::Loaded);
            }
            Action::Restore => {
                site.weights = site.disk.latest.clone().unwrap().1;
                self.tell(name, Input::Loaded);
            }
            Action::Train(order) => {
                let spans = order.spans.iter();
                let positions = spans.flat_map(|span| span.start.0..span.end.0).collect();
                site.training = Some((positions, order.step_windows.0 as usize));
                site.halt = false;
            }
            Action::Halt => site.halt = true,
            Action::Encode { base } => {
                let mut delta = site.weights.clone();
                for (position, times) in &self.models[&base.manifest] {
                    *delta.entry(*position).or_default() -= times;
                }
                delta.retain(|_, times| *times != 0);
                let payload = Hash(*blake3::hash(format!("{delta:?}").as_bytes()).as_bytes());
                let bytes = Bytes(100);
                self.site(name).disk.payloads.insert(payload, delta);
                self.tell(name, Input::Encoded { payload, bytes });
            }
            Action::Checkpoint(state) => {
                site.disk.latest = Some((state, site.weights.clone()));
                self.tell(name, Input::CheckpointDurable);
            }
            Action::Promote => site.disk.accepted = true,
            Action::Tell(notice) => site.told.push(notice),
            Action::Forget => panic!("nothing is restored in these stories"),
            Action::Exit(reason) => site.exit = Some(reason),
            Action::Evaluate(_) => panic!("nothing is evaluated in these stories"),
        }
    }

    fn call(&mut self, name: &'static str, no: CallNo, call: Call) {
        let site = self.site(name);
        if !site.online {
            let answer = Err(CallFailed::Unreachable("no route".to_owned()));
            return self.tell(name, Input::Answered { no, answer });
        }
        let command = match call {
            Call::Upload { id, .. } => {
                site.upload = Some((no, id));
                if !site.slow {
                    self.complete(name);
                }
                return;
            }
            Call::Register {
                nonce,
                resume,
                held,
            } => {
                let ranks = site.ranks;
                let who = name.split('\'').next().unwrap();
                let register = self.story.registration(who, 0, resume);
                Command::Register(Register {
                    nonce,
                    ranks,
                    held,
                    ..register
                })
            }
            Call::Lease(request) => Command::Lease(request),
            Call::Heartbeat(heartbeat) => Command::Heartbeat(heartbeat),
            Call::Announce(announce) => Command::Announce(announce),
            Call::Evaluated(evaluated) => Command::Evaluated(evaluated),
            Call::Goodbye(goodbye) => Command::Goodbye(goodbye),
        };
        let answer = self.story.send(command).map_err(CallFailed::Refused);
        self.merge_if_due();
        self.tell(name, Input::Answered { no, answer });
    }

    pub fn merge_if_due(&mut self) {
        if self.holds_merges {
            return;
        }
        let Some(record) = self.story.machine.merge_due().cloned() else {
            return;
        };
        let mut model = self.models[&manifest(record.base)].clone();
        for contribution in &record.contributions {
            for (position, times) in &self.payloads[&contribution.payload] {
                *model.entry(*position).or_default() += times;
            }
        }
        let generation = self.story.merge();
        let ledger = self.story.state().ledger.intervals();
        let committed = ledger.filter(|(_, state)| matches!(state, Ownership::Committed(..)));
        let should = committed.flat_map(|(span, _)| (span.start.0..span.end.0).map(|p| (p, 1)));
        if self.story.state().epoch == Epoch(0) {
            assert_eq!(
                model,
                should.collect(),
                "weights are not what the ledger says"
            );
        }
        self.models.insert(manifest(generation), model);
    }

    /// Everything of the epoch is in the weights, each window once.
    pub fn all_is_committed(&self) {
        let all = self.story.spec.digest.windows.0;
        let model = &self.models[&self.story.state().current.manifest];
        assert_eq!(*model, (0..all).map(|position| (position, 1)).collect());
    }

    pub fn events(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.story
            .journal
            .iter()
            .filter(|event| wanted(event))
            .count()
    }
}
