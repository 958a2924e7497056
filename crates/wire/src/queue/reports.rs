//! Mirrors of reports; the queue's journal holds them, too.

use hansa_queue::{
    BudgetReport, GpuS, How, IntentId, JobId, JobReport, JobSource, Line, PartitionReport,
    ProbeAnswer, ProbeReport, Raw, Refusal, RefusalKind, Report, ReservationReport, ShapeName,
    Stamped, UnixS, UsageReport,
};

use crate::mirror::{mirror_enum, mirror_struct};
use crate::{BadValue, Wire};

impl Wire for RefusalKind {
    type Json = String;
    fn to_json(&self) -> String {
        self.word().to_owned()
    }
    fn from_json(json: String) -> Result<Self, BadValue> {
        Ok(Self::from_word(&json))
    }
}

mirror_struct!(
    StampedJson = Stamped {
        seq: u64,
        at: UnixS,
        report: Report
    }
);
mirror_enum!(ReportJson = Report {
    struct Attempting { intent: IntentId }
    struct Submitted { intent: IntentId, job: JobId, how: How, raw: Raw }
    struct NotSubmitted { intent: IntentId, refusal: Refusal, raw: Raw }
    struct Gone { intent: IntentId, job: JobId }
    struct Tail { intent: IntentId, job: JobId, text: Raw }
    struct Cancelled { intent: IntentId, job: JobId }
    struct Released { intent: IntentId, job: JobId }
    struct Trouble { what: Line, text: Line }
    struct Recovered { what: Line }
    tuple Probe(probe: ProbeReport)
    tuple Usage(usage: UsageReport)
    tuple Partition(partition: PartitionReport)
    tuple Reservation(reservation: ReservationReport)
    tuple Budget(budget: BudgetReport)
    tuple Job(job: JobReport)
});
mirror_enum!(HowJson = How {
    unit Reply
    unit Found
});
mirror_struct!(
    RefusalJson = Refusal {
        kind: RefusalKind,
        lasting: bool,
        text: Line
    }
);
mirror_struct!(
    ProbeReportJson = ProbeReport {
        shape: ShapeName,
        prober: Line,
        took_ms: u64,
        answer: ProbeAnswer,
        partition: Option<Line>,
        raw: Raw,
    }
);
mirror_enum!(ProbeAnswerJson = ProbeAnswer {
    tuple Starts(at: UnixS)
    tuple Refused(refusal: Refusal)
    tuple Failed(text: Line)
});
mirror_struct!(
    UsageReportJson = UsageReport {
        partition: Line,
        window_s: u64,
        jobs: u64,
        realised_s: u64,
        requested_s: u64,
        realised_cpu_s: u64,
        requested_cpu_s: u64,
        own_only: bool,
    }
);
mirror_struct!(
    PartitionReportJson = PartitionReport {
        name: Line,
        state: Line,
        walltime_max_s: Option<u64>,
        raw: Raw,
    }
);
mirror_struct!(
    ReservationReportJson = ReservationReport {
        name: Line,
        start: UnixS,
        end: UnixS,
        nodes: Line,
        maintenance: bool,
        raw: Raw,
    }
);
mirror_struct!(
    BudgetReportJson = BudgetReport {
        gpu_s_left: Option<GpuS>,
        ends_at: Option<UnixS>,
        source: Line,
    }
);
mirror_enum!(JobSourceJson = JobSource {
    unit Squeue
    unit Sacct
});
mirror_struct!(JobReportJson = JobReport {
    intent: IntentId,
    job: JobId,
    state: Line,
    cancelled_by: Option<u32>,
    reason: Line,
    source: JobSource,
    submitted: Option<UnixS>,
    started: Option<UnixS>,
    ended: Option<UnixS>,
    limit_s: Option<u64>,
    nodes: Vec<Line>,
    exit_code: Option<u32>,
    signal: Option<u32>,
    restarts: u32,
});
