//! What the tests and the fuzzer share: outputs as sites print them, and a time and place.
#![allow(clippy::unwrap_used, dead_code)]

use hansa_slurm::json::Kind;
use hansa_slurm::parse::{FieldList, Now, SQUEUE_FIELDS};

/// A Sunday in winter at a site in Finland.
pub fn now() -> Now {
    "2026-11-29T15:25:44+02:00[Europe/Helsinki]"
        .parse()
        .unwrap()
}

/// The columns of `squeue -h` as Hansa asks for them.
pub fn squeue_fields() -> FieldList {
    SQUEUE_FIELDS.parse().unwrap()
}

/// One output of each form that the parsers know, with what reads it.
pub fn samples() -> Vec<(Kind, Option<FieldList>, &'static str)> {
    let test_only = TEST_ONLY.iter().map(|&text| (Kind::TestOnly, None, text));
    let listed: FieldList = "JobID,State,Start,Elapsed,Timelimit,NNodes"
        .parse()
        .unwrap();
    let mut all: Vec<_> = test_only.collect();
    all.extend([
        (Kind::Sacct, None, SACCT),
        (Kind::Sacct, None, SACCT_MULTILINE),
        (Kind::Sacct, Some(listed), SACCT_BARE),
        (Kind::Squeue, Some(squeue_fields()), SQUEUE),
        (Kind::Submit, None, "60;lumi\n"),
        (
            Kind::Submit,
            None,
            "Submitted batch job 59 on cluster lumi\n",
        ),
        (Kind::Partition, None, PARTITION),
        (Kind::Partition, None, PARTITION_ONE_LINE),
        (Kind::Reservation, None, RESERVATION),
        (Kind::Config, None, CONFIG),
    ]);
    all
}

/// Answers of `sbatch --test-only`.
pub const TEST_ONLY: &[&str] = &[
    "sbatch: Job 417957 to start at 2026-11-29T17:14:32 using 48 processors on fog[02,15-16]\n",
    "sbatch: Job 2 to start at 2026-11-29T17:14:32 using 64 processors on nodes n[1-2] in partition gpu\n",
    "sbatch: Job 3 to start at 1795966055 a using 8 processors on nodes n7 in partition gpu-a\n",
    "sbatch: Job 5 to start at 2026-12-01T03:40:10 on cluster lumi a using 112 processors on nodes n[01919,02045] in partition batch\n",
    "Job 6 to start at Tomorr 03:33 a using 1152 processors on nodes n[5394-5396,5398]\nin partition normal\n  Preempts: 11,12\n",
    "lua: checking quota\nsbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: Job violates accounting/QOS policy (job submit limit,\nuser's size and/or time limits)\n",
];

/// `sacct -P` with a header line.
pub const SACCT: &str = "\
JobID|JobIDRaw|JobName|Partition|State|ExitCode|Submit|Start|End|ElapsedRaw|Timelimit|NNodes|AllocCPUS|AllocTRES|NodeList|Reserved
62|62|train|standard-g|TIMEOUT|0:0|2026-11-28T10:00:00|2026-11-28T11:00:00|2026-11-29T11:00:17|86417|1-00:00:00|2|256|billing=256,cpu=256,gres/gpu=16,mem=960G,node=2|nid[005000-005001]|01:00:00
62.batch|62.batch|batch||CANCELLED|0:15|2026-11-28T11:00:00|2026-11-28T11:00:00|2026-11-29T11:00:17|86417||1|128|cpu=128,mem=480G,node=1|nid005000|
68_2|70|arr|small|FAILED|2:0|2026-11-29T10:00:00|2026-11-29T10:00:01|2026-11-29T10:00:02|1|Partition_Limit|1|2|cpu=2,node=1|nid001000|00:00:01
85|85|fill|standard-g|CANCELLED by 0|0:0|2026-11-29T10:00:00|None|2026-11-29T10:00:39|0|UNLIMITED|1|1||None assigned|INVALID
86|86|new|standard-g|EXPEDITING|0:0|2026-11-29T10:00:00|Unknown|Unknown|0|00:30:00|1|1||None assigned|00:00:10
";

/// `sacct -P` with comments over several lines.
pub const SACCT_MULTILINE: &str = "\
Account|Comment|JobID|State|Elapsed
p1|fine|4|COMPLETED|00:01:00
p1|first line
second line

last line|5|FAILED|1-02:03:04
p1|fine|6|CANCELLED+|30:00
";

/// `sacct -P -n`.
pub const SACCT_BARE: &str = "\
4|COMPLETED|2026-11-29T10:00:00|00:01:17|01:00:00|2
4.batch|COMPLETED|2026-11-29T10:00:00|00:01:17||1
";

/// `squeue -h -o '%i|%T|%r|%S|%l|%L|%P|%j|%k'`.
pub const SQUEUE: &str = "\
43|PENDING|Priority|2026-11-29T16:25:00|30:00|30:00|standard-g|hansa-a|run=1
44|PENDING|Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions|N/A|2-00:00:00|2-00:00:00|standard-g|hansa-b|
45_[7-8%1]|PENDING|JobArrayTaskLimit|N/A|UNLIMITED|UNLIMITED|gpu|arr|(null)
46|RUNNING|None|2026-11-29T15:00:00|1:00:00|34:16|dev-g|x|
";

/// `scontrol show partition`.
pub const PARTITION: &str = "\
PartitionName=standard-g
   AllowGroups=ALL AllowAccounts=a,b AllowQos=ALL
   AllocNodes=ALL Default=NO QoS=N/A
   DefaultTime=01:00:00 DisableRootJobs=NO GraceTime=0 Hidden=NO
   MaxNodes=1024 MaxTime=2-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   Nodes=nid[005000-005007]
   PriorityTier=1 OverSubscribe=EXCLUSIVE
   OverTimeLimit=NONE PreemptMode=OFF
   State=UP TotalCPUs=1024 TotalNodes=8 SelectTypeParameters=NONE
   TRES=cpu=1024,mem=3840G,node=8,billing=1024,gres/gpu=64

";

/// `scontrol -o show partition`.
pub const PARTITION_ONE_LINE: &str = "\
PartitionName=debug AllowGroups=ALL Default=YES DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DOWN TotalCPUs=512 TotalNodes=2
PartitionName=gpu Default=NO MaxNodes=4 MaxTime=03:00:00 State=MOVED TotalCPUs=64 TotalNodes=1
";

/// `scontrol show reservation`.
pub const RESERVATION: &str = "\
ReservationName=maint StartTime=2026-11-30T08:00:00 EndTime=2026-11-30T18:00:00 Duration=10:00:00
   Nodes=nid[001000-001001,005000-005007] NodeCnt=10 CoreCnt=768 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES
   TRES=cpu=1536
   Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null)
   MaxStartDelay=(null)

";

/// `scontrol show config`.
pub const CONFIG: &str = "\
Configuration data as of 2026-11-29T15:25:49
ClusterName             = lumi
EnforcePartLimits       = ALL
KillWait                = 30 sec
MinJobAge               = 300 sec
PrivateData             = jobs,usage
SLURM_VERSION           = 22.05.8
SlurmctldHost[0]        = vm(127.0.0.1)
SrunProlog              = (null)

Slurmctld(primary) at vm is UP
";
