#!/bin/bash
# Tests and measures the backends `nccl` and `cuda_p2p` on one NVIDIA GPU. Usage: `bash FOLDER/gpu-evidence.sh PART`, in
# the folder that `cargo xtask gpu-bundle` makes. Part 0 touches everything once within 3 minutes. The others take at
# most 9 minutes each: 1 one rank, and threads that share the device; 2 processes that share it; 3 failures, sanitizers
# and PyTorch; 4 language models beside transformers. The most important steps come first. A step that fails or hangs takes at most its own time limit. The variables that change a run are in gpu-steps.sh.
# $OUT/summary.tsv has a line for each step, $OUT/figures.txt the figures, $OUT/logs-PART.tgz all output. The exit code
# is 1 if a step fails.
set -u
part=${1:?the first argument is the part: 0 to 4}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/gpu-steps.sh"

# one_device_test NAME LIMIT TEST [A=B ...]: runs a test of one process, whose ranks are threads.
one_device_test() {
    in_env DISCO_TEST_GPU=1 "${@:4}" -- "$1" "$2" "$B/nccl_tests" "$3::inside" --exact --ignored --nocapture --test-threads=1
}
# ranks NAME LIMIT TEST SIZE [A=B ...]: runs a test with a process for each rank, all on device 0. WRAP: a tool that
# runs each process. MAY_FAIL: the number of ranks that may fail.
ranks() {
    local name=$1 limit=$2 test=$3 size=$4; shift 4
    step "$name" "$limit" bash -c '
        program=$1 test=$2 size=$3; shift 3
        folder=$(mktemp -d) bad=0 pids=()
        for rank in $(seq 0 $((size - 1))); do
            env DISCO_TEST_RANK=$rank DISCO_TEST_SIZE=$size DISCO_TEST_FOLDER=$folder DISCO_TEST_SHARED=1 DISCO_TEST_GPU=1 \
                RUST_BACKTRACE=0 "$@" ${WRAP:-} "$program" "$test" --exact --ignored --nocapture --test-threads=1 \
                > $folder.$rank.log 2>&1 & pids+=($!)
        done
        for pid in "${pids[@]}"; do wait $pid || bad=$((bad + 1)); done
        for rank in $(seq 0 $((size - 1))); do echo "== rank $rank"; cat $folder.$rank.log; rm $folder.$rank.log; done
        rm -r $folder
        echo "$bad of $size ranks failed"; [ $bad -le ${MAY_FAIL:-0} ]' - "$B/nccl_tests" "$test" "$size" "$@"
}
# torch NAME LIMIT WHAT RANKS [A=B ...]: runs PyTorch, for comparison.
torch() {
    if [ "$has_torch" = 1 ]; then
        in_env CUDA_MODULE_LOADING=LAZY "${@:5}" -- "$1" "$2" "$python" "$here/torch_compare.py" "$3" "$4"
    else
        skip "$1" "there is no PyTorch"
    fi
}

epochs=$(short 30 1)
figures=(copies times_1 times_2 replays_2 graph_2
    graph_one_shot_2 graph_two_shot_2 graph_one_shot_4 graph_two_shot_4 bench_nccl torch_1 torch_nccl_2 torch_symm_2 bench_nccl_2 bench_p2p_2)
processes=(--workers 2 --devices 0,0 --session processes)
sizes=(--min-bytes 16 --factor 4 --max-bytes "$(short 64M 1M)")
# check NAME LIMIT BACKEND FILTER: the conformance suite of two processes that share the device.
check() { in_env $several -- "$1" "$2" "$B/disco" check --backend "$3" "${processes[@]}" --filter "$4"; }
# bench NAME BACKEND: times of two processes that share the device.
bench() { in_env $several -- "$1" 60 "$B/disco" bench all_reduce "${processes[@]}" --backend "$2" "${sizes[@]}"; }
backends() {
    step backends 30 "$B/disco" backends
    in_env DISCO_P2P_TOPOLOGY= -- topo 30 "$B/disco" topo
}
one_rank() {
    step check_nccl_1 60 "$B/disco" check --backend nccl --workers 1
    one_device_test one_rank_scales 30 order::one_rank_scales_all_elements
    one_device_test graphs_nccl_1 60 graphs::one_rank_captures_and_launches
    one_device_test random_copies 30 random_copies::random_copies_of_pinned_and_ordinary_tensors_arrive_intact
}

