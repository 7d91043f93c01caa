/* Whether somebody holds the lock of the host's one collector. */
#define _GNU_SOURCE 1
#include "kernel/collector_lock.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RETRY_S 10

int sonde_collector_is_wanted(const char *lock)
{
    int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    struct stat status;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    /* Shared, so that two jobs that check at once do not take each other for the collector. */
    int wanted = flock(fd, LOCK_SH | LOCK_NB) == 0 && fstat(fd, &status) == 0 &&
                 (status.st_size == 0 || llabs((long long)now.tv_sec - status.st_mtim.tv_sec) > RETRY_S);
    close(fd);
    return wanted;
}
