/*
 * Says where a new volume goes, what it is promised, whose it is and who may open it, and asks with what it may fail.
 * The server has the name flash-1, the label rack=r1, two devices of which the smaller one has a ceiling, and tenants.
 */
#include "demand.h"

#define SMALLER "mem:128MiB"

/* Whether one of the labels is this one. */
static int has_label(const farflash_volume_failure_domain *domain, const char *label)
{
    const char *at;

    for (at = domain->labels; *at; at += strlen(at) + 1)
        if (strcmp(at, label) == 0)
            return 1;
    return 0;
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
    DEMAND(has_label(&domain, "rack=r1") && has_label(&domain, "row=7") && !has_label(&domain, "rack=r"));
    DEMAND(strlen(domain.host_id) == 36 && strlen(domain.device_id) == 36);
    DEMAND(domain.model[0] == '\0' && domain.serial[0] == '\0' && domain.health == FARFLASH_HEALTH_GOOD);
    DEMAND(domain.core < 4096 && domain.struct_size == sizeof domain);
    DEMAND(farflash_close(volume) == FARFLASH_OK);
    farflash_cluster_free(cluster);
    puts("done");
    return 0;
}
