//! One of each message, report and order.

use hansa_base::SiteName;
use hansa_queue::*;
use hansa_wire::queue::QueueRecord;

pub fn shape(name: &str) -> Shape {
    Shape {
        name: name.into(),
        partition: "small-g".into(),
        account: Some("project_1".into()),
        qos: None,
        nodes: 2,
        gpus_per_node: 8,
        walltime_s: 7200,
    }
}

pub fn profile() -> SiteProfile {
    SiteProfile {
        wanted_jobs: 2,
        preferred: "small".into(),
        shapes: vec![shape("small"), shape("large")],
        chain: Chain::Begin,
        max_pending: 4,
        budget: Budget {
            gpu_s_left: Some(GpuS(360_000)),
            reserve_gpu_s: GpuS(3600),
            ends_at: Some(UnixS(1_800_000_000)),
        },
        probe_every_s: 300,
        usage_every_s: 3600,
        retry: Retry::default(),
        stated: None,
        accounting_lag_s: None,
    }
}

fn request(reports: Vec<Report>) -> SyncRequest {
    let stamped = reports.into_iter().zip(1..).map(|(report, seq)| Stamped {
        seq,
        at: UnixS(1_764_000_000 + seq),
        report,
    });
    SyncRequest {
        site: "lumi".parse().unwrap(),
        holder: "uan02 4711 k3j9".into(),
        lease: Some(LeaseNo(3)),
        take_over: false,
        leave: false,
        profile: None,
        spool: "5f0c".into(),
        reports: stamped.collect(),
    }
}

pub fn sync_requests() -> Vec<SyncRequest> {
    let mut first = request(Vec::new());
    first.lease = None;
    first.take_over = true;
    first.profile = Some(profile());
    let mut last = request(Vec::new());
    last.leave = true;
    vec![first, request(reports()), last]
}

fn refusal(word: &str) -> Refusal {
    Refusal {
        kind: RefusalKind::from_word(word),
        lasting: true,
        text: "Job violates accounting/QOS policy".into(),
    }
}

fn probe(answer: ProbeAnswer) -> Report {
    Report::Probe(ProbeReport {
        shape: "small".into(),
        prober: "ada project_1".into(),
        took_ms: 14,
        answer,
        partition: Some("small-g".into()),
        raw: "starts then".into(),
    })
}

fn job(intent: u64) -> (IntentId, JobId) {
    (IntentId(intent), JobId::new("4711"))
}

pub fn reports() -> Vec<Report> {
    let (intent, id) = job(7);
    let mut all = vec![
        probe(ProbeAnswer::Starts(UnixS(1_764_003_600))),
        probe(ProbeAnswer::Refused(refusal("allocation-exhausted"))),
        probe(ProbeAnswer::Failed("no answer in 20 s".into())),
        Report::Attempting { intent },
        Report::Submitted {
            intent,
            job: id.clone(),
            how: How::Reply,
            raw: "4711".into(),
        },
        Report::Submitted {
            intent,
            job: id.clone(),
            how: How::Found,
            raw: "".into(),
        },
        Report::Gone {
            intent,
            job: id.clone(),
        },
        Report::Tail {
            intent,
            job: id.clone(),
            text: "step 1\nout of memory".into(),
        },
        Report::Cancelled {
            intent,
            job: id.clone(),
        },
        Report::Released { intent, job: id },
        Report::Trouble {
            what: "squeue".into(),
            text: "Unable to contact slurm controller".into(),
        },
        Report::Recovered {
            what: "squeue".into(),
        },
        job_report(),
    ];
    let words = [
        "allocation-exhausted",
        "job-limit",
        "controller",
        "rate-limited",
        "withdrawn",
        "time-limit",
    ];
    all.extend(words.map(|word| Report::NotSubmitted {
        intent,
        refusal: refusal(word),
        raw: "sbatch: error".into(),
    }));
    all.extend(site_reports());
    all
}