case $part in
0)
    machine
    backends
    one_rank
    ranks sums_processes_2 60 processes::sum 2 DISCO_P2P_ONE_SHOT=1024
    ranks around_processes_4 60 processes::go_around 4
    step copies 30 "$B/gpu_evidence" copies 1
    step graph_2 30 "$B/gpu_evidence" graph 2
    step times_1 30 "$B/gpu_evidence" times 1
    mps_start
    check check_nccl_avg 60 nccl ::avg
    check check_p2p_sum 60 cuda_p2p f32::sum
    bench bench_p2p_2 cuda_p2p
    in_env $several -- digits_p2p_4 40 "$B/digits" --backend cuda_p2p --workers 4 --devices 0,0,0,0 --session processes --epochs "$(short 10 1)" --json
    mps_end
    ;;
1)
    machine
    backends
    one_rank
    step digits_nccl_1 60 "$B/digits" --backend nccl --workers 1 --epochs "$epochs" --json
    # shellcheck disable=SC2046
    in_env $several -- bench_nccl 90 "$B/nccl_bench" --bench $(short '' --quick)
    step times_1 30 "$B/gpu_evidence" times 1
    step copies 60 "$B/gpu_evidence" copies 1
    in_env $several -- replays_2 40 "$B/gpu_evidence" replays 2
    in_env $several -- times_2 40 "$B/gpu_evidence" times 2
    for ranks in 2 4; do
        in_env DISCO_P2P_ONE_SHOT=10485760 -- "graph_one_shot_$ranks" 30 "$B/gpu_evidence" graph $ranks
        in_env DISCO_P2P_ONE_SHOT=0 -- "graph_two_shot_$ranks" 30 "$B/gpu_evidence" graph $ranks
    done
    # Last, because threads that share a device hang with large sums; the reason is not known.
    one_device_test sums_threads 60 one_device::streams_of_one_device_sum DISCO_P2P_ONE_SHOT=1024
    one_device_test sums_relays 60 one_device::streams_of_one_device_sum_over_relays DISCO_P2P_TOPOLOGY=hybrid_cube_mesh
    ;;
2)
    mps_start
    check check_nccl_2 300 nccl "$(short '' f32)"
    check check_p2p_2 300 cuda_p2p "$(short f32 f32::sum)"
    bench bench_nccl_2 nccl
    bench bench_p2p_2 cuda_p2p
    in_env $several -- digits_nccl_2 40 "$B/digits" --backend nccl "${processes[@]}" --epochs "$(short 10 1)" --json
    in_env $several -- digits_p2p_4 40 "$B/digits" --backend cuda_p2p --workers 4 --devices 0,0,0,0 --session processes --epochs "$(short 10 1)" --json
    mps_end
    ;;
3)
    for size in 2 4 "$(short 8 3)"; do ranks "sums_processes_$size" 90 processes::sum "$size" DISCO_P2P_ONE_SHOT=1024; done
    MAY_FAIL=1 ranks dead_before_sum 40 processes::sum_without_one 3 "DISCO_TEST_DIES=with all"
    MAY_FAIL=1 ranks dead_before_barrier 40 processes::lose_one 3 "DISCO_TEST_DIES=with all"
    for tool in memcheck racecheck; do # ranks are processes, because the tools serialize the launches of one process
        if has compute-sanitizer; then
            WRAP="compute-sanitizer --tool $tool --error-exitcode 9" ranks ${tool}_2 120 processes::sum 2 DISCO_P2P_ONE_SHOT=1024
        else
            skip ${tool}_2 "there is no compute-sanitizer"
        fi
    done
    torch torch_1 60 nccl 1
    mps_start
    torch torch_nccl_2 60 nccl 2 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=8 LD_PRELOAD="$shared_nccl"
    torch torch_symm_2 60 symm 2 TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1
    bench bench_nccl_2 nccl
    bench bench_p2p_2 cuda_p2p
    mps_end
    ;;
4)
    . "$here/gpu-models.sh"
    ;;
*)
    echo "there is no part $part" >&2; exit 2
    ;;
esac

finish "${figures[@]}"
