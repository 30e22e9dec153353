/*
 * A server whose API is encrypted, reached by a file with its certificate, the first argument. By that of another one,
 * the second, it is not believed.
 */
#include "demand.h"

#define BLOCK 4096

int main(int count, char **arguments)
{
    static char block[BLOCK], back[BLOCK];
    farflash_cluster_options options = { 0 };
    farflash_cluster *cluster = NULL;
    farflash_volume *volume = NULL;

    DEMAND(count == 3);
    FAILS(farflash_cluster_new_with(NULL, &cluster), FARFLASH_INVALID_ARGUMENT, "options is NULL");
    FAILS(farflash_cluster_new_with(&options, &cluster), FARFLASH_INVALID_ARGUMENT, "struct_size is 0");
    options.struct_size = sizeof options;
    FAILS(farflash_cluster_new_with(&options, NULL), FARFLASH_INVALID_ARGUMENT, "cluster is NULL");
    options.api_ca = "/nowhere.pem";
    FAILS(farflash_cluster_new_with(&options, &cluster), FARFLASH_INVALID_ARGUMENT, "/nowhere.pem");

    options.api_ca = arguments[2];
    DEMAND(farflash_cluster_new_with(&options, &cluster) == FARFLASH_OK);
    FAILS(farflash_create(cluster, "v", 1 << 20, NULL), FARFLASH_UNTRUSTED, "certificate");
    FAILS(farflash_open(cluster, "v", NULL, &volume), FARFLASH_UNTRUSTED, "certificate");
    farflash_cluster_free(cluster);

    options.api_ca = arguments[1];
    DEMAND(farflash_cluster_new_with(&options, &cluster) == FARFLASH_OK);
    DEMAND(farflash_create(cluster, "v", 1 << 20, NULL) == FARFLASH_OK);
    DEMAND(farflash_open(cluster, "v", NULL, &volume) == FARFLASH_OK);
    memset(block, 7, sizeof block);
    DEMAND(farflash_write(volume, block, BLOCK, 0) == FARFLASH_OK);
    DEMAND(farflash_read(volume, back, BLOCK, 0) == FARFLASH_OK && memcmp(block, back, BLOCK) == 0);
    DEMAND(farflash_close(volume) == FARFLASH_OK && farflash_delete_with_data(cluster, "v") == FARFLASH_OK);
    farflash_cluster_free(cluster);
    puts("done");
    return 0;
}
