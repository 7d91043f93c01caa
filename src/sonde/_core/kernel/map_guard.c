/* Mapped files that cannot end the process: see map_guard.h.
 *
 * The handler reads two tables that only grow and calls mmap(); it takes no lock. It is safe in any
 * thread that does not block SIGBUS (there the kernel ends the process before any handler runs). */
#define _GNU_SOURCE 1
#include "kernel/map_guard.h"
#include "format/ordering.h"
#include "kernel/fatal_signal.h"
#include "kernel/fork.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uintptr_t begin, end; /* begin 0: free; it is written last, and cleared first */
    int writable;
} guarded;

/* Chunks are made when they are needed and never given back. Mappings beyond the last are not guarded. */
enum { CHUNK = 1024, CHUNKS = 256, HANDLERS = 8 };
static guarded *chunks[CHUNKS];
static uint32_t chunks_n;

/* Whoever had the signal before us; the newest is the last. */
static struct sigaction others[HANDLERS];
static int others_n;

static uintptr_t page_bytes;
static uint32_t maps_n;
SONDE_CHANGED_IN_CHILD static uint32_t busy; /* a lock for what follows; the handler does not take it */
static uint32_t is_aside;  /* a SIGBUS was not ours: we never take the signal again */
static uint64_t lost;
/* Whose memory this is; 0: that of a forked child, which has not asked yet. A child by vfork() shares ours, and has a
 * handler of its own: it changes that alone. */
SONDE_CHANGED_IN_CHILD static pid_t owner;

static void hold(void)
{
    uint32_t free = 0;
    /* Whoever takes the lock sees what its last holder wrote. */
    while (!sonde_cas_acquire(&busy, &free, 1)) {
        free = 0;
        sched_yield();
    }
}

static void let_go(void) { sonde_store_release(&busy, 0); }

static void let_go_in_child(void)
{
    busy = 0;
    SONDE_RESET(owner, 0);
}

SONDE_IN_CHILD(let_go_in_child)

static int replace_page(uintptr_t address)
{
    /* The chunk before the number that says it is there. */
    uint32_t used = sonde_load_acquire(&chunks_n);
    for (uint32_t at = 0; at < used * CHUNK; at++) {
        const guarded *map = &chunks[at / CHUNK][at % CHUNK];
        uintptr_t begin = sonde_load_acquire(&map->begin); /* before the end that belongs to it */
        if (begin == 0 || address < begin || address >= map->end)
            continue;
        void *page = (void *)(address & ~(page_bytes - 1));
        if (mmap(page, page_bytes, map->writable ? PROT_READ | PROT_WRITE : PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            return 0;
        sonde_add_relaxed(&lost, 1);
        return 1;
    }
    return 0;
}

/* Return the handler before the one that the signal has now in this child. */
static struct sigaction find_other(int number)
{
    struct sigaction now, none = {.sa_handler = SIG_DFL};
    int at = others_n;
    if (sigaction(number, NULL, &now) < 0)
        return none;
    for (int i = 0; i < others_n; i++)
        if (others[i].sa_sigaction == now.sa_sigaction) /* also that of sa_handler: they share a word */
            at = i;
    return at > 0 ? others[at - 1] : none;
}

/* Let the handler before us have the signal, as if we had never been there: the kernel raises a fault
 * again as soon as we return, and a signal that was sent is sent again. */
static void step_aside(int number, const siginfo_t *info)
{
    struct sigaction other = {.sa_handler = SIG_DFL};
    if (owner != 0 && owner != getpid()) {
        other = find_other(number);
    } else {
        if (others_n > 0)
            other = others[--others_n];
        sonde_store_relaxed(&is_aside, 1);
    }
    sigaction(number, &other, NULL);
    if (info->si_code <= 0)
        syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), number);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    (void)context;
    /* Faults of the kernel's have positive codes; the others were sent by somebody. */
    if (info->si_code <= 0 || !replace_page((uintptr_t)info->si_addr)) {
        if (sonde_guard_ends())
            sonde_fatal_look(number, info, context);
        step_aside(number, info);
    }
    errno = kept;
}

static int is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_fault;
}

static void take_signal(void)
{
    struct sigaction now, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (sonde_load_relaxed(&is_aside) || sigaction(SIGBUS, NULL, &now) < 0 || is_ours(&now) ||
        others_n == HANDLERS)
        return;
    others[others_n++] = now;
    sigaction(SIGBUS, &ours, NULL);
}

/* The signal goes back to whoever had it, unless somebody has taken it from us since. */
static void give_back(void)
{
    struct sigaction now;
    if (others_n != 1 || sigaction(SIGBUS, NULL, &now) < 0 || !is_ours(&now))
        return;
    sigaction(SIGBUS, &others[0], NULL);
    others_n = 0;
}

void sonde_guard_renew(void)
{
    hold();
    if (others_n > 0)
        take_signal();
    let_go();
}

static guarded *find(uintptr_t begin)
{
    for (uint32_t at = 0; at < chunks_n * CHUNK; at++) {
        guarded *map = &chunks[at / CHUNK][at % CHUNK];
        if (map->begin == begin)
            return map;
    }
    return NULL;
}

void sonde_guard_add(void *mem, size_t bytes, int writable)
{
    hold();
    if (page_bytes == 0)
        page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (others_n == 0)
        take_signal();
    if (owner == 0)
        owner = getpid();
    guarded *map = find(0);
    if (map == NULL && chunks_n < CHUNKS && (chunks[chunks_n] = calloc(CHUNK, sizeof *map)) != NULL) {
        map = chunks[chunks_n];
        sonde_store_release(&chunks_n, chunks_n + 1); /* after the chunk */
    }
    if (map != NULL) {
        map->end = (uintptr_t)mem + bytes;
        map->writable = writable;
        sonde_store_release(&map->begin, (uintptr_t)mem); /* after the rest */
        maps_n++;
    }
    let_go();
}

void sonde_guard_remove(const void *mem)
{
    hold();
    guarded *map = find((uintptr_t)mem);
    if (map != NULL) {
        sonde_store_release(&map->begin, 0);
        if (--maps_n == 0)
            give_back();
    }
    let_go();
}

int sonde_guard_ends(void) { return others_n == 0 || sonde_fatal_ends(&others[others_n - 1]); }

uint64_t sonde_guard_lost(void) { return sonde_load_relaxed(&lost); }
