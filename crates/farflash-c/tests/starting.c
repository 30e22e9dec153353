/*
 * Makes, changes, opens and deletes volumes without waiting, also from within a callback, and asks for what makes no sense.
 * The server has authentication.
 */
#include "demand.h"

#include <pthread.h>

#define VOLUMES 40 /* more than ask at a time */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;

/* What came of a call. */
struct outcome {
    int is_told;
    int code;
    char error[256];
};

static void tell(void *context, int code, uint64_t miscompare, const char *error)
{
    struct outcome *outcome = context;

    pthread_mutex_lock(&lock);
    DEMAND(!outcome->is_told && miscompare == 0 && (error == NULL) == (code == FARFLASH_OK));
    outcome->is_told = 1;
    outcome->code = code;
    snprintf(outcome->error, sizeof outcome->error, "%s", error ? error : "");
    pthread_cond_broadcast(&told);
    pthread_mutex_unlock(&lock);
}

/* The code, when it is told; the next call can have the same place. */
static int wait_for(struct outcome *outcome)
{
    pthread_mutex_lock(&lock);
    while (!outcome->is_told)
        pthread_cond_wait(&told, &lock);
    outcome->is_told = 0;
    pthread_mutex_unlock(&lock);
    return outcome->code;
}

#define STARTS(call) DEMAND((call) == FARFLASH_OK)
#define BECOMES(outcome, wanted, words) \
    do { \
        DEMAND(wait_for(outcome) == (wanted)); \
        DEMAND(strstr((outcome)->error, (words)) != NULL); \
    } while (0)

/* A volume that is deleted by the callback of its creation. */
struct brief {
    const farflash_cluster *cluster;
    farflash_tokens tokens;
    struct outcome *outcome;
};

static void delete_at_once(void *context, int code, uint64_t miscompare, const char *error)
{
    struct brief *brief = context;

    (void)miscompare, (void)error;
    DEMAND(code == FARFLASH_OK);
    FAILS(farflash_delete(brief->cluster, brief->tokens.id), FARFLASH_INVALID_ARGUMENT, "callback");
    STARTS(farflash_start_delete_with_data(brief->cluster, brief->tokens.id, tell, brief->outcome));
}

static void refuse_nonsense(farflash_cluster *cluster, farflash_new_volume *new, struct outcome *outcome)
{
    const int invalid = FARFLASH_INVALID_ARGUMENT;
    farflash_tokens tokens;
    farflash_volume *volume;

    FAILS(farflash_start_create(NULL, new, NULL, tell, outcome), invalid, "cluster is NULL");
    FAILS(farflash_start_create(cluster, NULL, NULL, tell, outcome), invalid, "volume is NULL");
    FAILS(farflash_start_create(cluster, new, NULL, NULL, outcome), invalid, "done is NULL");
    FAILS(farflash_start_delete(cluster, NULL, tell, outcome), invalid, "volume is NULL");
    FAILS(farflash_start_delete(cluster, "v", NULL, outcome), invalid, "done is NULL");
    FAILS(farflash_start_resize(cluster, "v", 1 << 20, NULL, NULL, outcome), invalid, "done is NULL");
    FAILS(farflash_start_set_slo(cluster, "v", 0, 0, 0, tell, outcome), invalid, "neither a share");
    FAILS(farflash_start_change_auth(cluster, "v", 0, 0, NULL, tell, outcome), invalid, "tokens is NULL");
    FAILS(farflash_start_change_auth(cluster, "v", 0, 0, &tokens, NULL, outcome), invalid, "done is NULL");
    FAILS(farflash_start_restrict(cluster, NULL, "", "", "", tell, outcome), invalid, "volume is NULL");
    FAILS(farflash_start_open(cluster, "v", NULL, NULL, tell, outcome), invalid, "volume is NULL");
    FAILS(farflash_start_open(cluster, NULL, NULL, &volume, tell, outcome), invalid, "target is NULL");
    FAILS(farflash_start_open(cluster, "v", NULL, &volume, NULL, outcome), invalid, "done is NULL");
    DEMAND(!outcome->is_told);
}

