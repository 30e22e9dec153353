/*
 * What a careless or hostile caller does to the library, short of what C itself forbids: waits within callbacks, addresses
 * that are not aligned, sizes at the end of numbers, text that is none, signals all the time, children. Each is refused with
 * its words, and the volume works on. The server has no authentication.
 */
#include "demand.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 4096
#define VOLUME_BYTES (8ull << 20)
#define END (UINT64_MAX - BLOCK + 1) /* the last multiple of a block */

static const int invalid = FARFLASH_INVALID_ARGUMENT;

/* An outcome that the main thread waits for. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int is_told, told_code;
static char told_error[256];

static void tell(void *context, int code, uint64_t miscompare, const char *error)
{
    (void)context, (void)miscompare;
    pthread_mutex_lock(&lock);
    is_told = 1;
    told_code = code;
    snprintf(told_error, sizeof told_error, "%s", error != NULL ? error : "");
    pthread_cond_signal(&told);
    pthread_mutex_unlock(&lock);
}

static int told_outcome(void)
{
    pthread_mutex_lock(&lock);
    while (!is_told)
        pthread_cond_wait(&told, &lock);
    is_told = 0;
    pthread_mutex_unlock(&lock);
    return told_code;
}

static int outcome(const farflash_volume *volume, const farflash_request *request)
{
    DEMAND(farflash_submit(volume, request, tell, NULL) == FARFLASH_OK);
    return told_outcome();
}

static void works(const farflash_volume *volume)
{
    static unsigned char written[BLOCK], read[BLOCK];

    memset(written, written[0] + 1, BLOCK);
    DEMAND(farflash_write(volume, written, BLOCK, 0) == FARFLASH_OK);
    DEMAND(farflash_read(volume, read, BLOCK, 0) == FARFLASH_OK && memcmp(written, read, BLOCK) == 0);
}

/* ---- Within callbacks ---- */

struct both {
    farflash_cluster *cluster;
    farflash_volume *volume;
};

/* This is the library's thread, on which all requests are carried out: nothing may wait here. */
static void wait_for_all(void *context, int code, uint64_t miscompare, const char *error)
{
    static unsigned char block[BLOCK];
    struct both *both = context;
    farflash_volume *volume = both->volume, *opened = NULL;
    farflash_blocks blocks = { block, BLOCK, NULL, 0 };
    farflash_volume_properties properties;
    farflash_volume_failure_domain domain = { sizeof domain };
    farflash_volume_list *list = NULL;
    farflash_tokens tokens;

    DEMAND(code == FARFLASH_OK && error == NULL);
    FAILS(farflash_read(volume, block, BLOCK, 0), invalid, "callback");
    FAILS(farflash_read_ex(volume, &blocks, 0), invalid, "callback");
    FAILS(farflash_write(volume, block, BLOCK, BLOCK), invalid, "callback");
    FAILS(farflash_write_tx(volume, block, BLOCK, BLOCK), invalid, "callback");
    FAILS(farflash_write_ex(volume, &blocks, BLOCK), invalid, "callback");
    FAILS(farflash_write_tx_ex(volume, &blocks, BLOCK), invalid, "callback");
    FAILS(farflash_write_zeroes(volume, BLOCK, BLOCK), invalid, "callback");
    FAILS(farflash_deallocate(volume, BLOCK, BLOCK), invalid, "callback");
    FAILS(farflash_flush(volume), invalid, "callback");
    FAILS(farflash_compare(volume, block, BLOCK, 0), invalid, "callback");
    FAILS(farflash_compare_ex(volume, &blocks, 0), invalid, "callback");
    FAILS(farflash_compare_and_swap(volume, block, block, BLOCK, 0, &miscompare), invalid, "callback");
    FAILS(farflash_compare_and_swap_ex(volume, &blocks, &blocks, 0, &miscompare), invalid, "callback");
    FAILS(farflash_properties(volume, &properties), invalid, "callback");
    FAILS(farflash_failure_domain(volume, &domain), invalid, "callback");
    FAILS(farflash_open(both->cluster, "v", NULL, &opened), invalid, "callback");
    FAILS(farflash_create(both->cluster, "w", BLOCK, &tokens), invalid, "callback");
    FAILS(farflash_resize(both->cluster, "v", VOLUME_BYTES * 2, NULL), invalid, "callback");
    FAILS(farflash_set_slo(both->cluster, "v", 50, 0, 0), invalid, "callback");
    FAILS(farflash_change_auth(both->cluster, "v", 0, 0, &tokens), invalid, "callback");
    FAILS(farflash_restrict(both->cluster, "v", "", "", ""), invalid, "callback");
    FAILS(farflash_list(both->cluster, &list), invalid, "callback");
    FAILS(farflash_show(both->cluster, "v", &list), invalid, "callback");
    FAILS(farflash_delete(both->cluster, "v"), invalid, "callback");
    FAILS(farflash_close(volume), invalid, "callback");
    DEMAND(opened == NULL && list == NULL);
    tell(NULL, code, 0, NULL);
}

