#!/usr/bin/env bash
# What faults of a long way cost in bytes: a download and an upload undisturbed, then with the link lost for
# 30 seconds in their middle, then with the server killed in the middle of the upload and started again.
#
#   WAN=/path/to/wan experiments/wan/faults.sh [megabytes] [SETTING...]
#
# Needs what run.sh needs. Prints a line of JSON for each transfer: all bytes that passed the site's interface,
# headers and repeated packets too, and how many more that was than without the fault. The received file must be
# the sent one each time.
set -euo pipefail
MB=${1:-300}
[ $# -gt 0 ] && shift
SETTINGS=("${@:-rtt=100ms}")
WAN=${WAN:?name the wan tool}
MOVE=${MOVE:-${CARGO_TARGET_DIR:-target}/release/examples/move}
DIR=$(mktemp -d)
cleanup() { "$WAN" down || true; rm -rf "$DIR"; }
trap cleanup EXIT
field() { sed "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/"; }

head -c "${MB}M" /dev/urandom >"$DIR/file"
"$WAN" up "${SETTINGS[@]}" vm site
ADDRESS=$("$WAN" addr vm)
serve() { # a home
    : >"$DIR/served"
    "$WAN" exec vm bash -c 'echo $$ >"$1/pid"; shift; exec "$@"' _ "$DIR" \
        "$MOVE" serve --file "$DIR/file" --listen "$ADDRESS:8443" --home "$DIR/$1" >"$DIR/served" &
    until [ -s "$DIR/served" ]; do sleep 0.2; done
    hash=$(field hash <"$DIR/served")
    print=$(field fingerprint <"$DIR/served")
}
stop() { kill -9 "$(cat "$DIR/pid")"; }
passed() { # rx or tx of the site
    "$WAN" exec site sh -c "cat /sys/class/net/[!l]*/statistics/$1_bytes" | awk '{ n += $1 } END { print n }'
}
until_passed() { # rx or tx, bytes
    until [ "$(passed "$1")" -ge "$2" ]; do sleep 0.1; done
}
declare -A plain
transfer() { # name, rx or tx, what to do in its middle, arguments
    local name=$1 way=$2 fault=$3 before middle told client
    before=$(passed "$way")
    middle=$((before + MB * 1024 * 512))
    "$WAN" exec site "$MOVE" "${@:4}" --url "https://$ADDRESS:8443" --fingerprint "$print" >"$DIR/told" &
    client=$!
    until_passed "$way" "$middle"
    "$fault"
    wait "$client"
    told=$(cat "$DIR/told")
    local bytes=$(($(passed "$way") - before))
    [ "$fault" != nothing ] || plain[$way]=$bytes
    printf '{"what": "%s", "seconds": %.1f, "bytes": %d, "file": %d, "more_than_undisturbed": %d}\n' \
        "$name" "$(field seconds <<<"$told")" "$bytes" "$((MB << 20))" "$((bytes - plain[$way]))"
}
nothing() { :; }
outage() {
    "$WAN" cut site
    sleep 30
    "$WAN" restore site
}
restart() {
    stop
    serve "$home"
}
download() { # name, fault
    transfer "$1" rx "$2" get --hash "$hash" --dest "$DIR/got"
    cmp "$DIR/file" "$DIR/got"
    rm "$DIR/got"
}
upload() { # name, fault; each into a home of its own
    transfer "$1" tx "$2" put --file "$DIR/file"
    cmp "$DIR/file" "$DIR/$home/received/uploads/u/data"
}
next() { # a home
    home=$1
    serve "$home"
}
next first
download "download, undisturbed" nothing
download "download, 30 s without a link" outage
upload "upload, undisturbed" nothing
stop
next second
upload "upload, 30 s without a link" outage
stop
next third
upload "upload, server killed and started again" restart
