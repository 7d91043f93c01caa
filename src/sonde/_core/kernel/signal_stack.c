/* A stack for the signal handlers of the main thread: see signal_stack.h. */
#define _GNU_SOURCE 1
#include "kernel/signal_stack.h"
#include "kernel/filter.h"

#include <signal.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

enum { HANDLER_BYTES = 64 << 10 }; /* besides what the kernel keeps there: registers, of which processors have more and more */

static stack_t own; /* made once, and kept in forked children, which have a copy */

static int make(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = (HANDLER_BYTES + getauxval(AT_MINSIGSTKSZ) + page - 1) & ~(page - 1);
    char *memory = mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    (void)mprotect(memory, page, PROT_NONE); /* it ends there */
    own = (stack_t){.ss_sp = memory + page, .ss_size = bytes};
    return 0;
}

static int is_main(void) { return syscall(SYS_gettid) == getpid(); }

void sonde_signal_stack_give(void)
{
    stack_t now;
    if (!is_main() || sonde_had_filter() || sonde_has_later_filter())
        return;
    if (sigaltstack(NULL, &now) < 0 || !(now.ss_flags & SS_DISABLE) || (own.ss_sp == NULL && make() < 0))
        return;
    (void)sigaltstack(&own, NULL);
}

void sonde_signal_stack_take_back(void)
{
    stack_t now, none = {.ss_flags = SS_DISABLE};
    if (own.ss_sp == NULL || !is_main() || sonde_had_filter() || sonde_has_later_filter())
        return;
    if (sigaltstack(NULL, &now) == 0 && now.ss_sp == own.ss_sp && now.ss_flags == 0)
        (void)sigaltstack(&none, NULL);
}
