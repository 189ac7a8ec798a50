#!/bin/sh
# Builds the real kube-apiserver 1.20.2 from Debian's own source package, with Debian's Go, for `make test-k8s`.
#   usage: build-kube-apiserver.sh [OUTDIR]     default: ~/.cache/muster/kube
# Needs root, apt, 3 GB of disk for a while, and eight minutes of one processor. Built once: OUTDIR keeps the binary.
# KUBE_APISERVER_BIN and ETCD_BIN name binaries to use instead.
set -eu

out=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/muster/kube}
if [ -x "$out/kube-apiserver" ]; then
    echo "kube-apiserver is there: $out/kube-apiserver"
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "kube-apiserver cannot be built: it needs root and apt; or set KUBE_APISERVER_BIN and ETCD_BIN" >&2
    exit 1
fi

work=$out/work
mkdir -p "$work/lists/partial"
cd "$work"
quietly() { "$@" >>"$work/log" 2>&1 || { tail -20 "$work/log" >&2; echo "failed: $*; see $work/log" >&2; exit 1; }; }

echo "kube-apiserver: tools and source"
packages="golang-go etcd-server golang-github-modern-go-reflect2-dev xz-utils"
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
# shellcheck disable=SC2086
quietly apt-get install -y -qq --no-install-recommends $packages
# A list of source packages of our own, made from the machine's entry for binary ones.
uri=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ')
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri bookworm main" >src.list
options="-o Dir::Etc::sourcelist=$work/src.list -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists=$work/lists -o APT::Sandbox::User=root"
# shellcheck disable=SC2086
quietly apt-get $options -qq update
# shellcheck disable=SC2086
quietly apt-get $options -qq source --download-only kubernetes

tree=$work/gp/src/k8s.io/kubernetes
mkdir -p "$tree"
tar xzf kubernetes_*.orig.tar.gz -C "$tree" --strip-components=1
# Its reflect2 crashes under Go 1.18 and newer at the first write of a custom resource; Debian has a newer one.
rm -rf "$tree/vendor/github.com/modern-go/reflect2"
cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 "$tree/vendor/github.com/modern-go/"

cd "$tree"
# Module mode fails ("updates to go.mod needed").
export GOPATH="$work/gp" GO111MODULE=off GOCACHE="$work/gocache" CGO_ENABLED=0 GOPROXY=off
echo "kube-apiserver: generating code"
# pkg/generated/openapi is not part of the source package.
quietly go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
inputs=$(grep -rlE --include=*.go '^// ?\+k8s:openapi-gen=true' pkg staging/src/k8s.io cmd plugin | grep -v _test.go |
    xargs -n1 dirname | sort -u |
    sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^\(pkg\|cmd\|plugin\)#k8s.io/kubernetes/\1#' | paste -sd,)
quietly "$work/openapi-gen" -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -i "$inputs" \
    -p k8s.io/kubernetes/pkg/generated/openapi -r "$work/violations.txt"
echo "kube-apiserver: building"
quietly go build -p 2 -ldflags "-s -w" -o "$out/kube-apiserver.new" ./cmd/kube-apiserver
mv "$out/kube-apiserver.new" "$out/kube-apiserver"
cd "$out"
rm -rf "$work"
echo "kube-apiserver is there: $out/kube-apiserver"
