#!/usr/bin/env bash
# Two machines under Slurm, on one machine: network and UTS namespaces with a slurmd each. Runs a command there.
#
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge libpmix2 iproute2
#   testing/scripts/slurm.sh srun --nodes 2 --ntasks 4 hostname
#
# Needs root, Debian's packages, and Linux with cgroups. Everything is removed at the end; nothing is written outside
# of a temporary folder but /run/munge and the namespaces `dn1` and `dn2`.
#
# Runs at the same time wait for each other, since they share the names of the namespaces.
set -euo pipefail

# The lock lasts as long as the descriptor 9, which the daemons do not inherit.
if [ -z "${IN_MOUNT_NAMESPACE:-}" ]; then
    exec 9> "${TMPDIR:-/tmp}/disco-slurm.lock"
    flock --timeout 600 9 || { echo "another run of $0 has not ended for 600 s" >&2; exit 1; }
fi

work=$(mktemp -d)
bridge=dbr0 net=10.78.0
export SLURM_CONF=$work/slurm.conf

down() {
    for daemon in "$work"/*.pid; do kill "$(cat "$daemon")" 2>/dev/null || true; done
    sleep 0.5
    for host in dn1 dn2; do
        ip netns pids "$host" 2>/dev/null | xargs --no-run-if-empty kill -9 || true
        ip netns delete "$host" 2>/dev/null || true
    done
    ip link delete "$bridge" 2>/dev/null || true
    if [ -n "${munged:-}" ]; then kill "$munged" 2>/dev/null || true; fi
    rm -rf "$work"
}
trap down EXIT

# Names of the machines, for this script and its children only.
if [ -z "${IN_MOUNT_NAMESPACE:-}" ]; then
    trap - EXIT
    rm -rf "$work"
    IN_MOUNT_NAMESPACE=1 exec unshare --mount "$0" "$@"
fi
{ cat /etc/hosts; printf '%s\n' "$net.254 $(hostname)" "$net.1 dn1" "$net.2 dn2"; } > "$work/hosts"
mount --bind "$work/hosts" /etc/hosts

# Slurm's plugin of PMIx opens the library by the name of the development package.
pmix=/usr/lib/x86_64-linux-gnu/pmix2/lib
if [ -e $pmix/libpmix.so.2 ] && [ ! -e $pmix/libpmix.so ]; then
    mkdir "$work/upper" "$work/lower"
    cp -a $pmix/. "$work/upper"
    ln -s libpmix.so.2 "$work/upper/libpmix.so"
    mount --bind "$work/upper" $pmix
fi

mkdir -p /run/munge /var/log/munge
chown munge:munge /run/munge /var/log/munge
chmod 755 /run/munge
if ! munge -n >/dev/null 2>&1; then
    runuser -u munge -- /usr/sbin/munged --force 9>&-
    munged=$(cat /run/munge/munged.pid)
fi

ip link add "$bridge" type bridge
ip addr add "$net.254/24" dev "$bridge"
ip link set "$bridge" up
cpus=$(nproc)
mkdir -p "$work"/{state,spool/dn1,spool/dn2,tmp/dn1,tmp/dn2}
cat > "$SLURM_CONF" <<EOF
ClusterName=disco
SlurmctldHost=$(hostname)($net.254)
SlurmUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
TmpFS=$work/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
NodeName=dn1 NodeAddr=$net.1 CPUs=$cpus
NodeName=dn2 NodeAddr=$net.2 CPUs=$cpus
PartitionName=all Nodes=dn[1-2] Default=YES OverSubscribe=FORCE:4
EOF
slurmctld -i -c 9>&-
for number in 1 2; do
    host=dn$number
    ip netns add $host
    ip link add "v$host" type veth peer name eth0 netns $host
    ip link set "v$host" master "$bridge" up
    ip -n $host addr add "$net.$number/24" dev eth0
    ip -n $host link set lo up
    ip -n $host link set eth0 up
    # Not `ip netns exec`, which mounts another /sys, without cgroups.
    nsenter --net=/run/netns/$host unshare --uts sh -c "hostname $host; exec slurmd -N $host" 9>&-
done
for _ in $(seq 100); do
    sinfo --noheader --format %T 2>/dev/null | grep --quiet --invert-match idle || break
    sleep 0.1
done

"$@"
