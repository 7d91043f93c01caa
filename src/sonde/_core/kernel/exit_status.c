/* The C library tells functions of on_exit() the status; Python's own exit hooks never learn it. */
#define _GNU_SOURCE 1
#include "kernel/exit_status.h"
#include "format/ordering.h"
#include "kernel/fork.h"

#include <stdlib.h>

SONDE_CHANGED_IN_CHILD static uint32_t *watched;

static void forget_in_child(void) { watched = NULL; }

SONDE_IN_CHILD(forget_in_child)

void sonde_exit_tell(int status)
{
    uint32_t *word = watched;
    if (word != NULL) /* the kernel keeps only these bits */
        sonde_store_relaxed(word, 1 + ((uint32_t)status & 0xff));
}

#ifdef __GLIBC__
static void on_end(int status, void *unused)
{
    (void)unused;
    sonde_exit_tell(status);
}

__attribute__((constructor)) static void watch_exit(void) { on_exit(on_end, NULL); }
#endif

void sonde_exit_watch(uint32_t *word) { watched = word; }
