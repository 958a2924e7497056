//! What happens to the demo's processes, and when: status in, orders out, so that the story follows
//! the run and not the clock, and a demo that is started again goes on in the right act.

use anyhow::Context as _;
use hansa_wire::status::{ReplicaStatus, Status};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What the stage crew is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start this site's process.
    Start(&'static str),
    /// SIGKILL this site's process.
    Kill(&'static str),
    /// SIGKILL the coordinator, and start it again a moment later.
    RestartCoordinator,
    /// Tell people.
    Tell(String),
}

/// How far the story is. Kept on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    late_joined: bool,
    /// Generation at which `birch` was killed, to come back at once.
    killed_within: Option<u64>,
    /// Generation at which `cedar` was killed, to come back after its TTL, and what it had leased.
    killed_beyond: Option<(u64, Vec<(u64, u64)>)>,
    reclaimed: bool,
    came_back: bool,
    coordinator_killed: bool,
}

/// The site that comes late, and is later killed for longer than its TTL.
pub const LATE: &str = "cedar";
/// The site that is killed and comes back within its TTL.
pub const QUICK: &str = "birch";

impl Story {
    /// The story as it was left; from the beginning if it has not begun.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("understand {}", path.display()))
    }

    /// Keeps it for a demo that is started again.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_vec(self).context("write the story")?;
        Ok(hansa_store::replace_file(path, &text, 0o644)?)
    }

    /// Sites whose process should run at the beginning, or when the demo goes on.
    pub fn cast(&self, sites: &[&'static str]) -> Vec<&'static str> {
        let away = self.killed_beyond.is_some() && !self.came_back;
        let absent = |site: &str| site == LATE && (!self.late_joined || away);
        sites.iter().copied().filter(|site| !absent(site)).collect()
    }

    /// What `cedar` had leased when it was killed for longer than its TTL.
    pub fn lost_lease(&self) -> &[(u64, u64)] {
        self.killed_beyond.as_ref().map_or(&[], |(_, spans)| spans)
    }

    /// The next orders, one act at a time.
    pub fn next(&mut self, status: &Status) -> Vec<Order> {
        let generation = status.generation.number;
        if !self.late_joined {
            return self.late_join(generation);
        }
        if self.killed_within.is_none() {
            return self.kill_within(status);
        }
        if self.killed_beyond.is_none() {
            return self.kill_beyond(status);
        }
        if !self.came_back {
            return self.come_back(status);
        }
        if !self.coordinator_killed {
            return self.kill_coordinator(status);
        }
        Vec::new()
    }

    fn late_join(&mut self, generation: u64) -> Vec<Order> {
        if generation < 2 {
            return Vec::new();
        }
        self.late_joined = true;
        vec![
            Order::Tell(format!("{LATE} joins late")),
            Order::Start(LATE),
        ]
    }

    fn kill_within(&mut self, status: &Status) -> Vec<Order> {
        let generation = status.generation.number;
        let Some(site) = in_mid_phase(status, QUICK).filter(|_| generation >= 4) else {
            return Vec::new();
        };
        self.killed_within = Some(generation);
        let held = windows(site);
        let text = format!("{QUICK} is killed with {held} windows leased, and comes back at once");
        vec![Order::Tell(text), Order::Kill(QUICK), Order::Start(QUICK)]
    }

    fn kill_beyond(&mut self, status: &Status) -> Vec<Order> {
        let generation = status.generation.number;
        let after = self.killed_within.is_some_and(|at| generation >= at + 2);
        let Some(site) = in_mid_phase(status, LATE).filter(|_| after) else {
            return Vec::new();
        };
        let spans = site
            .lease
            .as_ref()
            .map(|lease| lease.spans.clone())
            .unwrap_or_default();
        self.killed_beyond = Some((generation, spans));
        let held = windows(site);
        let text = format!("{LATE} is killed with {held} windows leased, and stays away");
        vec![Order::Tell(text), Order::Kill(LATE)]
    }

    fn come_back(&mut self, status: &Status) -> Vec<Order> {
        let generation = status.generation.number;
        let site = find(status, LATE);
        let lost = site.is_some_and(|site| !site.live);
        if lost && !self.reclaimed {
            self.reclaimed = true;
            let windows = site.map_or(0, |site| site.tally.reclaimed);
            return vec![Order::Tell(format!(
                "{LATE} was not heard of within its TTL: {windows} windows go back to the pool"
            ))];
        }
        let waited = self
            .killed_beyond
            .as_ref()
            .is_some_and(|(at, _)| generation >= at + 2);
        if !(lost && waited) {
            return Vec::new();
        }
        self.came_back = true;
        vec![
            Order::Tell(format!("{LATE} comes back")),
            Order::Start(LATE),
        ]
    }

    fn kill_coordinator(&mut self, status: &Status) -> Vec<Order> {
        let back = find(status, LATE).is_some_and(|site| site.live);
        if !back || in_mid_phase(status, "alder").is_none() {
            return Vec::new();
        }
        self.coordinator_killed = true;
        let text = "the coordinator is killed and restarted; the sites train on";
        vec![Order::Tell(text.to_owned()), Order::RestartCoordinator]
    }
}

fn find<'a>(status: &'a Status, site: &str) -> Option<&'a ReplicaStatus> {
    status.replicas.iter().find(|replica| replica.site == site)
}

/// The site's replica, if it has trained between a quarter and three quarters of its phase.
fn in_mid_phase<'a>(status: &'a Status, site: &str) -> Option<&'a ReplicaStatus> {
    let replica = find(status, site).filter(|replica| replica.live && replica.lease.is_some())?;
    let (done, planned) = (replica.counter, replica.phase_windows?);
    let training = replica.activity.as_deref() == Some("training");
    let middle = 4 * done >= planned && 4 * done <= 3 * planned;
    (training && middle && replica.awaited).then_some(replica)
}

fn windows(replica: &ReplicaStatus) -> u64 {
    replica.lease.as_ref().map_or(0, |lease| lease.windows)
}
