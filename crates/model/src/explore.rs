//! The exploration: every state within the bounds, each once.

use crate::Bounds;
use crate::coordinator::Rules;
use crate::seen::{Notes, Seen};
use crate::world::{Action, World, spec};
use hansa_protocol::RunSpec;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What came of an exploration.
#[derive(Clone, Debug)]
pub struct Report {
    /// Different states.
    pub states: usize,
    /// Transitions, those that led to a known state included.
    pub transitions: usize,
    /// The longest way from the start.
    pub depth: usize,
    /// What happened in how many transitions.
    pub seen: BTreeMap<&'static str, u64>,
    /// The first rule found broken: its number, what is wrong, and how it came to it.
    pub broken: Option<(u8, String, Vec<String>)>,
    /// Whether some epoch ended.
    pub ends: bool,
}

struct Core {
    spec: RunSpec,
    bounds: Bounds,
    seen: Arc<Seen>,
}

const HOLDS: &str = "every rule holds";
const ENDS: &str = "an epoch ends";

impl Model for Core {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.spec, &self.bounds)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self.bounds.mutation, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        let notes = Notes::default();
        let rules = Rules {
            spec: &self.spec,
            bounds: &self.bounds,
            seen: &notes,
        };
        rules.act(&mut next, action)?;
        self.seen.add(&notes);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HOLDS, |_, world: &World| world.broken.is_none()),
            Property::sometimes(ENDS, |_, world: &World| world.twin.ended),
        ]
    }
}

/// Looks at every state within the bounds, or at all until a rule is broken.
#[must_use]
pub fn explore(bounds: Bounds) -> Report {
    let seen = Arc::new(Seen::default());
    let core = Core {
        spec: spec(&bounds),
        bounds,
        seen: Arc::clone(&seen),
    };
    let checker = core
        .checker()
        .threads(bounds.jobs)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let broken = checker.discovery(HOLDS).and_then(|path| {
        let (number, what) = path.last_state().broken.clone()?;
        let way = path
            .into_actions()
            .into_iter()
            .map(|action| format!("{action:?}"));
        Some((number, what, way.collect()))
    });
    Report {
        states: checker.unique_state_count(),
        transitions: checker.state_count(),
        depth: checker.max_depth(),
        seen: seen.counts(),
        broken,
        ends: checker.discovery(ENDS).is_some(),
    }
}
