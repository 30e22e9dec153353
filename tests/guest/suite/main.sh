#!/bin/bash
# Runs in the guest. BACKEND says what serves the volumes, ONLY which parts to run (all if empty).
. /suite/lib.sh
. /suite/connection.sh
. "/suite/backend-$BACKEND.sh"
begin "start of the target"
modprobe nvme-tcp
(set -e; backend_start) || { echo "the target did not start"; exit 1; }
echo "kernel $(uname -r), $(nvme version | head -n 1), target: $BACKEND"
section discovery discovery_tests
section identify identify_tests
section verify verify_tests
section filesystems filesystem_tests
section resize resize_tests
section restart restart_tests
section authentication authentication_tests
# These run only if they are named: what they test other targets have not, and they are a run of their own or take long.
section_if_named groups group_tests
section_if_named iscsi iscsi_tests
section_if_named multipath multipath_tests
section_if_named nbd nbd_tests
section_if_named datastore datastore_tests
if [ "$FAILED" -gt 0 ] || [ -n "${SHOW_LOG:-}" ]; then
    echo "the kernel's log:"
    dmesg | grep -iE 'nvme|scsi|nbd|multipath' | tail -n 60
fi
echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
[ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
