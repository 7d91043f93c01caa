/* What the dynamic loader shows: see loader.h. */
#define _GNU_SOURCE 1 /* dl_iterate_phdr, RTLD_DEFAULT */
#include "kernel/loader.h"
#include "format/format.h"
#include "kernel/fork.h"
#include "kernel/read_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <time.h>

#define PATIENCE_NS INT64_C(1000000000) /* of a fork with us, which look for some milliseconds */
enum { NAP_NS = 50000, TRIES = 20000 };

SONDE_CHANGED_IN_CHILD static struct {
    uint32_t forks;     /* atomic: under way */
    uint32_t is_inside; /* atomic: libraries are shown to us */
} turn;

static void nap(void) { nanosleep(&(struct timespec){0, NAP_NS}, NULL); }

/* ---- forks ------------------------------------------------------------------------------------- */

static void begin_fork(void)
{
    int64_t end_ns = sonde_clock_ns() + PATIENCE_NS;
    sonde_add_total(&turn.forks, 1); /* total: either we see who is inside, or that one sees the fork */
    while (sonde_load_total(&turn.is_inside) && sonde_clock_ns() < end_ns)
        nap();
}

static void end_fork(void) { sonde_add_total(&turn.forks, UINT32_MAX); }

static void forget_in_child(void)
{
    SONDE_RESET(turn.forks, 0);
    SONDE_RESET(turn.is_inside, 0);
}

SONDE_IN_CHILD(forget_in_child)

__attribute__((constructor)) static void watch_forks(void) { sonde_fork_around(begin_fork, end_fork); }

/* ---- showing ----------------------------------------------------------------------------------- */

typedef struct {
    sonde_loader_look *look;
    void *context;
    int is_begun, is_put_off;
} showing;

static int show_one(struct dl_phdr_info *info, size_t size, void *context)
{
    showing *self = context;
    if (!self->is_begun) {
        sonde_store_total(&turn.is_inside, 1); /* total: see begin_fork() */
        self->is_put_off = sonde_load_total(&turn.forks) != 0;
        self->is_begun = 1;
    }
    return self->is_put_off ? 1 : self->look(info, size, self->context);
}

int sonde_loader_show(sonde_loader_look *look, void *context)
{
    for (int tries = 0; tries < TRIES; tries++) {
        showing self = {look, context, 0, 0};
        (void)dl_iterate_phdr(show_one, &self);
        sonde_store_total(&turn.is_inside, 0);
        if (!self.is_put_off)
            return 0;
        nap();
    }
    return -EAGAIN;
}

/* ---- its list ---------------------------------------------------------------------------------- */

static const struct r_debug *list; /* NULL: this loader has none, or none that can be found */
static uintptr_t last;             /* atomic, as the other: the last entry when it was looked at; 0: it never was */
static uint64_t last_sum;          /* of what was there */

__attribute__((constructor)) static void find_list(void) { list = dlsym(RTLD_DEFAULT, "_r_debug"); }

void sonde_loader_note(void)
{
    const struct link_map *at = list == NULL ? NULL : list->r_map;
    while (at != NULL && at->l_next != NULL)
        at = at->l_next;
    if (at != NULL)
        sonde_store_relaxed(&last_sum, sonde_hash_bytes(SONDE_HASH_SEED, (const char *)at, sizeof *at));
    sonde_store_relaxed(&last, (uintptr_t)at);
}

/* The entry may be gone, and its memory in use for anything: then it does not look as it did. */
int sonde_loader_has_more(void)
{
    struct link_map now;
    uintptr_t at = sonde_load_relaxed(&last);
    if (at == 0)
        return -ENOSYS;
    int status = sonde_read_memory(&now, at, sizeof now);
    if (status < 0)
        return status == -EFAULT;
    return sonde_hash_bytes(SONDE_HASH_SEED, (const char *)&now, sizeof now) != sonde_load_relaxed(&last_sum);
}
