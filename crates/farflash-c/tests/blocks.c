/* Blocks with their metadata, by calls that wait and by submitted ones, and what is refused about them. */
#include "demand.h"

#include <pthread.h>
#include <sys/mman.h>

#define BLOCK 4096
#define TAG 16
/* More than is done at once. */
#define MANY 1500

static unsigned char data[MANY * BLOCK], tags[MANY * TAG], back[MANY * BLOCK], back_tags[MANY * TAG];

/* What came of a submitted request. */
struct outcome {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done, code;
    uint64_t miscompare;
};

static void told(void *context, int code, uint64_t miscompare, const char *error)
{
    struct outcome *outcome = context;

    DEMAND((error == NULL) == (code == FARFLASH_OK));
    pthread_mutex_lock(&outcome->lock);
    outcome->done++;
    outcome->code = code;
    outcome->miscompare = miscompare;
    pthread_cond_signal(&outcome->changed);
    pthread_mutex_unlock(&outcome->lock);
}

static struct outcome submit(farflash_volume *volume, const farflash_request *request)
{
    struct outcome outcome = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0 };

    DEMAND(farflash_submit(volume, request, told, &outcome) == FARFLASH_OK);
    pthread_mutex_lock(&outcome.lock);
    while (outcome.done == 0)
        pthread_cond_wait(&outcome.changed, &outcome.lock);
    pthread_mutex_unlock(&outcome.lock);
    return outcome;
}

static void never(void *context, int code, uint64_t miscompare, const char *error)
{
    (void)context, (void)code, (void)miscompare, (void)error;
    abort();
}

/* Data and metadata of blocks, all different, that can be told from those of another stamp. */
static farflash_blocks fill(size_t count, unsigned char stamp)
{
    farflash_blocks blocks = { data, count * BLOCK, tags, count * TAG };
    size_t i;

    for (i = 0; i < blocks.len; i++)
        data[i] = (unsigned char)(i * 31 >> 7) ^ stamp;
    for (i = 0; i < blocks.metadata_len; i++)
        tags[i] = (unsigned char)(i * 67 >> 5) ^ stamp;
    return blocks;
}

static farflash_blocks room(size_t count)
{
    farflash_blocks blocks = { back, count * BLOCK, back_tags, count * TAG };

    memset(back, 0x5a, sizeof back);
    memset(back_tags, 0x5a, sizeof back_tags);
    return blocks;
}

/* Whether the room is filled with these blocks, and nothing behind it was touched. */
static int is_filled(farflash_blocks with)
{
    if (with.len < sizeof back && (back[with.len] != 0x5a || back_tags[with.metadata_len] != 0x5a))
        return 0;
    return memcmp(back, with.data, with.len) == 0 && memcmp(back_tags, with.metadata, with.metadata_len) == 0;
}

static void use_waiting(farflash_volume *volume)
{
    static unsigned char old[2 * BLOCK], old_tags[2 * TAG];
    farflash_blocks blocks = fill(MANY, 1), target = room(MANY), expected = { old, sizeof old, old_tags, sizeof old_tags };
    uint64_t miscompare = 0;

    DEMAND(farflash_write_ex(volume, &blocks, BLOCK) == FARFLASH_OK);
    DEMAND(farflash_read_ex(volume, &target, BLOCK) == FARFLASH_OK && is_filled(blocks));
    DEMAND(farflash_compare_ex(volume, &blocks, BLOCK) == FARFLASH_OK);
    tags[MANY * TAG - 1] ^= 1;
    FAILS(farflash_compare_ex(volume, &blocks, BLOCK), FARFLASH_MISCOMPARE, "not what was expected");

    target = room(2);
    DEMAND(farflash_read_ex(volume, &target, BLOCK) == FARFLASH_OK);
    memcpy(old, back, sizeof old);
    memcpy(old_tags, back_tags, sizeof old_tags);
    old_tags[TAG + 3] ^= 1;
    blocks = fill(2, 2);
    FAILS(farflash_compare_and_swap_ex(volume, &expected, &blocks, BLOCK, &miscompare), FARFLASH_MISCOMPARE, "");
    DEMAND(miscompare == BLOCK + TAG + BLOCK + 3);
    old_tags[TAG + 3] ^= 1;
    DEMAND(farflash_compare_and_swap_ex(volume, &expected, &blocks, BLOCK, NULL) == FARFLASH_OK);
    target = room(2);
    DEMAND(farflash_read_ex(volume, &target, BLOCK) == FARFLASH_OK && is_filled(blocks));

    DEMAND(farflash_deallocate(volume, BLOCK, BLOCK) == FARFLASH_OK);
    DEMAND(farflash_write_zeroes(volume, BLOCK, 2 * BLOCK) == FARFLASH_OK);
    memset(old, 0, sizeof old);
    memset(old_tags, 0, sizeof old_tags);
    DEMAND(farflash_compare_ex(volume, &expected, BLOCK) == FARFLASH_OK);
}

