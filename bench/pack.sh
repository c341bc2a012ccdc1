#!/bin/sh
# Runs what needs a GPU, and records it: run.sh FOLDER [doctor] [tests] [kernels] [bench]
#
# It needs NVIDIA's driver and a Python ($PYTHON, default python3) with JAX, its CUDA plugin and PyTorch; no Go, no
# network. Each part has a limit in seconds and a file in the folder with its output; summary.txt has a line for each.
# $TESTS names packages whose tests to run, $TEST_ARGS more arguments for them, $BENCH more flags for the benchmark.
set -u
[ $# -gt 0 ] || { echo "usage: run.sh FOLDER [doctor] [tests] [kernels] [bench]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && out=$(cd "$1" && pwd) && shift || exit 1
python=${PYTHON:-python3}
if [ -z "${SHARDBOOK_PLUGIN:-}" ]; then
	SHARDBOOK_PLUGIN=$("$python" -c 'from importlib.util import find_spec as find
spec = find("jax_plugins.xla_cuda13") or find("jax_plugins.xla_cuda12")
print(spec.submodule_search_locations[0] + "/xla_cuda_plugin.so")') || {
		echo "run.sh: $python has no CUDA plugin of JAX: set SHARDBOOK_PLUGIN to xla_cuda_plugin.so" >&2; exit 1; }
fi
export SHARDBOOK_PLUGIN
site=$(dirname "$(dirname "$(dirname "$SHARDBOOK_PLUGIN")")")
for lib in "$site"/nvidia/*/lib; do
	[ -d "$lib" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$lib
done
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"

failed=0
part() { # NAME SECONDS COMMAND...
	name=$1 limit=$2 begin=$(date +%s)
	shift 2
	timeout -k 10 "$limit" "$@" >"$out/$name.txt" 2>&1
	code=$?
	[ $code = 0 ] || failed=1
	counts=
	case $name in tests-*) for is in PASS FAIL SKIP; do
		counts="$counts, $(grep -c "^ *--- $is" "$out/$name.txt") $is"
	done ;; esac
	echo "$name: exit status $code after $(($(date +%s) - begin)) s$counts" | tee -a "$out/summary.txt"
}

{ date -u; nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; } 2>&1 | tee -a "$out/summary.txt"
for what in ${*:-doctor tests kernels bench}; do
	case $what in
	doctor) SHARDBOOK_ROOT="$here/tests" part doctor 120 "$here/shardbook" doctor ;;
	tests) for test in "$here"/tests/*/*/run.test "$here"/tests/*/run.test; do
		[ -x "$test" ] || continue
		cd "$(dirname "$test")" || continue
		name=$(basename "$PWD")
		case " ${TESTS:-$name} " in *" $name "*) ;; *) continue ;; esac
		part "tests-$name" 150 ./run.test -test.v -test.timeout 140s ${TEST_ARGS:-}
	done ;;
	kernels) for name in native fused; do
		cd "$here/tests/lib/$name" &&
			part "kernels-$name" 120 ./run.test -test.run '^$' -test.bench CUDA -test.benchtime 1x
	done ;;
	bench) cd "$out" && part bench 590 "$here/shardbook-bench" gpu --python="$python" --out="$out/gpu.jsonl" \
		--save="$out" ${BENCH:-} ;;
	*) echo "run.sh: no part \"$what\": doctor, tests, kernels or bench" >&2; failed=1 ;;
	esac
done
exit $failed
