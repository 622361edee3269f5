# Part 4 of `gpu-evidence.sh`, which reads this file: language models with random weights on one GPU. The example `attention`
# (built with CUDA, like `generate`) compares and measures a kernel beside the host. `generate` beside transformers: speeds, texts
# and logits, lost workers, wrong devices. Without PyTorch, and in a rehearsal, the models are tiny and the references are the
# texts of one worker.

M=$W/models G=$B/generate
mkdir -p "$M" "$W/cache"
export DISCO=$B/disco LD_LIBRARY_PATH=${site:+$site/cu13/lib:}${LD_LIBRARY_PATH:-}
export CUDA_CACHE_PATH=$W/cache CUDA_CACHE_MAXSIZE=2147483648 # the first run compiles candle's kernels for the device
dtype=$(short bf16 f32)
makes_tiny=$quick
[ "$has_torch" = 1 ] || makes_tiny=1

# on BACKEND RANKS: options of `generate` for ranks that are processes on device 0. A rehearsal computes on the CPU.
on() {
    local devices
    devices=$(printf '0,%.0s' $(seq "$2"))
    [ "$quick" = 1 ] && echo "--backend local --threads 1 --workers $2" || echo "--backend $1 --workers $2 --devices ${devices%,}"
    [ "$2" -gt 1 ] && echo "--session processes"
}
# gen NAME LIMIT WHAT MODEL [FILE] -- OPTIONS...: a step of gpu_generate.py, which has 5 s to show where a run hangs.
gen() {
    local name=$1 limit=$2 what=$3; shift 3
    local -a of=()
    while [ "$1" != -- ]; do of+=("$1"); shift; done
    shift
    in_env $several LIMIT=$((limit * $(short 1 4) - 5)) -- "$name" "$limit" "$python" "$here/gpu_generate.py" "$what" "${of[@]}" "$G" "$@"
}
# own_reference NAME: the texts of one worker as the reference of a tiny model.
own_reference() { [ "$makes_tiny" = 1 ] && gen "reference_$1" 60 reference "$M/$1" -- $(on nccl 1) --max-tokens 8; }
# texts NAME LIMIT MODEL BACKEND RANKS: texts and logits beside the reference.
texts() { gen "$1" "$2" texts "$M/$3" -- $(on "$4" "$5"); }
# speed NAME LIMIT BACKEND RANKS [OPTION...]: tokens/s of the large model.
speed() { gen "$1" "$2" speed "$M/large" speed.txt -- $(on "$3" "$4") --dtype "$dtype" --max-tokens "$(short 128 8)" "${@:5}"; }
# shares NAME BACKEND: the shares of two ranks' time, from a timeline, which has the collectives on a device without graphs only.
shares() {
    in_env $several DISCO_TRACE="$W/$1.json.gz" -- "$1" 40 bash -c 'file=$1; shift
        "$@" > /dev/null && text=$("$DISCO" trace explain "$file") && echo "$text" && grep -A 2 "recorded" <<< "$text" | tr -s " " | tr "\n" ";"
        ' - "$W/$1.json.gz" "$G" --raw --model "$M/large" --prompt-file "$M/large/speed.txt" $(on "$2" 2) --dtype "$dtype" --max-tokens 32 --no-graph
}
# prompt NAME LIMIT BACKEND RANKS: tokens/s of a prompt of 2,048 tokens.
prompt() { gen "$1" "$2" speed "$M/large" long.txt -- $(on "$3" "$4") --dtype "$dtype" --max-tokens 1; }
# killed NAME LIMIT BACKEND TOKENS: the text goes on after SIGKILL of a worker.
killed() { gen "$1" "$2" killed "$M/small" -- $(on "$3" 2) --max-tokens "$4"; }
# refused NAME TEXT COMMAND...: the command must fail with an error that has the text.
refused() { step "$1" 30 "$python" "$here/gpu_generate.py" refused "${@:2}" --raw --max-tokens 4 t3; }
# transformers NAME LIMIT WHAT: makes a model with its references, or measures.
transformers() {
    if [ "$makes_tiny" = 1 ]; then
        skip "$1" "$(short 'there is no PyTorch' 'models are tiny')"
    else
        in_env CUDA_MODULE_LOADING=LAZY -- "$1" "$2" "$python" "$here/gpu_models.py" "$3" "$M"
    fi
}

# in_python NAME BACKEND RANKS LIBRARY: the Python package with arrays of a library.
in_python() {
    if "$python" -c "import $4" 2> /dev/null; then
        in_env $several PYTHONPATH="$B/python:$here" -- "$1" 60 "$python" -c "import gpu_python; gpu_python.main('$2', $3, '$4')"
    else
        skip "$1" "there is no $4"
    fi
}

machine "ldd '$G' | grep 'not found'; true"
step attention 60 "$B/attention" $(short '' --quick)
[ "$makes_tiny" = 1 ] && step models_tiny 30 "$python" "$here/gpu_models.py" tiny "$M"
transformers transformers_large 120 large
own_reference large
speed speed_1 90 nccl 1
speed speed_1_again 40 nccl 1
speed speed_1_no_graph 40 nccl 1 --no-graph
prompt prompt_1 40 nccl 1
mps_start
for backend in nccl cuda_p2p; do
    speed "speed_2_$backend" 40 $backend 2
    speed "speed_2_${backend}_no_graph" 40 $backend 2 --no-graph
    shares "shares_2_$backend" $backend
done
prompt prompt_2_cuda_p2p 40 cuda_p2p 2
mps_end
transformers transformers_small 60 small
own_reference small
killed killed_nccl 100 nccl "$(short 80 400)"
transformers transformers_compiled 110 compiled
texts texts_small_1 60 small nccl 1
texts texts_large_1 60 large nccl 1
mps_start
for ranks in 2 3; do
    for backend in nccl cuda_p2p; do texts "texts_small_${ranks}_$backend" 40 small $backend $ranks; done
done
texts texts_large_2_nccl 40 large nccl 2
speed speed_4_cuda_p2p 40 cuda_p2p 4
mps_end
if [ "$quick" = 1 ]; then
    in_python python_numpy local 2 numpy
else
    for library in torch cupy; do in_python "python_$library" nccl 1 $library; done
    mps_start
    for backend in nccl cuda_p2p; do in_python "python_torch_2_$backend" $backend 2 torch; done
    mps_end
fi
refused model_missing 'there is no such file' "$G" --model "$M/missing"
if [ "$quick" != 1 ]; then
    refused devices_too_few '1 devices for 2 workers' env $several "$G" --model "$M/small" --workers 2 --devices 0 --backend nccl
    refused devices_unknown 'cuda:7 does not exist' env $several "$G" --model "$M/small" --workers 2 --devices 0,7 --backend nccl
    refused devices_shared 'both on device' "$G" --model "$M/small" $(on nccl 2)
fi
# Last, because MPS may not survive a client that is killed.
mps_start
killed killed_mps 60 cuda_p2p "$(short 1000 400)"
mps_end
figures=(attention shares_2_nccl shares_2_cuda_p2p) # the lines of the other steps have theirs
