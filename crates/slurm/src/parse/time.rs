//! Slurm's times: points on the site's wall clock, and durations.
//!
//! A site prints local times without offset, so that reading one needs the site's zone; the short
//! forms need the present day too. Both are arguments ([`Now`]): no clock is read here.

use std::fmt;
use std::str::FromStr;

use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ZonedDateTime, civil};

use super::text::digits;

/// Times outside of these two are no job's: 2000-01-01 and 2100-01-01, UTC.
const PLAUSIBLE: std::ops::Range<i64> = 946_684_800..4_102_444_800;

/// A point in time: seconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixTime(pub i64);

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_second(self.0) {
            Ok(timestamp) => timestamp.fmt(f),
            Err(_) => write!(f, "@{}", self.0),
        }
    }
}

/// Why a text is no time, zone or duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// No time with an offset.
    #[error(
        "{0:?} is no time with a zone: write 2026-11-29T15:25:44+02:00, or with the zone's name \
         2026-11-29T15:25:44+02:00[Europe/Helsinki]"
    )]
    Now(String),
    /// No zone.
    #[error("{0:?} is no time zone: write +02:00, Europe/Helsinki or UTC")]
    Zone(String),
    /// The machine's zone cannot be found out.
    #[error("this machine's time zone: {0}; set TZ, such as TZ=Europe/Helsinki")]
    Here(String),
    /// No walltime.
    #[error("{0:?} is no walltime: write HH:MM:SS or D-HH:MM:SS")]
    Walltime(String),
}

/// The time zone of a site's login node.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Self = Self(TimeZone::UTC);

    /// This machine's zone, as its C library finds it: by `TZ`, else by `/etc/localtime`, else UTC.
    ///
    /// # Errors
    /// If `TZ` says something that is no zone; a C library would take that for UTC.
    pub fn here() -> Result<Self, TimeError> {
        let unset = std::env::var_os("TZ").is_none();
        if unset && !std::path::Path::new("/etc/localtime").exists() {
            return Ok(Self::UTC);
        }
        let here = TimeZone::try_system();
        here.map(Self)
            .map_err(|error| TimeError::Here(error.to_string()))
    }

    fn at(&self, civil: civil::DateTime) -> Option<UnixTime> {
        // In the hour that a change of clocks repeats, the earlier one is meant; in the hour that
        // it skips, the later one: one reading of two is needed, and Slurm prints no more.
        let ambiguous = self.0.to_ambiguous_timestamp(civil);
        let second = ambiguous.compatible().ok()?.as_second();
        PLAUSIBLE.contains(&second).then_some(UnixTime(second))
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.iana_name(), self.0.to_fixed_offset()) {
            (Some(name), _) => f.pad(name),
            (None, Ok(offset)) => offset.fmt(f),
            (None, Err(_)) => f.pad("unnamed"),
        }
    }
}

impl FromStr for Zone {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let error = || TimeError::Zone(text.to_owned());
        let Some(sign) = text.strip_prefix(['+', '-']) else {
            return TimeZone::get(text).map(Self).map_err(|_| error());
        };
        let (hours, minutes) = sign.split_once(':').unwrap_or((sign, "00"));
        let hours: i32 = digits(hours)
            .filter(|&hours| hours < 24)
            .ok_or_else(error)?;
        let minutes: i32 = digits(minutes).filter(|&m| m < 60).ok_or_else(error)?;
        let seconds = (hours * 60 + minutes) * 60;
        let seconds = if text.starts_with('-') {
            -seconds
        } else {
            seconds
        };
        let offset = Offset::from_seconds(seconds).map_err(|_| error())?;
        Ok(Self(TimeZone::fixed(offset)))
    }
}

/// When the output was printed, and the zone of the clock that it speaks of.
#[derive(Clone, Debug, PartialEq)]
pub struct Now {
    /// When the command was started.
    pub at: UnixTime,
    /// The zone of the site's login node.
    pub zone: Zone,
}

impl Now {
    fn today(&self) -> Option<civil::Date> {
        let timestamp = Timestamp::from_second(self.at.0).ok()?;
        Some(self.zone.0.to_datetime(timestamp).date())
    }
}

impl FromStr for Now {
    type Err = TimeError;

    /// Reads RFC 3339 with an offset, and a zone's name in brackets after it if there is one.
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let error = || TimeError::Now(text.to_owned());
        if let Ok(zoned) = text.parse::<ZonedDateTime>() {
            let at = UnixTime(zoned.timestamp().as_second());
            let zone = Zone(zoned.time_zone().clone());
            return Ok(Self { at, zone });
        }
        let timestamp: Timestamp = text.parse().map_err(|_| error())?;
        let zone = match text.ends_with(['Z', 'z']) {
            true => Zone::UTC,
            false => {
                let sign = text.rfind(['+', '-']).ok_or_else(error)?;
                text[sign..].parse().map_err(|_| error())?
            }
        };
        let at = UnixTime(timestamp.as_second());
        Ok(Self { at, zone })
    }
}

/// How exactly a printed time says when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// To the second.
    Second,
    /// To the minute: it lies in the minute that begins then.
    Minute,
    /// To the day: it lies in the day that begins then.
    Day,
}

