# shellcheck shell=bash
# The packages of the C library, as a C programmer has them. Sourced by `run` while the service runs in the clean root, which
# has a C compiler.

# Every file in the places of packages; the linker's cache is everybody's.
packaged_files() { (cd "$root" && find etc usr -xdev ! -type d ! -path etc/ld.so.cache | sort); }
# Runs the example, which makes a volume on the server and uses it in every way.
use_volume() { inside env FARFLASH_API=http://127.0.0.1:7420 /root/volume >"$work/log" 2>&1 && grep -qx 'done' "$work/log"; }
# The service is the server's package alone: it is not touched by what is done about libraries.
install_libraries() { inside sh -c "dpkg -i /root/$1/libfarflash*.deb" >"$work/log" 2>&1; }

check_c_library() {
    local packages before said service
    before=$(packaged_files)
    service=$(process)
    packages=$(cd "$root/root/libraries" && printf '%s\n' *.deb)
    [ "$packages" = $'libfarflash-dev.deb\nlibfarflash0.deb' ] || wrong "the packages of the library are $packages"
    install_libraries libraries || wrong "the C library is not installed"
    # The words of `docs/libraries.md`.
    inside sh -c 'cd /root && cc -Wall -Werror -o volume /usr/share/doc/libfarflash-dev/examples/volume.c $(pkg-config --cflags --libs farflash)' \
        >"$work/log" 2>&1 || wrong "the example is not built by what pkg-config says"
    [ "$(inside pkg-config --modversion farflash)" = "$version" ] || wrong "pkg-config says another version"
    # Into a file: a `grep -q` that has found it ends the other side of a pipe.
    inside ldd /root/volume >"$work/log" 2>&1
    grep -q ' => /.*/libfarflash\.so\.0 ' "$work/log" || wrong "the program does not find the library"
    use_volume || wrong "the example does not work against the service"
    ok "a C program is built by pkg-config, and uses a volume"

    install_libraries libraries-new || wrong "the C library is not upgraded"
    use_volume || wrong "the program does not run with a later library"
    # A program needs the library alone.
    inside dpkg -P libfarflash-dev >"$work/log" 2>&1 || wrong "what programs are built with is not removed"
    [ ! -e "$root/usr/include/farflash.h" ] || wrong "the header is left"
    use_volume || wrong "the program needs more than the library"
    ok "the program runs on with a later library, and without what it was built with"

    inside dpkg -P libfarflash0 >"$work/log" 2>&1 || wrong "the library is not purged"
    said=$(diff <(echo "$before") <(packaged_files)) || wrong "the libraries leave other files behind: $said"
    if inside ldconfig -p | grep -q farflash; then wrong "the linker still knows of the library"; fi
    [ "$(process)" = "$service" ] || wrong "the service was restarted by its libraries"
    ok "purged: nothing is left of the C library"
}
