/*
 * A change whose outcome the audit log could not take is done and counted. After the first change the log is filled: then
 * there is room for the first line of another one, and not for the second.
 */
#include "demand.h"

int main(void)
{
    farflash_cluster *cluster = NULL;

    DEMAND(farflash_incomplete_records(NULL) == 0);
    DEMAND(farflash_cluster_new(NULL, NULL, &cluster) == FARFLASH_OK);
    DEMAND(farflash_create(cluster, "aa", 1 << 20, NULL) == FARFLASH_OK);
    DEMAND(farflash_incomplete_records(cluster) == 0);
    puts("created");
    fflush(stdout);
    DEMAND(getchar() == '\n');
    DEMAND(farflash_create(cluster, "ab", 1 << 20, NULL) == FARFLASH_OK);
    DEMAND(farflash_incomplete_records(cluster) == 1);
    /* Nothing of this one can be recorded: it is not made, and nothing is incomplete. */
    FAILS(farflash_create(cluster, "ac", 1 << 20, NULL), FARFLASH_UNREACHABLE, "recorded");
    DEMAND(farflash_incomplete_records(cluster) == 1);
    farflash_cluster_free(cluster);
    puts("done");
    return 0;
}
