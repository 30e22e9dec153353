/* What tests of the library demand of it; the first that is not so ends the program. */
#ifndef DEMAND_H
#define DEMAND_H

#include <farflash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEMAND(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, farflash_error()); \
            exit(1); \
        } \
    } while (0)
#define FAILS(call, code, words) \
    do { \
        DEMAND((call) == (code)); \
        DEMAND(strstr(farflash_error(), (words)) != NULL); \
    } while (0)

#endif