static void use_submitting(farflash_volume *volume)
{
    farflash_blocks blocks = fill(700, 3);
    farflash_request request = { FARFLASH_OP_WRITE_EX, BLOCK, 700 * BLOCK, data, NULL, tags, 700 * TAG, NULL };
    struct outcome outcome;

    DEMAND(submit(volume, &request).code == FARFLASH_OK);
    request.op = FARFLASH_OP_COMPARE_EX;
    DEMAND(submit(volume, &request).code == FARFLASH_OK);
    room(700);
    request.op = FARFLASH_OP_READ_EX;
    request.buffer = back;
    request.metadata = back_tags;
    DEMAND(submit(volume, &request).code == FARFLASH_OK && is_filled(blocks));
    request.metadata_len--;
    FAILS(farflash_submit(volume, &request, never, NULL), FARFLASH_INVALID_ARGUMENT, "bytes of metadata were given");

    request.op = FARFLASH_OP_COMPARE_AND_SWAP_EX;
    request.len = BLOCK;
    request.metadata_len = TAG;
    request.expected = data;
    request.expected_metadata = tags;
    memset(back, 7, BLOCK);
    memset(back_tags, 8, TAG);
    DEMAND(submit(volume, &request).code == FARFLASH_OK);
    outcome = submit(volume, &request);
    DEMAND(outcome.code == FARFLASH_MISCOMPARE && outcome.miscompare == 0);
    request.expected = back;
    outcome = submit(volume, &request);
    DEMAND(outcome.code == FARFLASH_MISCOMPARE && outcome.miscompare == BLOCK);
    request.expected_metadata = NULL;
    FAILS(farflash_submit(volume, &request, never, NULL), FARFLASH_INVALID_ARGUMENT, "expected_metadata is NULL");
}

/* All or nothing up to the size that the volume says; of more, nothing is written. */
static void transactional(farflash_volume *volume)
{
    farflash_volume_properties properties;
    farflash_blocks blocks, target;
    farflash_request request = { FARFLASH_OP_WRITE_TX_EX, BLOCK, 0, data, NULL, tags, 0, NULL };
    char limit[32];
    size_t most;

    DEMAND(farflash_properties(volume, &properties) == FARFLASH_OK);
    most = properties.atomic_write_bytes / BLOCK;
    snprintf(limit, sizeof limit, "limit of %zu,", most * BLOCK);
    DEMAND(2 * most < MANY);
    blocks = fill(most, 5);
    DEMAND(farflash_write_tx_ex(volume, &blocks, BLOCK) == FARFLASH_OK);
    blocks = fill(most + 1, 6);
    FAILS(farflash_write_tx_ex(volume, &blocks, BLOCK), FARFLASH_INVALID_ARGUMENT, limit);
    blocks = fill(2 * most, 6);
    FAILS(farflash_write_tx_ex(volume, &blocks, BLOCK), FARFLASH_INVALID_ARGUMENT, limit);
    request.len = blocks.len;
    request.metadata_len = blocks.metadata_len;
    DEMAND(submit(volume, &request).code == FARFLASH_INVALID_ARGUMENT);
    blocks = fill(most, 5);
    target = room(most);
    DEMAND(farflash_read_ex(volume, &target, BLOCK) == FARFLASH_OK && is_filled(blocks));

    blocks = fill(1, 7);
    request.len = BLOCK;
    request.metadata_len = TAG;
    DEMAND(submit(volume, &request).code == FARFLASH_OK);
    target = room(1);
    DEMAND(farflash_read_ex(volume, &target, BLOCK) == FARFLASH_OK && is_filled(blocks));
    request.metadata_len--;
    DEMAND(submit(volume, &request).code == FARFLASH_INVALID_ARGUMENT);
    FAILS(farflash_write_tx_ex(volume, NULL, 0), FARFLASH_INVALID_ARGUMENT, "blocks is NULL");
    FAILS(farflash_write_tx_ex(NULL, &blocks, 0), FARFLASH_INVALID_ARGUMENT, "volume is NULL");
}

