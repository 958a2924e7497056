#!/usr/bin/env bash
# The same download and upload over an emulated link and through our own shaping proxy, set alike.
#
#   WAN=/path/to/wan experiments/wan/shaper.sh [megabytes] [rtt in ms] [mbit]
#
# Needs what run.sh needs, and `cargo build --release -p hansa-testkit --example shape`.
set -euo pipefail
MB=${1:-200} RTT=${2:-100} MBIT=${3:-200}
WAN=${WAN:?name the wan tool}
T=${CARGO_TARGET_DIR:-target}/release/examples
DIR=$(mktemp -d)
started=()
cleanup() {
    for p in "${started[@]}"; do kill "$p" 2>/dev/null || true; done
    "$WAN" down || true
    rm -rf "$DIR"
}
trap cleanup EXIT
field() { sed "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/"; }

head -c "${MB}M" /dev/urandom >"$DIR/file"
"$WAN" up rtt="${RTT}ms" rate="${MBIT}mbit" vm site
ADDRESS=$("$WAN" addr vm)
measure() { # name, words before the client's program, server's address
    local told hash print
    until [ -s "$DIR/served" ]; do sleep 0.2; done
    hash=$(field hash <"$DIR/served") print=$(field fingerprint <"$DIR/served")
    told=$($2 "$T/move" get --hash "$hash" --dest "$DIR/got" --url "https://$3" --fingerprint "$print")
    printf '{"way": "down", "over": "%s", "seconds": %.2f}\n' "$1" "$(field seconds <<<"$told")"
    cmp "$DIR/file" "$DIR/got"
    rm "$DIR/got"
    told=$($2 "$T/move" put --file "$DIR/file" --url "https://$3" --fingerprint "$print")
    printf '{"way": "up", "over": "%s", "seconds": %.2f}\n' "$1" "$(field seconds <<<"$told")"
}
"$WAN" exec vm "$T/move" serve --file "$DIR/file" --listen "$ADDRESS:8443" --home "$DIR/far" >"$DIR/served" &
measure "emulated link" "$WAN exec site" "$ADDRESS:8443"

: >"$DIR/served"
"$T/move" serve --file "$DIR/file" --listen 127.0.0.1:0 --home "$DIR/near" >"$DIR/served" &
started+=($!)
until [ -s "$DIR/served" ]; do sleep 0.2; done
# What is under way on the link: its rate times its round trip.
"$T/shape" --target "$(field address <"$DIR/served")" --mbit "$MBIT" --delay-ms $((RTT / 2)) \
    --queue-kib $((MBIT * RTT / 8)) >"$DIR/shaped" &
started+=($!)
until [ -s "$DIR/shaped" ]; do sleep 0.2; done
measure "shaping proxy" "" "$(sed -n 's/listening on //p' "$DIR/shaped")"
