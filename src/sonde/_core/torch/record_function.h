/* at::RecordFunction: how torch tells others of its operators, nodes and ranges.
 *
 * An observer is a C++ value. The core is compiled without torch's headers, so the value is laid
 * out by hand here; job/torch/seams.py has compared the installed ones. */
#ifndef SONDE_RECORD_FUNCTION_H
#define SONDE_RECORD_FUNCTION_H

#include <stddef.h>
#include <stdint.h>

#define SONDE_ADD_OBSERVER "_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE"
#define SONDE_REMOVE_OBSERVER "_ZN2at14removeCallbackEm"
#define SONDE_OBSERVED_NAME "_ZNK2at14RecordFunction4nameEv"

/* at::RecordScope */
enum {
    SONDE_SCOPE_FUNCTION = 0,
    SONDE_SCOPE_BACKWARD = 1,
    SONDE_SCOPE_SCRIPT = 2,
    SONDE_SCOPE_USER = 7,
    SONDE_SCOPES = 10,
};

/* at::RecordFunctionCallback, passed by value: it has more than 16 bytes and needs no copy
 * constructor, so both machines pass it like this struct. */
typedef struct {
    void *start, *end;
    double probability;
    uint8_t scopes_and_needs[24]; /* a flag for each scope; then needs_inputs and others */
} sonde_observer;

/* Define `name`, the start callback of an observer, which calls `begins(function)`. It returns a
 * std::unique_ptr, which a C++ function writes to where its caller says; ours is empty. `begins`
 * must be a hidden function that is not static. */
#if defined(__x86_64__)
#define SONDE_START_CALLBACK(name, begins)               \
    static void *name(void **result, const void *function) \
    {                                                    \
        *result = NULL;                                  \
        begins(function);                                \
        return result;                                   \
    }
#elif defined(__aarch64__)
/* x8 holds that address. */
#define SONDE_START_CALLBACK(name, begins)                          \
    __attribute__((visibility("hidden"))) extern char name[];       \
    __asm__(".pushsection .text\n"                                  \
            ".hidden " #name "\n"                                   \
            ".globl " #name "\n"                                    \
            ".type " #name ",@function\n"                           \
            ".balign 4\n" #name ":\n"                               \
            "    hint #34\n"                                        \
            "    str xzr, [x8]\n"                                   \
            "    b " #begins "\n"                                   \
            ".popsection\n");
#endif

#endif
