//! What is done to whom, and when: a function of seed, number of kills and time, so that a failing
//! soak can be asked for again. Never here: processes.

use std::time::Duration;

/// The lease's and the session's time to live, with room for a heartbeat that was under way.
const BEYOND_TTL: std::ops::Range<u64> = 2_600..5_000;
/// How long a process that was asked to end may take before it is asked again.
const LEAVING: std::ops::Range<u64> = 1_000..3_000;

/// Of twenty acts so many are kills.
const KILLS_OF_20: u32 = 16;

/// Whose turn it is: the coordinator, or the replica of this site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Coordinator,
    Site(usize),
}

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// SIGKILL.
    Kill(Return),
    /// SIGTERM; if it is not gone when it is to return, a second one.
    Terminate,
    /// SIGSTOP.
    Stall,
    /// SIGCONT.
    GoOn,
    /// SIGSTOP, and another process takes over at once, from a copy of the state directory.
    TakeOver,
    /// SIGCONT to the predecessor.
    Haunt,
    /// It is started.
    Start,
}

/// How a killed process comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Return {
    AtOnce,
    AfterItsTtl,
    /// At once, but its state directory is lost.
    Empty,
}

/// What replicas tell at the turns of a round, where a kill hurts most.
pub const TURNS: [&str; 6] = [
    "registered",
    "adopted",
    "phase_started",
    "step",
    "uploading",
    "contributed",
];

/// One line of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub at: Duration,
    pub who: Who,
    pub act: Act,
    /// Not at this instant, but at the next event of this name from a site, if it comes soon.
    pub aim: Option<(usize, &'static str)>,
}

/// `kills` SIGKILLs, and some other mischief between them, spread over about `within`.
pub fn draw(seed: u64, kills: usize, within: Duration, sites: usize) -> Vec<Step> {
    let mut random = Random(seed);
    let mut steps = Vec::new();
    let gap_ms = within.as_millis() as u64 * u64::from(KILLS_OF_20) / (kills as u64 * 20);
    let (mut now_ms, mut killed) = (0, 0);
    // The coordinator is the last; one entry for each.
    let mut back_ms = vec![0; sites + 1];
    while killed < kills {
        now_ms += random.within(gap_ms / 4..gap_ms * 7 / 4 + 1);
        let place = match random.below(4) {
            0 => sites,
            _ => random.below(sites as u64) as usize,
        };
        // Whoever is away cannot be killed: it is another's turn, if one is there.
        let others = (0..=sites).map(|offset| (place + offset) % (sites + 1));
        let Some(place) = others.into_iter().find(|&place| back_ms[place] <= now_ms) else {
            continue;
        };
        let who = match place {
            site if site < sites => Who::Site(site),
            _ => Who::Coordinator,
        };
        let act = draw_act(&mut random, who);
        killed += usize::from(matches!(act, Act::Kill(_)));
        back_ms[place] = now_ms + away_ms(&mut random, act);
        let back = match act {
            Act::Stall => Act::GoOn,
            Act::TakeOver => Act::Haunt,
            _ => Act::Start,
        };
        let aim = matches!(act, Act::Kill(_)).then(|| draw_aim(&mut random, who, sites));
        let turns = [(now_ms, act, aim.flatten()), (back_ms[place], back, None)];
        for (at_ms, act, aim) in turns {
            let at = Duration::from_millis(at_ms);
            steps.push(Step { at, who, act, aim });
        }
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// Half of the kills are aimed: a replica at its own events, the coordinator at anybody's.
fn draw_aim(random: &mut Random, who: Who, sites: usize) -> Option<(usize, &'static str)> {
    let site = match who {
        Who::Site(site) => site,
        Who::Coordinator => random.below(sites as u64) as usize,
    };
    let turn = TURNS[random.below(TURNS.len() as u64) as usize];
    (random.below(2) == 0).then_some((site, turn))
}

fn draw_act(random: &mut Random, who: Who) -> Act {
    match (random.below(20), who) {
        (0, Who::Site(_)) => Act::TakeOver,
        (0..2, _) => Act::Stall,
        (2..4, _) => Act::Terminate,
        (4..7, _) => Act::Kill(Return::AfterItsTtl),
        (7..10, Who::Site(_)) => Act::Kill(Return::Empty),
        _ => Act::Kill(Return::AtOnce),
    }
}

fn away_ms(random: &mut Random, act: Act) -> u64 {
    match act {
        Act::Kill(Return::AtOnce | Return::Empty) => random.below(100),
        Act::Terminate => random.within(LEAVING),
        _ => random.within(BEYOND_TTL),
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`; the bias is of no interest here.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }
}