static void within_callbacks(struct both both)
{
    static unsigned char before[BLOCK];
    farflash_request flush = { FARFLASH_OP_FLUSH };

    memset(before, 7, BLOCK);
    DEMAND(farflash_write(both.volume, before, BLOCK, BLOCK) == FARFLASH_OK);
    DEMAND(farflash_submit(both.volume, &flush, wait_for_all, &both) == FARFLASH_OK);
    DEMAND(told_outcome() == FARFLASH_OK);
    /* What was refused is not done behind it: the volume is open, and is as it was. */
    works(both.volume);
    DEMAND(farflash_compare(both.volume, before, BLOCK, BLOCK) == FARFLASH_OK);
}

/* ---- Addresses ---- */

/* Of what a pointer to a structure or a number points to, the address is looked at before what is there. */
static void misaligned(struct both both)
{
    static union {
        uint64_t words[1024];
        char bytes[8192];
    } memory;
    static unsigned char block[BLOCK + 1], other[BLOCK];
    void *odd = memory.bytes + 1;
    farflash_volume *volume = both.volume;

    FAILS(farflash_cluster_new(NULL, NULL, odd), invalid, "cluster is not aligned");
    FAILS(farflash_cluster_new_with(odd, &both.cluster), invalid, "options is not aligned");
    FAILS(farflash_create_with(both.cluster, odd, NULL), invalid, "volume is not aligned");
    FAILS(farflash_open(both.cluster, "v", odd, &volume), invalid, "options is not aligned");
    FAILS(farflash_open(both.cluster, "v", NULL, odd), invalid, "volume is not aligned");
    FAILS(farflash_properties(both.volume, odd), invalid, "properties is not aligned");
    FAILS(farflash_failure_domain(both.volume, odd), invalid, "domain is not aligned");
    FAILS(farflash_list(both.cluster, odd), invalid, "list is not aligned");
    FAILS(farflash_resize(both.cluster, "v", VOLUME_BYTES, odd), invalid, "cut_off is not aligned");
    FAILS(farflash_read_ex(both.volume, odd, 0), invalid, "blocks is not aligned");
    FAILS(farflash_submit(both.volume, odd, tell, NULL), invalid, "request is not aligned");
    FAILS(farflash_start_list(both.cluster, odd, tell, NULL), invalid, "list is not aligned");
    FAILS(farflash_start_open(both.cluster, "v", NULL, odd, tell, NULL), invalid, "volume is not aligned");
    FAILS(farflash_start_resize(both.cluster, "v", VOLUME_BYTES, odd, tell, NULL), invalid, "cut_off is not aligned");
    FAILS(farflash_compare_and_swap(both.volume, block, other, BLOCK, BLOCK, odd), invalid, "miscompare is not aligned");
    FAILS(farflash_read(odd, block, BLOCK, 0), invalid, "volume is not aligned");
    FAILS(farflash_close(odd), invalid, "volume is not aligned");
    DEMAND(volume == both.volume);
    /* Data may lie anywhere. */
    memset(block + 1, 7, BLOCK);
    DEMAND(farflash_write(both.volume, block + 1, BLOCK, BLOCK) == FARFLASH_OK);
    memset(block, 0, sizeof block);
    DEMAND(farflash_read(both.volume, block + 1, BLOCK, BLOCK) == FARFLASH_OK && block[1] == 7 && block[BLOCK] == 7);
    works(both.volume);
}

