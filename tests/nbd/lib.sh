# shellcheck shell=bash
# Sourced by the scripts beside this one: a server with a directory, a port and certificates of its own. They set program and cores.
name=tests/nbd/$(basename "$0")
farflash=$(realpath "$program")
work=$(mktemp -d)
log=$work/log
server=
end() {
	# A subshell that is ended early is not the end.
	[ "$BASHPID" = $$ ] || return 0
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
	[ -z "${relay:-}" ] || kill "$relay" 2>/dev/null || true
	! mountpoint -q "$work/fuse" || umount "$work/fuse" || true
	wait 2>/dev/null || true
	rm -rf "$work"
}
trap end EXIT
fail() {
	echo "$name: $*" >&2
	cat "$log" >&2
	exit 1
}
# Ports that no program has, a range for each run: a killed server has to find its own again.
base=$((20000 + $$ % 20000))
device=file:$work/flash.img
export FARFLASH_API=http://127.0.0.1:$((base + 9))

serve() {
	# Emptied here: the server's own process does it later than the first look, which would find the line of the one before.
	: >"$log"
	"$farflash" serve --device "$device" --cores "$cores" --listen 127.0.0.1:$base \
		--api 127.0.0.1:$((base + 9)) --api-open --discovery off \
		--nbd 127.0.0.1:$((base + 4)) --nbd "unix:$work/nbd.sock" --nbd-tls "$work/tls" >"$log" 2>&1 &
	server=$!
	for _ in $(seq 300); do
		grep -q " ready " "$log" && return
		kill -0 $server 2>/dev/null || fail "the server does not start"
		sleep 0.1
	done
	fail "the server is not ready"
}
uri_of() { "$farflash" volume show "$1" | sed -n 's/^nbd uri *//p' | grep "^$2:"; }
sum_of() { nbdcopy "$1" - | sha256sum; }
same() { [ "$1" = "$2" ] || fail "$3: $1 is not $2"; }
refused() {
	local said
	! said=$("${@:2}" 2>&1) || fail "not refused: ${*:2}"
	grep -q "$1" <<<"$said" || fail "no word of \"$1\": $said"
}

# issue NAME ALTERNATIVE-NAMES KEY CERTIFICATE
issue() {
	openssl req -newkey rsa:2048 -nodes -subj "/CN=$1" -keyout "$3" -out "$work/csr" 2>/dev/null
	openssl x509 -req -in "$work/csr" -CA "$work/ca/cert" -CAkey "$work/ca/key" -CAcreateserial -days 2 \
		-extfile <(echo "subjectAltName=$2") -out "$4" 2>/dev/null
}
# An authority, the server's certificate, and those of two clients.
authority() {
	mkdir "$work"/{tls,ca,known,unknown}
	openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout "$work/ca/key" \
		-out "$work/ca/cert" 2>/dev/null
	issue server IP:127.0.0.1,DNS:localhost "$work/tls/key.pem" "$work/tls/certificate.pem"
	cp "$work/ca/cert" "$work/tls/clients.pem"
	local client
	for client in known unknown; do
		cp "$work/ca/cert" "$work/$client/ca-cert.pem"
		issue $client DNS:$client.example.com "$work/$client/client-key.pem" "$work/$client/client-cert.pem"
	done
}
