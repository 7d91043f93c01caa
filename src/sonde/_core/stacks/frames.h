/* Stacks of Python threads, read from a thread that has no GIL. */
#ifndef SONDE_FRAMES_H
#define SONDE_FRAMES_H

#include "binding/binding.h"

/* CPython's structures change with every minor version. Where they are not
 * known here, the slow way (sys._current_frames) is the only one. */
#if PY_VERSION_HEX >= 0x030a0000 && PY_VERSION_HEX < 0x030e0000 && !defined(Py_GIL_DISABLED)
#define SONDE_HAS_FRAMES 1
#else
#define SONDE_HAS_FRAMES 0
#endif

#define SONDE_MAX_DEPTH 512

/* ---- codes: what is known of the code objects that were seen ---------------- */

typedef struct sonde_code {
    struct sonde_code *next; /* among the replaced */
    uintptr_t address;
    uint32_t id;    /* never used twice */
    uint32_t alive; /* atomic; 0: destroyed, its address may be another's by now */
    uint32_t units; /* instructions */
    uint32_t is_generator;
    uint32_t is_shim; /* 3.12's own, between C and Python: never a frame of the program */
    sonde_frame_key key; /* all but the line */
    int32_t lines[];
} sonde_code;

/* The code object at this address, as it was read now or before. NULL if what
 * is there is none. `*fresh` is raised if it was read now: then nobody vouches
 * for it yet, and the caller drops it (alive = 0) unless it finds the frame
 * still in place. Without `text` only what is known already is found.
 * Sampler's thread only. */
sonde_code *sonde_codes_get(uintptr_t address, sonde_intern *text, int *fresh);

/* Hear of every code object that is destroyed, from now on. GIL. */
int sonde_codes_watch(void);

/* Forget all; texts are another table's now. No sampler runs. */
void sonde_codes_clear(void);

/* The same in a forked child, where nothing of it may be touched. */
void sonde_codes_forget(void);

/* ---- frames ------------------------------------------------------------------- */

typedef struct {
    sonde_code *code;
    int32_t line;
} sonde_frame;

/* A stack, innermost frame first. */
typedef struct {
    int depth;
    int is_cut; /* there were more */
    int holds_gil;
    uint32_t tid; /* the thread's, as it says now */
    sonde_frame frame[SONDE_MAX_DEPTH];
} sonde_stack;

/* What is remembered of a thread from one look to the next: where to look. */
typedef struct {
    uintptr_t state; /* its PyThreadState */
    uint64_t id;     /* PyThreadState.id */
    uintptr_t cframe;
    uintptr_t window, window_end;
    uint32_t root, next_root; /* code of the outermost frame: the last one, and maybe the next */
    /* Frames that are not on the data stack; to be freed by the owner. */
    uintptr_t *outside;
    int outside_n, outside_room;
} sonde_view;

enum sonde_look {
    SONDE_LOOK_OK = 0,
    SONDE_LOOK_EMPTY = 1, /* no Python frame */
    SONDE_LOOK_TORN = 2,  /* changed while we looked, each time we tried */
    SONDE_LOOK_GONE = 3,  /* the thread has ended */
};

/* A strict look is slower and fails more often; what it sees is true, whatever the order in
 * which stores become visible. */
enum sonde_look sonde_frames_look(sonde_view *view, sonde_stack *stack, sonde_intern *text,
                                  int is_strict);

/* One thread of the main interpreter's list. */
typedef struct {
    uintptr_t state, next;
    uint64_t id;
    uint32_t tid; /* of the kernel; 0: not known (yet) */
} sonde_thread_entry;

uintptr_t sonde_frames_head(void);
int sonde_frames_entry(uintptr_t state, sonde_thread_entry *entry); /* 0 or -errno */

/* Are there interpreters besides the main one? */
int sonde_frames_has_others(void);

/* 0, or why the fast way does not work here. GIL; before the first look. */
int sonde_frames_prepare(void);

#endif
