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

/* What the program headers promise is not what the pages are: the loader seals whole pages only, and
 * not every loader does. */
int sonde_word_look(const void *at)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return -errno;
    char *line = NULL;
    size_t room = 0;
    int found = -EFAULT;
    while (found == -EFAULT && getline(&line, &room, maps) > 0) {
        uintptr_t begin, end;
        char allowed[5] = "";
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, allowed) == 3 && begin <= (uintptr_t)at &&
            (uintptr_t)at < end)
            found = judge(allowed);
    }
    free(line);
    (void)fclose(maps);
    return found;
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