/// Reads a time in any of the forms that `SLURM_TIME_FORMAT` has names for, and epoch seconds.
///
/// The relative forms are those of Slurm's `src/common/parse_time.c`: `16:00:00` today, `Ystday
/// 16:00`, `Tomorr 16:00`, `Fri 16:00` this week, `29 Nov 16:00` this year, `3 Jan 2028` beyond.
pub(super) fn read_time(text: &str, now: &Now) -> Option<(UnixTime, Precision)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        [word] => read_word(word, now),
        ["Ystday", clock] => on(now.today()?.yesterday().ok()?, clock, now),
        ["Tomorr", clock] => on(now.today()?.tomorrow().ok()?, clock, now),
        [weekday, clock] => on(this_week(weekday, now.today()?)?, clock, now),
        [day, month, last] => {
            let day = digits(day).filter(|day| (1..=31).contains(day))?;
            let month = month_of(month)?;
            if last.len() == 4
                && let Some(year) = digits(last)
            {
                let date = civil::Date::new(year, month, day).ok()?;
                let at = now.zone.at(date.at(0, 0, 0, 0))?;
                return Some((at, Precision::Day));
            }
            let date = civil::Date::new(now.today()?.year(), month, day).ok()?;
            on(date, last, now)
        }
        _ => None,
    }
}

/// Reads a time that is known at least to the minute: a day alone is no point in time.
pub(super) fn read_point(text: &str, now: &Now) -> Option<UnixTime> {
    let (at, precision) = read_time(text, now)?;
    (precision != Precision::Day).then_some(at)
}

fn read_word(word: &str, now: &Now) -> Option<(UnixTime, Precision)> {
    let second = |at| Some((at, Precision::Second));
    if let Some(epoch) = digits::<i64>(word) {
        return PLAUSIBLE
            .contains(&epoch)
            .then_some((UnixTime(epoch), Precision::Second));
    }
    if let Some((h, m, s)) = clock_of(word, true) {
        return second(now.zone.at(now.today()?.at(h, m, s, 0))?);
    }
    let local = word.get(..19)?;
    let (date, clock) = local.split_once('T')?;
    let date = date_of(date)?;
    let (h, m, s) = clock_of(clock, true)?;
    if word.len() == 19 {
        return second(now.zone.at(date.at(h, m, s, 0))?);
    }
    // Some collectors add the offset.
    let at: Timestamp = word.parse().ok()?;
    PLAUSIBLE
        .contains(&at.as_second())
        .then_some((UnixTime(at.as_second()), Precision::Second))
}

fn date_of(text: &str) -> Option<civil::Date> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || [year.len(), month.len(), day.len()] != [4, 2, 2] {
        return None;
    }
    civil::Date::new(digits(year)?, digits(month)?, digits(day)?).ok()
}

/// `HH:MM:SS` or, without seconds, `HH:MM`.
fn clock_of(text: &str, seconds: bool) -> Option<(i8, i8, i8)> {
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() != 2 + usize::from(seconds) || parts.iter().any(|part| part.len() != 2) {
        return None;
    }
    let below = |part: &str, limit: i8| digits::<i8>(part).filter(|&n| n < limit);
    let s = match parts.get(2) {
        Some(part) => below(part, 60)?,
        None => 0,
    };
    Some((below(parts[0], 24)?, below(parts[1], 60)?, s))
}

fn on(date: civil::Date, clock: &str, now: &Now) -> Option<(UnixTime, Precision)> {
    let (h, m, _) = clock_of(clock, false)?;
    Some((now.zone.at(date.at(h, m, 0, 0))?, Precision::Minute))
}

/// The next day with this name, today excluded: Slurm writes today's times as a clock time.
fn this_week(name: &str, today: civil::Date) -> Option<civil::Date> {
    let names = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let wanted = names.iter().position(|&known| known == name)?;
    let mut date = today;
    for _ in 1..=6 {
        date = date.tomorrow().ok()?;
        let weekday = date.weekday().to_monday_zero_offset();
        if usize::try_from(weekday) == Ok(wanted) {
            return Some(date);
        }
    }
    None
}

fn month_of(name: &str) -> Option<i8> {
    let names = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let index = names.iter().position(|&known| known == name)?;
    i8::try_from(index + 1).ok()
}

/// The time that a job asks for, or may run at most, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Walltime(pub u64);

/// The time that passed, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Elapsed(pub u64);

impl fmt::Display for Walltime {
    /// Writes what `sbatch --time` reads and `squeue` prints: `HH:MM:SS` or `D-HH:MM:SS`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, rest) = (self.0 / 86_400, self.0 % 86_400);
        let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
        match days {
            0 => write!(f, "{h:02}:{m:02}:{s:02}"),
            _ => write!(f, "{days}-{h:02}:{m:02}:{s:02}"),
        }
    }
}

impl FromStr for Walltime {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let seconds = read_duration(text).ok_or_else(|| TimeError::Walltime(text.to_owned()))?;
        Ok(Self(seconds))
    }
}

/// Seconds of `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`. A bare number is none of
/// them: it may be minutes or seconds.
pub(super) fn read_duration(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(digits::<u64>(days).filter(|&d| d < 100_000)?), clock),
        None => (None, text),
    };
    let parts: Vec<&str> = clock.split(':').collect();
    // The first part may be short or, without days, long; all others have two digits.
    if parts[1..].iter().any(|part| part.len() != 2) || parts[0].len() > 4 {
        return None;
    }
    let numbers: Option<Vec<u64>> = parts.iter().map(|part| digits(part)).collect();
    let (h, m, s) = match (days.is_some(), &numbers?[..]) {
        (true, &[h]) => (h, 0, 0),
        (true, &[h, m]) => (h, m, 0),
        (_, &[h, m, s]) => (h, m, s),
        (false, &[m, s]) => (0, m, s),
        _ => return None,
    };
    let fits = m < 60 && s < 60 && (days.is_none() || h < 24);
    fits.then_some(days.unwrap_or(0) * 86_400 + h * 3600 + m * 60 + s)
}

#[cfg(test)]
mod tests;
