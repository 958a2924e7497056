#!/usr/bin/env bash
# A download and an upload through a forward proxy that cuts every tunnel after a minute (squid), and through
# a relay that cuts every connection after 64 MiB.
#
#   experiments/proxies/run.sh [megabytes] [mbit]
#
# `mbit` slows the link down behind the proxy, so that chunks take longer than the proxy's minute. Needs squid
# and the examples: `cargo build --release -p hansa-transfer --example move -p hansa-testkit --example shape`.
set -euo pipefail
MB=${1:-400}
MBIT=${2:-20}
T=${CARGO_TARGET_DIR:-target}/release/examples
DIR=$(mktemp -d)
started=()
cleanup() { for p in "${started[@]}"; do kill "$p" 2>/dev/null || true; done; rm -rf "$DIR"; }
trap cleanup EXIT
field() { sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/" "$DIR/served"; }

head -c "${MB}M" /dev/urandom >"$DIR/file"
"$T/move" serve --file "$DIR/file" --listen 127.0.0.1:0 --home "$DIR/home" >"$DIR/served" &
started+=($!)
until [ -s "$DIR/served" ]; do sleep 0.2; done
server=$(field address) hash=$(field hash) print=$(field fingerprint)

# A slow link in front of the server; squid leads to it.
"$T/shape" --target "$server" --mbit "$MBIT" --delay-ms 20 --queue-kib 256 >"$DIR/slow" &
started+=($!)
until [ -s "$DIR/slow" ]; do sleep 0.2; done
slow=$(sed -n 's/listening on //p' "$DIR/slow")
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$DIR/squid.conf" <<CONF
http_port 127.0.0.1:$port
http_access allow all
client_lifetime 60 seconds
pid_filename $DIR/squid.pid
shutdown_lifetime 1 second
cache_log $DIR/squid.log
access_log stdio:$DIR/squid.access
hosts_file $DIR/hosts
cache deny all
coredump_dir $DIR
CONF
echo "127.0.0.1 hansa.test" >"$DIR/hosts"
chmod 777 "$DIR"
squid -N -f "$DIR/squid.conf" 2>"$DIR/squid.err" &
started+=($!)
sleep 2
export HTTPS_PROXY=http://127.0.0.1:$port
url=https://hansa.test:${slow##*:}
echo "through squid, client_lifetime 60 seconds, at $MBIT Mbit/s:"
"$T/move" get --url "$url" --fingerprint "$print" --hash "$hash" --dest "$DIR/got"
cmp "$DIR/file" "$DIR/got"
"$T/move" put --url "$url" --fingerprint "$print" --file "$DIR/file"
grep -c CONNECT "$DIR/squid.access" | sed 's/^/tunnels: /'
unset HTTPS_PROXY

"$T/move" serve --file "$DIR/file" --listen 127.0.0.1:0 --home "$DIR/home2" >"$DIR/served" &
started+=($!)
until grep -q address "$DIR/served"; do sleep 0.2; done
server=$(field address) hash=$(field hash) print=$(field fingerprint)
"$T/shape" --target "$server" --cut-mib 64 >"$DIR/cut" &
cutter=$!
started+=("$cutter")
until [ -s "$DIR/cut" ]; do sleep 0.2; done
url=https://$(sed -n 's/listening on //p' "$DIR/cut")
echo "through a relay that cuts at 64 MiB:"
rm -f "$DIR/got"
"$T/move" get --url "$url" --fingerprint "$print" --hash "$hash" --dest "$DIR/got"
cmp "$DIR/file" "$DIR/got"
"$T/move" put --url "$url" --fingerprint "$print" --file "$DIR/file"
kill "$cutter"
sleep 0.5
tail -1 "$DIR/cut"
