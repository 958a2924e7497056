//! Times and durations, form by form.
#![allow(clippy::unwrap_used)]

use super::*;

fn helsinki() -> Now {
    // A Sunday.
    "2026-11-29T15:25:44+02:00[Europe/Helsinki]"
        .parse()
        .unwrap()
}

fn check(text: &str, expected: &str, precision: Precision) {
    let (at, got) = read_time(text, &helsinki()).unwrap();
    assert_eq!(at.to_string(), expected, "{text}");
    assert_eq!(got, precision, "{text}");
}

#[test]
fn absolute_times_are_read_on_the_sites_clock() {
    check(
        "2026-11-29T15:25:44",
        "2026-11-29T13:25:44Z",
        Precision::Second,
    );
    check(
        "2026-11-29T00:00:00",
        "2026-11-28T22:00:00Z",
        Precision::Second,
    );
    check(
        "2026-11-29T23:59:59",
        "2026-11-29T21:59:59Z",
        Precision::Second,
    );
    check(
        "2026-07-01T12:00:00",
        "2026-07-01T09:00:00Z",
        Precision::Second,
    );
    check("1795966055", "2026-11-29T15:27:35Z", Precision::Second);
    check(
        "2026-11-29T15:25:44+01:00",
        "2026-11-29T14:25:44Z",
        Precision::Second,
    );
}

#[test]
fn relative_times_are_read_from_the_present_day() {
    check("16:00:00", "2026-11-29T14:00:00Z", Precision::Second);
    check("Tomorr 03:33", "2026-11-30T01:33:00Z", Precision::Minute);
    check("Ystday 03:33", "2026-11-28T01:33:00Z", Precision::Minute);
    check("Tue 00:01", "2026-11-30T22:01:00Z", Precision::Minute);
    check("Sat 12:00", "2026-12-05T10:00:00Z", Precision::Minute);
    check("24 Dec 06:00", "2026-12-24T04:00:00Z", Precision::Minute);
    check("3 Jan 2028", "2028-01-02T22:00:00Z", Precision::Day);
}

#[test]
fn a_day_alone_is_no_point_in_time() {
    assert_eq!(read_point("3 Jan 2028", &helsinki()), None);
    assert!(read_point("Tomorr 03:33", &helsinki()).is_some());
}

#[test]
fn what_is_no_time_stays_text() {
    let bad = [
        "",
        "Unknown",
        "N/A",
        "0",
        "17959660",
        "99999999999",
        "2026-11-29T15:25:4",
        "2026-11-29",
        "2026-11-29T24:00:00",
        "2026-02-30T00:00:00",
        "2026-11-29 15:25:44",
        "16:00",
        "25:00:00",
        "Sun 10:00",
        "So 10:00",
        "Tomorr 3:33",
        "Tomorr",
        "Tomorr 03:33 x",
        "31 Feb 10:00",
        "1996-01-01T00:00:00",
        "2126-01-01T00:00:00",
        "1 Jan 99999",
        "２026-11-29T15:25:44",
        "2026-11-29T15:25:44é",
        "+1795966055",
    ];
    for text in bad {
        assert_eq!(read_time(text, &helsinki()), None, "{text}");
    }
}

#[test]
fn a_change_of_clocks_gives_one_reading() {
    check(
        "2026-10-25T03:30:00",
        "2026-10-25T00:30:00Z",
        Precision::Second,
    );
    check(
        "2026-03-29T03:30:00",
        "2026-03-29T01:30:00Z",
        Precision::Second,
    );
}

#[test]
fn now_knows_its_zone() {
    let fixed: Now = "2026-11-29T15:25:44-05:30".parse().unwrap();
    assert_eq!(fixed.at, UnixTime(1_795_985_744));
    assert_eq!(fixed.zone, "-05:30".parse().unwrap());
    let utc: Now = "2026-11-29T15:25:44Z".parse().unwrap();
    assert_eq!(utc.zone, Zone::UTC);
    for bad in ["", "2026-11-29T15:25:44", "now", "2026-11-29"] {
        assert!(bad.parse::<Now>().is_err(), "{bad}");
    }
    for bad in ["", "Mars/Olympus", "+", "+25", "+01:60", "+1:"] {
        assert!(bad.parse::<Zone>().is_err(), "{bad}");
    }
}

#[test]
fn durations_in_every_form() {
    let cases = [
        ("0:00", 0),
        ("30:00", 1800),
        ("4:59", 299),
        ("00:01:17", 77),
        ("17:22:49", 62_569),
        ("49:00:00", 176_400),
        ("2-00:00:00", 172_800),
        ("125-00:00:00", 10_800_000),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("23:59:59", 86_399),
    ];
    for (text, seconds) in cases {
        assert_eq!(read_duration(text), Some(seconds), "{text}");
    }
    let bad = [
        "",
        "60",
        "UNLIMITED",
        "1:0",
        "1:60",
        "1:60:00",
        "1-24:00:00",
        "-1:00",
        "1-",
        "-",
        ":",
        "1::00",
        "00:01:17.5",
        "1-2-3",
        "99999:00:00",
        "1:00:00:00",
        "9999999999-00",
    ];
    for text in bad {
        assert_eq!(read_duration(text), None, "{text}");
    }
}

#[test]
fn a_walltime_is_written_as_slurm_reads_it() {
    for text in [
        "00:00:00",
        "00:30:00",
        "23:59:59",
        "1-00:00:00",
        "14-06:07:08",
    ] {
        assert_eq!(text.parse::<Walltime>().unwrap().to_string(), text);
    }
}