int main(void)
{
    static struct outcome outcomes[VOLUMES];
    static farflash_tokens tokens[VOLUMES];
    static unsigned char block[4096];
    farflash_cluster *cluster;
    farflash_volume *volume = NULL;
    farflash_volume_properties properties;
    farflash_new_volume new = { sizeof new };
    farflash_open_options options = { sizeof options };
    farflash_cut_off cut_off = { 9, 9 };
    struct outcome outcome = { 0 };
    struct brief brief;
    char names[VOLUMES][16];
    int i;

    DEMAND(farflash_cluster_new(NULL, NULL, &cluster) == FARFLASH_OK);
    new.size_bytes = 1 << 20;
    new.name = "v";
    refuse_nonsense(cluster, &new, &outcome);

    for (i = 0; i < VOLUMES; i++) {
        snprintf(names[i], sizeof names[i], "v%d", i);
        new.name = names[i];
        STARTS(farflash_start_create(cluster, &new, &tokens[i], tell, &outcomes[i]));
    }
    for (i = 0; i < VOLUMES; i++) {
        BECOMES(&outcomes[i], FARFLASH_OK, "");
        DEMAND(strlen(tokens[i].id) == 36 && strncmp(tokens[i].token, "DHHC-1:", 7) == 0);
    }
    STARTS(farflash_start_create(cluster, &new, NULL, tell, &outcome));
    BECOMES(&outcome, FARFLASH_ALREADY_EXISTS, "v39");

    options.token = tokens[7].token;
    STARTS(farflash_start_open(cluster, "v8", &options, &volume, tell, &outcome));
    BECOMES(&outcome, FARFLASH_PERMISSION_DENIED, "token");
    DEMAND(volume == NULL);
    STARTS(farflash_start_open(cluster, "v7", &options, &volume, tell, &outcome));
    BECOMES(&outcome, FARFLASH_OK, "");
    STARTS(farflash_start_resize(cluster, "v7", 2 << 20, &cut_off, tell, &outcome));
    BECOMES(&outcome, FARFLASH_OK, "");
    DEMAND(farflash_write(volume, block, sizeof block, (2 << 20) - sizeof block) == FARFLASH_OK);
    DEMAND(farflash_properties(volume, &properties) == FARFLASH_OK);
    DEMAND(strcmp(properties.uuid, tokens[7].id) == 0 && cut_off.bytes == 0);
    STARTS(farflash_start_resize_with(cluster, "v7", 1 << 20, 2 << 20, 1, &cut_off, tell, &outcome));
    BECOMES(&outcome, FARFLASH_OK, "");
    DEMAND(cut_off.bytes == sizeof block && cut_off.at_least == 0);
    STARTS(farflash_start_set_slo(cluster, "v7", 30, 0, 0, tell, &outcome));
    BECOMES(&outcome, FARFLASH_OK, "");
    STARTS(farflash_start_set_slo(cluster, "none", 30, 0, 0, tell, &outcome));
    BECOMES(&outcome, FARFLASH_NOT_FOUND, "none");
    STARTS(farflash_start_change_auth(cluster, "v7", 1, 0, &tokens[8], tell, &outcome));
    BECOMES(&outcome, FARFLASH_OK, "");
    DEMAND(strcmp(tokens[8].token, tokens[7].token) != 0 && tokens[8].id[0] == '\0');
    DEMAND(farflash_close(volume) == FARFLASH_OK);
    STARTS(farflash_start_restrict(cluster, "v7", NULL, "192.0.2.0/24", NULL, tell, &outcome));
    BECOMES(&outcome, FARFLASH_OK, "");
    options.token = tokens[8].token;
    DEMAND(farflash_open(cluster, "v7", &options, &volume) != FARFLASH_OK);

    for (i = 0; i < VOLUMES; i++)
        STARTS(farflash_start_delete_with_data(cluster, names[i], tell, &outcomes[i]));
    for (i = 0; i < VOLUMES; i++)
        BECOMES(&outcomes[i], FARFLASH_OK, "");
    brief.cluster = cluster;
    brief.outcome = &outcome;
    new.name = "brief";
    STARTS(farflash_start_create(cluster, &new, &brief.tokens, delete_at_once, &brief));
    BECOMES(&outcome, FARFLASH_OK, "");
    /* What is under way does not need it. */
    STARTS(farflash_start_delete_with_data(cluster, "brief", tell, &outcome));
    farflash_cluster_free(cluster);
    BECOMES(&outcome, FARFLASH_NOT_FOUND, "brief");
    puts("done");
    return 0;
}
