/* The page through which another process of the same user controls a job. */
#define _GNU_SOURCE 1
#include "format/format.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char control_magic[8] = {'S', 'O', 'N', 'D', 'E', 'C', 'T', 'L'};

static uint32_t header_check(const sonde_control *page)
{
    sonde_control copy;
    memcpy(&copy, page, offsetof(sonde_control, pad0));
    copy.check = 0;
    return sonde_check_bytes(&copy, offsetof(sonde_control, pad0));
}

int sonde_control_init(void *mem, uint64_t mem_bytes, uint32_t pid, uint64_t start_ticks)
{
    if (mem_bytes < sizeof(sonde_control))
        return -EINVAL;
    sonde_control *page = mem;
    memcpy(page->magic, control_magic, sizeof control_magic);
    page->version = SONDE_FORMAT_VERSION;
    page->pid = pid;
    page->start_ticks = start_ticks;
    page->check = header_check(page);
    return 0;
}

int sonde_control_verify(const void *mem, uint64_t mem_bytes)
{
    const sonde_control *page = mem;
    if (mem_bytes < sizeof *page || memcmp(page->magic, control_magic, sizeof control_magic))
        return -EBADMSG;
    if (page->version > SONDE_FORMAT_VERSION)
        return -EPROTO;
    return page->check == header_check(page) ? 0 : -EBADMSG;
}

void sonde_control_on(sonde_control *page, uint32_t on)
{
    uint32_t was = sonde_load_acquire(&page->on);
    int64_t now = sonde_clock_ns();
    if (on && !was) {
        int64_t paused = sonde_load_relaxed(&page->paused_t_ns);
        if (paused != 0) /* 0: rows are recorded for the first time */
            sonde_add_relaxed(&page->paused_ns, now - paused);
        sonde_store_relaxed(&page->resumed_t_ns, now);
    } else if (!on && was) {
        sonde_store_relaxed(&page->paused_t_ns, now);
    }
    /* Release: the times are stored before the switch that they belong to. */
    sonde_store_release(&page->on, on);
}

void sonde_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

void sonde_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / 1000000000),
        .tv_nsec = (long)(timeout_ns % 1000000000),
    };
    /* The kernel compares the word with `seen` first: no wake is missed. */
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

void sonde_wait_until(uint32_t *word, uint32_t seen, int64_t end_ns)
{
    struct timespec end = {
        .tv_sec = (time_t)(end_ns / 1000000000),
        .tv_nsec = (long)(end_ns % 1000000000),
    };
    /* This form takes a point in time, on the clock that all our times are from. */
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, &end, NULL, FUTEX_BITSET_MATCH_ANY);
}

void sonde_control_ring(sonde_control *page)
{
    /* Release: what was asked for is stored before the bell that announces it. */
    sonde_add_release(&page->bell, 1);
    sonde_wake(&page->bell);
}
