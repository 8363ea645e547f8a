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

# The hash of what an editable install depends on: C++ sources, names of the Python modules, the build's configuration.
sources_hash() {
  (
    cd "$root"
    find allocator_cpp tests/native pyproject.toml pyalloc/_version.py -type f -print0 |
      sort -z | xargs -0 sha256sum
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
  # Editable installs from pyproject.toml need pip 21.3, which is younger than some of these Pythons.
  "$venv/bin/python" -m pip install --quiet --upgrade 'pip>=21.3'
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

# Without build isolation a build reuses what the last one compiled, so its tools belong into the environment.
need_build_tools() {
  local tool missing=()
  "$venv/bin/python" -c 'import scikit_build_core' 2>/dev/null || missing+=(scikit-build-core)
  for tool in cmake ninja; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  [ ${#missing[@]} -eq 0 ] || "$venv/bin/python" -m pip install --quiet "${missing[@]}"
}

# ensure_environment EXTRAS: EXTRAS is "" or a list for pip such as "test" or "test,dev". With "test", the native tests are built
# too, in native_tests.
native_tests=$root/build/RelWithDebInfo/tests
ensure_environment() {
  local extras=$1 stamp=$venv/.pyalloc-stamp hash
  [ -x "$venv/bin/python" ] || make_venv
  export PATH="$venv/bin:$PATH"
  need_compiler
  hash=$(sources_hash)
  # The stamp is the hash and the extras installed with it.
  if [ -f "$stamp" ] && grep -q "^$hash .*,$extras," "$stamp"; then
    say "the environment $venv is up to date"
    return
  fi
  need_torch
  need_build_tools
  say "building pyalloc and installing it in $venv"
  [[ $extras != *test* ]] || export SKBUILD_CMAKE_DEFINE="PYALLOC_TESTS=ON"
  "$venv/bin/python" -m pip install --quiet --no-build-isolation --editable "$root${extras:+[$extras]}"
  grep -q "^$hash " "$stamp" 2>/dev/null || printf '%s ,,' "$hash" >"$stamp"
  printf '%s,' "$extras" >>"$stamp"
}