fn job_report() -> Report {
    let (intent, job) = job(7);
    Report::Job(JobReport {
        intent,
        job,
        state: "CANCELLED".into(),
        cancelled_by: Some(1000),
        reason: "None".into(),
        source: JobSource::Sacct,
        submitted: Some(UnixS(1_764_000_000)),
        started: Some(UnixS(1_764_000_100)),
        ended: Some(UnixS(1_764_000_200)),
        limit_s: Some(7200),
        nodes: vec!["nid005000".into(), "nid005001".into()],
        exit_code: Some(0),
        signal: Some(15),
        restarts: 1,
    })
}

fn site_reports() -> Vec<Report> {
    vec![
        Report::Usage(UsageReport {
            partition: "small-g".into(),
            window_s: 172_800,
            jobs: 4169,
            realised_s: 16,
            requested_s: 100,
            realised_cpu_s: 1600,
            requested_cpu_s: 20_000,
            own_only: true,
        }),
        Report::Partition(PartitionReport {
            name: "small-g".into(),
            state: "UP".into(),
            walltime_max_s: Some(259_200),
            raw: "PartitionName=small-g".into(),
        }),
        Report::Reservation(ReservationReport {
            name: "maint".into(),
            start: UnixS(1_764_100_000),
            end: UnixS(1_764_130_000),
            nodes: "nid[005000-005999]".into(),
            maintenance: true,
            raw: "ReservationName=maint".into(),
        }),
        Report::Budget(BudgetReport {
            gpu_s_left: Some(GpuS(123_456)),
            ends_at: None,
            source: "lumi-allocations".into(),
        }),
    ]
}

pub fn sync_replies() -> Vec<SyncReply> {
    let news = RunNews {
        run_id: "ab".repeat(32),
        ended: false,
        paused: Some("by the operator: new data".into()),
        drained: None,
        queue_paused: Some("3 jobs failed at once".into()),
        windows_left: 4096,
        now: UnixS(1_764_000_300),
    };
    let mut replies = vec![SyncReply {
        lease: LeaseNo(4),
        lease_ttl_ms: 180_000,
        next_sync_ms: 20_000,
        accepted_through: 17,
        orders: orders(),
        news: news.clone(),
        jobs: None,
    }];
    let (intent, job) = job(8);
    replies.push(SyncReply {
        orders: Vec::new(),
        news,
        jobs: Some(vec![LiveJob { intent, job }]),
        ..replies[0].clone()
    });
    replies
}

fn orders() -> Vec<Order> {
    let (intent, job) = job(8);
    let submit = |begin| {
        Order::Submit(Submission {
            intent,
            replica: "r1".parse().unwrap(),
            shape: "small".into(),
            link: 2,
            begin,
            exclude: vec!["nid005000".into()],
            tried: true,
        })
    };
    vec![
        submit(Begin::Now),
        submit(Begin::At(UnixS(1_764_007_200))),
        submit(Begin::Singleton),
        Order::Withdraw {
            intent,
            why: "the run is over".into(),
        },
        Order::Cancel {
            intent,
            job: job.clone(),
            why: "the run is over".into(),
        },
        Order::Recall {
            intent,
            job: job.clone(),
            why: "plan 2 wants fewer jobs here".into(),
        },
        Order::Release {
            intent,
            job: job.clone(),
        },
        Order::Probe {
            shape: "small".into(),
        },
        Order::Tail { intent, job },
    ]
}

pub fn lumi() -> SiteName {
    "lumi".parse().unwrap()
}

/// One record for each kind of event.
pub fn records() -> Vec<QueueRecord> {
    let records = events().into_iter().zip(0..).map(|(event, n)| QueueRecord {
        at: UnixS(1_764_000_000 + n),
        events: vec![event],
    });
    let mut records: Vec<_> = records.collect();
    records.push(QueueRecord {
        at: UnixS(1_764_000_000),
        events: reports_of_a_site(),
    });
    records
}

