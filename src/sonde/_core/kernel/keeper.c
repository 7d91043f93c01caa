/* Making keepers: the job's half of keeper.h.
 *
 * wait() without special flags sees only children whose exit signal is SIGCHLD, and the kernel
 * sets that signal again at exec and when a child changes hands. So the keeper is a clone without
 * an exit signal that never execs. It must not share the job's memory either: that would stay in
 * use after the job was killed, and count twice. So the keeper is a real copy, which unmaps
 * everything but its own few pages at once. It costs what a fork costs, and is therefore made
 * early, or not at all where the job is large. */
#define _GNU_SOURCE 1
#include "kernel/keeper_process.h"
#include "format/ordering.h"
#include "kernel/process_stat.h"
#include "kernel/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 32 * 1024 };

static int is_below; /* this process, or one that it was forked from, adopts orphans */

/* The name that the kernel has for a process; empty if it does not give it. */
static void read_name(pid_t pid, char *name, size_t bytes)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t read_n = fd < 0 ? 0 : pread(fd, name, bytes - 1, 0);
    if (fd >= 0)
        close(fd);
    name[read_n < 0 ? 0 : read_n] = 0;
    name[strcspn(name, "\n")] = 0;
}

static int adopts_orphans(void)
{
    int is_subreaper = 0;
    int adopts = getpid() == 1 ||
                 (prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper, 0, 0, 0) == 0 && is_subreaper);
    is_below |= adopts;
    return adopts;
}

int sonde_is_below_adopter(void)
{
    return !adopts_orphans() && is_below;
}

/* Is process 1 a program whose work it is to wait for orphans? */
static int has_init(void)
{
    static const char *const names[] = {"systemd", "init", "tini", "docker-init", "dumb-init", "catatonit",
                                        "s6-svscan", "runit", "supervisord"};
    char name[32];
    read_name(1, name, sizeof name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return 1;
    return 0;
}

/* Would somebody adopt our orphans who does not expect any? A child of such a process asks for
 * itself, and must not give its parent a child either. */
static int wants_keeper(void)
{
    return adopts_orphans() || is_below || (getppid() == 1 && !has_init());
}

static int compare(const void *one, const void *other)
{
    uintptr_t a = ((const sonde_range *)one)->begin, b = ((const sonde_range *)other)->begin;
    return (a > b) - (a < b);
}

static size_t measure(char *const *strings)
{
    size_t bytes = sizeof(char *);
    for (; strings != NULL && *strings != NULL; strings++)
        bytes += sizeof(char *) + strlen(*strings) + 1;
    return bytes + sizeof(char *);
}

/* Copy strings to `*at`, which moves on. Returns NULL if there are none. */
static char **copy(char *const *strings, char **at)
{
    char **made = (char **)*at, *text;
    int n = 0;
    if (strings == NULL || strings[0] == NULL)
        return NULL;
    while (strings[n] != NULL)
        n++;
    text = (char *)(made + n + 1);
    for (int i = 0; i < n; i++) {
        size_t bytes = strlen(strings[i]) + 1;
        made[i] = memcpy(text, strings[i], bytes);
        text += bytes;
    }
    made[n] = NULL;
    *at = (char *)(((uintptr_t)text + sizeof(char *) - 1) & ~(sizeof(char *) - 1));
    return made;
}

static sonde_range align(const void *begin, size_t bytes, uintptr_t page)
{
    uintptr_t from = (uintptr_t)begin;
    return (sonde_range){from & ~(page - 1), (from + bytes + page - 1) & ~(page - 1)};
}

/* Lay the plan, its strings and a stack on pages of their own. Returns NULL without memory. */
static sonde_keeper_plan *lay(const sonde_keeper *keeper, int line, size_t *bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    sonde_range code;
    *bytes = sizeof(sonde_keeper_plan) + measure(keeper->envp) + 2 * STACK_BYTES;
    for (int i = 0; i < SONDE_COMMANDS_N; i++)
        *bytes += measure(keeper->commands[i]);
    *bytes = (*bytes + page - 1) & ~(page - 1);
    if (sonde_find_object((void *)sonde_keeper_main, &code) < 0)
        return NULL;
    sonde_keeper_plan *made = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return NULL;
    char *at = (char *)(made + 1);
    for (int i = 0; i < SONDE_COMMANDS_N; i++)
        made->commands[i] = copy(keeper->commands[i], &at);
    made->envp = copy(keeper->envp, &at);
    if (made->envp == NULL)
        made->envp = (char **)at; /* pages are zero: an empty list */
    made->beats = keeper->beats;
    made->job = getpid();
    made->line = line;
    made->page = page;
    made->kept[0] = align(made, *bytes, page);
    made->kept[1] = align((void *)code.begin, code.end - code.begin, page);
    made->kept[2] = keeper->beats == NULL ? made->kept[0] : align(keeper->beats, 1, page);
    qsort(made->kept, SONDE_RANGES_N, sizeof(sonde_range), compare);
    return made;
}

typedef struct {
    sonde_keeper_plan *plan;
    char *stack;         /* where the keeper's begins */
    volatile int answer; /* its pid, or -errno */
} clone_order;

/* In a clone that shares the job's memory. The kernel writes into the memory of a thread that has
 * restartable sequences, and a copy of that thread has them, too: without that memory it would
 * die. This clone has none, so its copy has none either. CLONE_PARENT makes that copy the job's
 * child, without an exit signal like this clone. */
static int clone_keeper(void *arg)
{
    clone_order *self = arg;
    int pid = clone(sonde_keeper_main, self->stack, CLONE_PARENT, self->plan);
    self->answer = pid < 0 ? -errno : pid;
    _exit(0);
}

/* Returns the pid of a new keeper, or -errno. */
static int make_keeper(const sonde_keeper *keeper, int line)
{
    size_t bytes;
    sigset_t all, before;
    if (sonde_is_large())
        return -E2BIG;
    sonde_keeper_plan *plan = lay(keeper, line, &bytes);
    if (plan == NULL)
        return -ENOMEM;
    char *end = (char *)plan + bytes;
    clone_order order = {.plan = plan, .stack = end - STACK_BYTES};
    sigfillset(&all);
    /* A handler of the job must not run in a clone. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int between = clone(clone_keeper, end, CLONE_VM | CLONE_VFORK, &order);
    int failure = between < 0 ? -errno : 0;
    if (between > 0)
        while (waitpid(between, NULL, __WCLONE) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    munmap(plan, bytes);
    return failure < 0 ? failure : order.answer;
}

static int is_keeper(pid_t pid)
{
    char name[32];
    read_name(pid, name, sizeof name);
    return strcmp(name, SONDE_KEEPER_NAME) == 0;
}

/* Reap keepers that have ended, those of the program that this process was before exec included. */
static void reap_keepers(sonde_keeper *keeper)
{
    siginfo_t ended = {0};
    while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT | __WCLONE) == 0 &&
           ended.si_pid > 0 && is_keeper(ended.si_pid)) {
        if (waitpid(ended.si_pid, NULL, WNOHANG | __WCLONE) == keeper->pid)
            keeper->pid = 0;
        ended.si_pid = 0;
    }
}

