/*
 * libfarflash: volumes of farflash servers.
 *
 * Every function that can fail returns an int: FARFLASH_OK (0), or one of the other codes, all negative;
 * farflash_error() then says in words what was wrong. All functions can be called from any thread, and
 * handles can be shared between threads, except that no thread may use a handle while or after it is closed
 * or freed.
 *
 * Ownership
 *   - What farflash_cluster_new(), farflash_open(), and farflash_list() and farflash_show() give belongs to the caller,
 *     which gives it back once, with farflash_cluster_free(), farflash_close() and farflash_list_free(). NULL is given back
 *     by doing nothing. A volume or a list does not need its cluster any longer. Strings of a list belong to the list.
 *   - Strings and buffers that are passed in stay the caller's. A function that waits is done with them when
 *     it returns. farflash_submit() is done with data to be written or compared when it returns, and functions with
 *     `start_` in their names with all that they are told; memory to be read into, or for what is told, has to stay until
 *     the callback is called.
 *   - What farflash_error() returns belongs to the library, and is good until the thread's next call.
 *
 * Offsets and lengths are in bytes, and multiples of the volume's block size (4096, see
 * farflash_properties()). What is not all within the volume is refused as a whole. Addresses of buffers are free; those
 * of structures, handles and numbers are refused if they are not aligned as in C. Beside the kernel's own copy, data that
 * is written is copied once, to a buffer that goes to the socket; data that is read twice, to such a buffer and to the
 * caller's.
 *
 * Blocks with metadata
 *   A volume made by farflash_create_ex() keeps 8, 16 or 64 bytes of the program's beside each block. There the
 *   functions and requests that end in _ex read, write and compare blocks with their metadata, as one; those on
 *   data alone are refused (FARFLASH_INVALID_ARGUMENT), so that no program overwrites metadata without knowing of it.
 *   On other volumes they take and give 0 bytes of metadata. Such data is copied once more.
 *
 * Requests wait for a server that went away and are repeated when it is back, wherever it is then, except for
 * a compare-and-swap that was sent already. A child made by fork() opens its volumes again.
 */
#ifndef FARFLASH_H
#define FARFLASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What came of a call. A program that was built for one version of the library runs with later ones. */
#define FARFLASH_OK 0
#define FARFLASH_INVALID_ARGUMENT (-1)  /* the call makes no sense: correct it */
#define FARFLASH_NOT_FOUND (-2)         /* no such volume, or not for this user */
#define FARFLASH_ALREADY_EXISTS (-3)    /* the name is taken */
#define FARFLASH_PERMISSION_DENIED (-4) /* not the right token, or not the right user */
#define FARFLASH_UNREACHABLE (-5)       /* a server cannot be reached; later it may be */
#define FARFLASH_NO_SPACE (-6)          /* the device or the quota is full */
#define FARFLASH_DAMAGED (-7)           /* data is damaged, there or on the way */
#define FARFLASH_UNSUPPORTED (-8)       /* the target cannot do that */
#define FARFLASH_OUTCOME_UNKNOWN (-9)   /* it may or may not have been done */
#define FARFLASH_CLOSED (-10)           /* the volume is closed */
#define FARFLASH_BUSY (-11)             /* too much is under way; later it works */
#define FARFLASH_FAILED (-12)           /* failed for another reason */
#define FARFLASH_MISCOMPARE (-13)       /* what is there is not what was expected */
#define FARFLASH_UNTRUSTED (-14)        /* who answers cannot show by its certificate that it is the server */
#define FARFLASH_UNPROVEN (-15)         /* the volume's server does not know the controller token; it may be somebody else */
#define FARFLASH_IN_USE (-16)           /* the volume holds data or is open: say that this may be lost */
#define FARFLASH_CHANGED (-17)          /* the volume has not the size that the change was made for: look again */

/* What was wrong in this thread's last call that failed. Never NULL. */
const char *farflash_error(void);

/* The version of the library, such as "0.1.0". */
const char *farflash_version(void);

