//! Faults cost little beside what they destroy.
#![allow(clippy::unwrap_used)]

use hansa_sim::{Options, Report, Weather, run};

fn hour(faults_per_hour: f64, back_ms: u64) -> Report {
    let weather = Weather {
        faults_per_hour,
        back_ms,
        production: false,
        hours: 1,
    };
    let options = Options {
        weather: Some(weather),
        ..Options::default()
    };
    let report = run(0, options);
    assert!(report.failure.is_none(), "{report}");
    report
}

fn goodput(report: &Report) -> f64 {
    report.spent.goodput(report.state.committed())
}

#[test]
fn a_death_every_five_minutes_costs_hardly_more_than_the_phases_that_died() {
    let calm = hour(0.0, 0);
    let deaths = hour(12.0, 300_000);
    assert!(deaths.spent.deaths > 5);
    let share = goodput(&deaths) / goodput(&calm);
    assert!(share > 0.96, "{share}: {:?}", deaths.spent);
    let participation = deaths.spent.participation();
    assert!(participation > 0.95, "{participation}");
}

#[test]
fn with_two_deaths_a_minute_nearly_everybody_takes_part() {
    let report = hour(125.0, 30_000);
    assert!(report.spent.deaths > 100);
    let participation = report.spent.participation();
    assert!(participation > 0.9, "{participation}");
    assert!(goodput(&report) > 0.7, "{}", goodput(&report));
}