fn reports_of_a_site() -> Vec<Event> {
    let stamped = reports().into_iter().zip(1..);
    let events = stamped.map(|(report, seq)| Event::Reported {
        site: lumi(),
        spool: "5f0c".into(),
        stamped: Stamped {
            seq,
            at: UnixS(1_764_000_000),
            report,
        },
    });
    events.collect()
}

fn intended(begin: Begin, after: Option<IntentId>, why: Why) -> Event {
    Event::Intended(Intention {
        intent: IntentId(7),
        site: lumi(),
        replica: "r1".parse().unwrap(),
        shape: shape("small"),
        link: 2,
        begin,
        after,
        exclude: vec!["nid005000".into()],
        why,
    })
}

fn events() -> Vec<Event> {
    let (intent, _) = job(7);
    let (site, why) = (lumi(), Line::new("because"));
    let mut events = vec![
        Event::LeaseTaken {
            site: site.clone(),
            lease: LeaseNo(3),
            holder: "uan02 4711 k3j9".into(),
        },
        Event::LeaseLeft {
            site: site.clone(),
            lease: LeaseNo(3),
        },
        Event::Profiled {
            site: site.clone(),
            profile: profile(),
        },
        intended(Begin::Now, None, Why::Wanted { jobs: 2 }),
        intended(Begin::Singleton, Some(IntentId(6)), Why::Chained),
        intended(Begin::At(UnixS(9)), None, Why::Operator("a test".into())),
        Event::Delivered {
            intent,
            lease: LeaseNo(3),
        },
        Event::Withdrawn {
            intent,
            why: why.clone(),
        },
        Event::WithdrawOrdered {
            intent,
            why: why.clone(),
        },
        Event::CancelOrdered {
            intent,
            why: why.clone(),
        },
    ];
    events.extend(later_events());
    events.extend(judgements());
    events.extend(pauses().map(|why| Event::SitePaused { site: lumi(), why }));
    events.extend(reasons().map(|held| Event::HeldBack {
        site: lumi(),
        replica: "r1".parse().unwrap(),
        held,
    }));
    events.push(Event::BudgetAmended {
        site: lumi(),
        reserve_gpu_s: GpuS(60),
        ends_at: Some(UnixS(9)),
    });
    events
}

fn later_events() -> Vec<Event> {
    let (intent, job) = job(7);
    let (site, why) = (lumi(), Line::new("because"));
    vec![
        Event::ReleaseOrdered { intent },
        Event::TailOrdered { intent },
        Event::Joined(Joined {
            intent,
            probed: UnixS(1),
            predicted: UnixS(20),
            submitted: UnixS(2),
            started: UnixS(10),
            usage_permille: Some(160),
            deferred: true,
        }),
        Event::Doubled {
            intent,
            job: job.clone(),
        },
        Event::Late {
            intent,
            job: job.clone(),
        },
        Event::Excluded {
            site: site.clone(),
            node: "nid005000".into(),
            until: UnixS(99),
        },
        Event::SiteResumed {
            site: site.clone(),
            why,
        },
        Event::Gap {
            site: site.clone(),
            after: 3,
            next: 9,
        },
        Event::Stray {
            site: site.clone(),
            intent,
            job,
        },
        Event::BudgetSet {
            site,
            budget: profile().budget,
        },
        Event::Restored {
            next_intent: IntentId(100_008),
        },
    ]
}

fn judgements() -> impl Iterator<Item = Event> {
    let outcomes = [
        Outcome::NotSubmitted(refusal("policy")),
        Outcome::Withdrawn,
        Outcome::Completed { ran_s: 5 },
        Outcome::ComeBackLater,
        Outcome::TimedOut,
        Outcome::Cancelled { by: Some(1000) },
        Outcome::CancelledAsOrdered,
        Outcome::Failed {
            ran_s: 5,
            exit_code: Some(1),
            signal: Some(9),
        },
        Outcome::NodeFailed {
            nodes: vec!["nid005000".into()],
        },
        Outcome::OutOfMemory,
        Outcome::Preempted,
        Outcome::Deadline,
        Outcome::Lost,
    ];
    let then = [
        Then::Next,
        Then::Wait {
            until: UnixS(99),
            failures: 2,
        },
        Then::Pause(PauseWhy::QuickFailures(3)),
    ];
    let all = outcomes.into_iter().zip(then.into_iter().cycle());
    all.map(|(outcome, then)| Event::Judged {
        intent: IntentId(7),
        outcome,
        then,
    })
}