/* ---- Provisioning ---- */

/* One or more servers, reached through their API. */
typedef struct farflash_cluster farflash_cluster;

/* What opens a volume. Told once. */
typedef struct farflash_tokens {
    char id[40];                /* the volume's UUID; empty if it was not asked for */
    char token[160];            /* with this a host proves who it is */
    char controller_token[160]; /* with this the server does, if the host asks */
} farflash_tokens;

/*
 * Servers whose API is at `urls`, separated by commas (NULL: those in FARFLASH_API). `api_token` authenticates the caller
 * (NULL: the one in FARFLASH_API_TOKEN if `urls` is NULL, else none). Nothing is sent yet.
 */
int farflash_cluster_new(const char *urls, const char *api_token, farflash_cluster **cluster);

/* How a cluster's API is reached. Zero in a field means its default. */
typedef struct farflash_cluster_options {
    size_t struct_size;    /* sizeof(farflash_cluster_options) */
    const char *urls;      /* as farflash_cluster_new() takes them */
    const char *api_token;
    const char *api_ca; /* a file with the only certificates to trust in https:// addresses, in PEM
                           (default: the one in FARFLASH_API_CA, or else what this machine trusts) */
} farflash_cluster_options;

/* Servers that are reached like this. Nothing is sent yet. */
int farflash_cluster_new_with(const farflash_cluster_options *options, farflash_cluster **cluster);
void farflash_cluster_free(farflash_cluster *cluster);

/*
 * How many of the changes that this cluster was asked for, and that were answered, are not wholly in the audit log of the
 * server: it has what was asked, and could not take what came of it. Such a change is done or refused as its call says, and
 * the log wants space. One that could not be recorded at all is not made. Of NULL, 0.
 */
uint64_t farflash_incomplete_records(const farflash_cluster *cluster);

/* Makes a volume. `tokens` can be NULL where no authentication is asked for. */
int farflash_create(const farflash_cluster *cluster, const char *name, uint64_t size_bytes,
                    farflash_tokens *tokens);

/* The same, with `metadata_size` bytes of metadata beside each block, for life: 8, 16, 64, or 0 for none. */
int farflash_create_ex(const farflash_cluster *cluster, const char *name, uint64_t size_bytes,
                       uint32_t metadata_size, farflash_tokens *tokens);

/* What a new volume is to be like. Zero in a field means its default. */
typedef struct farflash_new_volume {
    size_t struct_size; /* sizeof(farflash_new_volume) */
    const char *name;
    uint64_t size_bytes;
    uint32_t metadata_size;     /* bytes beside each block: 8, 16 or 64 (default: none) */
    uint32_t share;             /* its part of the device in proportion to those of others (default: 100) */
    uint64_t reads_per_second;  /* or the blocks read and written a second that it can count on */
    uint64_t writes_per_second;
    const char *on;     /* the host that is to have it, or a label of its host, such as "rack=r1" (default: the host asked) */
    const char *device; /* the host's device that is to hold it (default: the one with the most free space) */
    uint32_t has_core;  /* other than 0: `core` says which CPU is to serve it (default: the one with the fewest volumes) */
    uint32_t core;
    const char *hosts;      /* who may open it besides knowing its token, as farflash_restrict() takes it (default: all) */
    const char *networks;
    const char *interfaces;
    const char *owner; /* the tenant whose it is to be; for operators */
    uint32_t sector_size; /* bytes of a logical block, as hosts address it, for life: 512 or 4096 (default: 4096) */
} farflash_new_volume;

/* Makes a volume of which more is to be said. farflash_start_create() does the same without waiting. */
int farflash_create_with(const farflash_cluster *cluster, const farflash_new_volume *volume,
                         farflash_tokens *tokens);

/* The rest takes a volume's name or UUID. */

/* Deletes a volume that holds nothing and that no host has open; any other is FARFLASH_IN_USE. */
int farflash_delete(const farflash_cluster *cluster, const char *volume);

