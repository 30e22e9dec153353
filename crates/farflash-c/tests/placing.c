/*
 * Says where a new volume goes, what it is promised, whose it is and who may open it, looks at what the cluster says of
 * it, and asks with what it may fail.
 * The server has the name flash-1, the label rack=r1, two devices of which the smaller one has a ceiling, and tenants.
 */
#include "demand.h"

#include <semaphore.h>

#define SMALLER "mem:128MiB"

static sem_t is_told;

/* Whether one of the labels is this one. */
static int has_label(const char *labels, const char *label)
{
    const char *at;

    for (at = labels; *at; at += strlen(at) + 1)
        if (strcmp(at, label) == 0)
            return 1;
    return 0;
}

#define SAYS(field, text) DEMAND(strcmp(record.field, (text)) == 0)

static void told(void *context, int code, uint64_t miscompare, const char *error)
{
    DEMAND(miscompare == 0 && (error == NULL) == (code == FARFLASH_OK));
    *(int *)context = code;
    DEMAND(sem_post(&is_told) == 0);
}

/* What the cluster says of the one volume that there is, beside another one that has nothing of all that. */
static void look_at(const farflash_cluster *cluster, const char *id)
{
    farflash_volume_list *list, *later;
    farflash_volume_record record;
    const int invalid = FARFLASH_INVALID_ARGUMENT;
    int code = 1;

    DEMAND(farflash_create(cluster, "also", 8192, NULL) == FARFLASH_OK);
    FAILS(farflash_list(NULL, &list), invalid, "cluster is NULL");
    FAILS(farflash_list(cluster, NULL), invalid, "list is NULL");
    FAILS(farflash_show(cluster, NULL, &list), invalid, "volume is NULL");
    FAILS(farflash_show(cluster, "placed", NULL), invalid, "list is NULL");
    FAILS(farflash_show(cluster, "other", &list), FARFLASH_NOT_FOUND, "other");
    DEMAND(farflash_list(cluster, &list) == FARFLASH_OK);
    DEMAND(farflash_list_count(list) == 2 && farflash_list_count(NULL) == 0);
    record.struct_size = 3;
    FAILS(farflash_list_get(list, 0, &record), invalid, "struct_size is 3");
    FAILS(farflash_list_get(list, 0, NULL), invalid, "record is NULL");
    FAILS(farflash_list_get(NULL, 0, &record), invalid, "list is NULL");
    memset(&record, 0xff, sizeof record);
    record.struct_size = sizeof record;
    FAILS(farflash_list_get(list, 2, &record), invalid, "index is 2, of 2 volumes");
    DEMAND(farflash_list_get(list, 0, &record) == FARFLASH_OK);
    SAYS(name, "also");
    SAYS(owner, "");
    SAYS(hosts, "");
    DEMAND(record.size_bytes == 8192 && record.share == 100 && record.metadata_size == 0);
    farflash_list_free(list);
    farflash_list_free(NULL);

    DEMAND(farflash_show(cluster, "placed", &list) == FARFLASH_OK && farflash_list_count(list) == 1);
    DEMAND(farflash_list_get(list, 0, &record) == FARFLASH_OK);
    SAYS(id, id);
    SAYS(name, "placed");
    SAYS(host, "flash-1");
    SAYS(device, SMALLER);
    SAYS(owner, "acme");
    SAYS(hosts, "nqn.2014-08.org.example:me");
    SAYS(networks, "192.0.2.0/24,127.0.0.0/8");
    SAYS(interfaces, "");
    SAYS(model, "");
    SAYS(serial, "");
    SAYS(trouble, "");
    DEMAND(strstr(record.nqn, id) != NULL && strchr(record.address, ':') != NULL);
    DEMAND(has_label(record.labels, "rack=r1") && has_label(record.labels, "row=7"));
    DEMAND(record.size_bytes == 1 << 20 && record.allocated_bytes == 0 && record.metadata_size == 8);
    DEMAND(record.share == 30 && record.reads_per_second == 0 && record.writes_per_second == 0);
    DEMAND(record.is_online == 1 && record.health == FARFLASH_HEALTH_GOOD && record.core < 4096);

    FAILS(farflash_start_show(cluster, id, NULL, told, &code), invalid, "list is NULL");
    DEMAND(sem_init(&is_told, 0, 0) == 0);
    DEMAND(farflash_start_show(cluster, id, &later, told, &code) == FARFLASH_OK);
    DEMAND(sem_wait(&is_told) == 0 && code == FARFLASH_OK && farflash_list_count(later) == 1);
    farflash_list_free(later);
    DEMAND(farflash_start_list(cluster, &later, told, &code) == FARFLASH_OK);
    DEMAND(sem_wait(&is_told) == 0 && code == FARFLASH_OK && farflash_list_count(later) == 2);
    farflash_list_free(later);
    DEMAND(farflash_start_show(cluster, "other", &later, told, &code) == FARFLASH_OK);
    DEMAND(sem_wait(&is_told) == 0 && code == FARFLASH_NOT_FOUND);
    farflash_list_free(list);
}

