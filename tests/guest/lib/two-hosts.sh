# shellcheck shell=bash
# Sourced by `run`: a service of two hosts, for as long as the guest asks for it. etcd is their directory; each has a device,
# a volume, and a rack of its own. It has nothing to do with the server that the other tests use.

etcd_pid='' two_hosts_pids=()

# two_hosts_start: prints where discovery can be asked, and the volumes as the API shows them.
two_hosts_start() {
    local directory name ready volumes=()
    need etcd:etcd-server
    directory=127.0.0.1:$(free_port)
    local peer
    peer=http://127.0.0.1:$(free_port)
    setpriv --pdeathsig KILL etcd --data-dir "$work/etcd" --listen-client-urls "http://$directory" --unsafe-no-fsync \
        --advertise-client-urls "http://$directory" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "default=$peer" >>"$work/etcd.log" 2>&1 &
    etcd_pid=$!
    within_answer curl -fs -o /dev/null "http://$directory/health" || { tail -n 20 "$work/etcd.log"; return 1; }
    local ports=() apis=()
    for name in one two; do
        ports+=("$(free_port)") apis+=("127.0.0.1:$(free_port)")
        # A lease that no busy machine lets end.
        setpriv --pdeathsig KILL "$farflash" serve --device "file:$work/$name,size=256MiB" --format-if-blank --create --cores "$cpu" \
            --listen "127.0.0.1:${ports[-1]}" --advertise 10.0.2.2 --discovery off --api "${apis[-1]}" --auth off \
            --directory "etcd://$directory/guest" --host-name "$name" --host-lease 120 --label "rack=of-$name" >>"$work/server.log" 2>&1 &
        two_hosts_pids+=($!)
        within_answer curl -fs -o /dev/null "http://${apis[-1]}/readyz" || { tail -n 20 "$work/server.log"; return 1; }
        volumes+=("$(volume_at "${apis[-1]}" create "of-$name" --size 64MiB)") || return
    done
    within_answer knows_both "${apis[0]}" || { echo "the hosts do not learn of each other"; return 1; }
    jq -n --arg port "${ports[0]}" '{port: $port, volumes: $ARGS.positional}' --jsonargs "${volumes[@]}"
}
knows_both() { [ "$(volume_at "$1" list 2>/dev/null | jq ".volumes | length")" = 2 ]; }

two_hosts_end() {
    kill -KILL "${two_hosts_pids[@]}" $etcd_pid 2>/dev/null || true
    wait "${two_hosts_pids[@]}" $etcd_pid 2>/dev/null || true
    etcd_pid='' two_hosts_pids=()
    rm -rf "$work/etcd" "$work/one" "$work/two"
}

# within_answer COMMAND...: polls until it succeeds, for as long as an answer may take.
within_answer() {
    local deadline=$((SECONDS + answer_seconds))
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.1
    done
}