/* Deletes a volume with all that is on it. Hosts that have it open lose it at once. */
int farflash_delete_with_data(const farflash_cluster *cluster, const char *volume);

/* What was written behind the end that a volume has been given, and is gone. */
typedef struct farflash_cut_off {
    uint64_t bytes;    /* how much it was */
    uint32_t at_least; /* other than 0: it may have been more; not all of a large volume is counted */
} farflash_cut_off;

/*
 * Makes a volume larger, or smaller if it holds nothing and no host has it open; any other is FARFLASH_IN_USE.
 * `cut_off` says how much a smaller size cut off, and can be NULL.
 */
int farflash_resize(const farflash_cluster *cluster, const char *volume, uint64_t size_bytes,
                    farflash_cut_off *cut_off);

/*
 * Changes a volume's size. With `lose_data` other than 0 it is made smaller whatever it holds: what lies beyond is lost at
 * once. With `if_size_bytes` other than 0 it is changed only if it has that size now, and any other is FARFLASH_CHANGED: of two
 * changes at once none undoes the other.
 */
int farflash_resize_with(const farflash_cluster *cluster, const char *volume, uint64_t size_bytes,
                         uint64_t if_size_bytes, int lose_data, farflash_cut_off *cut_off);

/*
 * Changes what a volume is promised of its device: a share in proportion to those of others, or the blocks read and
 * written a second; what is not promised is 0.
 */
int farflash_set_slo(const farflash_cluster *cluster, const char *volume, uint32_t share,
                     uint64_t reads_per_second, uint64_t writes_per_second);

/*
 * Makes new tokens. The old ones open the volume for `grace_seconds` more; with `cut` other than 0, open
 * connections end.
 */
int farflash_change_auth(const farflash_cluster *cluster, const char *volume, int cut,
                         uint32_t grace_seconds, farflash_tokens *tokens);

/*
 * Changes the hosts that may open a volume, besides knowing its token: host NQNs, networks (192.0.2.0/24), interfaces
 * of the server; lists are separated by commas. NULL leaves a list as it is, "" opens the volume to all.
 */
int farflash_restrict(const farflash_cluster *cluster, const char *volume, const char *hosts,
                      const char *networks, const char *interfaces);

/* ---- What a cluster says of its volumes ---- */

/* Volumes, as they were when the cluster was asked. */
typedef struct farflash_volume_list farflash_volume_list;

/* Whether a device works. */
#define FARFLASH_HEALTH_UNKNOWN 0
#define FARFLASH_HEALTH_GOOD 1     /* as far as is known */
#define FARFLASH_HEALTH_DEGRADED 2 /* it works, but blocks were found damaged or requests failed */
#define FARFLASH_HEALTH_FAILED 3   /* it takes no changes */

/* A volume of a list. Its strings are never NULL, belong to the list, and are good until that is freed. */
typedef struct farflash_volume_record {
    size_t struct_size;     /* sizeof(farflash_volume_record); set before the call */
    const char *id;         /* its UUID */
    const char *name;
    const char *nqn;
    const char *address;    /* where it is served, as ip:port */
    const char *host;       /* the name of the host that serves it */
    const char *labels;     /* what the host shares with others: "rack=r1" and the like, each ends in a zero, an empty one ends all */
    const char *device;     /* the device that it lies on; its model and serial number, empty if not known */
    const char *model;
    const char *serial;
    const char *owner;      /* the tenant whose it is, or empty */
    const char *hosts;      /* who may open it besides knowing its token, as farflash_restrict() takes it; empty if all may */
    const char *networks;
    const char *interfaces;
    const char *trouble;    /* what keeps hosts from opening it, or empty */
    uint64_t size_bytes;
    uint64_t allocated_bytes;   /* what it holds of its device */
    uint64_t reads_per_second;  /* the blocks read and written a second that it can count on; 0 if it has a share */
    uint64_t writes_per_second;
    uint32_t share;         /* its part of the device in proportion to those of others; 0 if it has rates */
    uint32_t metadata_size; /* bytes beside each block */
    uint32_t core;          /* the CPU that serves it */
    int is_online;          /* 0 if its host is gone or does not serve the device: all else is what was last known then */
    int health;             /* of the device: FARFLASH_HEALTH_... */
    uint32_t sector_size;   /* bytes of a logical block, as hosts address it */
} farflash_volume_record;

