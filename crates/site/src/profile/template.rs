//! The commented profile that `hansa site new` writes: every key, with what it means.

/// A profile for a person to fill in. It parses as it is.
#[must_use]
pub fn commented(site: &str) -> String {
    TEMPLATE.replace("SITE", site)
}

/// The same with every optional key in force.
pub(super) fn every_key() -> String {
    let uncomment = |line: &str| {
        let key = line.strip_prefix("# ").filter(|rest| {
            let name = rest.split(" = ").next().unwrap_or_default();
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            rest.contains(" = ") && name.chars().all(plain) || rest.starts_with('[')
        });
        key.unwrap_or(line).to_owned()
    };
    let lines: Vec<String> = TEMPLATE.lines().map(uncomment).collect();
    lines.join("\n")
}

const TEMPLATE: &str = r##"# How jobs are submitted at SITE. `hansa site check` compares it with what the site says.
# Lines that begin with "# key = " show a default, or what may be set.
# Relative paths lie beside this file.

name = "SITE"                       # as in `hansa token add`

[coordinator]
url = "https://vm.example:8443"
token_file = "SITE.token.toml"      # copied from the coordinator's machine, readable by you alone
# proxy = "http://proxy.example:3128"      # default: HTTPS_PROXY

[slurm]
account = "my_project"              # who pays
# ssh = "login.example"             # if sbatch is not on this machine; the rest is in ~/.ssh/config
# conf = "/etc/slurm/gpu/slurm.conf"       # SLURM_CONF, where a login node serves several clusters
# time_zone = "Europe/Helsinki"     # of the site's clock
# gpu_option = "--gpus-per-node={}" # or "--gres=gpu:{}"
# options = ["--exclusive"]         # for each job

[jobs]
wanted = 1                          # replicas that this site should run
shape = "usual"                     # the preferred [[shape]]
# chain = "none"                    # "begin": the successor begins when its predecessor must end;
                                    # "singleton": with --dependency=singleton, where begin is not allowed
# max_pending = 2                   # the most jobs that may wait in the queue

# Each shape is probed with `sbatch --test-only`. The walltime is part of it.
[[shape]]
name = "usual"
partition = "gpu"
nodes = 1
gpus_per_node = 4
walltime = "12:00:00"
# account = "my_project"
# qos = "normal"
# options = ["--mem=0"]
# windows_per_gpu_s = 4.8           # for plans, until the run has measured it
# ranks = 4                         # of a replica; default: one for each GPU

[script]                            # paths as compute nodes see them
corpus = "corpus"
state = "state"                     # on storage that outlives jobs
logs = "logs"
# hansa = "hansa"                   # the binary; a path if it is not in PATH
# token_file = "SITE.token.toml"    # if its path is another on compute nodes
# cache = "cache"                   # replicas of the site share downloads
# modules = ["rocm"]                # `module load` these
# setup = ["ulimit -c 0"]           # lines of shell before anything else
# launcher = "srun --ntasks=1"      # how the command is started; default: directly, on the first node
# container = "singularity exec image.sif" # put before the command
# command = "{hansa} train --site {site} --replica {replica} --corpus {corpus} --state {state}"
# trainer = "torchrun --nproc-per-node {gpus_per_node} -m hansa.torchtitan" # for `hansa agent`; launcher
                                    # and container are put before it then; not with command
# train_arguments = ["--threads=8"] # further arguments of `hansa train`, or of `hansa agent`
# signal_before_s = 300             # told to leave so long before the walltime's end: a minute of
                                    # Slurm's own, a last step, and the upload. A minute of it, but no
                                    # more than a fifth, is kept back; the rest is --leave-within-s,
                                    # which a command of your own must say itself
# environment = { OMP_NUM_THREADS = "8" }  # no secrets: job scripts are readable

[watch]
# probe_every_s = 600               # each shape
# usage_every_s = 3600              # usage, limits, reservations, budget
# usage_window_h = 48
# follow_every_s = 30               # own jobs

[budget]
# gpu_hours = 10000.0               # left when the run begins
# reserve_gpu_hours = 0.0           # never touched
# ends_at = "2027-03-31"            # the allocation's last day
# command = "my-allocation --gpu-hours"    # its first number is what is left now, as -3, 1234.5 or 1,234
# lag_s = 900                       # it may lack what ended so long before: hours at many sites

# For plans, until the run has measured them.
[costs]
# startup_s = 200                   # from a job's start until it trains
# transfer_s = 60                   # weights there and back, each round

[limits]
# nodes = 8                         # of all jobs of this run at a time
# jobs = 16                         # running or pending

[retry]
# quick_failures_max = 3            # so many jobs in a row that fail at once pause this site
# quick_run_s = 60                  # what ran shorter failed at once
# backoff_first_s = 60
# backoff_longest_s = 3600
# exclude_node_s = 86400            # how long a node that failed is not asked for

# Only where compute nodes have no way out: `hansa site run` relays them to the coordinator.
# [relay]
# listen = "0.0.0.0:0"              # an address of the login node that compute nodes reach
# host = "login1"                   # the name that compute nodes use for it; default: its own
# file = "relay.json"               # on storage that compute nodes see; keep it secret

[checks]
# scratch = "state"                 # the filesystem that must have room
# free_gib_min = 50
# free_inodes_min = 10000
# purge_days = 90                   # the site deletes what was not used for so long

# What is known of the site, from whom, and since when. Policies change.
# [[partition]]
# name = "gpu"
# gpus_per_node = 4
# walltime_max = "2-00:00:00"
# nodes_max = 16
# note = "whole nodes only"
# source = "https://docs.example/partitions"
# date = "2026-11-30"

# [[fact]]
# about = "network"
# fact = "compute nodes reach the internet by a proxy only"
# source = "https://docs.example/network"
# date = "2026-11-30"
"##;
