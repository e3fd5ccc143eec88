#!/usr/bin/env bash
# One visit to a machine with a Hopper GPU: tests, sanitizer, benchmarks, each stage under its own time limit.
#
#   bench/on_gpu.sh                          the usual stages
#   bench/on_gpu.sh build tests plain        these stages, in this order
#
# Usual stages: build tests random sanitizer plain overhead bench graphs models pass-time
# Others: chains tune rmsnorm narrow build-models b2b attention training profile timeline energy
# Environment:
#   OUT              results and logs go here (default: bench/results)
#   COMFUSE_COMMIT   the commit that is measured, where this copy of the tree has no git
#   BUILD_ARGS BUILD_BENCH_ARGS TEST_ARGS CHAINS_ARGS RANDOM_ARGS PLAIN_ARGS BENCH_ARGS TUNE_ARGS RMSNORM_ARGS
#   NARROW_ARGS GRAPHS_ARGS MODELS_ARGS B2B_ARGS ATTENTION_ARGS TRAINING_ARGS
#                    more arguments for a stage, e.g. BUILD_ARGS='tests/gpu -k n768' TEST_ARGS='-k n768'
#   MODELS           workloads of models, or models, for build-models, models and pass-time, e.g. 'bert_large gpt2-inference'
#   LIMIT_<STAGE>    seconds, e.g. LIMIT_TESTS=200
# Wheels in .whl/ are installed first, into a folder of their own.
set -uo pipefail
cd "$(dirname "$0")/.."

usual=(build tests random sanitizer plain overhead bench graphs models pass-time)
known=" ${usual[*]} chains tune rmsnorm narrow build-models b2b attention training profile timeline energy "
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${usual[@]}")
for s in "${stages[@]}"; do
  [[ $known == *" $s "* ]] || { echo "no stage '$s'; there are:$known" >&2 && exit 2; }
done
out=${OUT:-bench/results}
mkdir -p "$out"
out=$(cd "$out" && pwd)
logs=$(mktemp -d)
export PYTHONUNBUFFERED=1
export COMFUSE_MAX_JOBS=${COMFUSE_MAX_JOBS:-$(nproc)}
export COMFUSE_CACHE_DIR=${COMFUSE_CACHE_DIR:-$(pwd)/build/cache}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$(pwd)/build/inductor}
mkdir -p "$COMFUSE_CACHE_DIR" "$TORCHINDUCTOR_CACHE_DIR"

if compgen -G '.whl/*.whl' >/dev/null; then
  site=${SITE:-/tmp/site}
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" .whl/*.whl ||
    exit 1
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$(pwd)${PYTHONPATH:+:$PYTHONPATH}"

# Several processes: a kernel that traps ends one of them, and its successor goes on.
pytest=(python3 -m pytest -m gpu -q --tb=short --maxfail=60)
python3 -c 'import xdist' 2>/dev/null && pytest+=(-n "${TEST_WORKERS:-4}" --dist loadgroup)

summary=()
failed=0

# stage NAME SECONDS COMMAND...: run it under a limit, keep its log, remember how it ended; true if well.
stage() {
  local name=$1 limit=$2 log="$logs/$1.log" code begin=$SECONDS upper=${1^^}
  shift 2
  local override="LIMIT_${upper//-/_}"
  limit=${!override:-$limit}
  echo "=== $name (at most $limit s)"
  timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$log" | tail -n "${TAIL:-40}"
  code=${PIPESTATUS[0]}
  [ "$code" -eq 0 ] || failed=1
  [ "$code" -ne 124 ] || code="124 (time limit)"
  summary+=("$(printf '%-18s exit %-16s %4d s   %s' "$name" "$code" $((SECONDS - begin)) "$(last_line "$log")")")
  [ "$code" = 0 ]
}

last_line() { grep -v '^[[:space:]]*$' "$1" | grep -v '^rows: ' | tail -n 1 | cut -c1-150; }

