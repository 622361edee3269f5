#!/bin/sh
# Runs the commands of docs/launching.md for two machines in two network namespaces, each with a host name of its own:
# `two_machines.sh DISCO PROGRAM` runs PROGRAM in both and prints the controller's output. Needs root; removes the namespaces at the end.
set -eu
disco=$1 program=$2
folder=$(mktemp -d) a=disco-a-$$ b=disco-b-$$
end() {
    for name in $a $b; do
        ip netns pids "$name" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns delete "$name" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap end EXIT

ip netns add "$a"
ip netns add "$b"
ip link add da type veth peer name db netns "$b"
ip link set da netns "$a"
for side in "$a da 10.77.0.1" "$b db 10.77.0.2"; do
    set -- $side
    ip -n "$1" address add "$3/24" dev "$2"
    ip -n "$1" link set "$2" up
    ip -n "$1" link set lo up
done
on() {
    machine=$1
    shift
    ip netns exec "$machine" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$machine" "$@"
}

"$disco" token "$folder/session.token"
on "$b" "$disco" worker --connect 10.77.0.1:4567 --token-file "$folder/session.token" -- "$program" &
on "$a" "$disco" run --nodes 2 --workers 4 --listen 0.0.0.0:4567 --token-file "$folder/session.token" -- "$program"
wait $!
