/* Calls that make no sense, each refused with its words; then a load across a restart of the server. */
#include "demand.h"

#include <pthread.h>

#define BLOCK 4096
#define THREADS 4

static farflash_volume *shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int go_on = 1;

static int going_on(void)
{
    int now;

    pthread_mutex_lock(&lock);
    now = go_on;
    pthread_mutex_unlock(&lock);
    return now;
}

/* Writes numbers that go up, and reads each back, until it is told to stop. */
static void *load(void *context)
{
    uint64_t thread = (uint64_t)(size_t)context, number, i;
    uint64_t words[BLOCK / 8], back[BLOCK / 8];

    for (number = 1; going_on(); number++) {
        uint64_t offset = (thread * 16 + number % 16) * BLOCK;
        for (i = 0; i < BLOCK / 8; i++)
            words[i] = number;
        DEMAND(farflash_write(shared, words, BLOCK, offset) == FARFLASH_OK);
        DEMAND(farflash_read(shared, back, BLOCK, offset) == FARFLASH_OK);
        DEMAND(memcmp(words, back, BLOCK) == 0);
        if (number == 20) {
            puts("loaded");
            fflush(stdout);
        }
    }
    return NULL;
}

static void told_once(void *context, int code, uint64_t miscompare, const char *error)
{
    (void)miscompare;
    pthread_mutex_lock(&lock);
    *(int *)context = code == FARFLASH_INVALID_ARGUMENT && strstr(error, "atomic write size") != NULL ? 2 : 1;
    pthread_mutex_unlock(&lock);
}

static int outcome_of(const farflash_volume *volume, const farflash_request *request)
{
    int told = 0, now = 0;

    DEMAND(farflash_submit(volume, request, told_once, &told) == FARFLASH_OK);
    while (now == 0) {
        DEMAND(farflash_flush(volume) == FARFLASH_OK);
        pthread_mutex_lock(&lock);
        now = told;
        pthread_mutex_unlock(&lock);
    }
    return now;
}

/* A write is all or nothing up to the size that the volume says; of a longer one nothing is written. */
static void transactional(const farflash_cluster *cluster)
{
    farflash_volume_properties properties;
    farflash_open_options options = { sizeof options };
    farflash_request request = { FARFLASH_OP_WRITE_TX, 0, 0, NULL, NULL };
    farflash_volume *volume = NULL;
    farflash_tokens tokens;
    char *data, *back, limit[32];
    size_t len;

    DEMAND(farflash_create(cluster, "tx", 16 << 20, &tokens) == FARFLASH_OK);
    options.token = tokens.token;
    DEMAND(farflash_open(cluster, "tx", &options, &volume) == FARFLASH_OK);
    DEMAND(farflash_properties(volume, &properties) == FARFLASH_OK);
    len = properties.atomic_write_bytes;
    snprintf(limit, sizeof limit, "limit of %zu,", len);
    data = malloc(8 << 20);
    back = malloc(8 << 20);
    DEMAND(data != NULL && back != NULL && len < 8 << 20);
    memset(data, 1, 8 << 20);
    DEMAND(farflash_write_tx(volume, data, len, BLOCK) == FARFLASH_OK);
    request.buffer = memset(data, 2, 8 << 20);
    FAILS(farflash_write_tx(volume, data, len + BLOCK, BLOCK), FARFLASH_INVALID_ARGUMENT, limit);
    FAILS(farflash_write_tx(volume, data, 8 << 20, BLOCK), FARFLASH_INVALID_ARGUMENT, limit);
    FAILS(farflash_write_tx(NULL, data, BLOCK, BLOCK), FARFLASH_INVALID_ARGUMENT, "volume is NULL");
    request.len = len + BLOCK;
    request.offset = BLOCK;
    DEMAND(outcome_of(volume, &request) == 2);
    memset(data, 0, 8 << 20);
    memset(data + BLOCK, 1, len);
    DEMAND(farflash_read(volume, back, 8 << 20, 0) == FARFLASH_OK && memcmp(back, data, 8 << 20) == 0);
    request.len = len;
    DEMAND(outcome_of(volume, &request) == 1);
    DEMAND(farflash_compare(volume, data, len, BLOCK) == FARFLASH_OK);
    DEMAND(farflash_close(volume) == FARFLASH_OK && farflash_delete_with_data(cluster, "tx") == FARFLASH_OK);
    free(data);
    free(back);
}

