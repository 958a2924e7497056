//! A case that a real Slurm ran, replayed: `against_slurm CASE` with what
//! `experiments/replay/record_slurm.py` wrote.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use hansa_backfill::{Queue, TraceJob, Walltimes};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let text = std::fs::read_to_string(arguments.next().unwrap()).unwrap();
    let width = arguments.next().map_or(6, |text| text.parse().unwrap());
    let rows: Vec<(&str, Vec<i64>)> = text
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let kind = words.next().unwrap();
            (kind, words.map(|word| word.parse().unwrap()).collect())
        })
        .collect();
    let whole = |n: i64| u64::try_from(n).unwrap();
    let jobs: Vec<(TraceJob, i64)> = rows
        .iter()
        .filter(|(kind, _)| *kind == "job")
        .map(|(_, n)| {
            let job = TraceJob {
                submit_s: whole(n[0]),
                width: u32::try_from(n[1]).unwrap(),
                limit_s: whole(n[2]),
                run_s: whole(n[3]),
            };
            (job, n[4])
        })
        .collect();
    let mut queue = Queue::new(width, Walltimes::Realised, &[]);
    println!("asked at, nodes: Slurm's --test-only, ours on the same jobs, in seconds from then");
    for (_, n) in rows.iter().filter(|(kind, _)| *kind == "ask") {
        asked(width, &jobs, n);
    }
    let mut ids = Vec::new();
    for (job, _) in &jobs {
        queue.run_until(job.submit_s);
        ids.push(queue.submit(job.width, job.limit_s, job.run_s));
    }
    queue.run_until(1_000_000);
    println!("submitted, nodes, limit, ran: started at Slurm, with us, difference");
    let mut errors = Vec::new();
    for ((job, real), id) in jobs.iter().zip(ids) {
        let ours = i64::try_from(queue.start_of(id).unwrap()).unwrap();
        errors.push((ours - real).abs());
        let TraceJob {
            submit_s,
            width,
            limit_s,
            run_s,
        } = job;
        println!(
            "{submit_s:>4} {width:>2} {limit_s:>4} {run_s:>4}: {real:>5} {ours:>5} {:>+5}",
            ours - real
        );
    }
    errors.sort_unstable();
    println!(
        "median {} s, largest {} s",
        errors[errors.len() / 2],
        errors[errors.len() - 1]
    );
}

/// One question, on what really ran and waited then.
fn asked(width: u32, jobs: &[(TraceJob, i64)], n: &[i64]) {
    let there = jobs
        .iter()
        .filter(|(job, _)| i64::try_from(job.submit_s).unwrap() < n[0]);
    let (mut running, mut waiting) = (Vec::new(), Vec::new());
    for (job, start) in there {
        let ends = start + i64::try_from(job.run_s).unwrap();
        if *start > n[0] {
            waiting.push(*job);
        } else if ends > n[0] {
            running.push((*job, u64::try_from(*start).unwrap()));
        }
    }
    let queue = Queue::found(width, u64::try_from(n[0]).unwrap(), &running, &waiting);
    let ours = queue.test_only(u32::try_from(n[1]).unwrap()).unwrap();
    let ours = i64::try_from(ours).unwrap() - n[0];
    println!("{:>4} {:>2}: {:>5} {ours:>5}", n[0], n[1], n[2] - n[0]);
}
