//! The water level: the earliest time by which given lanes can have done a given amount of work.
//!
//! Picture a basin for every site, its floor at the time its job is ready, its width the site's
//! speed, its rim the end of the walltime. Work poured in fills the lowest basins first; the height
//! of the surface is the time at which all of it is done. A site may have several shapes, of which
//! one is used, so its capacity by a time `T` is the largest over its lanes; and a job below the
//! minimum is not worth having, so a lane counts only from there on.
//!
//! **Exact.** With `C_l(T) = min(cap_l, (T − ready_l)/unit_l)`, 0 below the minimum `m`, and
//! `k = ⌊U/m⌋` jobs at most, the capacity `F(T)` is the sum of the `k` largest over sites of
//! `max_l C_l(T)`. It never falls, and is linear between its breakpoints: minimum reached, cap
//! reached, and where two lanes change order. The level is the linear solution within the segment
//! that holds `U`. For whole units the same `F` over `⌊C_l⌋` steps only at completion times
//! `ready_l + n·unit_l`, so the optimum is one of them, found by halving an interval of integers. No
//! tolerance anywhere.
//!
//! Never here: sites' names, shapes' properties, reasons; see the waterfill.

/// One way in which a site could work: one job of one shape. Times in seconds from now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lane {
    /// Lanes with the same number exclude each other.
    pub site: usize,
    /// When it can start on its first unit.
    pub ready_s: f64,
    /// How long it takes for a unit; above 0.
    pub unit_s: f64,
    /// Units that it can do before its walltime is over.
    pub cap: u64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Poured {
    /// When arbitrarily fine work would be done; `None` if it does not fit.
    pub level_s: Option<f64>,
    /// When the last whole unit is done; 0 if there is none.
    pub finish_s: f64,
    /// Units of each lane.
    pub units: Vec<u64>,
    /// Units that fit nowhere.
    pub left: u64,
}

#[allow(clippy::cast_precision_loss)] // Unit counts are far below 2^53.
const fn f(units: u64) -> f64 {
    units as f64
}

impl Lane {
    fn done_s(&self, units: u64) -> f64 {
        self.ready_s + f(units) * self.unit_s
    }

    /// `C(T)` without the minimum; never less than the whole units, however it rounds.
    fn amount(&self, at_s: f64) -> f64 {
        self.ramp(at_s).max(f(self.whole(at_s)))
    }

    fn ramp(&self, at_s: f64) -> f64 {
        ((at_s - self.ready_s) / self.unit_s).clamp(0.0, f(self.cap))
    }

    /// Whole units done by then: the largest `n` with `done_s(n) ≤ at_s`, consistent with it to the
    /// last bit.
    fn whole(&self, at_s: f64) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Clamped to 0..=cap.
        let mut units = self.ramp(at_s) as u64;
        while units < self.cap && self.done_s(units + 1) <= at_s {
            units += 1;
        }
        while units > 0 && self.done_s(units) > at_s {
            units -= 1;
        }
        units
    }
}

/// Pours `units` into the lanes, so that the last one is done as early as can be; no lane gets fewer
/// than `min` and more than none. Ties go to the lane that comes first.
pub(crate) fn pour(lanes: &[Lane], units: u64, min: u64) -> Poured {
    let basin = Basin {
        lanes,
        sites: lanes.iter().map(|l| l.site + 1).max().unwrap_or(0),
        units,
        min: min.clamp(1, units.max(1)),
    };
    let Some(level_s) = basin.level() else {
        let chosen = basin.chosen(|lane| lane.cap);
        let held: u64 = chosen.iter().map(|&i| lanes[i].cap).sum();
        return basin.poured(None, &chosen, held.min(units), f64::INFINITY);
    };
    let finish_s = basin.finish(level_s);
    let chosen = basin.chosen(|lane| lane.whole(finish_s));
    basin.poured(Some(level_s), &chosen, units, finish_s)
}

struct Basin<'a> {
    lanes: &'a [Lane],
    sites: usize,
    units: u64,
    min: u64,
}

