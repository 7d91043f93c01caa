/* The lock that proves that a job is alive.
 *
 * It is an open-file-description lock: unlike a record lock, it is not lost when some code of the
 * job opens and closes the same file (to copy the folder, say). Forked children share it, so they
 * close their copy before anything else. The descriptor has a high number, out of the way of
 * programs that close "all" low ones, and is closed only if it is still the file that we opened:
 * by now the number may belong to a file of the job.
 */
#define _GNU_SOURCE 1
#include "kernel/alive_lock.h"
#include "kernel/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HIGH_FD = 512 };

SONDE_CHANGED_IN_CHILD static struct {
    int fd;
    dev_t dev;
    ino_t ino;
} held = {.fd = -1};

static int close_held(void)
{
    struct stat status;
    int fd = held.fd;
    held.fd = -1;
    if (fd < 0 || fstat(fd, &status) < 0 || status.st_dev != held.dev || status.st_ino != held.ino)
        return 0;
    close(fd);
    return 1;
}

static void close_in_child(void) { close_held(); }

SONDE_IN_CHILD(close_in_child)

static int lock_whole(int fd, int command, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    if (fcntl(fd, command, &lock) < 0)
        return -errno;
    return lock.l_type != F_UNLCK;
}

static int open_alive(const char *path, int flags)
{
    int low = open(path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (low < 0)
        return -errno;
    int high = fcntl(low, F_DUPFD_CLOEXEC, HIGH_FD);
    if (high < 0)
        return low; /* the limit on descriptors is lower than that */
    close(low);
    return high;
}

int sonde_alive_hold(const char *path)
{
    struct stat status;
    close_held();
    int fd = open_alive(path, O_CREAT);
    if (fd < 0)
        return fd;
    if (fstat(fd, &status) < 0) {
        int failure = -errno;
        close(fd);
        return failure;
    }
    held.fd = fd;
    held.dev = status.st_dev;
    held.ino = status.st_ino;
    return lock_whole(fd, F_OFD_SETLK, F_WRLCK) > 0;
}

int sonde_alive_release(void) { return close_held(); }

int sonde_alive_probe(const char *path)
{
    int fd = open_alive(path, 0);
    if (fd < 0)
        return fd;
    int status = lock_whole(fd, F_OFD_GETLK, F_WRLCK);
    close(fd);
    return status > 0;
}
