# Sourced by the scripts in tools/ and .ci/: makes or reuses a virtual environment with pyalloc built into it.
#
#   PYTHON         the interpreter the environment is made with (default python3; 3.10 or newer)
#   PYALLOC_VENV   the environment (default .venv in the repository)
#   PYALLOC_TORCH  what to install when the environment has no torch (default "torch>=2.11")
#
# Work already done is skipped: a stamp in the environment holds the hash of everything the build reads.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=${PYALLOC_VENV:-$root/.venv}
name=$(basename "$0")

say() { printf '%s: %s\n' "$name" "$*"; }
fail() {
  printf '%s: %s\n' "$name" "$*" >&2
  exit 1
}

# The hash of what an editable install depends on: sources of the libraries, names of the Python modules, the build's configuration.
sources_hash() {
  (
    cd "$root"
    find allocator_cpp pyproject.toml pyalloc/_version.py -type f -print0 | sort -z | xargs -0 sha256sum
    find pyalloc -name '*.py' | sort
    "$venv/bin/python" -VV
  ) | sha256sum | cut -d' ' -f1
}

make_venv() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null || fail "no $python; set PYTHON to a Python 3.10 or newer"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$python is $("$python" -V 2>&1); Python 3.10 or newer is needed, set PYTHON to one"
  say "making the environment $venv with $("$python" -V 2>&1)"
  "$python" -m venv "$venv" || fail "cannot make $venv (Debian and Ubuntu: apt install python3-venv)"
}

need_compiler() {
  command -v "${CXX:-c++}" >/dev/null || fail "no C++ compiler (${CXX:-c++}); install one, such as g++, or set CXX"
}

need_torch() {
  local state
  state=$("$venv/bin/python" - <<'PYTHON'
import importlib.util, re, pathlib
spec = importlib.util.find_spec("torch")
if spec is None:
    print("missing")
else:
    text = (pathlib.Path(spec.origin).parent / "version.py").read_text()
    print("cuda" if re.search(r"^cuda\b.*= '", text, re.MULTILINE) else "cpu")
PYTHON
  )
  case $state in
    missing)
      say "installing ${PYALLOC_TORCH:-torch>=2.11} (a few GB the first time)"
      # numpy: torch warns at every import without it.
      "$venv/bin/python" -m pip install --quiet "${PYALLOC_TORCH:-torch>=2.11}" numpy
      need_torch
      ;;
    cpu) fail "the torch in $venv is a CPU-only build; a CUDA build is needed, on a simulated GPU too: set PYALLOC_VENV to another environment" ;;
  esac
}

# ensure_environment EXTRAS: EXTRAS is "" or a list for pip such as "test" or "test,dev".
ensure_environment() {
  local extras=$1 stamp=$venv/.pyalloc-stamp hash
  [ -x "$venv/bin/python" ] || make_venv
  need_compiler
  hash=$(sources_hash)
  # The stamp is the hash and the extras installed with it.
  if [ -f "$stamp" ] && grep -q "^$hash .*,$extras," "$stamp"; then
    say "the environment $venv is up to date"
    return
  fi
  need_torch
  say "building pyalloc and installing it in $venv"
  "$venv/bin/python" -m pip install --quiet --editable "$root${extras:+[$extras]}"
  grep -q "^$hash " "$stamp" 2>/dev/null || printf '%s ,,' "$hash" >"$stamp"
  printf '%s,' "$extras" >>"$stamp"
}

# build_native_tests PRESET: the programs of tests/native, in build/PRESET/tests.
build_native_tests() {
  local preset=$1 tool
  export PATH="$venv/bin:$PATH"
  for tool in cmake ninja; do
    command -v "$tool" >/dev/null || "$venv/bin/python" -m pip install --quiet "$tool"
  done
  say "building the native tests in build/$preset"
  (cd "$root/allocator_cpp" && cmake --preset "$preset" && cmake --build --preset "$preset") >"$venv/native-build.log" 2>&1 || {
    tail -n 60 "$venv/native-build.log" >&2
    fail "the native tests do not build; the whole output is in $venv/native-build.log"
  }
}