/* ---- Sizes ---- */

/* What is refused is refused as a whole, also where the library makes several requests of it. */
static void nothing_of_what_is_too_long(struct both both)
{
    const size_t len = VOLUME_BYTES + BLOCK;
    unsigned char *data = malloc(len), *zeroes = calloc(1, len);
    farflash_blocks blocks = { data, len, NULL, 0 };

    DEMAND(data != NULL && zeroes != NULL);
    memset(data, 5, len);
    DEMAND(farflash_deallocate(both.volume, VOLUME_BYTES, 0) == FARFLASH_OK);
    FAILS(farflash_write(both.volume, data, len, 0), invalid, "not all within the volume");
    FAILS(farflash_write_ex(both.volume, &blocks, 0), invalid, "not all within the volume");
    FAILS(farflash_write(both.volume, data, VOLUME_BYTES - 1, 0), invalid, "not whole blocks");
    DEMAND(farflash_compare(both.volume, zeroes, VOLUME_BYTES, 0) == FARFLASH_OK);
    FAILS(farflash_read(both.volume, data, len, 0), invalid, "not all within the volume");
    FAILS(farflash_read_ex(both.volume, &blocks, 0), invalid, "not all within the volume");
    DEMAND(data[0] == 5 && data[VOLUME_BYTES - 1] == 5);
    free(data);
    free(zeroes);
}

static void sizes(struct both both)
{
    static unsigned char block[BLOCK];
    farflash_open_options options = { sizeof options };
    farflash_blocks blocks = { block, (size_t)1 << 62, block, 0 };
    farflash_volume *volume = both.volume, *opened = NULL;
    farflash_request request = { FARFLASH_OP_READ, 0, 0, block, block, block, 0, block };
    uint64_t lengths[] = { BLOCK - 1, VOLUME_BYTES + BLOCK, 1ull << 40, 1ull << 62, 1ull << 63, END, UINT64_MAX };
    int reads[] = { FARFLASH_OP_READ, FARFLASH_OP_READ_EX, FARFLASH_OP_WRITE_ZEROES, FARFLASH_OP_DEALLOCATE };
    size_t i, k;

    memset(block, 3, BLOCK);
    for (i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint64_t len = lengths[i];
        FAILS(farflash_write_zeroes(volume, len, 0), invalid, "");
        FAILS(farflash_deallocate(volume, len, 0), invalid, "");
        FAILS(farflash_deallocate(volume, BLOCK, len), invalid, "");
        FAILS(farflash_read(volume, block, BLOCK, len), invalid, "");
        FAILS(farflash_compare(volume, block, BLOCK, len), invalid, "");
        FAILS(farflash_compare_and_swap(volume, block, block, BLOCK, len, NULL), invalid, "");
        /* Without touching the block, which is all that there is. */
        for (k = 0; k < sizeof reads / sizeof *reads; k++) {
            request.op = reads[k];
            request.len = len;
            if (farflash_submit(volume, &request, tell, NULL) == FARFLASH_OK)
                DEMAND(told_outcome() == invalid);
            else
                DEMAND(farflash_error()[0] != '\0');
        }
    }
    for (i = 0; i < BLOCK; i++)
        DEMAND(block[i] == 3);
    FAILS(farflash_read(volume, block, (size_t)1 << 63, 0), invalid, "more than memory has");
    FAILS(farflash_write(volume, block, SIZE_MAX, 0), invalid, "more than memory has");
    FAILS(farflash_read_ex(volume, &blocks, 0), invalid, "not all within");
    blocks.len = BLOCK;
    blocks.metadata_len = SIZE_MAX;
    FAILS(farflash_write_ex(volume, &blocks, 0), invalid, "more than memory has");
    blocks.metadata_len = 8;
    FAILS(farflash_read_ex(volume, &blocks, 0), invalid, "no metadata");
    request.op = FARFLASH_OP_FLUSH;
    request.len = UINT64_MAX;
    DEMAND(outcome(volume, &request) == FARFLASH_OK);

    FAILS(farflash_create(both.cluster, "w", END, NULL), invalid, "");
    FAILS(farflash_create(both.cluster, "w", 0, NULL), invalid, "");
    FAILS(farflash_create_ex(both.cluster, "w", BLOCK, UINT32_MAX, NULL), invalid, "metadata");
    FAILS(farflash_resize(both.cluster, "v", END, NULL), invalid, "");
    FAILS(farflash_resize(both.cluster, "v", 0, NULL), invalid, "");
    options.connections = UINT16_MAX;
    options.depth = UINT16_MAX;
    options.recovery_timeout_ms = UINT64_MAX;
    DEMAND(farflash_open(both.cluster, "v", &options, &opened) == FARFLASH_OK);
    works(opened);
    DEMAND(farflash_close(opened) == FARFLASH_OK);
    works(volume);
}

