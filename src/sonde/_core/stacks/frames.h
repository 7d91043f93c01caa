/* Stacks of Python threads, read from a thread that has no GIL. */
#ifndef SONDE_FRAMES_H
#define SONDE_FRAMES_H

#include "binding/binding.h"

/* CPython's structures change with every minor version. Where they are not
 * known here, the slow way (sys._current_frames) is the only one. */
#if PY_VERSION_HEX >= 0x030a0000 && PY_VERSION_HEX < 0x03100000
#define SONDE_HAS_FRAMES 1
#else
#define SONDE_HAS_FRAMES 0
#endif

#define SONDE_MAX_DEPTH 512

/* ---- codes: what is known of the code objects that were seen ---------------- */

typedef struct sonde_code {
    uintptr_t address;
    uint32_t id;    /* never used twice */
    uint32_t alive; /* atomic; 0: destroyed, and its address may belong to another by now */
    uint32_t units; /* instructions */
    uint32_t is_generator;
    uint32_t loop_part; /* what it is to an event loop: enum sonde_loop_part */
    uint32_t is_condition; /* threads wait for a condition in it: see lock_object.h */
    uint32_t is_shim; /* one of 3.12's own, between C and Python: never a frame of the program */
    sonde_frame_key key; /* all but the line */
    uint32_t is_narrow; /* `lines` are uint16_t, counted from `low_line` */
    int32_t low_line;
    int32_t lines[];
} sonde_code;

/* The line of an instruction; `unit` is below `units`. */
static inline int32_t sonde_code_line(const sonde_code *code, uint32_t unit)
{
    return code->is_narrow ? code->low_line + ((const uint16_t *)code->lines)[unit] : code->lines[unit];
}

/* The code object at this address, as it was read now or before. NULL if there is no code
 * object there. `*fresh` is set to 1 if it was read now: then nothing vouches for it yet,
 * and the caller drops it (alive = 0) unless it finds the frame still in place.
 * Without `text` only code that is known already is found. Native thread only. */
sonde_code *sonde_codes_get(uintptr_t address, const sonde_intern_handle *text, int *fresh);

/* Forget all if there are many. What sonde_codes_get() returned before is void. Native thread only. */
void sonde_codes_trim(void);

/* Notice every code object that is destroyed from now on. Needs the GIL. */
void sonde_codes_watch(void);

/* Have a function called, too, for every code object that is about to be destroyed. There is one such
 * function; it stays for good. Needs the GIL. */
void sonde_codes_tell(void (*died)(uintptr_t address));

/* Forget all code objects: their texts belong to a table that is gone. No sampler may be running. */
void sonde_codes_clear(void);

/* Forget them in a forked child, where not even their memory may be touched. */
void sonde_codes_forget(void);

/* ---- frames ------------------------------------------------------------------- */

typedef struct {
    sonde_code *code;
    int32_t line;
} sonde_frame;

/* A stack, innermost frame first. */
typedef struct {
    int depth;
    int is_cut; /* the stack had more frames */
    int holds_gil;
    uint32_t tid; /* the thread's id, as its state says now */
    uintptr_t innermost; /* address of the innermost frame */
    int32_t unit;        /* the instruction that it is at; -1: none yet */
    uint64_t turn; /* how often it entered or left a context (contextvars) */
    int ends_n; /* calls of the interpreter's C function, the innermost first; of each, how many frames end with it */
    uint16_t ends[SONDE_MAX_DEPTH];
    sonde_frame frame[SONDE_MAX_DEPTH];
} sonde_stack;

/* What is remembered of a thread from one sample to the next: where to read its stack. */
typedef struct {
    uintptr_t state; /* its PyThreadState */
    uint64_t id;     /* PyThreadState.id, which is unique in its interpreter */
    uintptr_t interpreter;
    uintptr_t cframe;
    uintptr_t window, window_end;
    uint32_t root, next_root; /* code of the outermost frame: the known one, and a candidate */
    /* Addresses of frames outside the data stack; freed by the owner. */
    uintptr_t *outside;
    int outside_n, outside_room;
} sonde_view;

enum sonde_frames_result {
    SONDE_FRAMES_OK = 0,
    SONDE_FRAMES_EMPTY = 1, /* no Python frame */
    SONDE_FRAMES_TORN = 2,  /* it changed while we read it, each time we tried */
    SONDE_FRAMES_GONE = 3,  /* the thread has ended */
};

/* Read the stack of a thread. A strict reading is slower and fails more often; what it returns is
 * true in whatever order stores become visible. */
enum sonde_frames_result sonde_frames_read(sonde_view *view, sonde_stack *stack, const sonde_intern_handle *text,
                                  int is_strict);

/* The same for a thread that is inside of another interpreter: `inner` is what it has there, and its
 * frames come first. `*is_inner` is set to 0 if it runs nothing there (any more). */
enum sonde_frames_result sonde_frames_read_both(sonde_view *view, sonde_view *inner, sonde_stack *stack,
                                                const sonde_intern_handle *text, int is_strict,
                                                int *is_inner);

/* One thread of an interpreter's list. */
typedef struct {
    uintptr_t state, next;
    uint64_t id;
    uint32_t tid; /* the kernel's thread id; 0: not known (yet) */
    int has_frames; /* it runs Python */
} sonde_thread_entry;

/* Return the newest thread of the main interpreter. */
uintptr_t sonde_frames_head(void);

/* Read an entry of this interpreter's list. Returns 0 or -errno. */
int sonde_frames_entry(uintptr_t state, uintptr_t interpreter, sonde_thread_entry *entry);

/* Does this thread's state say that it waits for the GIL? Never before 3.15, where states do not say so. */
int sonde_frames_wants_gil(uintptr_t state);

/* Return the name of what the running interpreter lays out otherwise than the headers that this
 * was compiled with, or NULL: all is as expected, or cannot be compared (before 3.13). */
const char *sonde_layout_mismatch(void);

/* Get ready. Returns 0, or -errno if stacks cannot be read this way here. Needs the GIL. */
int sonde_frames_prepare(void);

#endif
