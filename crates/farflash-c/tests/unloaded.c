/*
 * A plugin's host unloads the library, whose path is the argument, while a volume is open: its thread goes on, and what it
 * runs has to stay. The server has no authentication.
 */
#include <farflash.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* What is called here is looked up, so that the program does not hold the library by itself. */
#define LOOK_UP(library, name) __typeof__(&name) look_##name = (__typeof__(&name))dlsym(library, #name)

static void *library;
static farflash_volume *volume;

/* On a thread that ends, so that nothing of the library's is kept for it. */
static void *open_volume(void *path)
{
    farflash_cluster *cluster = NULL;

    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    LOOK_UP(library, farflash_cluster_new);
    LOOK_UP(library, farflash_create);
    LOOK_UP(library, farflash_open);
    LOOK_UP(library, farflash_cluster_free);
    if (look_farflash_cluster_new(NULL, NULL, &cluster) != FARFLASH_OK
        || look_farflash_create(cluster, "v", 1 << 20, NULL) != FARFLASH_OK
        || look_farflash_open(cluster, "v", NULL, &volume) != FARFLASH_OK)
        exit(2);
    look_farflash_cluster_free(cluster);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char *path = argv[argc - 1];

    if (pthread_create(&thread, NULL, open_volume, path) != 0 || pthread_join(thread, NULL) != 0)
        return 3;
    LOOK_UP(library, farflash_flush);
    LOOK_UP(library, farflash_close);
    if (dlclose(library) != 0)
        return 4;
    if (dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL) {
        fprintf(stderr, "the library is gone, and its thread is not\n");
        return 5;
    }
    if (look_farflash_flush(volume) != FARFLASH_OK || look_farflash_close(volume) != FARFLASH_OK)
        return 6;
    puts("done");
    return 0;
}
