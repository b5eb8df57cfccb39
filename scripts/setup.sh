# Sourced by the other scripts: installs what facet is built from, once. Debian 12 and Ubuntu 24.04; root or sudo.
facet_packages=(g++ cmake ninja-build pkg-config libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libboost-dev
  libedit-dev libxxhash-dev libgtest-dev libbenchmark-dev python3
  libjpeg-dev libpng-dev libwebp-dev libflac-dev libogg-dev)
# What sanitizers and fuzzing are built with.
facet_clang=(clang-19 libclang-rt-19-dev libomp-19-dev)

facet_install() {
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "installing: ${missing[*]}"
  local sudo=
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "these packages are missing and there is no sudo: ${missing[*]}" >&2; return 1; }
    sudo=sudo
  fi
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# A compiler cache, where there is one; clones and work trees share what one of them compiled.
facet_launcher=()
if command -v ccache >/dev/null; then
  facet_launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
fi

# facet_build PRESET [CMake arguments] [--target NAME ...]: configures if needed, builds.
facet_build() {
  local preset=$1
  shift
  local configure=("${facet_launcher[@]}")
  [[ "$preset $*" == *cuda* || "$*" == *FACET_CUDA=ON* ]] && configure+=("${configure[@]/CXX/CUDA}")
  while [ $# -gt 0 ] && [ "$1" != --target ]; do
    configure+=("$1")
    shift
  done
  cmake --preset "$preset" "${configure[@]}" >/dev/null
  cmake --build "build/$preset" "$@"
}
