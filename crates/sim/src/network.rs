//! Calls between hosts and the coordinator: delayed, lost, doubled, overtaken by others.

use crate::host::Life;
use crate::weights::Weights;
use crate::world::{Happening, World};
use hansa_base::{Bytes, Epoch, Hash, Position};
use hansa_protocol::replica::{Call, CallFailed, CallNo, Input};
use hansa_protocol::{Command, Problem, Refusal, Register, Reply};

pub type Answer = Result<Reply, Refusal>;

/// How long a client waits.
const TIMEOUT_MS: u64 = 1500;
const UPLOAD_TIMEOUT_MS: u64 = 6000;
/// What a payload counts as.
pub const PAYLOAD_BYTES: u64 = 10_000;

/// A message to the coordinator.
#[derive(Clone, Debug)]
pub struct Request {
    pub life: Life,
    pub host: usize,
    pub no: CallNo,
    pub what: Asked,
}

#[derive(Clone, Debug)]
pub enum Asked {
    Command(Box<Command>),
    /// The id, and how many bytes are there with it.
    Chunk(Hash, u64),
    Complete(Hash, Hash, Box<Weights>),
}

impl World {
    pub fn call(&mut self, life: Life, no: CallNo, call: Call) {
        let Some(process) = self.processes.get_mut(&life) else {
            return;
        };
        process.open_calls.insert(no);
        let host = process.host;
        let command = match call {
            Call::Upload { id, payload, .. } => {
                return self.send_upload(life, host, no, id, payload);
            }
            Call::Register {
                nonce,
                resume,
                held,
            } => Command::Register(Register {
                replica: self.hosts[host].id.clone(),
                digest: self.setting.spec.digest.clone(),
                ranks: self.hosts[host].ranks,
                nonce,
                resume,
                held,
                fresh_token: self.random.hash(),
            }),
            Call::Lease(request) => Command::Lease(request),
            Call::Heartbeat(heartbeat) => Command::Heartbeat(heartbeat),
            Call::Announce(announce) => Command::Announce(announce),
            Call::Evaluated(evaluated) => Command::Evaluated(evaluated),
            Call::Goodbye(goodbye) => Command::Goodbye(goodbye),
        };
        self.after(TIMEOUT_MS, Happening::TimedOut(life, no));
        let what = Asked::Command(Box::new(command));
        let request = Request {
            life,
            host,
            no,
            what,
        };
        self.send(request, 0);
    }

    /// Chunks one after the other, then the completion that carries everything.
    fn send_upload(&mut self, life: Life, host: usize, no: CallNo, id: Hash, payload: Hash) {
        self.after(UPLOAD_TIMEOUT_MS, Happening::TimedOut(life, no));
        let stored = self
            .disk(life)
            .and_then(|disk| disk.payloads.get(&payload).cloned());
        let Some(delta) = stored else {
            return self.fail(format!("payload {} is not on the disk", payload.short()));
        };
        let (least, most) = self.setting.costs.chunk_ms;
        let mut later = 0;
        let chunks = self.random.between(0, 3);
        for n in 0..chunks {
            later += self.random.between(least, most);
            let what = Asked::Chunk(id, PAYLOAD_BYTES * (n + 1) / (chunks + 1));
            self.send(
                Request {
                    life,
                    host,
                    no,
                    what,
                },
                later,
            );
        }
        later += self.random.between(least, most);
        let what = Asked::Complete(id, payload, Box::new(delta));
        self.send(
            Request {
                life,
                host,
                no,
                what,
            },
            later,
        );
    }

    fn send(&mut self, request: Request, later: u64) {
        if self.faulty() && self.random.one_in(self.setting.doubled) {
            self.seen.doubled_messages += 1;
            let delay = later + self.delay();
            self.after(delay, Happening::Arrives(request.clone()));
        }
        if self.lost(request.host) {
            return;
        }
        let delay = later + self.delay();
        self.after(delay, Happening::Arrives(request));
    }

    fn delay(&mut self) -> u64 {
        if self.faulty() && self.random.one_in(self.setting.slow) {
            self.seen.slow_messages += 1;
            return self.random.between(200, 15_000);
        }
        self.random.between(1, 60)
    }

    fn lost(&mut self, host: usize) -> bool {
        let cut = self.now < self.hosts[host].cut_off_until;
        let lost = cut || self.faulty() && self.random.one_in(self.setting.loss);
        self.seen.lost_messages += u64::from(lost);
        lost
    }

    pub fn arrives(&mut self, request: Request) {
        if !self.coordinator.runs() {
            return;
        }
        if self.now < self.coordinator.stalled_until {
            let until = self.coordinator.stalled_until;
            return self.at(until, Happening::Arrives(request));
        }
        let Request {
            life,
            host,
            no,
            what,
        } = request;
        let (answer, ends) = match what {
            Asked::Command(command) => (self.command(*command), true),
            Asked::Chunk(id, bytes) => {
                let bytes = Bytes(bytes);
                let answer = self.command(Command::UploadProgress { id, bytes });
                let refused = matches!(answer, Some(Err(_)));
                if !refused {
                    self.after(1, Happening::Reports(life, Input::Advanced(self.now)));
                }
                (answer, refused)
            }
            Asked::Complete(id, payload, delta) => {
                let poisoned = self.poisoned(&delta);
                self.coordinator.payloads.insert(payload, *delta);
                let bad = !self.setting.deterministic && self.faulty() && self.random.one_in(25);
                let found = if poisoned {
                    Err(Problem::NotFinite("not finite".to_owned()))
                } else if bad {
                    Err(Problem::Form("of another model".to_owned()))
                } else {
                    Ok(self.norm(id))
                };
                (self.command(Command::UploadComplete { id, found }), true)
            }
        };
        if let (Some(answer), true) = (answer, ends)
            && !self.lost(host)
        {
            let delay = self.delay();
            self.after(delay, Happening::Replied(life, no, answer));
        }
    }

    fn poisoned(&self, delta: &Weights) -> bool {
        let epoch = self.coordinator.twin.epoch;
        let position = self.poison_at(epoch);
        position.is_some_and(|position| delta.has(epoch.0, position.0))
    }

    /// Where in an epoch the window is whose training is not finite, while there are faults.
    pub fn poison_at(&self, epoch: Epoch) -> Option<Position> {
        let window = self.setting.poison.filter(|_| self.faulty())?;
        self.setting.spec.space(epoch).position_of(window)
    }

    pub fn replied(&mut self, life: Life, no: CallNo, answer: Answer) {
        self.answer(life, no, answer.map_err(CallFailed::Refused));
    }

    pub fn timed_out(&mut self, life: Life, no: CallNo) {
        let why = "nothing came back".to_owned();
        self.answer(life, no, Err(CallFailed::Unreachable(why)));
    }

    /// A client takes the first answer to a call, and no other.
    fn answer(&mut self, life: Life, no: CallNo, answer: Result<Reply, CallFailed>) {
        let process = self.processes.get_mut(&life);
        if process.is_some_and(|process| process.open_calls.remove(&no)) {
            self.input(life, Input::Answered { no, answer });
        }
    }
}