/* All volumes that this user may see, by name. */
int farflash_list(const farflash_cluster *cluster, farflash_volume_list **list);

/* A list of one: the volume with this name or UUID. */
int farflash_show(const farflash_cluster *cluster, const char *volume, farflash_volume_list **list);

/* How many volumes there are; of NULL, none. */
size_t farflash_list_count(const farflash_volume_list *list);

/* The one at `index`, which counts from 0. */
int farflash_list_get(const farflash_volume_list *list, size_t index, farflash_volume_record *record);
void farflash_list_free(farflash_volume_list *list);

/* ---- Volumes ---- */

/* An open volume. */
typedef struct farflash_volume farflash_volume;

/* How to open a volume. Zero in a field means its default. */
typedef struct farflash_open_options {
    size_t struct_size;           /* sizeof(farflash_open_options) */
    const char *token;            /* the volume's token (default: FARFLASH_TOKEN) */
    const char *controller_token; /* what the server has to prove (default: FARFLASH_CONTROLLER_TOKEN); one that does not authenticate is refused */
    const char *host_nqn;         /* who this host is (default: /etc/nvme/hostnqn, or made up) */
    uint16_t connections;         /* TCP connections (default: 1) */
    uint16_t depth;               /* requests on each at a time (default: 128) */
    uint32_t no_digests;          /* other than 0: no checksums on the way */
    uint64_t recovery_timeout_ms; /* how long requests wait for a server that went away (default: 600 000) */
} farflash_open_options;

/* What a volume is like. */
typedef struct farflash_volume_properties {
    uint64_t size_bytes;
    uint64_t atomic_write_bytes; /* longest write that is wholly there or wholly absent after a power cut */
    uint64_t transfer_bytes_max; /* longest request that goes to the server in one piece */
    uint64_t reconnects;         /* times that the connection was made again */
    uint32_t block_size;
    char uuid[40];
    char nqn[224];
    char address[64];       /* where it is served, as ip:port */
    uint32_t metadata_size; /* bytes of metadata beside each block; not counted in any size or length here */
} farflash_volume_properties;

/*
 * Opens `target`: a volume's name or UUID, which `cluster` is asked for (NULL: the one in the environment), or
 * tcp://IP:PORT/NQN, for which no API is asked. `options` can be NULL.
 */
int farflash_open(const farflash_cluster *cluster, const char *target,
                  const farflash_open_options *options, farflash_volume **volume);

/*
 * Closes a volume and frees it. Requests under way end with FARFLASH_CLOSED, their callbacks before this returns. A child
 * frees its parent's by this, and is told FARFLASH_CLOSED. Only within a callback the handle stays as it was.
 */
int farflash_close(farflash_volume *volume);

int farflash_properties(const farflash_volume *volume, farflash_volume_properties *properties);

/* Where a volume is, and with what it may fail. */
typedef struct farflash_volume_failure_domain {
    size_t struct_size; /* sizeof(farflash_volume_failure_domain); set before the call */
    uint32_t core;      /* the CPU that serves it */
    int health;         /* of the device: FARFLASH_HEALTH_... */
    char host_id[40];   /* UUID and name of the host */
    char host[264];
    char device_id[40]; /* UUID and name of the device; its model and serial number, empty if not known */
    char device[264];
    char model[88];
    char serial[88];
    char labels[3336]; /* what the host shares with others: "rack=r1" and the like, each ends in a zero, an empty one ends all */
} farflash_volume_failure_domain;

/* As the target says now; FARFLASH_UNSUPPORTED if it does not. */
int farflash_failure_domain(const farflash_volume *volume, farflash_volume_failure_domain *domain);

