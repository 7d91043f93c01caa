/* Preloaded: a process may not open some files of its own, as where /proc is hidden, or what it has belongs to root
 * since it gave up its rights. FORBIDDEN_FILE says how their names end, and /proc/self how they begin. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_forbidden(const char *path)
{
    const char *end = getenv("FORBIDDEN_FILE");
    size_t bytes = strlen(path), end_bytes = end == NULL ? 0 : strlen(end);
    return end_bytes != 0 && strncmp(path, "/proc/self/", 11) == 0 && bytes > end_bytes &&
           strcmp(path + bytes - end_bytes, end) == 0;
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    if (is_forbidden(path)) {
        errno = EACCES;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    return open(path, flags, mode);
}