static void misuse(const farflash_cluster *cluster, farflash_volume *volume)
{
    farflash_blocks blocks = fill(1, 4);
    farflash_volume *without = NULL;
    const int invalid = FARFLASH_INVALID_ARGUMENT;

    FAILS(farflash_create_ex(cluster, "v", 1 << 20, 12, NULL), invalid, "8, 16 or 64");
    FAILS(farflash_read(volume, back, BLOCK, 0), invalid, "16 bytes of metadata each");
    FAILS(farflash_write(volume, data, BLOCK, 0), invalid, "16 bytes of metadata each");
    FAILS(farflash_compare(volume, data, BLOCK, 0), invalid, "16 bytes of metadata each");
    FAILS(farflash_compare_and_swap(volume, data, data, BLOCK, 0, NULL), invalid, "16 bytes of metadata each");
    FAILS(farflash_read_ex(NULL, &blocks, 0), invalid, "volume is NULL");
    FAILS(farflash_read_ex(volume, NULL, 0), invalid, "blocks is NULL");
    FAILS(farflash_compare_and_swap_ex(volume, NULL, &blocks, 0, NULL), invalid, "expected is NULL");
    FAILS(farflash_write_ex(volume, &blocks, 1), invalid, "not whole blocks");
    blocks.metadata_len--;
    FAILS(farflash_read_ex(volume, &blocks, 0), invalid, "15 bytes of metadata were given");
    FAILS(farflash_write_ex(volume, &blocks, 0), invalid, "15 bytes of metadata were given");
    blocks.metadata = NULL;
    FAILS(farflash_read_ex(volume, &blocks, 0), invalid, "metadata is NULL");
    FAILS(farflash_write_ex(volume, &blocks, 0), invalid, "metadata is NULL");

    DEMAND(farflash_create(cluster, "without", 1 << 20, NULL) == FARFLASH_OK);
    DEMAND(farflash_open(cluster, "without", NULL, &without) == FARFLASH_OK);
    blocks.metadata_len = 0;
    DEMAND(farflash_write_ex(without, &blocks, 0) == FARFLASH_OK);
    blocks.data = back;
    DEMAND(farflash_read_ex(without, &blocks, 0) == FARFLASH_OK && memcmp(back, data, BLOCK) == 0);
    blocks.metadata = tags;
    blocks.metadata_len = TAG;
    FAILS(farflash_write_ex(without, &blocks, 0), invalid, "have no metadata");
    DEMAND(farflash_close(without) == FARFLASH_OK);
}

/*
 * A program that was built when requests had no metadata ends its request where that began. Behind it there is
 * memory that cannot be read.
 */
static void shorter_request(const farflash_cluster *cluster)
{
    const size_t len = offsetof(farflash_request, metadata);
    char *pages = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    farflash_request request = { FARFLASH_OP_WRITE, 0, BLOCK, data, NULL };
    farflash_volume *volume = NULL;
    char *place;

    DEMAND(pages != MAP_FAILED && mprotect(pages + BLOCK, BLOCK, PROT_NONE) == 0);
    DEMAND(farflash_open(cluster, "without", NULL, &volume) == FARFLASH_OK);
    place = pages + BLOCK - len;
    memcpy(place, &request, len);
    DEMAND(submit(volume, (farflash_request *)(void *)place).code == FARFLASH_OK);
    request.op = 99;
    memcpy(place, &request, len);
    FAILS(farflash_submit(volume, (farflash_request *)(void *)place, never, NULL), FARFLASH_INVALID_ARGUMENT,
          "no request 99");
    DEMAND(farflash_close(volume) == FARFLASH_OK);
}

int main(void)
{
    farflash_volume_properties properties;
    farflash_cluster *cluster = NULL;
    farflash_volume *volume = NULL;

    DEMAND(farflash_cluster_new(NULL, NULL, &cluster) == FARFLASH_OK);
    DEMAND(farflash_create_ex(cluster, "with", 16 << 20, TAG, NULL) == FARFLASH_OK);
    DEMAND(farflash_open(cluster, "with", NULL, &volume) == FARFLASH_OK);
    DEMAND(farflash_properties(volume, &properties) == FARFLASH_OK);
    DEMAND(properties.metadata_size == TAG && properties.block_size == BLOCK);
    use_waiting(volume);
    use_submitting(volume);
    transactional(volume);
    misuse(cluster, volume);
    DEMAND(farflash_close(volume) == FARFLASH_OK);
    shorter_request(cluster);
    farflash_cluster_free(cluster);
    puts("done");
    return 0;
}