int farflash_read(const farflash_volume *volume, void *buffer, size_t len, uint64_t offset);

/* Durable when it returns. Atomic up to `atomic_write_bytes`; more can be several writes. */
int farflash_write(const farflash_volume *volume, const void *buffer, size_t len, uint64_t offset);

/*
 * The same, all or nothing: after a power failure it is wholly there or wholly absent. More than
 * `atomic_write_bytes` is refused (FARFLASH_INVALID_ARGUMENT, farflash_error() names the limit), and nothing of it
 * written.
 */
int farflash_write_tx(const farflash_volume *volume, const void *buffer, size_t len, uint64_t offset);

/* Makes a range read as zeroes, metadata included. */
int farflash_write_zeroes(const farflash_volume *volume, uint64_t len, uint64_t offset);

/* Gives a range's space back. It reads as zeroes then, metadata included. */
int farflash_deallocate(const farflash_volume *volume, uint64_t len, uint64_t offset);

/* Makes all that was written durable, on targets that do not do so at once. */
int farflash_flush(const farflash_volume *volume);

/* FARFLASH_OK if `buffer` is what is there, else FARFLASH_MISCOMPARE. */
int farflash_compare(const farflash_volume *volume, const void *buffer, size_t len, uint64_t offset);

/*
 * Replaces what is there by `data` if it is `expected`, both `len` bytes, at most `atomic_write_bytes`.
 * Else FARFLASH_MISCOMPARE, and `miscompare` (can be NULL) says which byte of them differs first.
 */
int farflash_compare_and_swap(const farflash_volume *volume, const void *expected, const void *data,
                              size_t len, uint64_t offset, uint64_t *miscompare);

/* ---- Blocks with metadata ---- */

/* Whole blocks, and the metadata of each. */
typedef struct farflash_blocks {
    void *data; /* to read into, to write, to compare, or to put in place */
    size_t len;
    void *metadata;      /* of all blocks, one behind the other */
    size_t metadata_len; /* `metadata_size` for each block */
} farflash_blocks;

/* Of a block that was never written, or was deallocated, data and metadata are zeroes. */
int farflash_read_ex(const farflash_volume *volume, const farflash_blocks *blocks, uint64_t offset);

/* Each block with its metadata, both or neither. Else as farflash_write(). */
int farflash_write_ex(const farflash_volume *volume, const farflash_blocks *blocks, uint64_t offset);

/* The same, all or nothing, as farflash_write_tx(). */
int farflash_write_tx_ex(const farflash_volume *volume, const farflash_blocks *blocks, uint64_t offset);

/* As farflash_compare(), metadata included. */
int farflash_compare_ex(const farflash_volume *volume, const farflash_blocks *blocks, uint64_t offset);

/*
 * As farflash_compare_and_swap(), metadata included. `miscompare` counts as if the metadata of each block came
 * behind its data.
 */
int farflash_compare_and_swap_ex(const farflash_volume *volume, const farflash_blocks *expected,
                                 const farflash_blocks *blocks, uint64_t offset, uint64_t *miscompare);

/* ---- Many requests at a time ---- */

#define FARFLASH_OP_READ 0
#define FARFLASH_OP_WRITE 1
#define FARFLASH_OP_WRITE_ZEROES 2
#define FARFLASH_OP_DEALLOCATE 3
#define FARFLASH_OP_FLUSH 4
#define FARFLASH_OP_COMPARE 5
#define FARFLASH_OP_COMPARE_AND_SWAP 6
#define FARFLASH_OP_READ_EX 7
#define FARFLASH_OP_WRITE_EX 8
#define FARFLASH_OP_COMPARE_EX 9
#define FARFLASH_OP_COMPARE_AND_SWAP_EX 10
#define FARFLASH_OP_WRITE_TX 11
#define FARFLASH_OP_WRITE_TX_EX 12