fn pauses() -> impl Iterator<Item = PauseWhy> {
    let all = [
        PauseWhy::Operator("because".into()),
        PauseWhy::QuickFailures(3),
        PauseWhy::OutOfMemory,
        PauseWhy::Refused(refusal("time-limit")),
        PauseWhy::AllocationExhausted("used up".into()),
    ];
    all.into_iter()
}

fn reasons() -> impl Iterator<Item = Option<Held>> {
    let why = || Line::new("because");
    let all = [
        Some(Held::RunEnded),
        Some(Held::RunPaused(why())),
        Some(Held::NoWork),
        Some(Held::SiteDrained(why())),
        Some(Held::QueuePaused(why())),
        Some(Held::NoProfile),
        Some(Held::NoSiteProcess),
        Some(Held::Backoff {
            until: UnixS(9),
            why: why(),
        }),
        Some(Held::Budget {
            needed: GpuS(7200),
            free: GpuS(60),
        }),
        Some(Held::AllocationEnds { at: UnixS(9) }),
        Some(Held::Pending { pending: 4, max: 4 }),
        Some(Held::ShapeRefused(refusal("shape"))),
        Some(Held::Partition(why())),
        None,
        Some(Held::JobHeld {
            intent: IntentId(7),
            job: "4711".into(),
            reason: "JobHeldUser".into(),
        }),
        Some(Held::CannotStart {
            intent: IntentId(7),
            job: "4711".into(),
            reason: "PartitionTimeLimit".into(),
        }),
    ];
    all.into_iter()
}

/// A state with something in each of its parts: two intents, one of them over.
pub fn queue_state() -> State {
    let at = UnixS(1_764_000_000);
    let mut state = State::new();
    state.next_intent = IntentId(7);
    let mut apply = |event: Event| state.apply(at, &event).unwrap();
    let (site, replica) = (lumi(), "r1".parse().unwrap());
    apply(Event::LeaseTaken {
        site: site.clone(),
        lease: LeaseNo(3),
        holder: "uan02 4711 k3j9".into(),
    });
    apply(Event::Profiled {
        site: site.clone(),
        profile: profile(),
    });
    apply(intended(Begin::Now, None, Why::Wanted { jobs: 2 }));
    let (intent, stray) = job(7);
    apply(Event::Delivered {
        intent,
        lease: LeaseNo(3),
    });
    reports_of_a_site().into_iter().for_each(&mut apply);
    let (joined, excluded) = (later_events().remove(2), later_events().remove(5));
    apply(joined);
    apply(excluded);
    apply(judgements().nth(7).unwrap());
    if let Event::Intended(next) = intended(Begin::At(UnixS(9)), Some(intent), Why::Chained) {
        let intent = IntentId(8);
        apply(Event::Intended(Intention { intent, ..next }));
    }
    apply(Event::CancelOrdered {
        intent: IntentId(8),
        why: "because".into(),
    });
    apply(Event::Stray {
        site: site.clone(),
        intent,
        job: stray,
    });
    apply(Event::HeldBack {
        site: site.clone(),
        replica,
        held: reasons().nth(7).flatten(),
    });
    apply(Event::SitePaused {
        site,
        why: PauseWhy::QuickFailures(3),
    });
    // Something in each part: that its job was cancelled, too.
    let first = state.intents.get_mut(&IntentId(7));
    if let Some(job) = first.and_then(|intent| intent.job.as_mut()) {
        job.cancelled = true;
    }
    state
}
