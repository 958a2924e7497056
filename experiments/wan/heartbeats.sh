#!/usr/bin/env bash
# A whole exchange over a slow link: how long heartbeats take while weights saturate it.
#
#   WAN=/path/to/wan experiments/wan/heartbeats.sh [MODEL] [SETTING...]
#
# WAN is as in run.sh. Coordinator and replica are real, in a network namespace each. Needs root and
# `cargo build --release -p hansa`. Prints the report of `hansa bench exchange` as JSON.
set -euo pipefail
MODEL=${1:-qwen3-60m}
[ $# -gt 0 ] && shift
SETTINGS=("${@:-rtt=50ms}")
[ $# -gt 0 ] || SETTINGS+=(rate=10mbit)
WAN=${WAN:?name the wan tool}
HANSA=${HANSA:-${CARGO_TARGET_DIR:-target}/release/hansa}
trap '"$WAN" down || true' EXIT
"$WAN" up "${SETTINGS[@]}" vm site
"$WAN" exec vm "$HANSA" bench exchange --model "$MODEL" --sites 1 --runs 1 --json \
    --listen "$("$WAN" addr vm):0" --replicas-with "ip netns exec $("$WAN" netns site)"
