# shellcheck shell=bash
# A key-value server in a directory of its own, for the scripts beside this one. They set $program, and call finish at their end.

work=$(mktemp -d /tmp/farflash-datastore.XXXXXX)
server=
finish() {
	[ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
	rm -rf "$work"
}

# serve [ARGUMENT...]: an empty one, whose port is $port then.
serve() {
	rm -rf "$work/data"
	"$program" serve --data "$work/data" --listen 127.0.0.1:0 --memory 64MiB --value-max 64MiB --append-max 1MiB "$@" 2>"$work/log" &
	server=$!
	local _
	for _ in $(seq 300); do
		port=$(sed -n 's/.* on 127\.0\.0\.1:\([0-9]*\): RocksDB.*/\1/p' "$work/log")
		[ -z "$port" ] || return 0
		kill -0 "$server" 2>/dev/null || break
		sleep 0.1
	done
	cat "$work/log" >&2
	fail "the server does not start"
}

stop() {
	kill "$server"
	wait "$server" || { cat "$work/log" >&2; fail "the server did not end well"; }
	server=
}
