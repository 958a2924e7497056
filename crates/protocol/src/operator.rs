//! What operators have ordered: it is part of the run's durable state, with their reasons in words.
//!
//! Never here: who may give orders, and what follows from them.

use crate::apply::{Applied, in_order, missing};
use crate::{Event, Presence, RefusedBecause, State, Verdict};
use hansa_base::{ReplicaId, SiteName, WallS};
use std::collections::BTreeMap;

/// An order. Every one gives its reason, for people; an empty one is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing is granted, closed or given up for lost until the run is resumed; phases that are
    /// under way may end and be staged.
    Pause {
        /// The reason.
        why: String,
    },
    /// A paused run goes on; every deadline starts afresh.
    Resume {
        /// The reason.
        why: String,
    },
    /// The site's replicas contribute what they have and leave; none registers.
    Drain {
        /// Which.
        site: SiteName,
        /// The reason.
        why: String,
        /// When they may come back by themselves; given again, it takes the place of the one before.
        until: Option<WallS>,
    },
    /// Replicas of the site may register again.
    Undrain {
        /// Which.
        site: SiteName,
        /// The reason.
        why: String,
    },
    /// The replica is fenced at once, what it leased is free, and it is not let in.
    Evict {
        /// Which.
        replica: ReplicaId,
        /// The reason.
        why: String,
    },
    /// The replica may register again.
    Readmit {
        /// Which.
        replica: ReplicaId,
        /// The reason.
        why: String,
    },
    /// The run ends after the open round.
    Stop {
        /// The reason.
        why: String,
    },
    /// Windows are let out of quarantine.
    LetOut {
        /// Which windows of the corpus; none means all.
        windows: Vec<u64>,
    },
}

/// The orders in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Set while the run is paused.
    pub paused: Option<Pause>,
    /// Sites that are drained, and why.
    pub drained: BTreeMap<SiteName, String>,
    /// When drains end by themselves; `None` while none does.
    pub drain_ends: Option<BTreeMap<SiteName, WallS>>,
    /// Set once the run is to end after the open round, and why.
    pub stopping: Option<String>,
}

impl Orders {
    /// When the drain of a site ends by itself.
    #[must_use]
    pub fn drain_end(&self, site: &SiteName) -> Option<WallS> {
        self.drain_ends.as_ref()?.get(site).copied()
    }

    /// What is to be ordered now, because drains have reached their ends.
    #[must_use]
    pub fn lapsed(&self, now: WallS) -> Vec<Order> {
        let ends = self.drain_ends.iter().flatten();
        let over = ends.filter(|(_, at)| **at <= now);
        over.map(|(site, _)| Order::Undrain {
            site: site.clone(),
            why: "the time of its drain is over".to_owned(),
        })
        .collect()
    }
}

/// Why a run is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pause {
    /// An operator said so, for this reason.
    Operator(String),
    /// The norms of what these replicas contributed were refused: the bound is wrong, or training is.
    Norms(Vec<ReplicaId>),
    /// The gate refuses whatever these replicas contribute, and no other lives.
    Refusals(Vec<ReplicaId>),
}

impl std::fmt::Display for Pause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operator(why) => write!(f, "an operator paused the run{}", because(why)),
            Self::Norms(who) => write!(
                f,
                "norms far above those before were refused of {}: the bound is wrong or training is; \
                 resuming raises the bound",
                names(who)
            ),
            Self::Refusals(who) => write!(
                f,
                "whatever {} contributed was refused, again and again, and no other replica lives",
                names(who)
            ),
        }
    }
}

fn names(who: &[ReplicaId]) -> String {
    let names: Vec<String> = who.iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// The reason as the end of a sentence.
pub(crate) fn because(why: &str) -> String {
    if why.is_empty() {
        String::new()
    } else {
        format!(": {why}")
    }
}

impl State {
    /// Who was refused may try again, and norms like those refused pass.
    fn forgive(&mut self) {
        let setbacks = self.replicas.iter().filter_map(|replica| replica.setback);
        let excess = setbacks.filter(|setback| setback.norm > 0);
        if let Some(excess) = excess.map(|setback| setback.excess).max() {
            self.norms.raise(excess);
        }
        for replica in &mut self.replicas {
            replica.setback = None;
            let refused = matches!(
                replica.decided,
                Some((
                    _,
                    Verdict::Refused(RefusedBecause::Gate | RefusedBecause::Norm { .. })
                ))
            );
            if refused {
                replica.decided = None;
            }
        }
    }

    /// Applies an order's event.
    pub(crate) fn ordered(&mut self, event: &Event) -> Applied {
        let running = self.ending.is_none() && self.orders.stopping.is_none();
        match event {
            Event::Paused(pause) => {
                let can = running && self.orders.paused.is_none();
                in_order(can, "a pause that cannot be")?;
                self.orders.paused = Some(pause.clone());
            }
            Event::Resumed { .. } => {
                let paused = self.orders.paused.take();
                in_order(paused.is_some(), "a run goes on that was not paused")?;
                if !matches!(paused, Some(Pause::Operator(_))) {
                    self.forgive();
                }
            }
            Event::Drained { site, why } => {
                let before = self.orders.drained.insert(site.clone(), why.clone());
                in_order(before.is_none(), "a site is drained twice")?;
            }
            Event::DrainEnds { site, at } => {
                let drained = self.orders.drained.contains_key(site);
                in_order(drained, "a drain ends that was not ordered")?;
                let ends = self.orders.drain_ends.get_or_insert_default();
                ends.insert(site.clone(), *at);
            }
            Event::Undrained { site, .. } => {
                let drained = self.orders.drained.remove(site);
                if let Some(ends) = &mut self.orders.drain_ends {
                    ends.remove(site);
                }
                self.orders.drain_ends.take_if(|ends| ends.is_empty());
                drained.ok_or_else(|| missing(format!("the drain of site {site}")))?;
            }
            Event::Evicted { key, why } => {
                let replica = self.replica_mut(*key)?;
                in_order(replica.presence != Presence::Live, "who is evicted lives")?;
                in_order(replica.evicted.is_none(), "a replica is evicted twice")?;
                replica.evicted = Some(why.clone());
            }
            Event::Readmitted { key, .. } => {
                let evicted = self.replica_mut(*key)?.evicted.take();
                evicted.ok_or_else(|| missing(format!("the eviction of replica {key}")))?;
            }
            Event::Stopping { why } => {
                in_order(running, "the run is stopped twice")?;
                self.orders.paused = None;
                self.orders.stopping = Some(why.clone());
            }
            _ => {}
        }
        Ok(())
    }
}
