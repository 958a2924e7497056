//! How many lanes (connections) a transfer uses: more while more of them carry more, and no others.
//!
//! Over a long or lossy path one connection carries only what its window or its losses allow, and ten
//! carry ten times that; on a short path one fills the link, and more would only queue behind each other.
//! So the number is found by trying: double while that helps, then stay, and now and then try a quarter
//! more or less, as paths change. Connections that still get faster by themselves are waited for: over a
//! long path that takes seconds and looks like the gain of having more of them, and too many of them take
//! each other's packets for longer than a transfer lasts. While others wait for what we send, no more are tried, but half as many.
//! Pure: time, bytes and whether others wait are arguments.

use std::time::Duration;

/// Goodput is measured over this.
const WINDOW: Duration = Duration::from_millis(500);
/// New connections have so long, or until they get no faster any more, to show that they help: three round
/// trips until they carry anything, and a slow start after that.
const PATIENCE_WINDOWS: u32 = 8;
/// Twice the lanes are worth having for at least this.
const DOUBLING_GAIN: f64 = 1.15;
/// Connections have their speed when two windows carry no more than this of the two before, and, since the
/// server may have paused, no less than that.
const SETTLED_GAIN: f64 = 1.1;
const SETTLED_LOSS: f64 = 0.7;
/// But they are not waited for longer than so many windows.
const SETTLING_WINDOWS_MAX: u32 = 16;
/// A quarter more are worth having for this, and a quarter less cost less than this, or come back.
const TRIAL_GAIN: f64 = 1.05;
/// When a single window carries less than this of what was usual, fewer lanes were no good idea.
const FEWER_LOSS_AT_ONCE: f64 = 0.7;
/// Windows between trials; twice as many after each that changed nothing, and few after one that helped.
const REST_WINDOWS: u32 = 16;
const REST_WINDOWS_AFTER_GAIN: u32 = 4;
const REST_WINDOWS_MAX: u32 = 128;

/// Bounds of the number of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLimits {
    /// At the start; at least 1.
    pub first: usize,
    /// At any time.
    pub most: usize,
}