static void never(void *context, int code, uint64_t miscompare, const char *error)
{
    (void)context, (void)code, (void)miscompare, (void)error;
    abort();
}

static void wait_within(void *context, int code, uint64_t miscompare, const char *error)
{
    (void)miscompare;
    /* This is the library's own thread: it cannot wait for itself. */
    DEMAND(code == FARFLASH_INVALID_ARGUMENT && strstr(error, "whole blocks") != NULL);
    *(int *)context = 1;
}

static void closed(void *context, int code, uint64_t miscompare, const char *error)
{
    (void)miscompare, (void)error;
    DEMAND(code == FARFLASH_OK || code == FARFLASH_CLOSED);
    pthread_mutex_lock(&lock);
    ++*(int *)context;
    pthread_mutex_unlock(&lock);
}

int main(void)
{
    static char block[BLOCK], many[64 * BLOCK];
    farflash_cluster *cluster = NULL, *nowhere = NULL;
    farflash_volume *volume = NULL;
    farflash_open_options options = { 0 };
    farflash_request request = { FARFLASH_OP_READ, 1, BLOCK, block, NULL };
    farflash_tokens tokens, changed;
    farflash_cut_off cut_off = { 9, 9 };
    pthread_t threads[THREADS];
    int told = 0, i;
    const int invalid = FARFLASH_INVALID_ARGUMENT;

    DEMAND(farflash_version()[0] != '\0');
    FAILS(farflash_cluster_new("ftp://x", NULL, &cluster), invalid, "no API address");
    FAILS(farflash_cluster_new(NULL, NULL, NULL), invalid, "cluster is NULL");
    DEMAND(farflash_cluster_new(NULL, NULL, &cluster) == FARFLASH_OK);
    DEMAND(farflash_cluster_new("http://127.0.0.1:1", NULL, &nowhere) == FARFLASH_OK);
    FAILS(farflash_create(nowhere, "v", 1 << 20, NULL), FARFLASH_UNREACHABLE, "cannot be reached");
    farflash_cluster_free(nowhere);
    FAILS(farflash_create(cluster, NULL, 1 << 20, NULL), invalid, "name is NULL");
    FAILS(farflash_create(NULL, "v", 1 << 20, NULL), invalid, "cluster is NULL");
    FAILS(farflash_create(cluster, "\xff", 1 << 20, NULL), invalid, "not UTF-8");
    FAILS(farflash_create(cluster, "v", 17, NULL), invalid, "multiple of 4096");
    DEMAND(farflash_create(cluster, "v", 1 << 20, &tokens) == FARFLASH_OK);
    FAILS(farflash_create(cluster, "v", 1 << 20, NULL), FARFLASH_ALREADY_EXISTS, "");
    FAILS(farflash_open(cluster, "w", NULL, &volume), FARFLASH_NOT_FOUND, "no volume `w`");
    FAILS(farflash_open(cluster, "v", &options, &volume), invalid, "struct_size is 0");
    FAILS(farflash_open(cluster, "v", NULL, &volume), FARFLASH_PERMISSION_DENIED, "authentication");
    options.struct_size = sizeof options;
    options.token = "secret";
    FAILS(farflash_open(cluster, "v", &options, &volume), invalid, "no token");
    FAILS(farflash_open(NULL, "tcp://127.0.0.1:1", NULL, &volume), invalid, "no NQN");
    options.token = tokens.token;
    options.controller_token = tokens.controller_token;
    FAILS(farflash_open(cluster, "v", &options, NULL), invalid, "volume is NULL");
    DEMAND(farflash_open(cluster, tokens.id, &options, &volume) == FARFLASH_OK);

    FAILS(farflash_read(NULL, block, BLOCK, 0), invalid, "volume is NULL");
    FAILS(farflash_read(volume, NULL, BLOCK, 0), invalid, "buffer is NULL");
    FAILS(farflash_read(volume, block, (size_t)-1, 0), invalid, "more than memory has");
    FAILS(farflash_read(volume, block, 5, 0), invalid, "not whole blocks");
    FAILS(farflash_write(volume, block, BLOCK, 1 << 20), invalid, "not all within the volume");
    FAILS(farflash_deallocate(volume, BLOCK, (uint64_t)-BLOCK), invalid, "not all within");
    transactional(cluster);
    FAILS(farflash_compare_and_swap(volume, NULL, block, BLOCK, 0, NULL), invalid, "expected is NULL");
    FAILS(farflash_submit(volume, &request, NULL, NULL), invalid, "done is NULL");
    request.op = 99;
    FAILS(farflash_submit(volume, &request, never, NULL), invalid, "no request 99");
    request.op = FARFLASH_OP_READ;
    DEMAND(farflash_submit(volume, &request, wait_within, &told) == FARFLASH_OK && told == 1);
    DEMAND(farflash_read(volume, NULL, 0, 0) == FARFLASH_OK);
    DEMAND(farflash_change_auth(cluster, "v", 0, 0, &changed) == FARFLASH_OK);
    DEMAND(strcmp(tokens.token, changed.token) != 0);
    DEMAND(farflash_restrict(cluster, "v", NULL, "127.0.0.0/8,::1/128", NULL) == FARFLASH_OK);
    DEMAND(farflash_resize(cluster, "v", 4 << 20, NULL) == FARFLASH_OK);
    FAILS(farflash_delete(cluster, "v"), FARFLASH_IN_USE, "is open on");
    FAILS(farflash_resize(cluster, "v", 2 << 20, NULL), FARFLASH_IN_USE, "is open on");
    FAILS(farflash_resize_with(cluster, "v", 2 << 20, 4 << 20, 0, NULL), FARFLASH_IN_USE, "is open on");
    FAILS(farflash_resize_with(cluster, "v", 2 << 20, 3 << 20, 1, NULL), FARFLASH_CHANGED, "has 4194304 bytes");
    DEMAND(farflash_resize_with(cluster, "v", 2 << 20, 4 << 20, 1, &cut_off) == FARFLASH_OK);
    DEMAND(cut_off.bytes == 0 && cut_off.at_least == 0);

    /* Callbacks come before close returns, and each comes once. */
    for (told = 0, i = 0; i < 64; i++) {
        farflash_request read = { FARFLASH_OP_READ, 0, BLOCK, many + i * BLOCK, NULL };
        DEMAND(farflash_submit(volume, &read, closed, &told) == FARFLASH_OK);
    }
    DEMAND(farflash_close(volume) == FARFLASH_OK && told == 64);
    DEMAND(farflash_close(NULL) == FARFLASH_OK);

    options.token = changed.token;
    FAILS(farflash_open(cluster, "v", &options, &shared), FARFLASH_UNPROVEN, "know the controller token: check");
    options.controller_token = changed.controller_token;
    DEMAND(farflash_open(cluster, "v", &options, &shared) == FARFLASH_OK);
    for (i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, load, (void *)(size_t)i);
    /* The test kills the server and starts it again before it lets us go on. */
    DEMAND(getchar() == '\n');
    DEMAND(farflash_write(shared, block, BLOCK, 1 << 20) == FARFLASH_OK);
    pthread_mutex_lock(&lock);
    go_on = 0;
    pthread_mutex_unlock(&lock);
    for (i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    DEMAND(farflash_delete_with_data(cluster, "v") == FARFLASH_OK);
    FAILS(farflash_write(shared, block, BLOCK, 0), FARFLASH_NOT_FOUND, "no volume");
    farflash_cluster_free(cluster);
    puts("done");
    /* With a volume open and requests under way: the process ends all the same. */
    for (i = 0; i < 64; i++) {
        farflash_request read = { FARFLASH_OP_READ, 0, BLOCK, many + i * BLOCK, NULL };
        farflash_submit(shared, &read, closed, &told);
    }
    return 0;
}
