//! Real traces as jobs.
//!
//! Lines that are no job that ran (comments, cancelled before the start, unknown sizes) are left out.

/// One job of a trace. Times in seconds from the trace's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceJob {
    /// When it was submitted.
    pub submit_s: u64,
    /// Processors, or nodes: what the machine is counted in.
    pub width: u32,
    /// The walltime that it asked for.
    pub limit_s: u64,
    /// How long it ran.
    pub run_s: u64,
}

/// Reads the Standard Workload Format: submit, wait, run, …, requested processors and time.
#[must_use]
pub fn read_swf(text: &str) -> Vec<TraceJob> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with(';'));
    from_zero(lines.filter_map(swf_job).collect())
}

fn swf_job(line: &str) -> Option<TraceJob> {
    let fields: Vec<&str> = line.split_whitespace().take(9).collect();
    let number = |i: usize| fields.get(i)?.parse::<f64>().ok().filter(|n| *n >= 0.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Seconds and counts.
    let whole = |i: usize| number(i).map(|n| n as u64);
    let run_s = whole(3)?;
    let width = whole(7).filter(|&n| n > 0).or(whole(4))?;
    // Without a request the run itself is the best that can be said.
    let limit_s = whole(8)
        .filter(|&n| n > 0)
        .unwrap_or(run_s)
        .max(run_s)
        .max(60);
    job(whole(1)?, width, limit_s, run_s)
}

/// Reads `sacct -P` without a header, of 26 fields: submission 11th, start 13th, end 14th, processors
/// 19th, limit 24th.
#[must_use]
pub fn read_sacct(text: &str) -> Vec<TraceJob> {
    from_zero(text.lines().filter_map(sacct_job).collect())
}

fn sacct_job(line: &str) -> Option<TraceJob> {
    let fields: Vec<&str> = line.split('|').collect();
    let time = |i: usize| fields.get(i).and_then(|text| timestamp_s(text));
    let (submit_s, start_s, end_s) = (time(10)?, time(12)?, time(13)?);
    let width = fields.get(18)?.parse().ok()?;
    let run_s = end_s.checked_sub(start_s)?;
    let limit_s = fields
        .get(23)
        .and_then(|text| length_s(text))
        .unwrap_or(run_s);
    job(submit_s, width, limit_s.max(run_s).max(60), run_s)
}

fn job(submit_s: u64, width: u64, limit_s: u64, run_s: u64) -> Option<TraceJob> {
    let width = u32::try_from(width).ok().filter(|&width| width > 0)?;
    (run_s > 0).then_some(TraceJob {
        submit_s,
        width,
        limit_s,
        run_s,
    })
}

fn from_zero(mut jobs: Vec<TraceJob>) -> Vec<TraceJob> {
    jobs.sort_by_key(|job| job.submit_s);
    let first_s = jobs.first().map_or(0, |job| job.submit_s);
    for job in &mut jobs {
        job.submit_s -= first_s;
    }
    jobs
}

/// `2016-12-30T04:37:45` in seconds since some day; zones do not matter for differences.
fn timestamp_s(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let mut date = date.split('-').map(str::parse::<u64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    // Days since 1 March of year 0 (Gregorian): the year begins in March, so leap days come last.
    let (years, months) = match month {
        1..=2 => (year.checked_sub(1)?, month + 9),
        3..=12 => (year, month - 3),
        _ => return None,
    };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day;
    Some(days * 86_400 + clock_s(time)?)
}

/// `D-HH:MM:SS` or `HH:MM:SS`.
fn length_s(text: &str) -> Option<u64> {
    match text.split_once('-') {
        Some((days, time)) => Some(days.parse::<u64>().ok()? * 86_400 + clock_s(time)?),
        None => clock_s(text),
    }
}

fn clock_s(text: &str) -> Option<u64> {
    let mut parts = text.split(':').map(str::parse::<u64>);
    let (h, m, s) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    Some(h * 3600 + m * 60 + s)
}

/// The most that ran at a time: a lower bound for a machine whose size is not known.
#[must_use]
pub fn busiest(starts: impl Iterator<Item = (u64, u64, u32)>) -> u32 {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for (start_s, end_s, width) in starts {
        changes.push((end_s, -i64::from(width)));
        changes.push((start_s, i64::from(width)));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    u32::try_from(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_either_format_is_a_job() {
        let swf = "; Version: 2.2\n 1 100 5 60 4 -1 -1 8 3600 -1 1 12 12 -1 -1 -1 -1 -1\n\
                   2 90 5 0 4 -1 -1 8 3600 -1 0 12 12 -1 -1 -1 -1 -1\n\
                   3 160 5 70 4 -1 -1 -1 -1 -1 1 12 12 -1 -1 -1 -1 -1\n";
        let jobs = read_swf(swf);
        let job = |submit_s, width, limit_s, run_s| TraceJob {
            submit_s,
            width,
            limit_s,
            run_s,
        };
        assert_eq!(jobs, [job(0, 8, 3600, 60), job(60, 4, 70, 70)]);
        let sacct = "1|1|c|p|a|g|g|1|u|1|2016-12-30T17:00:10|2016-12-30T17:02:11|2016-12-31T12:14:56|\
                     2017-01-01T00:20:31|x|0:0|COMPLETED|1|12|12|48000Mn|r|a|3-00:00:00|n|h\n\
                     2|2|c|p|a|g|g|1|u|1|2016-12-30T17:00:11|2016-12-30T17:02:11|Unknown|\
                     Unknown|x|0:0|CANCELLED|1|12|12|48000Mn|r|a|3-00:00:00|n|h\n";
        let run_s = 12 * 3600 + 5 * 60 + 35;
        assert_eq!(read_sacct(sacct), [job(0, 12, 3 * 86_400, run_s)]);
    }

    #[test]
    fn the_busiest_moment_counts_ends_before_starts() {
        let jobs = [(0, 10, 4), (10, 20, 5), (5, 8, 3)];
        assert_eq!(busiest(jobs.into_iter()), 7);
    }
}
