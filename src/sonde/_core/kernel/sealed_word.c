/* Changing a word that the loader may have sealed. */
#include "kernel/sealed_word.h"
#include "format/format.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int judge(const char *allowed)
{
    if (strcmp(allowed, "rw-p") == 0)
        return SONDE_WORD_WRITABLE;
    return strcmp(allowed, "r--p") == 0 ? SONDE_WORD_SEALED : -EACCES;
}

typedef struct {
    uintptr_t begin, end;
    int look;
} mapping;

struct sonde_mappings {
    size_t count, room;
    mapping *all; /* in the order of their addresses, as Linux tells them */
};

static int add_mapping(sonde_mappings *mappings, const char *line)
{
    mapping one;
    char allowed[5] = "";
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &one.begin, &one.end, allowed) != 3)
        return -1;
    if (mappings->count == mappings->room) {
        size_t room = mappings->room ? 2 * mappings->room : 256;
        mapping *more = realloc(mappings->all, room * sizeof *more);
        if (more == NULL)
            return -1;
        mappings->all = more;
        mappings->room = room;
    }
    one.look = judge(allowed);
    mappings->all[mappings->count++] = one;
    return 0;
}

/* What the program headers promise is not what the pages are: the loader seals whole pages only, and
 * not every loader does. */
sonde_mappings *sonde_mappings_read(void)
{
    sonde_mappings *mappings = calloc(1, sizeof *mappings);
    FILE *maps = mappings == NULL ? NULL : fopen("/proc/self/maps", "re");
    if (maps == NULL) {
        free(mappings);
        return NULL;
    }
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, maps) > 0 && add_mapping(mappings, line) == 0)
        ;
    free(line);
    (void)fclose(maps);
    return mappings;
}

int sonde_mappings_look(const sonde_mappings *mappings, const void *at)
{
    size_t low = 0, high = mappings->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mappings->all[middle].end <= (uintptr_t)at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < mappings->count && mappings->all[low].begin <= (uintptr_t)at ? mappings->all[low].look : -EFAULT;
}

void sonde_mappings_free(sonde_mappings *mappings)
{
    if (mappings != NULL)
        free(mappings->all);
    free(mappings);
}

int sonde_word_look(const void *at)
{
    sonde_mappings *mappings = sonde_mappings_read();
    int look = mappings == NULL ? -EACCES : sonde_mappings_look(mappings, at);
    sonde_mappings_free(mappings);
    return look;
}

int sonde_word_swap(void **at, int look, void *expected, void *wanted)
{
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *page = (void *)((uintptr_t)at & ~(size - 1));
    if (look == SONDE_WORD_SEALED && mprotect(page, size, PROT_READ | PROT_WRITE) != 0)
        return -errno; /* Linux can forbid it for good (mseal) */
    int is_swapped = sonde_cas_relaxed(at, &expected, wanted);
    if (look == SONDE_WORD_SEALED)
        (void)mprotect(page, size, PROT_READ);
    return is_swapped ? 0 : -EAGAIN;
}
