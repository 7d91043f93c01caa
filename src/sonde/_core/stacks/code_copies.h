/* Which instruction a frame of another thread is at, also where threads run copies of the instructions. */
#ifndef SONDE_CODE_COPIES_H
#define SONDE_CODE_COPIES_H

#include "stacks/frame_layout.h"

#if SONDE_HAS_FRAMES

#if HAS_CODE_COPIES
/* Return the number of the instruction, INT64_MIN if it cannot be told. `frame` is a copy; `code` is
 * what it runs; `thread` is PyThreadState.id of its thread. Native thread only. */
int64_t sonde_code_copies_unit(const raw_frame *frame, const sonde_code *code, uint64_t thread);
#else
static inline int64_t sonde_code_copies_unit(const raw_frame *frame, const sonde_code *code, uint64_t thread)
{
    (void)code;
    (void)thread;
    return unit_of(frame);
}
#endif

#endif

#endif
