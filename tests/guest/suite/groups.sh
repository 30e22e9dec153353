# shellcheck shell=bash
# Authentication in what `authentication.sh` leaves out: the groups that take an emulated processor longest, so that beside
# other tests the server may not wait for it to end, and one hash function without a group.

group_tests() {
    . /suite/authentication.sh
    ask auth on >/dev/null
    # A secret of another volume.
    OTHER_TOKEN=$(ask create other 64MiB | jq -re .token)
    volume_delete other
    agree_on "$OTHER_EXCHANGES"
    ask auth off >/dev/null
}

OTHER_EXCHANGES="sha512 null
sha256 ffdhe6144
sha512 ffdhe8192"
