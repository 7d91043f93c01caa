/* The code that is copied into another process.
 *
 * It stands alone: it refers to nothing outside its section (no function, no data, no stack
 * protector), and finds the functions that it calls in its errand. `visit` runs in the thread
 * that was stopped and starts a new thread, which waits for the GIL, runs Python source, and
 * frees its own memory.
 */
#include "attach/ptrace.h"

#include <signal.h>
#include <time.h>

#if defined(__clang__) || (defined(__has_attribute) && __has_attribute(no_stack_protector))
#define ALONE __attribute__((no_stack_protector))
#else
#define ALONE __attribute__((optimize("no-stack-protector")))
#endif
#define VISITOR __attribute__((section("sonde_visitor"), used, noinline)) ALONE

/* Room enough: sizeof(pthread_attr_t) and sizeof(sigset_t) are smaller in every C library. */
enum { ROOM_WORDS = 32, DETACHED = 1, FILE_INPUT = 257 };

#define CALL(errand, number, type) ((type)(errand)->calls[number])

VISITOR sonde_visited sonde_visitor_visit(const sonde_errand *errand)
{
    uint64_t before[ROOM_WORDS], attr[ROOM_WORDS], thread;
    int *error = CALL(errand, SONDE_CALL_ERRNO, int *(*)(void))();
    int kept = *error;
    /* The new thread inherits the mask: signals belong to the program's threads. */
    CALL(errand, SONDE_CALL_SIGMASK, int (*)(int, const void *, void *))
    (SIG_SETMASK, errand->every_signal, before);
    CALL(errand, SONDE_CALL_ATTR_INIT, int (*)(void *))(attr);
    CALL(errand, SONDE_CALL_ATTR_DETACHED, int (*)(void *, int))(attr, DETACHED);
    CALL(errand, SONDE_CALL_ATTR_STACK, int (*)(void *, size_t))(attr, errand->stack_bytes);
    int failure = CALL(errand, SONDE_CALL_CREATE, int (*)(void *, void *, uint64_t, uint64_t))(
        &thread, attr, errand->begin, errand->errand);
    CALL(errand, SONDE_CALL_SIGMASK, int (*)(int, const void *, void *))(SIG_SETMASK, before, NULL);
    *error = kept;
    return (sonde_visited){0, failure};
}

/* Run the source in the new thread. After the deadline nobody waits for us any more. */
VISITOR void sonde_visitor_work(const sonde_errand *errand)
{
    struct timespec now;
    if (!CALL(errand, SONDE_CALL_IS_READY, int (*)(void))())
        return;
    int gil = CALL(errand, SONDE_CALL_ENSURE, int (*)(void))();
    CALL(errand, SONDE_CALL_CLOCK, int (*)(int, void *))(CLOCK_MONOTONIC, &now);
    if (now.tv_sec * INT64_C(1000000000) + now.tv_nsec < errand->deadline_ns) {
        /* The source has a namespace of its own: the program's names are not touched. */
        void *names = CALL(errand, SONDE_CALL_DICT, void *(*)(void))(), *result = NULL;
        if (names != NULL)
            result = CALL(errand, SONDE_CALL_RUN, void *(*)(uint64_t, int, void *, void *, void *))(
                errand->source, FILE_INPUT, names, names, NULL);
        if (result == NULL)
            CALL(errand, SONDE_CALL_CLEAR, void (*)(void))();
        else
            CALL(errand, SONDE_CALL_DECREF, void (*)(void *))(result);
        if (names != NULL)
            CALL(errand, SONDE_CALL_DECREF, void (*)(void *))(names);
    }
    CALL(errand, SONDE_CALL_RELEASE, void (*)(int))(gil);
}

/* The thread's function: work, then munmap(page, bytes). There is no code of ours left to return
 * to, so it jumps to munmap, which returns to the C library. */
#if defined(__x86_64__)
__asm__(".pushsection sonde_visitor,\"ax\",@progbits\n"
        ".hidden sonde_visitor_begin\n"
        ".globl sonde_visitor_begin\n"
        ".type sonde_visitor_begin,@function\n"
        "sonde_visitor_begin:\n"
        "    push %rbx\n"
        "    mov %rdi, %rbx\n"
        "    call sonde_visitor_work\n"
        "    mov (%rbx), %rdi\n"
        "    mov 8(%rbx), %rsi\n"
        "    mov 16(%rbx), %rax\n"
        "    pop %rbx\n"
        "    jmp *%rax\n"
        ".popsection\n");
#else
__asm__(".pushsection sonde_visitor,\"ax\",@progbits\n"
        ".hidden sonde_visitor_begin\n"
        ".globl sonde_visitor_begin\n"
        ".type sonde_visitor_begin,@function\n"
        ".balign 4\n"
        "sonde_visitor_begin:\n"
        "    stp x29, x30, [sp, -32]!\n"
        "    str x19, [sp, 16]\n"
        "    mov x29, sp\n"
        "    mov x19, x0\n"
        "    bl sonde_visitor_work\n"
        "    ldp x0, x1, [x19]\n"
        "    ldr x16, [x19, 16]\n"
        "    ldr x19, [sp, 16]\n"
        "    ldp x29, x30, [sp], 32\n"
        "    br x16\n"
        ".popsection\n");
#endif