impl Basin<'_> {
    /// How many jobs may share the work, each with its minimum.
    fn jobs_max(&self) -> usize {
        usize::try_from(self.units / self.min).unwrap_or(usize::MAX)
    }

    /// `F`, from what each lane holds.
    fn capacity(&self, held: impl Fn(&Lane) -> f64) -> f64 {
        let mut best = vec![0.0_f64; self.sites];
        for lane in self.lanes {
            best[lane.site] = best[lane.site].max(held(lane));
        }
        best.sort_unstable_by(|a, b| b.total_cmp(a));
        best.iter().take(self.jobs_max()).sum()
    }

    /// `F(T)`, or its limit from the left, before lanes that reach their minimum at `T` count.
    fn fluid(&self, at_s: f64, before: bool) -> f64 {
        self.capacity(|lane| {
            let reached_s = lane.done_s(self.min);
            let counts = lane.cap >= self.min && (reached_s < at_s || reached_s == at_s && !before);
            if counts { lane.amount(at_s) } else { 0.0 }
        })
    }

    fn whole(&self, at_s: f64) -> f64 {
        self.capacity(|lane| {
            let units = lane.whole(at_s);
            if units >= self.min { f(units) } else { 0.0 }
        })
    }

    /// All times at which `F` may bend or jump, sorted.
    fn breakpoints(&self) -> Vec<f64> {
        let mut times = Vec::new();
        for (i, a) in self.lanes.iter().enumerate() {
            times.extend([a.done_s(self.min), a.done_s(a.cap)]);
            for b in &self.lanes[..i] {
                times.extend([a.done_s(b.cap), b.done_s(a.cap)]);
                if a.unit_s != b.unit_s {
                    let crossing = a.ready_s * b.unit_s - b.ready_s * a.unit_s;
                    times.push(crossing / (b.unit_s - a.unit_s));
                }
            }
        }
        times.retain(|t| t.is_finite());
        times.sort_unstable_by(f64::total_cmp);
        times.dedup();
        times
    }

    fn level(&self) -> Option<f64> {
        let (times, wanted) = (self.breakpoints(), f(self.units));
        if self.units == 0 {
            return Some(0.0);
        }
        let after = times.partition_point(|&t| self.fluid(t, false) < wanted);
        let &end_s = times.get(after)?;
        let reached = self.fluid(end_s, true);
        if reached < wanted || after == 0 {
            return Some(end_s); // The lanes that come in at this time make up the rest.
        }
        let start_s = times[after - 1];
        let held = self.fluid(start_s, false);
        Some(start_s + (wanted - held) * (end_s - start_s) / (reached - held))
    }

    /// The earliest completion by which all whole units are done. `level_s` is a lower bound.
    fn finish(&self, level_s: f64) -> f64 {
        let mut best_s = f64::INFINITY;
        for lane in self.lanes.iter().filter(|_| self.units > 0) {
            let enough = |n: u64| self.whole(lane.done_s(n)) >= f(self.units);
            // One less than the level gives, because it is rounded.
            let mut low = lane.whole(level_s).saturating_sub(1).max(1);
            if low > lane.cap || lane.done_s(low) >= best_s {
                continue;
            }
            let mut high = lane.cap;
            if !enough(high) {
                continue;
            }
            while low < high {
                let middle = low + (high - low) / 2;
                (low, high) = match enough(middle) {
                    true => (low, middle),
                    false => (middle + 1, high),
                };
            }
            best_s = best_s.min(lane.done_s(high));
        }
        if best_s.is_finite() { best_s } else { 0.0 }
    }

    /// The lane of each site that holds most, and of these the `k` that hold most: indices, sorted.
    fn chosen(&self, held: impl Fn(&Lane) -> u64) -> Vec<usize> {
        let mut best: Vec<Option<(u64, usize)>> = vec![None; self.sites];
        for (i, lane) in self.lanes.iter().enumerate() {
            let units = held(lane);
            let better = best[lane.site].is_none_or(|(most, _)| units > most);
            if units >= self.min && better {
                best[lane.site] = Some((units, i));
            }
        }
        let mut best: Vec<(u64, usize)> = best.into_iter().flatten().collect();
        best.sort_unstable_by_key(|&(units, i)| (std::cmp::Reverse(units), i));
        best.truncate(self.jobs_max());
        let mut chosen: Vec<usize> = best.into_iter().map(|(_, i)| i).collect();
        chosen.sort_unstable();
        chosen
    }

    /// Shares `units` among the chosen lanes, level, none past `finish_s`.
    fn poured(&self, level_s: Option<f64>, chosen: &[usize], units: u64, finish_s: f64) -> Poured {
        let rims: Vec<u64> = chosen
            .iter()
            .map(|&i| self.lanes[i].whole(finish_s))
            .collect();
        let shares = self.level_shares(chosen, &rims, units);
        let mut poured = Poured {
            level_s,
            finish_s: 0.0,
            units: vec![0; self.lanes.len()],
            left: self.units - shares.iter().sum::<u64>(),
        };
        for (&i, share) in chosen.iter().zip(shares) {
            poured.units[i] = share;
            poured.finish_s = poured.finish_s.max(self.lanes[i].done_s(share));
        }
        poured
    }

    /// Whole shares between `min` and `rims` that sum to `units`: the level's whole parts, and what
    /// remains goes unit by unit to whoever would be done with it first. That is the method of the
    /// largest remainder with remainders measured in time; by remainders in units, a slow site could
    /// be handed the unit that everybody then waits for.
    fn level_shares(&self, chosen: &[usize], rims: &[u64], units: u64) -> Vec<u64> {
        let lanes = || chosen.iter().map(|&i| &self.lanes[i]).zip(rims);
        let amount =
            |lane: &Lane, rim: u64, at_s: f64| lane.amount(at_s).clamp(f(self.min), f(rim));
        let held = |at_s: f64| lanes().map(|(l, &rim)| amount(l, rim, at_s)).sum::<f64>();
        let mut times: Vec<f64> = lanes()
            .flat_map(|(l, &rim)| [l.done_s(self.min), l.done_s(rim)])
            .collect();
        times.sort_unstable_by(f64::total_cmp);
        let after = times.partition_point(|&t| held(t) < f(units));
        let at_s = match (after.checked_sub(1).map(|i| times[i]), times.get(after)) {
            (Some(start_s), Some(&end_s)) => {
                let (low, high) = (held(start_s), held(end_s));
                start_s + (f(units) - low) * (end_s - start_s) / (high - low)
            }
            (None, Some(&first_s)) => first_s,
            (_, None) => f64::INFINITY,
        };
        let floor = |(lane, &rim): (&Lane, &u64)| lane.whole(at_s).clamp(self.min, rim);
        let mut shares: Vec<u64> = lanes().map(floor).collect();
        let mut sum: u64 = shares.iter().sum();
        // The level is rounded, so its whole parts may hold a unit too many: take back the last done.
        while sum > units {
            let above = |&i: &usize| shares[i] > self.min;
            let done = |&i: &usize| self.lanes[chosen[i]].done_s(shares[i]);
            let last = (0..shares.len()).filter(above);
            let Some(i) = last.max_by(|a, b| done(a).total_cmp(&done(b))) else {
                break;
            };
            shares[i] -= 1;
            sum -= 1;
        }
        while sum < units {
            let below = |&i: &usize| shares[i] < rims[i];
            let done = |&i: &usize| self.lanes[chosen[i]].done_s(shares[i] + 1);
            let first = (0..shares.len()).filter(below);
            let Some(i) = first.min_by(|a, b| done(a).total_cmp(&done(b))) else {
                break;
            };
            shares[i] += 1;
            sum += 1;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn lane(site: usize, ready_s: f64, unit_s: f64, cap: u64) -> Lane {
        Lane {
            site,
            ready_s,
            unit_s,
            cap,
        }
    }

    #[test]
    fn free_sites_share_in_proportion_to_their_speed() {
        // 6 units a minute and 2 a minute, both free now: 3 to 1.
        let poured = pour(&[lane(0, 0.0, 10.0, 99), lane(1, 0.0, 30.0, 99)], 40, 1);
        assert_eq!(poured.units, [30, 10]);
        assert_eq!((poured.level_s, poured.finish_s), (Some(300.0), 300.0));
    }

    #[test]
    fn a_late_site_gets_what_lies_above_its_floor() {
        // The first has 10 units done when the second comes in at 100 s; the other 20 are shared.
        let poured = pour(&[lane(0, 0.0, 10.0, 99), lane(1, 100.0, 10.0, 99)], 30, 1);
        assert_eq!(poured.units, [20, 10]);
        assert_eq!(poured.level_s, Some(200.0));
    }

    #[test]
    fn what_fits_nowhere_is_said() {
        let poured = pour(&[lane(0, 0.0, 1.0, 7), lane(1, 50.0, 1.0, 5)], 20, 1);
        assert_eq!((poured.level_s, poured.left), (None, 8));
        assert_eq!((poured.units, poured.finish_s), (vec![7, 5], 55.0));
        assert_eq!(pour(&[], 3, 1).left, 3);
    }

    #[test]
    fn a_site_uses_the_shape_that_holds_most_by_the_level() {
        // Large but late against small and soon: for little work the small one is better.
        let lanes = [lane(0, 1000.0, 1.0, 999), lane(0, 0.0, 10.0, 999)];
        assert_eq!(pour(&lanes, 50, 1).units, [0, 50]);
        assert_eq!(pour(&lanes, 500, 1).units, [500, 0]);
    }

    #[test]
    fn a_job_below_the_minimum_is_not_made() {
        let lanes = [lane(0, 0.0, 10.0, 99), lane(1, 95.0, 10.0, 99)];
        assert_eq!(pour(&lanes, 14, 1).units, [12, 2]);
        assert_eq!(pour(&lanes, 14, 5).units, [14, 0], "145 s for five there");
        assert_eq!(pour(&lanes, 24, 5).units, [17, 7]);
        assert_eq!(
            pour(&lanes, 3, 5).units,
            [3, 0],
            "all that is left is a job"
        );
    }

    /// The least time by which some assignment of whole units is done, by trying all of them.
    fn oracle(lanes: &[Lane], units: u64, min: u64) -> Option<f64> {
        fn best(lanes: &[Lane], used: &mut Vec<usize>, units: u64, min: u64) -> Option<f64> {
            let Some((lane, rest)) = lanes.split_first() else {
                return (units == 0).then_some(0.0);
            };
            let mut found = best(rest, used, units, min);
            if used.contains(&lane.site) {
                return found;
            }
            used.push(lane.site);
            for n in min..=lane.cap.min(units) {
                if let Some(others_s) = best(rest, used, units - n, min) {
                    let finish_s = lane.done_s(n).max(others_s);
                    found = Some(found.map_or(finish_s, |f| f.min(finish_s)));
                }
            }
            used.pop();
            found
        }
        best(lanes, &mut Vec::new(), units, min.clamp(1, units.max(1)))
    }

    fn some_lanes() -> impl Strategy<Value = Vec<Lane>> {
        // Coarse values, so that ties and simultaneous events are common.
        let one = (0..3_usize, 0..8_u32, 1..6_u32, 0..9_u64);
        let lane_of = |(site, ready, unit, cap): (usize, u32, u32, u64)| {
            lane(site, f64::from(ready) * 2.5, f64::from(unit) * 0.7, cap)
        };
        prop::collection::vec(one.prop_map(lane_of), 0..5)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_assignment_is_done_earlier(lanes in some_lanes(), units in 0..14_u64, min in 1..5_u64) {
            let poured = pour(&lanes, units, min);
            let least = oracle(&lanes, units, min);
            let sum: u64 = poured.units.iter().sum();
            prop_assert_eq!(sum + poured.left, units);
            prop_assert_eq!(poured.left == 0, least.is_some());
            if let Some(least_s) = least {
                prop_assert_eq!(poured.finish_s, least_s);
                let level_s = poured.level_s.unwrap();
                prop_assert!(level_s <= least_s + 1e-9, "the level is a lower bound: {level_s}");
            }
            let mut sites = [0; 3];
            for (lane, &n) in lanes.iter().zip(&poured.units) {
                prop_assert!(n == 0 || n >= min.min(units), "{n} is below the minimum");
                prop_assert!(n <= lane.cap);
                sites[lane.site] += u32::from(n > 0);
            }
            prop_assert!(sites.iter().all(|&jobs| jobs <= 1), "one shape per site");
            prop_assert_eq!(&poured, &pour(&lanes, units, min));
        }

        #[test]
        fn the_level_holds_exactly_the_work(
            speeds in prop::collection::vec((0.0..50.0_f64, 0.1..9.0_f64), 1..6),
            units in 1..5000_u64,
        ) {
            // One lane a site, no rim, minimum of one: each is either untouched or filled to the level.
            let lanes: Vec<Lane> = speeds.iter().enumerate()
                .map(|(i, &(ready_s, unit_s))| lane(i, ready_s, unit_s, 1_000_000)).collect();
            let level_s = pour(&lanes, units, 1).level_s.unwrap();
            let held = |at_s: f64| lanes.iter().map(|l| l.amount(at_s))
                .map(|n| if n < 1.0 { 0.0 } else { n }).sum::<f64>();
            let wanted = f(units);
            prop_assert!(held(level_s * (1.0 + 1e-12)) >= wanted * (1.0 - 1e-12));
            prop_assert!(held(level_s * (1.0 - 1e-9)) <= wanted);
        }

        #[test]
        fn more_capacity_is_never_later(lanes in some_lanes(), extra in some_lanes(), units in 0..14_u64) {
            let fewer = pour(&lanes, units, 1);
            let all: Vec<Lane> = lanes.iter().chain(&extra).copied().collect();
            let more = pour(&all, units, 1);
            prop_assert!(more.left <= fewer.left);
            if fewer.left == 0 {
                prop_assert!(more.finish_s <= fewer.finish_s);
            }
        }
    }
}