typedef struct farflash_request {
    int op;               /* FARFLASH_OP_... */
    uint64_t offset;
    uint64_t len;
    void *buffer;         /* to read into, to write, to compare, or to put in place; not for other requests */
    const void *expected; /* for FARFLASH_OP_COMPARE_AND_SWAP and FARFLASH_OP_COMPARE_AND_SWAP_EX */
    /* The rest is looked at for requests that end in _EX only. */
    void *metadata;                /* of the blocks of `buffer` */
    uint64_t metadata_len;         /* `metadata_size` for each block */
    const void *expected_metadata; /* of the blocks of `expected`, as long; for FARFLASH_OP_COMPARE_AND_SWAP_EX */
} farflash_request;

/*
 * Called once per request, on a thread of the library; or on the caller's, before the function that starts the request
 * returns, if there are too many or it makes no sense. `code` and `miscompare` are as the functions above give them;
 * `error` says in words what was wrong, is NULL if nothing was, and is good until the callback returns.
 * It has to be quick, can submit more requests, and cannot call functions that wait
 * (FARFLASH_INVALID_ARGUMENT, and nothing is done), farflash_close() among them.
 */
typedef void (*farflash_callback)(void *context, int code, uint64_t miscompare, const char *error);

/*
 * Starts a request. If this is FARFLASH_OK, `done` is called with `context`; else it is not. At most 16384
 * requests of a process can be outstanding (FARFLASH_BUSY, by the callback).
 */
int farflash_submit(const farflash_volume *volume, const farflash_request *request,
                    farflash_callback done, void *context);

/* ---- Provisioning without waiting ---- */

/*
 * Each begins what the function above does that has no `start_` in its name (farflash_create_with() for a new volume). If it returns FARFLASH_OK, `done` is called
 * with `context` when that is over, with a `miscompare` of 0; else it is not. Strings and structures that are passed in are
 * the caller's again when it returns, and the cluster may be freed. Memory for what is told (`tokens`, which can be NULL
 * where it can be above; a `volume` to be opened; a `list`) has to stay until the callback is called, and is set before if the code
 * is FARFLASH_OK. Sixteen of a process ask an API at a time, others wait for their turn; callbacks can call these functions.
 */
int farflash_start_create(const farflash_cluster *cluster, const farflash_new_volume *volume,
                          farflash_tokens *tokens, farflash_callback done, void *context);
int farflash_start_delete(const farflash_cluster *cluster, const char *volume, farflash_callback done,
                          void *context);
int farflash_start_delete_with_data(const farflash_cluster *cluster, const char *volume, farflash_callback done,
                                    void *context);
int farflash_start_resize(const farflash_cluster *cluster, const char *volume, uint64_t size_bytes,
                          farflash_cut_off *cut_off, farflash_callback done, void *context);
int farflash_start_resize_with(const farflash_cluster *cluster, const char *volume, uint64_t size_bytes,
                               uint64_t if_size_bytes, int lose_data, farflash_cut_off *cut_off,
                               farflash_callback done, void *context);
int farflash_start_set_slo(const farflash_cluster *cluster, const char *volume, uint32_t share,
                           uint64_t reads_per_second, uint64_t writes_per_second, farflash_callback done,
                           void *context);
int farflash_start_change_auth(const farflash_cluster *cluster, const char *volume, int cut,
                               uint32_t grace_seconds, farflash_tokens *tokens, farflash_callback done,
                               void *context);
int farflash_start_restrict(const farflash_cluster *cluster, const char *volume, const char *hosts,
                            const char *networks, const char *interfaces, farflash_callback done,
                            void *context);
int farflash_start_list(const farflash_cluster *cluster, farflash_volume_list **list,
                        farflash_callback done, void *context);
int farflash_start_show(const farflash_cluster *cluster, const char *volume, farflash_volume_list **list,
                        farflash_callback done, void *context);
int farflash_start_open(const farflash_cluster *cluster, const char *target,
                        const farflash_open_options *options, farflash_volume **volume,
                        farflash_callback done, void *context);

#ifdef __cplusplus
}
#endif

#endif
