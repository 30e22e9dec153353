# shellcheck shell=bash
# Authentication in the groups that an emulated processor takes long for. On a busy machine it takes longer than the server
# waits for it.

group_tests() {
    . /suite/authentication.sh
    ask auth on >/dev/null
    # A secret of another volume.
    OTHER_TOKEN=$(ask create other 64MiB | jq -re .token)
    volume_delete other
    agree_on "$LARGE_EXCHANGES"
    ask auth off >/dev/null
}

LARGE_EXCHANGES="sha512 null
sha256 ffdhe6144
sha512 ffdhe8192"