/* Returns 0 or -errno. */
static int ensure_keeper(sonde_keeper *keeper)
{
    if (keeper->envp == NULL || keeper->pid > 0)
        return 0;
    if (keeper->beats == NULL) {
        void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return -errno;
        keeper->beats = page;
    }
    sonde_keeper_beat(keeper);
    int pid = make_keeper(keeper, -1);
    keeper->pid = pid < 0 ? 0 : pid;
    return pid < 0 ? pid : 0;
}

int sonde_keeper_prepare(sonde_keeper *keeper)
{
    return adopts_orphans() ? ensure_keeper(keeper) : 0;
}

int sonde_keeper_start(sonde_keeper *keeper, int command)
{
    if (keeper->commands[command] == NULL || keeper->commands[command][0] == NULL)
        return -ENOENT;
    sonde_keeper_beat(keeper);
    int status = wants_keeper() ? ensure_keeper(keeper) : 0;
    /* Where this process is only a child of the one that adopts, an orphan is better than none. */
    if (status < 0 && adopts_orphans())
        return status;
    if (keeper->pid > 0)
        return kill(keeper->pid, command == SONDE_COLLECTOR ? SIGUSR1 : SIGUSR2) < 0 ? -errno : 0;
    return sonde_spawn(keeper->commands[command], keeper->envp, -1, keeper->may_hold);
}

void sonde_keeper_beat(sonde_keeper *keeper)
{
    if (keeper->beats == NULL)
        return;
    sonde_store_relaxed(keeper->beats, sonde_load_relaxed(keeper->beats) + 1);
    reap_keepers(keeper);
}

static void forget(sonde_keeper *keeper)
{
    keeper->pid = 0;
    keeper->beats = NULL;
}

void sonde_keeper_leave(sonde_keeper *keeper)
{
    if (keeper->beats == NULL)
        return;
    reap_keepers(keeper);
    if (keeper->pid > 0)
        kill(keeper->pid, SIGTERM);
    munmap(keeper->beats, (size_t)sysconf(_SC_PAGESIZE));
    forget(keeper);
}

int sonde_keeper_spawn(char *const argv[], char *const envp[], int line)
{
    if (!adopts_orphans())
        return sonde_spawn(argv, envp, line, 0);
    sonde_keeper once = {.commands = {(char **)argv}, .envp = (char **)envp};
    reap_keepers(&once);
    int pid = make_keeper(&once, line);
    return pid < 0 ? pid : 0;
}
