/* Asking about system calls that may be forbidden on pain of death. */
#define _GNU_SOURCE 1
#include "kernel/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 32 * 1024 };

int sonde_has_filter(void)
{
    char text[8192];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    text[bytes < 0 ? 0 : bytes] = 0;
    return strstr(text, "\nSeccomp:\t2") != NULL;
}

static int read_self(void *none)
{
    (void)none;
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    _exit(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 ? 0 : 1);
}

int sonde_may_read_memory(void)
{
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    sigset_t all, before;
    int status = -1;
    if (stack == MAP_FAILED)
        return 0;
    sigfillset(&all);
    /* A handler of the job must not run in a clone that shares its memory. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int pid = clone(read_self, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, NULL);
    if (pid > 0)
        while (waitpid(pid, &status, __WCLONE) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    munmap(stack, STACK_BYTES);
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