run_stage() {
  case $1 in
    build) # all kernels that the later stages need, 16 at a time; nothing is launched
      # shellcheck disable=SC2086
      stage build-tests 240 python3 -m tests.gpu.build ${BUILD_ARGS:-}
      # shellcheck disable=SC2086
      stage build-bench 240 python3 -m bench.build ${BUILD_BENCH_ARGS:-}
      ;;
    # shellcheck disable=SC2086
    build-models) stage build-models 240 python3 -m bench.build --families models ${MODELS:+--models $MODELS} ;;
    tests)
      # shellcheck disable=SC2086
      stage tests 300 "${pytest[@]}" tests/gpu --ignore=tests/gpu/test_random_programs.py \
        --ignore=tests/gpu/test_chain.py --ignore=tests/gpu/test_attention.py ${TEST_ARGS:-}
      ;;
    chains) # the smallest ones first, and no others if one fails
      # shellcheck disable=SC2086
      stage chains-smallest 90 python3 -m pytest -m gpu -q --tb=short -x tests/gpu/test_chain.py -k test_one_tile &&
        stage chains 150 "${pytest[@]}" tests/gpu/test_chain.py tests/gpu/test_attention.py ${CHAINS_ARGS:-}
      ;;
    random)
      # shellcheck disable=SC2086
      stage random 150 "${pytest[@]}" tests/gpu/test_random_programs.py ${RANDOM_ARGS:-}
      ;;
    sanitizer)
      stage sanitizer-build 120 python3 -m tests.gpu.sanitize --build
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 stage memcheck 150 compute-sanitizer --tool memcheck --error-exitcode 9 \
        --print-limit 20 python3 -m tests.gpu.sanitize
      local p
      for p in bare layernorm columns groups; do # the plain GEMM first: the others are held against it
        stage "racecheck-$p" 120 compute-sanitizer --tool racecheck --print-limit 20 \
          python3 -m tests.gpu.sanitize --programs "$p"
      done
      ;;
    # shellcheck disable=SC2086
    plain) stage plain 240 python3 -m bench.plain_gemm --output "$out" ${PLAIN_ARGS:-} ;;
    overhead) TAIL=20 stage overhead 240 python3 -m bench.overhead --output "$out" ;;
    # shellcheck disable=SC2086
    bench) stage bench 560 python3 -m bench postnorm --budget 400 --output "$out" ${BENCH_ARGS:-} ;;
    tune) # the eight post-norm shapes, as `comfuse tune` does it and exhaustively; writes tables beside the rows
      # shellcheck disable=SC2086
      TAIL=14 stage tune 400 python3 -m bench.tuning --output "$out" ${TUNE_ARGS:-}
      ;;
    # Tuning takes Inductor minutes: its slow mode runs in the first process only.
    # shellcheck disable=SC2086
    graphs) stage graphs 500 python3 -m bench graphs --processes 2 --once inductor-max --budget 300 --output "$out" \
      ${GRAPHS_ARGS:-} ;;
    # shellcheck disable=SC2086
    b2b) stage b2b 400 python3 -m bench b2b --processes 1 --output "$out" ${B2B_ARGS:-} ;;
    # shellcheck disable=SC2086
    attention) stage attention 300 python3 -m bench.attention --output "$out" ${ATTENTION_ARGS:-} ;;
    training) # whole steps, then what the backward runs before its GEMMs
      # shellcheck disable=SC2086
      stage training 300 python3 -m bench.training --output "$out" ${TRAINING_ARGS:-}
      # shellcheck disable=SC2086
      stage training-backward 200 python3 -m bench.training --backward --output "$out" ${TRAINING_ARGS:-}
      ;;
    # shellcheck disable=SC2086
    rmsnorm) stage rmsnorm 500 python3 -m bench rmsnorm --processes 1 --output "$out" ${RMSNORM_ARGS:-} ;;
    # shellcheck disable=SC2086
    narrow) stage narrow 300 python3 -m bench narrow --processes 1 --output "$out" ${NARROW_ARGS:-} ;;
    profile) # the counters that the notes ask for
      stage profile 300 python3 -m bench.profile graphs-logsumexp-8192x32000x4096 b2b-1048576x64x256x64 \
        --output "$out"
      ;;
    timeline) # where a tile's time goes
      stage timeline 120 python3 -m bench.timeline postnorm-16384x768x768:pingpong-128x128 \
        postnorm-16384x768x768:pingpong2-128x128 postnorm-327680x512x512:pingpong2-128x128 \
        postnorm-65536x256x256:pingpong2-128x128 graphs-rmsnorm-8192x4096x4096:cooperative-128x256 \
        graphs-gemma-8192x4608x4096:cooperative-128x288 --output "$out"
      ;;
    energy) # what each launch costs in joules, and the clock that this leaves
      stage energy 120 python3 -m bench.energy graphs-rmsnorm-8192x4096x4096 graphs-gemma-8192x4608x4096 \
        graphs-logsumexp-8192x32000x4096 postnorm-16384x768x3072 --output "$out"
      ;;
    # Tuning takes Inductor minutes: the budget ends the run between two workloads.
    # shellcheck disable=SC2086
    models) stage models 560 python3 -m bench models --budget 420 --output "$out" \
      ${MODELS:+--workloads $MODELS} ${MODELS_ARGS:-} ;;
    # shellcheck disable=SC2086
    pass-time) stage pass-time 400 python3 -m bench pass-time --output "$out" ${MODELS:+--workloads $MODELS} ;;
  esac
}

# After every stage, so that a visit that is cut short leaves its logs too.
pack_logs() {
  local f
  for f in "$out"/*.log; do [ -e "$f" ] && mv "$f" "$logs/"; done
  tar -czf "$out/logs.tar.gz" -C "$logs" .
}

for s in "${stages[@]}"; do
  run_stage "$s"
  pack_logs
done
echo
echo "=== summary"
printf '%s\n' "${summary[@]}"
echo "results: $out"
exit $failed
