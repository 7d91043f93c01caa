/* A child that shares our memory reads a page that its file does not have. */
#define _GNU_SOURCE 1
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_fault(int number)
{
    (void)!write(1, "own\n", 4);
    (void)signal(number, SIG_DFL);
}

void sonde_test_handle(void) { (void)signal(SIGBUS, on_fault); }

/* Map a file without content; reading it raises SIGBUS. */
volatile char *sonde_test_map(void)
{
    FILE *file = tmpfile();
    void *mem = file == NULL ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(file), 0);
    return mem == MAP_FAILED ? NULL : mem;
}

/* Return the status with which a child by vfork() ends that does so. */
int sonde_test_fault_in_child(volatile char *page)
{
    int status = -1;
    pid_t child = vfork();
    if (child == 0)
        _exit(page[0] + 1);
    waitpid(child, &status, 0);
    return status;
}
