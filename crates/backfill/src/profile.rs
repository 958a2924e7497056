//! How much of a machine is free, from now on.
//!
//! A staircase: free width over time, as far as jobs that run and jobs with a place in the plan are
//! known to hold it. Never here: jobs.

/// Free width from each time on; the first step begins now, the last one never ends.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    steps: Vec<(u64, u32)>,
}

impl Profile {
    /// A machine of which `free` is free now, and more at each of these ends.
    pub(crate) fn new(now_s: u64, free: u32, ends: impl Iterator<Item = (u64, u32)>) -> Self {
        let mut ends: Vec<(u64, u32)> = ends.collect();
        ends.sort_unstable();
        let mut steps = vec![(now_s, free)];
        for (end_s, width) in ends {
            // What should have ended ends any moment: not now, or it would be free now.
            let end_s = end_s.max(now_s + 1);
            match steps.last_mut() {
                Some((at_s, free)) if *at_s == end_s => *free += width,
                Some((_, free)) => {
                    let more = *free + width;
                    steps.push((end_s, more));
                }
                None => {}
            }
        }
        Self { steps }
    }

    /// The first time from which on `width` is free for `length_s`.
    pub(crate) fn fits(&self, width: u32, length_s: u64) -> u64 {
        let mut start: Option<u64> = None;
        for (i, &(at_s, free)) in self.steps.iter().enumerate() {
            if free < width {
                start = None;
                continue;
            }
            let from_s = *start.get_or_insert(at_s);
            let until_s = self.steps.get(i + 1).map_or(u64::MAX, |next| next.0);
            if until_s >= from_s.saturating_add(length_s) {
                return from_s;
            }
        }
        start.unwrap_or(u64::MAX)
    }

    /// Takes `width` out of `[from_s, from_s + length_s)`, where it is free.
    pub(crate) fn take(&mut self, width: u32, from_s: u64, length_s: u64) {
        let until_s = from_s.saturating_add(length_s);
        let first = self.cut(from_s);
        let last = self.cut(until_s);
        for (_, free) in &mut self.steps[first..last] {
            *free = free.saturating_sub(width);
        }
    }

    /// The index of the step that begins at this time, made if need be.
    fn cut(&mut self, at_s: u64) -> usize {
        let after = self.steps.partition_point(|step| step.0 < at_s);
        if self.steps.get(after).is_none_or(|step| step.0 != at_s) {
            let free = after
                .checked_sub(1)
                .map_or(0, |before| self.steps[before].1);
            self.steps.insert(after, (at_s, free));
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_goes_where_it_fits_for_its_whole_length() {
        // 4 of 10 are free now; 3 more at 100, the last 3 at 200.
        let mut profile = Profile::new(0, 4, [(200, 3), (100, 3)].into_iter());
        assert_eq!(profile.fits(4, 1_000), 0);
        assert_eq!(profile.fits(5, 10), 100);
        assert_eq!(profile.fits(10, 10), 200);
        assert_eq!(profile.fits(11, 10), u64::MAX);
        // A place for ten at 200 leaves a hole before it that long jobs do not fit into.
        profile.take(10, 200, 50);
        assert_eq!(profile.fits(4, 200), 0);
        assert_eq!(profile.fits(4, 201), 250);
        assert_eq!(profile.fits(6, 100), 100);
    }
}