int main(void)
{
    farflash_cluster *cluster;
    farflash_volume *volume;
    farflash_new_volume new = { 0 };
    farflash_open_options options = { sizeof options };
    farflash_volume_failure_domain domain;
    farflash_tokens tokens;
    const int invalid = FARFLASH_INVALID_ARGUMENT;

    DEMAND(farflash_cluster_new(NULL, NULL, &cluster) == FARFLASH_OK);
    FAILS(farflash_create_with(cluster, NULL, NULL), invalid, "volume is NULL");
    FAILS(farflash_create_with(cluster, &new, NULL), invalid, "struct_size is 0");
    new.struct_size = sizeof new;
    FAILS(farflash_create_with(cluster, &new, NULL), invalid, "name is NULL");
    new.name = "placed";
    new.size_bytes = 1 << 20;
    new.on = "rack=r2";
    FAILS(farflash_create_with(cluster, &new, NULL), invalid, "rack=r2");
    new.on = "rack=r1";
    new.device = "mem:1MiB";
    FAILS(farflash_create_with(cluster, &new, NULL), invalid, "mem:1MiB");
    new.device = SMALLER;
    new.has_core = 1;
    new.core = 9999;
    FAILS(farflash_create_with(cluster, &new, NULL), invalid, "9999");
    new.has_core = 0;
    new.owner = "acme";
    new.share = 10;
    new.reads_per_second = 10;
    FAILS(farflash_create_with(cluster, &new, NULL), invalid, "not both");
    new.share = 0;
    new.reads_per_second = 20000;
    FAILS(farflash_create_with(cluster, &new, NULL), invalid, "10000");
    new.reads_per_second = 6000;
    new.metadata_size = 8;
    new.networks = "192.0.2.0/24, 127.0.0.0/8";
    new.hosts = "nqn.2014-08.org.example:me";
    DEMAND(farflash_create_with(cluster, &new, &tokens) == FARFLASH_OK);
    FAILS(farflash_set_slo(cluster, "placed", 0, 0, 0), invalid, "neither a share nor rates");
    FAILS(farflash_set_slo(cluster, "other", 5, 0, 0), FARFLASH_NOT_FOUND, "other");
    DEMAND(farflash_set_slo(cluster, "placed", 0, 7000, 10) == FARFLASH_OK);
    DEMAND(farflash_set_slo(cluster, "placed", 30, 0, 0) == FARFLASH_OK);
    look_at(cluster, tokens.id);

    options.token = tokens.token;
    options.host_nqn = "nqn.2014-08.org.example:another";
    DEMAND(farflash_open(cluster, tokens.id, &options, &volume) != FARFLASH_OK);
    options.host_nqn = new.hosts;
    DEMAND(farflash_open(cluster, tokens.id, &options, &volume) == FARFLASH_OK);
    FAILS(farflash_failure_domain(volume, NULL), invalid, "domain is NULL");
    domain.struct_size = 1;
    FAILS(farflash_failure_domain(volume, &domain), invalid, "struct_size is 1");
    memset(&domain, 0xff, sizeof domain);
    domain.struct_size = sizeof domain;
    DEMAND(farflash_failure_domain(volume, &domain) == FARFLASH_OK);
    DEMAND(strcmp(domain.host, "flash-1") == 0 && strcmp(domain.device, SMALLER) == 0);
    DEMAND(has_label(domain.labels, "rack=r1") && has_label(domain.labels, "row=7") && !has_label(domain.labels, "rack=r"));
    DEMAND(strlen(domain.host_id) == 36 && strlen(domain.device_id) == 36);
    DEMAND(domain.model[0] == '\0' && domain.serial[0] == '\0' && domain.health == FARFLASH_HEALTH_GOOD);
    DEMAND(domain.core < 4096 && domain.struct_size == sizeof domain);
    DEMAND(farflash_close(volume) == FARFLASH_OK);
    farflash_cluster_free(cluster);
    puts("done");
    return 0;
}
