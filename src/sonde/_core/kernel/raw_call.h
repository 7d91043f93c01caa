/* System calls without the C library: no errno, no thread-local memory, no function that may be
 * gone. Returns the kernel's answer, -errno included. */
#ifndef SONDE_RAW_CALL_H
#define SONDE_RAW_CALL_H

#include <sys/syscall.h>

static inline __attribute__((always_inline)) long sonde_raw_call(long number, long a, long b, long c,
                                                                 long d, long e)
{
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return answer;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
                     : "memory");
    return x0;
#else
#error "sonde runs on x86_64 and aarch64"
#endif
}

#endif