/* ---- Text ---- */

static void texts(struct both both)
{
    const char *bad = "v\xff";
    static char huge[1 << 20];
    farflash_open_options options = { sizeof options };
    farflash_new_volume new = { sizeof new };
    farflash_cluster_options where = { sizeof where };
    farflash_cluster *cluster = NULL;
    farflash_volume *opened = NULL;
    farflash_volume_list *list = NULL;
    farflash_tokens tokens;
    const char **fields[] = { &new.on, &new.device, &new.hosts, &new.networks, &new.interfaces, &new.owner, &new.name };
    size_t i;

    memset(huge, 'v', sizeof huge - 1);
    FAILS(farflash_cluster_new(bad, NULL, &cluster), invalid, "urls is not UTF-8");
    FAILS(farflash_cluster_new("http://127.0.0.1:1", bad, &cluster), invalid, "api_token is not UTF-8");
    FAILS(farflash_open(both.cluster, bad, NULL, &opened), invalid, "target is not UTF-8");
    FAILS(farflash_delete(both.cluster, bad), invalid, "volume is not UTF-8");
    FAILS(farflash_resize(both.cluster, bad, BLOCK, NULL), invalid, "volume is not UTF-8");
    FAILS(farflash_set_slo(both.cluster, bad, 1, 0, 0), invalid, "volume is not UTF-8");
    FAILS(farflash_change_auth(both.cluster, bad, 0, 0, &tokens), invalid, "volume is not UTF-8");
    FAILS(farflash_restrict(both.cluster, "v", bad, NULL, NULL), invalid, "hosts is not UTF-8");
    FAILS(farflash_restrict(both.cluster, "v", NULL, bad, NULL), invalid, "networks is not UTF-8");
    FAILS(farflash_restrict(both.cluster, "v", NULL, NULL, bad), invalid, "interfaces is not UTF-8");
    FAILS(farflash_show(both.cluster, bad, &list), invalid, "volume is not UTF-8");
    FAILS(farflash_start_show(both.cluster, bad, &list, tell, NULL), invalid, "volume is not UTF-8");
    new.size_bytes = BLOCK;
    for (i = 0; i < sizeof fields / sizeof *fields; i++) {
        new.name = "w";
        *fields[i] = bad;
        FAILS(farflash_create_with(both.cluster, &new, NULL), invalid, "not UTF-8");
        *fields[i] = NULL;
    }
    options.token = bad;
    FAILS(farflash_open(both.cluster, "v", &options, &opened), invalid, "token is not UTF-8");
    options.token = NULL;
    options.host_nqn = bad;
    FAILS(farflash_open(both.cluster, "v", &options, &opened), invalid, "host_nqn is not UTF-8");
    options.host_nqn = huge;
    FAILS(farflash_open(both.cluster, "v", &options, &opened), invalid, "");
    /* A path is bytes to the kernel. */
    where.urls = "https://127.0.0.1:1";
    where.api_ca = "/nowhere/\xff.pem";
    FAILS(farflash_cluster_new_with(&where, &cluster), invalid, "/nowhere/");
    FAILS(farflash_create(both.cluster, "", BLOCK, NULL), invalid, "");
    FAILS(farflash_create(both.cluster, "a\nb", BLOCK, NULL), invalid, "");
    DEMAND(farflash_create(both.cluster, huge, BLOCK, NULL) != FARFLASH_OK);
    DEMAND(farflash_open(both.cluster, huge, NULL, &opened) != FARFLASH_OK);
    DEMAND(farflash_open(both.cluster, "../v", NULL, &opened) != FARFLASH_OK);
    DEMAND(cluster == NULL && opened == NULL && list == NULL);
    works(both.volume);
}

