/* Who starts the host's collector, and when.
 *
 * A collector holds its lock file for as long as it lives. Beside it is a file with one byte for
 * each start since a collector last proved itself: a job that starts one adds a '+', and the
 * collector turns it into a '.' when its first round is done. One that has run for some seconds,
 * or has left in order, removes the file. So one that has worked and was killed is replaced at
 * once; collectors that die before they have done anything are started less and less often, by all
 * the jobs of a host together, and so are those of which none lives for long.
 */
#define _GNU_SOURCE 1
#include "kernel/collector_lock.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST_S = 10, MOST_STARTS = 20 };

/* How many of the last starts have done nothing; more than any if there are too many at all. */
static ssize_t count_failures(int fd)
{
    char starts[MOST_STARTS + 1];
    ssize_t n = read(fd, starts, sizeof starts), failures = 0;
    if (n < 0 || n > MOST_STARTS)
        return MOST_STARTS;
    while (failures < n && starts[n - 1 - failures] == '+')
        failures++;
    return failures;
}

/* How long to wait after the last of `failures` starts, in milliseconds. */
static long long find_wait_ms(ssize_t failures)
{
    if (failures == 0)
        return 0;
    /* The first wait is as long as a start takes on a busy machine. */
    return failures > 3 ? LONGEST_S * 1000 : 1000LL << failures;
}

static int is_due(int fd)
{
    struct stat status;
    struct timespec now;
    if (fstat(fd, &status) < 0 || clock_gettime(CLOCK_REALTIME, &now) < 0)
        return 0;
    long long passed_ms = (now.tv_sec - status.st_mtim.tv_sec) * 1000LL +
                          (now.tv_nsec - status.st_mtim.tv_nsec) / 1000000;
    /* A clock that was set back must not stop us for longer than any wait. */
    return llabs(passed_ms) >= find_wait_ms(count_failures(fd));
}

static int note_start(const char *lock)
{
    char path[PATH_MAX];
    size_t stem = strlen(lock) - strlen(".lock");
    if (stem + sizeof ".starts" > sizeof path)
        return 0;
    memcpy(path, lock, stem);
    memcpy(path + stem, ".starts", sizeof ".starts");
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return 0;
    /* On a full disk there is nothing to archive to either: then we wait. */
    int noted = is_due(fd) && write(fd, "+", 1) == 1;
    close(fd);
    return noted;
}

int sonde_collector_claim(const char *lock)
{
    int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    /* Held while we note our start, so that of all jobs that look at once only one starts a
     * collector. A collector that begins now waits for us. */
    int claimed = flock(fd, LOCK_EX | LOCK_NB) == 0 && note_start(lock);
    close(fd);
    return claimed;
}
