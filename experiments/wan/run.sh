#!/usr/bin/env bash
# Goodput of a download and an upload over an emulated long way, beside one curl and iperf3 -P 8.
#
#   WAN=/path/to/wan experiments/wan/run.sh [megabytes] [SETTING...]
#
# WAN names a tool that joins network namespaces by an emulated link (`wan up rtt=… rate=… loss=… HOSTS`);
# WAN_CC chooses the congestion control (bbr, reno), WINDOW_MIB caps TCP's windows as login nodes often do.
# Needs root, curl and iperf3, and a build of the example:
# `cargo build --release -p hansa-transfer --example move`. Prints a line of JSON for each figure and one
# with the ratios.
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
if [ -n "${WINDOW_MIB:-}" ]; then
    for host in vm site; do
        "$WAN" exec "$host" sysctl -q -w net.ipv4.tcp_rmem="4096 131072 $((WINDOW_MIB << 20))" \
            net.ipv4.tcp_wmem="4096 65536 $((WINDOW_MIB << 20))"
    done
fi
ADDRESS=$("$WAN" addr vm)
"$WAN" exec vm "$MOVE" serve --file "$DIR/file" --listen "$ADDRESS:8443" --home "$DIR/home" >"$DIR/served" &
until [ -s "$DIR/served" ]; do sleep 0.2; done
field() { sed "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/"; }
hash=$(field hash <"$DIR/served")
print=$(field fingerprint <"$DIR/served")
url=https://$ADDRESS:8443

declare -A mbit
note() { # name, Mbit/s, more JSON
    mbit[$1]=$2
    printf '{"what": "%s", "mbit_per_s": %.1f%s}\n' "$1" "$2" "${3:-}"
}
"$WAN" exec vm iperf3 -s -D -I "$DIR/iperf.pid" >/dev/null
iperf() { # name, more arguments
    "$WAN" exec site iperf3 -c "$ADDRESS" -P 8 -t 40 -O 15 -J "${@:2}" >"$DIR/iperf.json"
    note "$1" "$(awk '/"sum_received"/ { f = 1 } f && /bits_per_second/ { gsub(/[^0-9.e+]/, "", $2);
        printf "%.1f", $2 / 1e6; exit }' "$DIR/iperf.json")"
}
hansa() { # name, arguments
    local told
    told=$("$WAN" exec site "$MOVE" "${@:2}" --url "$url" --fingerprint "$print")
    note "$1, all of it" "$(field mbit_per_s <<<"$told")" ", \"seconds\": $(field seconds <<<"$told")"
    # A transfer of less than 15 s has nothing after them.
    local after
    after=$(field mbit_per_s_after_15_s <<<"$told")
    [ "$after" = null ] || note "$1, after 15 s" "$after"
}
iperf "iperf3 down" -R
iperf "iperf3 up"
# A curl that is slow need not finish: it is stopped after a minute and a half.
note "curl down" "$("$WAN" exec site curl -sk --max-time 90 -o /dev/null -w '%{speed_download}' \
    "$url/blob/data" | awk '{ print $1 * 8e-6 }')"
note "curl up" "$("$WAN" exec site curl -sk --max-time 90 -T "$DIR/file" -o /dev/null -w '%{speed_upload}' \
    "$url/sink" | awk '{ print $1 * 8e-6 }')"
hansa "hansa down" get --hash "$hash" --dest "$DIR/got"
cmp "$DIR/file" "$DIR/got"
hansa "hansa up" put --file "$DIR/file"
cmp "$DIR/file" "$DIR/home/received/uploads/u/data"
for way in down up; do
    awk -v way="$way" -v all="${mbit[hansa $way, all of it]}" -v after="${mbit[hansa $way, after 15 s]:-0}" \
        -v iperf="${mbit[iperf3 $way]}" -v curl="${mbit[curl $way]}" 'BEGIN { printf \
        "{\"way\": \"%s\", \"after_15_s_over_iperf3\": %.2f, \"all_over_curl\": %.1f}\n", way, after / iperf, all / curl }'
done
