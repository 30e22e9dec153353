# shellcheck shell=bash
# Shared by `lab`, `build-image` and `run`: where things are kept, and how missing packages are installed.

GUEST_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Images outlive a clone: building one takes minutes, and its name says exactly what is in it.
CACHE_DIR=${FARFLASH_GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/farflash/guest}

# An image takes a minute or two, most of it downloads.
BUILD_SECONDS_MAX=1200

fail() { echo "guest: $*" >&2; exit 125; }

# need COMMAND:PACKAGE...: installs through apt what is not there, and says so.
need() {
    local entry missing=()
    for entry; do
        command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
    done
    [ ${#missing[@]} -eq 0 ] || bash "$GUEST_DIR/../../.ci/install-missing" "${missing[@]}"
}

# The directory of a flavour's image. The name carries a digest of the recipe, so a changed recipe
# builds a new image and an old checkout still finds its own.
image_dir() {
    local digest
    digest=$(cat "$GUEST_DIR/build-image" "$GUEST_DIR"/lib/packages* "$GUEST_DIR"/lib/extract-kernel.py | sha256sum)
    echo "$CACHE_DIR/$1-${digest:0:12}"
}

# Closes all but the first three descriptors of the shell that calls it. For mmdebstrap: apt hands dpkg's hooks the next free
# descriptor by number, and `sh` takes numbers of one digit only, so what make and others have left open must not be passed on.
close_descriptors() {
    local open
    for open in /proc/self/fd/*; do
        open=${open##*/}
        [ "$open" -le 2 ] || eval "exec $open>&-"
    done
}

# The mirrors that this machine uses for its own packages, as $mirror and $security.
apt_uris() {
    cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n -e 's/^URIs: *//p' -e 's/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\) .*/\2/p' | tr ' ' '\n' | sed 's,/*$,,'
}
find_mirrors() {
    mirror=$(apt_uris | grep -E '/debian$' | head -n 1 || true)
    [ -n "$mirror" ] || mirror=$(apt_uris | grep -v -e security | head -n 1 || true)
    [ -n "$mirror" ] || fail "found no Debian mirror in this machine's APT sources"
    security=$(apt_uris | grep -E 'debian-security$' | head -n 1 || true)
    [ -n "$security" ] || security=$mirror-security
}
