# Every check of the project, in order; sourced by ./dev test. Ends with what could not run on this
# machine and why, then "N passed, N failed".
passed=0
failed=0
not_run=()

# check NAME COMMAND...: one check. Exit status 77 means "cannot run here", and the output says why.
check() {
  local name=$1 log status=0
  shift
  log=build/logs/$(echo "$name" | tr ' /' '--').log
  "$@" >"$log" 2>&1 || status=$?
  case $status in
    0) say "ok: $name"; passed=$((passed + 1)) ;;
    77) not_run+=("$name: $(tail -n 1 "$log")") ;;
    *) tail -n 30 "$log" >&2; say "FAILED: $name ($log)"; failed=$((failed + 1)) ;;
  esac
}

# tests NAME PRESET CTEST_FLAGS...: ctest; every test case counts.
tests() {
  local name=$1 dir=build/$2 counts log=build/logs/$1.log
  shift 2
  rm -f "$dir/Testing/Temporary/LastTest.log"
  "${launcher[@]}" ctest --test-dir "$dir" -j2 --output-on-failure --no-tests=error "$@" >"$log" 2>&1 ||
    tail -n 40 "$log" >&2
  counts=$(.ci/count_tests.py "$dir/Testing/Temporary/LastTest.log") || counts="0 1"
  say "$name: ${counts% *} passed, ${counts#* } failed"
  passed=$((passed + ${counts% *}))
  failed=$((failed + ${counts#* }))
}

# lines NAME COMMAND...: a script that prints "ok: what" and "FAILED: what" lines; each counts.
lines() {
  local name=$1 log=build/logs/$1.log status=0 bad
  shift
  "$@" >"$log" 2>&1 || status=$?
  grep -E '^(ok|FAILED): ' "$log" | sed 's/^/== /' || true
  passed=$((passed + $(grep -c '^ok: ' "$log" || true)))
  bad=$(grep -c '^FAILED: ' "$log" || true)
  if [ $status != 0 ] || [ "$bad" != 0 ]; then
    tail -n 30 "$log" >&2
    [ "$bad" != 0 ] || bad=1
  fi
  failed=$((failed + bad))
}

mkdir -p build/logs
launcher=()
started=$SECONDS

check "format" .ci/format
check "layers" .ci/check_layers.py
check "source text" .ci/check_source.py

if build ci; then
  passed=$((passed + 1))
  tests "tests" ci
  check "exported symbols" .ci/check_symbols.py exported build/ci/src/librunmax.so
  [ ! -e build/ci/src/librunmax_cuda.so ] ||
    check "symbols of the CUDA backend" .ci/check_symbols.py backend build/ci/src/librunmax_cuda.so
  check "symbols of ISA objects" .ci/check_symbols.py isa build/ci/src/cpu/CMakeFiles/*/isa/*.o
  lines "consumers" tests/consumer/run build/ci
else
  failed=$((failed + 1))
fi

# Sanitizers slow a test five to fifteen times: a selection of folders and labels under tests/.
if build asan tests_{unit,policy,abi,consumer,cases,asan}; then
  tests "asan and ubsan" asan -L '^(unit|policy|abi|consumer|cases|asan)$'
else
  failed=$((failed + 1))
fi
# ThreadSanitizer's memory layout does not suit every kernel's address randomisation.
setarch "$(uname -m)" -R true 2>/dev/null && launcher=(setarch "$(uname -m)" -R)
if build tsan tests_{unit,consumer,tsan}; then
  tests "tsan" tsan -L '^(unit|consumer|tsan)$'
else
  failed=$((failed + 1))
fi
launcher=()

if ! grep -q "^RUNMAX_WITH_CUDA:INTERNAL=ON" build/ci/CMakeCache.txt 2>/dev/null; then
  not_run+=("the CUDA backend was not compiled: no nvcc here")
fi
while read -r line; do not_run+=("$line"); done < <(tests/gpu/run.py --status)
command -v clang++ >/dev/null ||
  not_run+=("libFuzzer: no clang++ here (./dev fuzz installs it); the corpus was replayed instead")
if [ "$(uname -m)" = x86_64 ]; then
  for flag in avx2 avx512f avx512_bf16 amx_bf16; do
    grep -qw $flag /proc/cpuinfo || not_run+=("tests on $flag: this processor lacks it")
  done
fi

printf '\nnot run here:\n'
printf '  %s\n' "${not_run[@]}"
say "$(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s"
echo "$passed passed, $failed failed"
[ $failed = 0 ] && [ $passed -gt 0 ]
