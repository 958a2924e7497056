//! Many sites with many shapes, made from a number.

use std::time::Duration;

use hansa_base::Windows;
use hansa_planner::{Budget, Snapshot};

use crate::common::{HOUR, NOW, SiteOf, shape, snapshot, stated};

/// Names of sites that nobody has.
const NAMES: [&str; 10] = [
    "alder", "beech", "cedar", "durmast", "elm", "fir", "ginkgo", "hazel", "ivy", "juniper",
];

/// `sites` of up to ten sites with `shapes` each: speeds, queues and walltimes that differ, limits at
/// some, budgets at others.
pub fn many(sites: usize, shapes: usize) -> Snapshot {
    let site = |i: usize| {
        let of = SiteOf {
            name: NAMES[i % NAMES.len()],
            windows_per_gpu_s: 4.0 + 3.0 * (i * 7 % 10) as f64,
            startup_s: 60.0 + 40.0 * (i % 5) as f64,
            transfer_s: 20.0 + 11.0 * (i * 3 % 7) as f64,
            evaluation_s: 10.0,
        };
        let shapes: Vec<_> = (0..shapes)
            .map(|j| {
                let walltime = HOUR * (1 + (j as u32 * 5 + i as u32) % 24);
                let wait = HOUR * ((i as u32 * 5 + j as u32 * 7) % 60);
                let mut state = shape(&format!("shape-{j}"), 4, walltime, wait);
                state.shape.nodes = 1 << (j % 6);
                state
            })
            .collect();
        let mut site = of.with(&shapes);
        site.limits.nodes = i.is_multiple_of(3).then(|| stated(64));
        site.budget = (i % 4 == 1).then(|| Budget {
            gpu_hours: stated(20_000.0),
            keep_gpu_hours: 1_000.0,
            ends: Some(stated(NOW.after(Duration::from_secs(12 * 86_400)))),
        });
        site
    };
    let mut many = snapshot((0..sites).map(site).collect());
    many.policy.exchange = hansa_planner::Exchange::Overlapped;
    many.run.phase.steps = hansa_base::Steps(500);
    (many.run.target, many.run.corpus) = (Windows(300_000_000), Windows(400_000_000));
    many
}
