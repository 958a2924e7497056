#!/usr/bin/env bash
# Goodput of a download and an upload over an emulated long way, beside one curl and iperf3 -P 8.
#
#   WAN=/path/to/wan experiments/wan/run.sh [megabytes] [SETTING...]
#
# WAN names a tool that joins network namespaces by an emulated link (`wan up rtt=… rate=… loss=… HOSTS`);
# WAN_CC chooses the congestion control (bbr, reno). Needs root, curl and iperf3, and a build of the example:
# `cargo build --release -p hansa-transfer --example move`. Prints one line of JSON for each figure.
set -euo pipefail
MB=${1:-1200}
[ $# -gt 0 ] && shift
SETTINGS=("${@:-rtt=347ms}")
WAN=${WAN:?name the wan tool}
MOVE=${MOVE:-${CARGO_TARGET_DIR:-target}/release/examples/move}
DIR=$(mktemp -d)
cleanup() { "$WAN" down || true; rm -rf "$DIR"; }
trap cleanup EXIT

head -c "${MB}M" /dev/urandom >"$DIR/file"
"$WAN" up "${SETTINGS[@]}" vm site
ADDRESS=$("$WAN" addr vm)
"$WAN" exec vm "$MOVE" serve --file "$DIR/file" --listen "$ADDRESS:8443" --home "$DIR/home" >"$DIR/served" &
until [ -s "$DIR/served" ]; do sleep 0.2; done
hash=$(sed 's/.*"hash":"\([^"]*\)".*/\1/' "$DIR/served")
print=$(sed 's/.*"fingerprint":"\([^"]*\)".*/\1/' "$DIR/served")
url=https://$ADDRESS:8443

"$WAN" exec vm iperf3 -s -D -I "$DIR/iperf.pid" >/dev/null
iperf() { # name, more arguments
    "$WAN" exec site iperf3 -c "$ADDRESS" -P 8 -t 40 -O 15 -J "${@:2}" >"$DIR/iperf.json"
    awk -v n="$1" '/"sum_received"/ { f = 1 } f && /bits_per_second/ { gsub(/[^0-9.e+]/, "", $2);
        printf "{\"what\": \"%s\", \"mbit_per_s\": %.1f}\n", n, $2 / 1e6; exit }' "$DIR/iperf.json"
}
iperf "iperf3 -P 8 down" -R
iperf "iperf3 -P 8 up"
printf '{"what": "curl down", "bytes_per_s": %s}\n' \
    "$("$WAN" exec site curl -sk --max-time 60 -o /dev/null -w '%{speed_download}' "$url/blob/data" || true)"
printf '{"what": "hansa down", "result": %s}\n' \
    "$("$WAN" exec site "$MOVE" get --url "$url" --fingerprint "$print" --hash "$hash" --dest "$DIR/got")"
cmp "$DIR/file" "$DIR/got"
printf '{"what": "hansa up", "result": %s}\n' \
    "$("$WAN" exec site "$MOVE" put --url "$url" --fingerprint "$print" --file "$DIR/file")"
