/* A library that takes half a second to load: which function `picked` is must be known before others that use it can be
 * loaded, and whoever decides that is asleep. */
#include <time.h>

static int one(void) { return 1; }

/* No library is there yet that could be called. */
static int (*pick(void))(void)
{
    struct timespec half = {0, 500000000};
#if defined(__x86_64__)
    long number = 35;
    __asm__ volatile("syscall" : "+a"(number) : "D"(&half), "S"(0) : "rcx", "r11", "memory");
#else
    register long number __asm__("x8") = 101, time __asm__("x0") = (long)&half, left __asm__("x1") = 0;
    __asm__ volatile("svc 0" : "+r"(time) : "r"(number), "r"(left) : "memory");
#endif
    return one;
}

int picked(void) __attribute__((ifunc("pick")));
int (*chosen)(void) = picked;
