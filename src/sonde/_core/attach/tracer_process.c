/* A process of its own that traces. See ptrace.h.
 *
 * In a process that traces, every wait for a child reports stops, too: another thread of a program
 * that supervises its children would take a stop for the end of a child, and we would wait in vain
 * for the stop. So whatever traces runs in a new process. It shares our memory, so nothing is
 * copied; and it ends without a signal, so neither a handler nor a wait for any child notices it.
 * However it ends, the kernel lets all threads that it traced go on.
 */
#define _GNU_SOURCE 1
#include "attach/ptrace.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { STACK_BYTES = 256 << 10 };

static int begin(void *given)
{
    sonde_tracer *self = given;
    self->status = self->work(self->of);
    return 0;
}

int sonde_tracer_start(sonde_tracer *self, int (*work)(void *), void *of)
{
    *self = (sonde_tracer){.work = work, .of = of, .status = -EBUSY};
    self->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (self->stack == MAP_FAILED)
        return -errno;
    self->pid = clone(begin, (char *)self->stack + STACK_BYTES, CLONE_VM, self);
    int status = self->pid < 0 ? -errno : 0;
    if (status < 0)
        munmap(self->stack, STACK_BYTES);
    return status;
}

int sonde_tracer_wait(sonde_tracer *self)
{
    while (waitpid(self->pid, NULL, __WALL) < 0 && errno == EINTR)
        ;
    munmap(self->stack, STACK_BYTES);
    return self->status;
}

int sonde_tracer_run(int (*work)(void *), void *of)
{
    sonde_tracer self;
    int status = sonde_tracer_start(&self, work, of);
    return status < 0 ? status : sonde_tracer_wait(&self);
}
