#include "kernel/crash_line.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const int signals[] = {SIGSEGV, SIGABRT};
enum { SIGNALS_N = sizeof signals / sizeof *signals };

static struct sigaction before[SIGNALS_N];
static char kept[1024];
static size_t kept_bytes; /* 0: the signals are not ours */
static int kept_status;

static void on_crash(int number)
{
    (void)number;
    (void)!write(2, kept, kept_bytes);
    _exit(kept_status);
}

int sonde_crash_line_set(const char *line, size_t bytes, int status)
{
    struct sigaction ours = {.sa_handler = on_crash};
    if (bytes > sizeof kept)
        return -EMSGSIZE;
    for (int i = 0; kept_bytes && i < SIGNALS_N; i++)
        sigaction(signals[i], &before[i], NULL);
    kept_bytes = line == NULL ? 0 : bytes;
    if (kept_bytes == 0)
        return 0;
    memcpy(kept, line, bytes);
    kept_status = status;
    for (int i = 0; i < SIGNALS_N; i++)
        sigaction(signals[i], &ours, &before[i]);
    return 0;
}