/* ---- Signals ---- */

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* Calls go on behind a handler that does not restart system calls, on whichever thread it runs. */
static void interrupted(struct both both)
{
    struct sigaction action = { 0 }, before;
    struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
    farflash_volume *opened = NULL;
    int i;

    action.sa_handler = count_signal;
    DEMAND(sigaction(SIGALRM, &action, &before) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (i = 0; i < 20 || signals < 100; i++) {
        DEMAND(farflash_create(both.cluster, "s", VOLUME_BYTES, NULL) == FARFLASH_OK);
        DEMAND(farflash_open(both.cluster, "s", NULL, &opened) == FARFLASH_OK);
        works(opened);
        DEMAND(farflash_close(opened) == FARFLASH_OK && farflash_delete_with_data(both.cluster, "s") == FARFLASH_OK);
    }
    DEMAND(setitimer(ITIMER_REAL, &never, NULL) == 0 && sigaction(SIGALRM, &before, NULL) == 0);
}

/* ---- Children ---- */

/* A child is told that its parent's volume is not its own, can give the handle back, and opens its own. */
static void child(struct both both)
{
    farflash_request flush = { FARFLASH_OP_FLUSH };
    farflash_volume_properties properties;
    farflash_volume *opened = NULL;

    FAILS(farflash_flush(both.volume), FARFLASH_CLOSED, "fork");
    FAILS(farflash_properties(both.volume, &properties), FARFLASH_CLOSED, "fork");
    DEMAND(outcome(both.volume, &flush) == FARFLASH_CLOSED && strstr(told_error, "fork") != NULL);
    FAILS(farflash_close(both.volume), FARFLASH_CLOSED, "fork");
    DEMAND(farflash_open(both.cluster, "v", NULL, &opened) == FARFLASH_OK);
    works(opened);
    DEMAND(farflash_close(opened) == FARFLASH_OK);
    farflash_cluster_free(both.cluster);
}

static void children(struct both both)
{
    int i, status;

    for (i = 0; i < 3; i++) {
        pid_t process = fork();
        DEMAND(process >= 0);
        if (process == 0) {
            child(both);
            _exit(0);
        }
        DEMAND(waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        works(both.volume);
    }
}

int main(void)
{
    struct both both = { NULL, NULL };

    DEMAND(farflash_cluster_new(NULL, NULL, &both.cluster) == FARFLASH_OK);
    DEMAND(farflash_create(both.cluster, "v", VOLUME_BYTES, NULL) == FARFLASH_OK);
    DEMAND(farflash_open(both.cluster, "v", NULL, &both.volume) == FARFLASH_OK);
    nothing_of_what_is_too_long(both);
    sizes(both);
    texts(both);
    interrupted(both);
    children(both);
    misaligned(both);
    within_callbacks(both);
    DEMAND(farflash_close(both.volume) == FARFLASH_OK);
    farflash_cluster_free(both.cluster);
    puts("done");
    return 0;
}
