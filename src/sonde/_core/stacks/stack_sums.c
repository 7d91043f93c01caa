/* The sums of the stack table at one moment, as a file of their own.
 *
 * A run is the difference of two such files. The native thread writes both, between
 * two samples, so a run begins and ends on time whatever the program is doing.
 */
#define _GNU_SOURCE 1
#include "stacks/sampler.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SUMS_PATH 4096

/* Is this the plain name of a folder, and not a path that leads out of ours? */
static int is_name(const char *name)
{
    size_t length = strnlen(name, SONDE_RUN_NAME);
    if (length == 0 || length == SONDE_RUN_NAME || name[0] == '.')
        return 0;
    for (const char *at = name; *at; at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *at))
            return 0;
    return 1;
}

static int write_all(int fd, const void *bytes, size_t left)
{
    for (const char *at = bytes; left > 0;) {
        ssize_t done = write(fd, at, left);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        at += done;
        left -= (size_t)done;
    }
    return 0;
}

static int write_sums(const sonde_nodes_handle *nodes, int fd, int64_t t_ns)
{
    static char page[SONDE_PAGE]; /* only the native thread writes sums */
    /* A table has room for at least one node; in a copy that one may be empty. */
    uint32_t count = nodes->count ? nodes->count : 1;
    memset(page, 0, sizeof page);
    sonde_nodes_head((sonde_nodes *)page, count);
    ((sonde_nodes *)page)->count = nodes->count;
    ((sonde_nodes *)page)->lost = nodes->shared->lost;
    ((sonde_nodes *)page)->t_ns = t_ns;
    int status = write_all(fd, page, sizeof page);
    return status < 0 ? status
                      : write_all(fd, nodes->node, count * sizeof(sonde_node));
}

static int make_sums(const sonde_sampler *s, const char *which, int64_t t_ns)
{
    char path[SUMS_PATH], hidden[SUMS_PATH + 8], run[SONDE_RUN_NAME];
    memcpy(run, s->page->run_name, sizeof run); /* what is checked is what is used */
    if (!is_name(run))
        return -EINVAL;
    if (snprintf(path, sizeof path, "%s/runs/%s/%s.nodes", s->folder, run, which) >= SUMS_PATH)
        return -ENAMETOOLONG;
    snprintf(hidden, sizeof hidden, "%s.tmp", path);
    int fd = open(hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -errno;
    int status = write_sums(&s->nodes, fd, t_ns);
    close(fd);
    if (status == 0 && rename(hidden, path) < 0)
        status = -errno;
    if (status < 0)
        unlink(hidden);
    return status;
}

/* Have Python switch the sources of a run on or off. */
static void ask_python(sonde_control *page)
{
    if (!sonde_load_acquire(&page->run_sources))
        return;
    sonde_increment_ordered(&page->asked);
    sonde_control_ring(page);
}

static void wake(sonde_control *page)
{
    sonde_add_release(&page->run_bell, 1);
    sonde_wake(&page->run_bell);
}

int sonde_run_begins(const sonde_sampler *s)
{
    return sonde_load_acquire(&s->page->run_asked) != sonde_load_acquire(&s->page->run_begun);
}

static int is_running(const sonde_control *page)
{
    uint64_t asked = sonde_load_acquire(&page->run_asked);
    return asked == sonde_load_acquire(&page->run_begun) &&
           asked != sonde_load_acquire(&page->run_ended);
}

int64_t sonde_run_ends(const sonde_sampler *s)
{
    return is_running(s->page) ? sonde_load_acquire(&s->page->run_end_ns) : INT64_MAX;
}

void sonde_run_begin(sonde_sampler *s)
{
    sonde_control *page = s->page;
    uint64_t asked = sonde_load_acquire(&page->run_asked);
    int64_t now_ns = sonde_clock_ns();
    int status = make_sums(s, "begin", now_ns);
    sonde_store_relaxed(&page->run_begin_t_ns, now_ns);
    sonde_store_relaxed(&page->run_status, status);
    /* Release: all of it is stored before the number that says so. */
    if (status < 0)
        sonde_store_release(&page->run_ended, asked);
    sonde_store_release(&page->run_begun, asked);
    wake(page);
    if (status == 0)
        ask_python(page);
}

void sonde_run_end(sonde_sampler *s)
{
    sonde_control *page = s->page;
    if (!is_running(page))
        return;
    int64_t now_ns = sonde_clock_ns();
    int status = make_sums(s, "end", now_ns);
    sonde_store_relaxed(&page->run_end_t_ns, now_ns);
    sonde_store_relaxed(&page->run_status, status);
    /* Release: all of it is stored before the number that says so. */
    sonde_store_release(&page->run_ended, sonde_load_acquire(&page->run_asked));
    wake(page);
    ask_python(page);
}