impl Default for LaneLimits {
    fn default() -> Self {
        Self { first: 4, most: 32 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// The first windows in which something was carried: what do the first lanes carry?
    Looking { windows: u32 },
    /// The number was changed to learn something; it was `from`, and those carried `goodput`.
    Trying {
        from: usize,
        goodput: f64,
        windows: u32,
    },
    /// The number is right for now.
    Resting { windows: u32 },
}

/// Decides the number of lanes from what they carry.
#[derive(Debug)]
pub(crate) struct LaneControl {
    limits: LaneLimits,
    lanes: usize,
    stage: Stage,
    /// Whether every trial so far was a doubling that helped.
    doubling: bool,
    try_fewer: bool,
    rest_windows: u32,
    /// Of the resting stage: bytes per second, smoothed.
    usual: f64,
    /// Of a trial of fewer lanes: goodput of its windows.
    fewer_sum: f64,
    /// Goodput of the last windows since the number of lanes was last raised or lowered to try it, the latest
    /// last.
    recent: [f64; 4],
    window_began: Duration,
    bytes_then: u64,
}

impl LaneControl {
    pub(crate) fn new(limits: LaneLimits, now: Duration) -> Self {
        Self {
            limits,
            lanes: limits.first.clamp(1, limits.most.max(1)),
            stage: Stage::Looking { windows: 0 },
            doubling: true,
            try_fewer: false,
            rest_windows: REST_WINDOWS,
            usual: 0.0,
            fewer_sum: 0.0,
            recent: [0.0; 4],
            window_began: now,
            bytes_then: 0,
        }
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Takes note that `total_bytes` have travelled by `now`, which both only grow, and whether that delays
    /// others. Gives the number of lanes.
    pub(crate) fn observe(&mut self, now: Duration, total_bytes: u64, queueing: bool) -> usize {
        let length = now.saturating_sub(self.window_began);
        if length >= WINDOW {
            let bytes = total_bytes.saturating_sub(self.bytes_then);
            (self.window_began, self.bytes_then) = (now, total_bytes);
            let goodput = bytes as f64 / length.as_secs_f64();
            match queueing {
                true => self.end_queueing_window(goodput),
                false => self.end_window(goodput),
            }
        }
        self.lanes
    }

    /// The link is full: more lanes can carry no more, and fewer may carry as much. Whether they do is
    /// judged as ever, so that a server that is merely slow to answer costs little.
    fn end_queueing_window(&mut self, goodput: f64) {
        self.doubling &= self.stage == Stage::Looking { windows: 0 };
        match self.stage {
            Stage::Trying { from, .. } if self.lanes > from => {
                self.lanes = from;
                self.rest(false);
            }
            Stage::Looking { windows: 0 } | Stage::Trying { .. } => self.end_window(goodput),
            // What the first windows carried went into buffers, too: it is nothing to compare with.
            Stage::Looking { .. } => self.stage = Stage::Resting { windows: 0 },
            Stage::Resting { windows } => {
                self.note_usual(windows, goodput);
                // Later each time that fewer were found to carry less.
                if windows + 1 >= self.rest_windows / 2 && self.lanes > 1 {
                    self.change(self.lanes / 2, self.usual);
                }
            }
        }
    }

    fn note_usual(&mut self, windows: u32, goodput: f64) {
        self.usual = match windows {
            0 => goodput,
            _ => 0.75 * self.usual + 0.25 * goodput,
        };
        self.stage = Stage::Resting {
            windows: windows + 1,
        };
    }

    fn end_window(&mut self, goodput: f64) {
        let [_, older @ ..] = self.recent;
        self.recent[..3].copy_from_slice(&older);
        self.recent[3] = goodput;
        match self.stage {
            // Nothing flows yet, or just now; then what flowed before says nothing.
            Stage::Looking { .. } if goodput <= 0.0 => self.stage = Stage::Looking { windows: 0 },
            Stage::Looking { windows } if !self.has_settled(windows + 1) => {
                self.stage = Stage::Looking {
                    windows: windows + 1,
                };
            }
            Stage::Looking { .. } => self.change(self.lanes * 2, self.settled_goodput()),
            Stage::Trying {
                from,
                goodput: before,
                windows,
            } => self.judge(from, before, windows + 1, goodput),
            Stage::Resting { windows } => {
                self.note_usual(windows, goodput);
                if windows + 1 >= self.rest_windows && self.usual > 0.0 {
                    let step = (self.lanes / 4).max(1);
                    let lanes = match self.try_fewer {
                        true => self.lanes - step.min(self.lanes - 1),
                        false => self.lanes + step,
                    };
                    self.change(lanes, self.usual);
                }
            }
        }
    }

    fn judge(&mut self, from: usize, before: f64, windows: u32, goodput: f64) {
        if self.lanes < from {
            // Fewer lanes lose at once what they lose, but what was under way still arrives. A single
            // window says little where few pieces fit into one.
            if windows >= 3 {
                self.fewer_sum += goodput;
            }
            let mean = self.fewer_sum / f64::from(windows.saturating_sub(2).max(1));
            if windows >= 3 && goodput < before * FEWER_LOSS_AT_ONCE
                || windows >= PATIENCE_WINDOWS && mean < before / TRIAL_GAIN
            {
                self.lanes = from;
                self.rest(false);
            } else if windows >= PATIENCE_WINDOWS {
                self.rest(true);
            } else {
                self.stage = Stage::Trying {
                    from,
                    goodput: before,
                    windows,
                };
            }
            return;
        }
        let gain = self.settled_goodput() / before.max(1.0);
        let goal = if self.doubling {
            DOUBLING_GAIN
        } else {
            TRIAL_GAIN
        };
        let settled = match self.doubling {
            true => self.has_settled(windows),
            false => windows > 1,
        };
        let undecided = !settled || windows < PATIENCE_WINDOWS && gain <= goal;
        if undecided {
            self.stage = Stage::Trying {
                from,
                goodput: before,
                windows,
            };
        } else if gain <= goal {
            self.lanes = from;
            self.doubling = false;
            self.rest(false);
        } else if self.doubling {
            self.change(self.lanes * 2, self.settled_goodput());
        } else {
            self.rest(true);
        }
    }

    fn settled_goodput(&self) -> f64 {
        (self.recent[2] + self.recent[3]) / 2.0
    }

    /// Whether these lanes, which have carried something for so many windows, get no faster any more.
    fn has_settled(&self, windows: u32) -> bool {
        let before = (self.recent[0] + self.recent[1]) / 2.0;
        let enough = windows as usize >= self.recent.len();
        let level = before * SETTLED_LOSS..=before * SETTLED_GAIN;
        let is_level = level.contains(&self.settled_goodput());
        windows >= SETTLING_WINDOWS_MAX || enough && is_level
    }

    fn change(&mut self, lanes: usize, goodput: f64) {
        let from = self.lanes;
        self.lanes = lanes.clamp(1, self.limits.most.max(1));
        if self.lanes == from {
            self.doubling = false;
            return self.rest(false);
        }
        self.fewer_sum = 0.0;
        self.recent = [0.0; 4];
        self.stage = Stage::Trying {
            from,
            goodput,
            windows: 0,
        };
    }

    /// What was tried just now is tried again if it helped, else the other way round.
    fn rest(&mut self, helped: bool) {
        self.stage = Stage::Resting { windows: 0 };
        if helped {
            self.rest_windows = REST_WINDOWS_AFTER_GAIN;
        } else {
            self.try_fewer = !self.try_fewer;
            self.rest_windows = (self.rest_windows * 2).clamp(REST_WINDOWS, REST_WINDOWS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;
    const STEP: Duration = Duration::from_millis(100);

    /// A path: what it carries in all, what one connection carries, and how long a new one takes to
    /// carry anything and then to reach its speed.
    struct Link {
        capacity: f64,
        per_lane: f64,
        silent_s: f64,
        ramp_s: f64,
        /// Whether small requests take long whatever the lanes carry, as those to a busy server.
        slow: bool,
        /// Whether what is more than it carries makes others wait.
        queues: bool,
    }

    /// A transfer over a link, in steps of 100 ms.
    struct Simulated {
        control: LaneControl,
        now: Duration,
        bytes: f64,
        ages_s: Vec<f64>,
    }

    impl Simulated {
        fn new() -> Self {
            Self {
                control: LaneControl::new(LaneLimits::default(), Duration::ZERO),
                now: Duration::ZERO,
                bytes: 0.0,
                ages_s: Vec::new(),
            }
        }

        /// Runs for some seconds; gives the mean goodput. `noise` is a relative amplitude.
        fn run(&mut self, link: &Link, seconds: f64, noise: f64) -> f64 {
            let (bytes_before, steps) = (self.bytes, (seconds * 10.0) as u32);
            for _ in 0..steps {
                self.ages_s.resize(self.control.lanes(), 0.0);
                let speed = |age: &f64| {
                    link.per_lane * ((age - link.silent_s) / link.ramp_s).clamp(0.0, 1.0)
                };
                let wanted: f64 = self.ages_s.iter().map(speed).sum();
                // A cheap generator of numbers that look random.
                let seed = (self.now.as_millis() as u64 / 100).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let wave = (seed >> 40) as f64 / (1u64 << 24) as f64 * 2.0 - 1.0;
                self.bytes += wanted.min(link.capacity) * 0.1 * (1.0 + noise * wave);
                self.ages_s.iter_mut().for_each(|age| *age += 0.1);
                self.now += STEP;
                let queueing = link.slow || (link.queues && wanted >= link.capacity);
                self.control.observe(self.now, self.bytes as u64, queueing);
                assert!((1..=32).contains(&self.control.lanes()));
            }
            (self.bytes - bytes_before) / seconds
        }
    }

    /// 347 ms round trip, 1 Gbit/s, windows of 4 MiB.
    fn transatlantic() -> Link {
        Link {
            capacity: 119.0 * MB,
            per_lane: 12.0 * MB,
            silent_s: 1.05,
            ramp_s: 2.0,
            slow: false,
            queues: false,
        }
    }

    #[test]
    fn a_long_path_is_filled_within_fifteen_seconds_and_stays_full() {
        for noise in [0.0, 0.1] {
            let mut transfer = Simulated::new();
            transfer.run(&transatlantic(), 15.0, noise);
            let goodput = transfer.run(&transatlantic(), 60.0, noise);
            assert!(goodput > 0.95 * 119.0 * MB, "{goodput:e} with {noise}");
        }
    }

    #[test]
    fn a_gain_that_is_only_the_first_lanes_getting_faster_is_not_one_of_having_more() {
        // Four lanes fill it, each after six seconds of slow start.
        let slow_to_start = Link {
            per_lane: 30.0 * MB,
            ramp_s: 6.0,
            ..transatlantic()
        };
        for noise in [0.0, 0.1] {
            let mut transfer = Simulated::new();
            let mut most = 0;
            for _ in 0..40 {
                transfer.run(&slow_to_start, 1.0, noise);
                most = most.max(transfer.control.lanes());
            }
            assert!(most <= 8, "{:?}", transfer.control);
            let goodput = transfer.run(&slow_to_start, 30.0, noise);
            assert!(goodput > 0.9 * 119.0 * MB, "{goodput:e}");
        }
    }

    #[test]
    fn a_pause_of_the_server_is_no_measure_of_what_lanes_carry() {
        let one_fills_it = Link {
            capacity: 10.0 * MB,
            per_lane: 10.0 * MB,
            silent_s: 0.1,
            ramp_s: 0.2,
            ..transatlantic()
        };
        let paused = Link {
            capacity: 0.0,
            ..transatlantic()
        };
        for pause_s in [0.5, 1.0, 1.5, 3.0] {
            for before_s in [1.0, 1.5, 2.0, 2.5] {
                let mut transfer = Simulated::new();
                transfer.run(&one_fills_it, before_s, 0.0);
                transfer.run(&paused, pause_s, 0.0);
                for _ in 0..20 {
                    transfer.run(&one_fills_it, 1.0, 0.0);
                    assert!(transfer.control.lanes() <= 8, "{:?}", transfer.control);
                }
            }
        }
    }

    #[test]
    fn where_losses_limit_each_connection_all_lanes_are_used() {
        let lossy = Link {
            capacity: 119.0 * MB,
            per_lane: 0.2 * MB,
            silent_s: 0.3,
            ramp_s: 1.0,
            slow: false,
            queues: false,
        };
        let mut transfer = Simulated::new();
        transfer.run(&lossy, 15.0, 0.05);
        assert!(transfer.control.lanes() >= 24, "{:?}", transfer.control);
    }

    #[test]
    fn where_one_connection_fills_the_link_few_are_used() {
        for capacity in [1.2 * MB, 1000.0 * MB] {
            let short = Link {
                capacity,
                per_lane: capacity,
                silent_s: 0.05,
                ramp_s: 0.2,
                slow: false,
                queues: false,
            };
            let mut transfer = Simulated::new();
            transfer.run(&short, 15.0, 0.02);
            assert!(transfer.control.lanes() <= 5, "{:?}", transfer.control);
            let goodput = transfer.run(&short, 120.0, 0.02);
            assert!(goodput > 0.97 * capacity);
            assert!(transfer.control.lanes() <= 5, "{:?}", transfer.control);
        }
    }

    #[test]
    fn when_the_path_gets_worse_for_each_connection_more_are_taken() {
        let mut transfer = Simulated::new();
        let mut link = transatlantic();
        link.per_lane = 60.0 * MB;
        transfer.run(&link, 30.0, 0.02);
        let before = transfer.control.lanes();
        link.per_lane = 8.0 * MB;
        transfer.run(&link, 600.0, 0.02);
        assert!(transfer.control.lanes() > before, "{:?}", transfer.control);
        let goodput = transfer.run(&link, 60.0, 0.02);
        assert!(goodput > 0.8 * 119.0 * MB, "{goodput:e}");
    }

    /// 10 Mbit/s, which one connection fills.
    fn narrow() -> Link {
        Link {
            capacity: 1.2 * MB,
            per_lane: 1.2 * MB,
            silent_s: 0.1,
            ramp_s: 0.5,
            slow: false,
            queues: true,
        }
    }

    #[test]
    fn where_others_would_wait_never_more_lanes_are_used_and_soon_one() {
        for noise in [0.0, 0.05, 0.25] {
            let mut transfer = Simulated::new();
            for _ in 0..60 {
                transfer.run(&narrow(), 1.0, noise);
                assert!(transfer.control.lanes() <= 4, "{:?}", transfer.control);
            }
            assert_eq!(transfer.control.lanes(), 1, "{:?}", transfer.control);
            let goodput = transfer.run(&narrow(), 60.0, noise);
            assert!(goodput > 0.95 * 1.2 * MB, "{goodput:e}");
            assert_eq!(transfer.control.lanes(), 1, "{:?}", transfer.control);
        }
    }

    #[test]
    fn a_server_that_is_slow_to_answer_costs_little() {
        let mut transfer = Simulated::new();
        let busy = Link {
            slow: true,
            ..transatlantic()
        };
        transfer.run(&transatlantic(), 30.0, 0.02);
        let goodput = transfer.run(&busy, 300.0, 0.02);
        assert!(goodput > 0.85 * 119.0 * MB, "{goodput:e}");
    }

    #[test]
    fn a_silent_path_changes_nothing_and_bounds_are_kept() {
        let mut transfer = Simulated::new();
        let dead = Link {
            capacity: 0.0,
            ..transatlantic()
        };
        transfer.run(&dead, 60.0, 0.0);
        assert_eq!(transfer.control.lanes(), 4);
        let one = LaneLimits { first: 1, most: 1 };
        let mut control = LaneControl::new(one, Duration::ZERO);
        for second in 1..100 {
            let bytes = second * second * 1000;
            assert_eq!(
                control.observe(Duration::from_secs(second), bytes, false),
                1
            );
        }
    }
}
