#!/bin/bash
# How the GPU evidence kit runs its steps: the part and its budget, the folders, the machine's libraries. A script of the kit
# reads this file first, then runs its steps and calls `finish`.
#
# OUT: folder of the results; W: folder of the unpacked programs; BUDGET: seconds of a part.
# SYS_NCCL, NVRTC: paths of the machine's libraries, which replace the search.
# NCCL_SHARED: path that replaces the library of the kit.
# GPU_EVIDENCE_QUICK=1: small sizes and counts, for `cargo xtask gpu-rehearsal` without a GPU.
set -u
OUT=${OUT:-/tmp/out} W=${W:-/tmp/disco-gpu}
L=$W/logs-$part B=$W/bin
mkdir -p "$OUT" "$L"
began=$SECONDS budget=${BUDGET:-$(case $part in 0) echo 180;; *) echo 535;; esac)} failed=0
quick=${GPU_EVIDENCE_QUICK:-0}
PATH=$PATH:/usr/local/cuda/bin

say() { printf '%s\n' "$*" | tee -a "$OUT/summary.tsv"; }
skip() { say "$1	skipped	$2"; }
# short FULL QUICK: prints FULL, or QUICK in a rehearsal.
short() { if [ "$quick" = 1 ]; then echo "$2"; else echo "$1"; fi; }
has() { command -v "$1" > /dev/null; }

# step NAME LIMIT COMMAND...: runs a command, for at most LIMIT seconds.
step() {
    local name=$1 limit=$2 start=$SECONDS left=$((budget - (SECONDS - began))) code; shift 2
    [ "$quick" = 1 ] && limit=$((limit * 4)) # other work may share the processors
    if [ "$left" -lt 15 ]; then skip "$name" "the part's time is over"; return 0; fi
    [ "$limit" -gt "$left" ] && limit=$left
    timeout -k 5 "$limit" "$@" > "$L/$name.log" 2>&1 < /dev/null; code=$?
    [ $code -ne 0 ] && failed=$((failed + 1))
    say "$name	code $code	$((SECONDS - start)) s	$(grep . "$L/$name.log" | tail -n 1 | cut -c1-320)"
    return $code
}
# in_env A=B... -- NAME LIMIT COMMAND...: runs a step with these environment variables.
in_env() {
    local -a variables=()
    while [ "$1" != -- ]; do variables+=("$1"); shift; done
    local name=$2 limit=$3; shift 3
    step "$name" "$limit" env "${variables[@]}" "$@"
}
# machine [COMMAND]: what the machine is, then the output of COMMAND.
machine() {
    step environment 40 bash -c "uname -a; ldd --version | head -1; nvidia-smi; nvidia-smi topo -m; nvidia-smi nvlink -s | head -20
        free -g | head -2; nproc; df -h /dev/shm | tail -1; ls -l '$sys_nccl' '$nvrtc' '$shared_nccl'; ulimit -l
        CUDA_MODULE_LOADING=LAZY $python -c 'import torch; print(torch.__version__, torch.cuda.nccl.version(), torch.cuda.get_device_properties(0))'
        command -v nvcc compute-sanitizer ncu nvidia-cuda-mps-control; ${1:-true}"
}
# finish STEP...: packs all output, collects the figures of these steps, and ends the part.
finish() {
    dmesg 2> /dev/null | grep -i 'xid' | tail -5 > "$L/xid.log"
    tar czf "$OUT/logs-$part.tgz" -C "$W" "logs-$part"
    for name in "$@"; do
        [ -f "$L/$name.log" ] && { echo "== $name"; tail -n 60 "$L/$name.log" | cut -c1-200; } >> "$OUT/figures.txt"
    done
    say "== part $part	$failed steps failed	$((SECONDS - began)) s"
    [ "$quick" = 1 ] || tail -c 6000 "$OUT/figures.txt" 2> /dev/null
    [ "$failed" -eq 0 ]
}

# Starts and ends MPS, without which processes of one GPU take turns of milliseconds. Each process under MPS gets few
# connections, of which a GPU has a limited number.
mps_start() {
    if ! has nvidia-cuda-mps-control; then
        skip mps_start "there is no nvidia-cuda-mps-control: processes take turns of milliseconds"
        return
    fi
    export CUDA_MPS_PIPE_DIRECTORY=$W/mps CUDA_MPS_LOG_DIRECTORY=$W/mps CUDA_DEVICE_MAX_CONNECTIONS=8
    mkdir -p "$W/mps"
    step mps_start 15 nvidia-cuda-mps-control -d
}
mps_end() {
    has nvidia-cuda-mps-control && step mps_end 15 bash -c 'echo quit | nvidia-cuda-mps-control'
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    export CUDA_DEVICE_MAX_CONNECTIONS=32
}

# The machine.
if [ ! -x "$B/disco" ]; then
    mkdir -p "$W/lib"
    tar xJf "$here/bin.tar.xz" -C "$W"
    for packed in "$here"/lib/*.so.xz; do xz -dc "$packed" > "$W/lib/$(basename "${packed%.xz}")"; done
fi
python=$(command -v python3)
site=$($python -c 'import nvidia; print(list(nvidia.__path__)[0])' 2> /dev/null)
has_torch=$($python -c 'import torch; print(int(torch.cuda.is_available()))' 2> /dev/null || echo 0)
found() { find / -xdev -name "$1" 2> /dev/null | head -n 1; }
sys_nccl=${SYS_NCCL:-$(ls "$site"/nccl/lib/libnccl.so.2 2> /dev/null || found libnccl.so.2)}
nvrtc=${NVRTC:-$(ls "$site"/cu13/lib/libnvrtc.so.13 2> /dev/null || found 'libnvrtc.so.1[23]')}
shared_nccl=${NCCL_SHARED:-$W/lib/nccl-2.30.7.so}
export RUST_BACKTRACE=1 DISCO_NCCL_LIBRARY=${sys_nccl:-$shared_nccl}
[ -n "$nvrtc" ] && export DISCO_NVRTC_LIBRARY=$nvrtc
export DISCO_P2P_TOPOLOGY=fully_connected # one device has no links to itself
export CUDA_MODULE_LOADING=EAGER          # no kernel is loaded while another spins
export CUDA_DEVICE_MAX_CONNECTIONS=32     # streams of several ranks share no queue
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
several="NCCL_MULTI_RANK_GPU_ENABLE=1 DISCO_SHARE_DEVICES=1 NCCL_MAX_CTAS=8 DISCO_NCCL_LIBRARY=$shared_nccl"
