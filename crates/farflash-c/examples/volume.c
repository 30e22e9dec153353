/*
 * Makes a volume, uses it in every way, and deletes it.
 *
 *     cc -o volume volume.c $(pkg-config --cflags --libs farflash)
 *     FARFLASH_API=http://127.0.0.1:7420 ./volume
 */
#include <farflash.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096
#define READS 256

/* Ends the program unless `code` is FARFLASH_OK. */
static void check(int code, const char *what)
{
    if (code != FARFLASH_OK) {
        fprintf(stderr, "%s: %s\n", what, farflash_error());
        exit(1);
    }
}

/* Counts callbacks down; they come on another thread. */
struct countdown {
    pthread_mutex_t lock;
    pthread_cond_t done;
    int left;
    int failed;
};

static void count(void *context, int code, uint64_t miscompare, const char *error)
{
    struct countdown *countdown = context;

    (void)miscompare;
    pthread_mutex_lock(&countdown->lock);
    if (code != FARFLASH_OK) {
        fprintf(stderr, "a read failed: %s\n", error);
        countdown->failed++;
    }
    if (--countdown->left == 0)
        pthread_cond_signal(&countdown->done);
    pthread_mutex_unlock(&countdown->lock);
}

/* Reads many blocks at a time. */
static void read_many(farflash_volume *volume, unsigned char *blocks)
{
    struct countdown countdown = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, READS, 0 };
    int i;

    for (i = 0; i < READS; i++) {
        farflash_request request = { FARFLASH_OP_READ, (uint64_t)i * BLOCK, BLOCK, blocks + i * BLOCK, NULL };
        check(farflash_submit(volume, &request, count, &countdown), "submit");
    }
    pthread_mutex_lock(&countdown.lock);
    while (countdown.left > 0)
        pthread_cond_wait(&countdown.done, &countdown.lock);
    pthread_mutex_unlock(&countdown.lock);
    if (countdown.failed > 0)
        exit(1);
}

int main(void)
{
    static unsigned char blocks[READS * BLOCK], expected[BLOCK], data[BLOCK];
    farflash_open_options options = { sizeof options };
    farflash_volume_properties properties;
    farflash_cluster *cluster;
    farflash_volume *volume;
    farflash_tokens tokens;
    uint64_t miscompare = 0;
    int i, code;

    check(farflash_cluster_new(NULL, NULL, &cluster), "FARFLASH_API");
    check(farflash_create(cluster, "c-example", 16 << 20, &tokens), "create");
    options.token = tokens.token;
    options.connections = 2;
    check(farflash_open(cluster, "c-example", &options, &volume), "open");
    check(farflash_properties(volume, &properties), "properties");
    printf("%s: %llu bytes at %s\n", properties.uuid, (unsigned long long)properties.size_bytes,
           properties.address);

    for (i = 0; i < READS; i++)
        memset(blocks + i * BLOCK, i, BLOCK);
    check(farflash_write(volume, blocks, sizeof blocks, 0), "write");
    memset(blocks, 0xff, sizeof blocks);
    read_many(volume, blocks);
    for (i = 0; i < READS; i++)
        if (blocks[i * BLOCK + 17] != i) {
            fprintf(stderr, "block %d is not what was written\n", i);
            return 1;
        }

    /* Block 3 holds threes. Whoever expects something else is told where it differs. */
    memset(expected, 3, BLOCK);
    memset(data, 33, BLOCK);
    check(farflash_compare_and_swap(volume, expected, data, BLOCK, 3 * BLOCK, NULL), "swap");
    data[100] = 0;
    code = farflash_compare_and_swap(volume, data, expected, BLOCK, 3 * BLOCK, &miscompare);
    if (code != FARFLASH_MISCOMPARE || miscompare != 100) {
        fprintf(stderr, "code %d, byte %llu\n", code, (unsigned long long)miscompare);
        return 1;
    }

    check(farflash_write_zeroes(volume, BLOCK, 3 * BLOCK), "write zeroes");
    check(farflash_deallocate(volume, 8 * BLOCK, 4 * BLOCK), "deallocate");
    check(farflash_flush(volume), "flush");
    memset(data, 0, BLOCK);
    check(farflash_compare(volume, data, BLOCK, 3 * BLOCK), "compare");

    check(farflash_close(volume), "close");
    check(farflash_delete_with_data(cluster, "c-example"), "delete");
    farflash_cluster_free(cluster);
    puts("done");
    return 0;
}
